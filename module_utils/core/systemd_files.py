# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read files of systemd in the order in which they count: units and configurations with their drop-ins.

Of two files with one name that of the first folder hides the other; of two settings the one in the later name counts.
Sources: systemd.unit(5), systemd-system.conf(5).
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from .host import Host

UNITS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_CONFIGURATION = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
_WANTS = (*UNITS, "/run/systemd/generator", "/run/systemd/generator.late")


class Unit(NamedTuple):
    """Describe a unit of systemd.

    path: its file, "" where there is none. masked: it is empty. parts: (path, text) of it and of its drop-ins.
    """

    name: str
    path: str
    masked: bool
    parts: Tuple[Tuple[str, str], ...]


def read(host: Host, name: str) -> Unit:
    """Read a unit.   name: also of an instance, as ``a@b.service``. Raises ReadError."""
    stem, _dot, kind = name.rpartition(".")
    names = [name, "%s@.%s" % (stem.partition("@")[0], kind)] if "@" in stem else [name]
    path, text = _first(host, ["%s/%s" % (folder, each) for each in names for folder in UNITS])
    words = stem.partition("@")[0].split("-")
    prefixes = ["%s-.%s" % ("-".join(words[:end]), kind) for end in range(len(words) - 1, 0, -1)]
    folders = ["%s/%s.d" % (folder, one) for one in (*names, *prefixes, kind) for folder in UNITS]
    return Unit(name, path, bool(path) and not text.strip(), ((path, text), *_dropins(host, folders).items()))


def mask_of(host: Host, unit: str) -> str:
    """Return the path of the empty file, or link to /dev/null, that masks a unit; "" for none. Raises ReadError."""
    path, text = _first(host, ["%s/%s" % (folder, unit) for folder in UNITS])
    return "" if text else path


def start(unit: str, mask: str) -> str:
    """Return the fix that starts a unit for good; for a masked one, ask its owner first.   mask: as of mask_of."""
    command = "systemctl enable --now %s" % unit
    if not mask:
        return command
    unmask = "systemctl unmask %s%s" % ("--runtime " if mask.startswith("/run/") else "", unit)
    return "find out why %s is masked (%s); if it has to run, %s, then %s" % (unit, mask, unmask, command)


def unit_files(host: Host, name: str) -> Dict[str, str]:
    """Return path -> text; {} for a masked unit, which nothing starts. Raises ReadError."""
    unit = read(host, name)
    return {} if unit.masked else {path: text for path, text in unit.parts if path}


def instances(host: Host, template: str) -> List[str]:
    """Return instances (``user@1000.service``) of a template that have a unit file or drop-ins. Raises ReadError."""
    stem, _at, kind = template.partition("@")
    there = [name for folder in UNITS for name in host.listdir_system(folder) if name.startswith(stem + "@")]
    names = {name[: -len(".d")] if name.endswith(".d") else name for name in there}
    return sorted(name for name in names if name.endswith(kind) and name != template)


def configuration(host: Host, name: str) -> Dict[str, str]:
    """Return path -> text of ``system.conf`` or ``user.conf``. Raises ReadError."""
    path, text = _first(host, ["%s/%s" % (folder, name) for folder in _CONFIGURATION])
    return {**({path: text} if path else {}), **_dropins(host, ["%s/%s.d" % (one, name) for one in _CONFIGURATION])}


def by_name(host: Host, folders: Sequence[str], suffix: str) -> List[Tuple[str, str]]:
    """Return sorted names with ``suffix``, each with the path in the first folder that has it. Raises ReadError.

    All ``*.d`` folders work so, also those of netplan, NetworkManager and sysctl. Hidden files do not count.
    """
    found: Dict[str, str] = {}
    for folder in folders:
        for name in host.listdir_system(folder):
            if name.endswith(suffix) and not name.startswith("."):
                found.setdefault(name, "%s/%s" % (folder, name))
    return sorted(found.items())


def wanted_at_boot(host: Host, unit: str) -> bool:
    """Return whether a unit of the boot wants this one, and it is not masked. Raises ReadError."""
    return not mask_of(host, unit) and wanted(host, unit)


def wanted(host: Host, name: str) -> bool:
    """Return whether a unit of the boot wants this one, or its socket or timer. Raises ReadError."""
    stem = name.rpartition(".")[0]
    starts = ["%s.%s" % (stem, kind) for kind in ("service", "socket", "timer", "path")]
    targets = ["%s/%s" % (folder, target) for folder in _WANTS for target in host.listdir_system(folder)]
    places = [target for target in targets if target.endswith((".wants", ".requires"))]
    return any(set(starts).intersection(host.listdir_system(place)) for place in places)


def _first(host: Host, paths: Sequence[str]) -> Tuple[str, str]:
    return next(((one, text) for one in paths for text in [host.read_system(one)] if text is not None), ("", ""))


def _dropins(host: Host, folders: Sequence[str]) -> Dict[str, str]:
    return {path: host.read_system(path) or "" for _name, path in by_name(host, folders, ".conf")}
