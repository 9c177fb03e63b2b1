# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read which kernels a node could boot, and which boots next. Sources: uname(2); grub-mkconfig; grubby(8)."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, ToolMissing, attempt, noted
from ..machine.pci import parse_text, read_value

RELEASE = "/proc/sys/kernel/osrelease"
MODULES = "/lib/modules"
GRUB_DEFAULT = "/etc/default/grub"
GRUB_CFG = "/boot/grub/grub.cfg"
_GRUBBY = ("grubby", "--default-kernel")


class Kernels(NamedTuple):
    """Releases, as uname -r prints them.

    running: None where it could not be read.   installed: those that could be booted.
    default: the one that boots next, None where not known.   headers: those that a module can be built for.
    """

    running: Optional[str] = None
    installed: Tuple[str, ...] = ()
    default: Optional[str] = None
    headers: Tuple[str, ...] = ()


def parse_release(text: str) -> Tuple[int, int]:
    """Return (6, 8) of ``6.8.0-60-generic``. Raises ParseError."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})(?![0-9])", text)
    if match is None:
        raise ParseError("%r is not a kernel release such as 6.8.0-60-generic" % text[:80])
    return int(match.group(1)), int(match.group(2))


def boot_default(default_grub: str, grub_cfg: str) -> Optional[str]:
    """Return the kernel of GRUB's first entry; None if another one may be booted.

    default_grub, grub_cfg: texts of GRUB_DEFAULT and GRUB_CFG, "" for an absent file.
    """
    values = re.findall(r"^\s*GRUB_DEFAULT=(.*)$", default_grub, re.MULTILINE)
    if values and values[-1].strip().strip("\"'") != "0":
        return None
    match = re.search(r"^\s*linux(?:efi|16)?\s+\S*/vmlinuz-(\S+)", grub_cfg, re.MULTILINE)
    return match.group(1) if match else None


def read_running(host: Host, problems: List[Problem]) -> Optional[str]:
    """Return the release of the running kernel; None plus a Problem if /proc does not have it."""
    before = len(problems)
    release = read_value(host, RELEASE, parse_text, problems)
    if release is None and len(problems) == before:
        problems.append(Problem(RELEASE, "is not there"))
    return release


def read(host: Host, problems: List[Problem]) -> Kernels:
    running = read_running(host, problems)
    installed: List[str] = []
    headers: List[str] = []
    with noted(MODULES, problems):
        for release in host.listdir_system(MODULES):
            folder = "%s/%s" % (MODULES, release)
            # A removed kernel leaves what DKMS has built for it.
            images = ("/boot/vmlinuz-%s" % release, "%s/vmlinuz" % folder)
            if release == running or any(host.mode_system(path) is not None for path in images):
                installed.append(release)
                headers += [release] if host.listdir_system(folder + "/build") else []
    default = attempt(lambda: _default(host, installed), " ".join(_GRUBBY), problems)
    return Kernels(running, tuple(installed), default, tuple(headers))


def _default(host: Host, installed: Sequence[str]) -> Optional[str]:
    """Return the installed kernel that grubby or GRUB's files name as the default. Raises ReadError."""
    try:
        found: Optional[str] = host.run(_GRUBBY).stdout.strip().rpartition("vmlinuz-")[2]
    except ToolMissing:
        found = boot_default(host.read_system(GRUB_DEFAULT) or "", host.read_system(GRUB_CFG) or "")
    return found if found in installed else None
