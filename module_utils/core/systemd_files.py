# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of systemd in the order in which they count: a unit with its drop-ins, a configuration with its own.

Of two files with one name that of the first folder hides the other; of two settings the one in the later name counts.
Sources: systemd.unit(5), systemd-system.conf(5).
"""

from __future__ import annotations

from typing import Dict, Sequence

from .host import Host

UNITS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_CONFIGURATION = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")


def unit_files(host: Host, name: str) -> Dict[str, str]:
    """Path -> text. Raises ReadError."""
    paths = ["%s/%s" % (folder, name) for folder in UNITS]
    # Drop-ins of all services, and those of this one, which hide them.
    kinds = ("%s.d" % name, "%s.d" % name.rpartition(".")[2])
    return _files(host, paths, ["%s/%s" % (folder, kind) for kind in kinds for folder in UNITS])


def configuration(host: Host, name: str) -> Dict[str, str]:
    """Path -> text, of ``system.conf`` or ``user.conf``. Raises ReadError."""
    paths = ["%s/%s" % (folder, name) for folder in _CONFIGURATION]
    return _files(host, paths, ["%s/%s.d" % (folder, name) for folder in _CONFIGURATION])


def _files(host: Host, paths: Sequence[str], folders: Sequence[str]) -> Dict[str, str]:
    dropins: Dict[str, str] = {}
    for folder in folders:
        for entry in host.listdir_system(folder):
            if entry.endswith(".conf"):
                dropins.setdefault(entry, "%s/%s" % (folder, entry))
    found: Dict[str, str] = {}
    for path in paths:
        text = host.read_system(path)
        if text is not None:
            found[path] = text
            break
    for _entry, path in sorted(dropins.items()):
        found[path] = host.read_system(path) or ""
    return found
