# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which variables of a cloud image's nccl.conf stay, and whether a unit rewrites it at every boot.

The maker of the image knows its machines better than the site. So, on a machine of a recognised cloud, variables stay
that neither profile nor site declares and that the linter accepts. Elsewhere a variable that the inventory does not
declare is an administrator's edit, and is removed.
Source: Azure/azhpc-images components/customizations/ndv5.sh and setup_sku_customizations.sh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core.finding import Finding
from ..core.host import Host, ReadError
from ..core.systemd_files import unit_files, wanted_at_boot
from . import grammar
from . import lint as nccl_lint
from .checks import OWNER
from .library import Library
from .version import Version

# Comment above each retained variable, so that the next run distinguishes it from an edit.
MARK = "Retained from the nccl.conf of the image"
# Services of images that write /etc/nccl.conf at each boot, and empty it when they stop.
WRITERS = ("sku-customizations.service",)


@dataclass(frozen=True)
class Image:
    """cloud: whose image, "" where none is known.   kept: name -> value.   dropped: name -> why it does not stay."""

    cloud: str = ""
    kept: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return "%s (%s). Declare it in nccl_conf_extra, and every node is held to it." % (MARK, self.cloud)


def read(
    text: Optional[str],
    cloud: str,
    libraries: Sequence[Library] = (),
    version: Optional[Version] = None,
    hcas: Sequence[str] = (),
) -> Image:
    """Return the variables of the present nccl.conf."""
    if not text or not cloud:
        return Image(cloud)
    kept: Dict[str, str] = {}
    dropped: Dict[str, str] = {}
    for name, value in _settings(text).items():
        said = nccl_lint.lint_variable(name, value, "nccl.conf", libraries, version, hcas, place="file")
        if not value.isprintable() or not value or not name.isprintable():
            dropped[ascii(name)[1:-1]] = "its value is not a line of text"
        elif said:
            dropped[name] = said[0].why
        else:
            kept[name] = value
    return Image(cloud, kept, dropped)


def _settings(text: str) -> Dict[str, str]:
    """Return name -> value: all of the image's file; of a file of the suite, those below MARK."""
    return marked(text, MARK) if written.HEAD in text else grammar.settings(grammar.parse(text))


def marked(text: str, mark: str) -> Dict[str, str]:
    """Name -> value of the variables below a comment that begins with ``mark``."""
    found: Dict[str, str] = {}
    marked = False
    for line in grammar.parse(text):
        if line.raw.startswith("# " + mark):
            marked = True
        elif line.name is not None and line.value is not None:
            if marked:
                found.setdefault(line.name, line.value)
            marked = False
    return found


def judge_owner(host: Host, path: str, cloud: str) -> Tuple[Finding, ...]:
    """Judge who writes the file that NCCL reads on a cloud's machine."""
    if not cloud or path != "/etc/nccl.conf":
        return ()
    want, source = "nothing", ", ".join(WRITERS)
    for unit in WRITERS:
        try:
            if unit_files(host, unit) and wanted_at_boot(host, unit):
                return (OWNER.judge(path, "not_owned", want, "%s (%s)" % (unit, cloud), source, OWNER.fix % unit),)
        except ReadError as error:
            return (OWNER.judge(path, "unknown", want, str(error), source, "look at systemctl status %s" % unit),)
    return (OWNER.judge(path, "ok", want, want, source),)


def notes(image: Image, extra: Mapping[str, str], written: Mapping[str, str]) -> List[str]:
    """extra: what the site declares.   written: all that nccl.conf is to hold."""
    pairs = [pair for pair in sorted(image.kept.items()) if written.get(pair[0]) == pair[1] and pair[0] not in extra]
    stays = "nccl.conf retains these lines of the image (%s): %s; declare them in nccl_conf_extra"
    goes = "nccl.conf does not keep %s, which the image (%s) sets: %s"
    found = [stays % (image.cloud, ", ".join("%s=%s" % pair for pair in pairs))] if pairs else []
    dropped = [(name[:80], image.cloud, why) for name, why in sorted(image.dropped.items()) if name not in written]
    return found + [goes % each for each in dropped]
