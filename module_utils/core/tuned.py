# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what tuned's active profile sets, and in which file.

Sources: tuned-main.conf(5), tuned-profiles(7), tuned.conf(5), plugin bootloader (tuned 2.20).
"""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from . import effective_unit, ini
from .host import Host

ACTIVE = "/etc/tuned/active_profile"
FOLDER = "/etc/tuned"
_FOLDERS = ("/etc/tuned/profiles", FOLDER, "/usr/lib/tuned/profiles", "/usr/lib/tuned")


def settings(host: Host, section: str) -> Dict[str, Tuple[str, str]]:
    """Return key -> (value, file) of one section: a profile overrides those that it includes. Raises ReadError.

    {} if tuned is not installed, or does not start at boot.
    """
    found: Dict[str, Tuple[str, str]] = {}
    used = host.has("tuned-adm") and not effective_unit.idle(host, "tuned.service")
    names = (host.read_system(ACTIVE) or "").split() if used else []
    read: List[str] = []
    while names:
        name = names.pop()
        paths = ["%s/%s/tuned.conf" % (folder, name) for folder in _FOLDERS if re.fullmatch(r"\w[\w.-]*", name)]
        path, text = next(((path, text) for path in paths for text in [host.read_system(path)] if text), ("", ""))
        if path not in read:
            read.append(path)
            for line in ini.settings(text, continued=False):
                if (line.section, line.key) == ("main", "include"):
                    names += re.split(r"[\s,;]+", line.value)
                elif line.section == section:
                    found.setdefault(line.key, (line.value, path))
    return found


def reapplies_sysctl(host: Host) -> bool:
    """Return whether tuned applies the administrator's sysctl files after its own (default). Raises ReadError."""
    text = host.read_system("/etc/tuned/tuned-main.conf") or ""
    values = [one.value.lower() for one in ini.settings(text, continued=False) if one.key == "reapply_sysctl"]
    return values[-1:] not in (["0"], ["false"], ["no"], ["off"])


def kernel_arguments(host: Host) -> Tuple[Tuple[str, str], ...]:
    """Return (file, arguments) of section ``bootloader``: what tuned makes GRUB add to the line. Raises ReadError.

    Arguments with tuned's variables are left out.
    """
    found: Dict[str, List[str]] = {}
    for key, (value, path) in sorted(settings(host, "bootloader").items()):
        words = value.lstrip("+-").strip("\"'").split()
        if key.startswith("cmdline") and value.startswith("-"):
            found = {path: [word for word in present if word not in words] for path, present in found.items()}
        elif key.startswith("cmdline"):
            found.setdefault(path, []).extend(word for word in words if "$" not in word)
    return tuple((path, " ".join(words)) for path, words in found.items() if words)
