# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tuned's active profile sets, and in which file.

Sources: tuned-profiles(7), tuned.conf(5), plugin bootloader (tuned 2.24).
"""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from .core.host import Host
from .owner import ini

ACTIVE = "/etc/tuned/active_profile"
FOLDER = "/etc/tuned"
_FOLDERS = ("/etc/tuned/profiles", FOLDER, "/usr/lib/tuned/profiles", "/usr/lib/tuned")


def settings(host: Host, section: str) -> Dict[str, Tuple[str, str]]:
    """Return key -> (value, file) of one section: a profile overrides those that it includes. Raises ReadError."""
    found: Dict[str, Tuple[str, str]] = {}
    if host.has("tuned-adm"):
        for name in (host.read_system(ACTIVE) or "").split():
            _include(host, name, section, found, [])
    return found


def _include(host: Host, name: str, section: str, found: Dict[str, Tuple[str, str]], above: List[str]) -> None:
    if name in above or re.fullmatch(r"\w[\w.-]*", name) is None:
        return
    for path in ("%s/%s/tuned.conf" % (folder, name) for folder in _FOLDERS):
        text = host.read_system(path)
        if text is not None:
            lines = ini.settings(text, continued=False)
            for line in lines:
                if (line.section, line.key) == ("main", "include"):
                    for included in re.split(r"[\s,;]+", line.value):
                        _include(host, included, section, found, [*above, name])
            found.update({line.key: (line.value, path) for line in lines if line.section == section})
            return


def kernel_arguments(host: Host) -> Tuple[Tuple[str, str], ...]:
    """Return (file, arguments) of section ``bootloader``: what tuned makes GRUB add to the line. Raises ReadError.

    Arguments with variables of tuned's own are left out.
    """
    found: Dict[str, List[str]] = {}
    for key, (value, path) in sorted(settings(host, "bootloader").items()):
        if key.startswith("cmdline"):
            operator, words = value[:1], value.lstrip("+-").strip("\"'").split()
            if operator == "-":
                found = {path: [word for word in present if word not in words] for path, present in found.items()}
            else:
                found.setdefault(path, []).extend(word for word in words if "$" not in word)
    return tuple((path, " ".join(words)) for path, words in found.items() if words)
