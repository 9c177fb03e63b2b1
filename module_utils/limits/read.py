# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read limits of logins, services and daemons, and the size of /dev/shm.

A login takes its limits from pam_limits, a service from its unit or else from systemd's defaults when it is started.
Jobs inherit the present limits of the daemon that starts them; its unit has the future ones. Sources: limits.conf(5),
pam_limits of Linux-PAM 1.5, systemd.exec(5), systemd-system.conf(5), proc_pid_limits(5), tmpfs(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..core import mounts, systemd_files
from ..core.host import Host, ParseError, Problem, ReadError, noted
from . import pam
from .container_runtimes import processes

LOGIN_FILE = "/etc/security/limits.d/99-busbar.conf"
SERVICE_FILE = "/etc/systemd/system.conf.d/99-busbar.conf"
_LOGIN_MAIN, _LOGIN_FOLDER = "/etc/security/limits.conf", "/etc/security/limits.d"
# A job inherits the limits of the daemon that starts it.
DAEMONS = ("slurmd", "containerd", "dockerd", "kubelet")
# Units whose own limits count before systemd's defaults: their jobs, sessions and services inherit them. That of
# containerd is container_limits's.
UNITS = {"slurmd": "slurmd.service", "dockerd": "docker.service", "kubelet": "kubelet.service", "": "user@.service"}
USER_CONF = "user.conf"
MEMINFO = "/proc/meminfo"
# Of pam_limits: which limits a line sets, and what it takes for no limit.
_KINDS = {"-": ("soft", "hard"), "soft": ("soft",), "hard": ("hard",)}
_UNLIMITED = ("unlimited", "infinity", "-1", "-")


@dataclass(frozen=True)
class LimitsState:
    """login, service: files in the order in which they count, path -> text; the last one wins.
    daemons: name -> memlock and nofile of each process of that name, as /proc shows them.
    unread: name -> why the limits of one of them are not known. problems: of /dev/shm.
    shm: bytes, None where there is no /dev/shm. planned_shm: bytes by fstab, None where that names none.
    """

    login: Tuple[Tuple[str, str], ...]
    service: Tuple[Tuple[str, str], ...]
    daemons: Mapping[str, Tuple[Mapping[str, str], ...]]
    shm: Optional[int]
    planned_shm: Optional[int] = None
    problems: Tuple[Problem, ...] = ()
    unread: Mapping[str, Problem] = field(default_factory=dict)
    # By unit, of those that are there, and user.conf: files in the order in which they count, path -> text.
    units: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By service that has a PAM stack: arguments of its pam_limits, None without.
    sessions: Mapping[str, Optional[str]] = field(default_factory=dict)


def parse_login(text: str) -> Dict[Tuple[str, str, str], str]:
    """(domain, "soft" or "hard", item) -> value. Lines that pam_limits would not take are passed over, as it does."""
    found = {}
    for line in text.splitlines():
        domain, kind, item, value = (*line.partition("#")[0].split(), "", "", "", "")[:4]
        # Of a number the digits count, whatever follows.
        value = "unlimited" if value.lower() in _UNLIMITED else re.sub(r"(?<=[0-9])[^0-9].*", "", value)
        for each in _KINDS.get(kind.lower(), ()) if value else ():
            found[(domain, each, item.lower())] = value
    return found


def parse_proc_limits(text: str) -> Dict[str, str]:
    """Soft limits (locked memory in bytes, open files) of /proc/PID/limits. Raises ParseError."""
    found = dict(re.findall(r"^Max (locked memory|open files) +(unlimited|[0-9]+) ", text, re.MULTILINE))
    if len(found) != 2:
        raise ParseError("no line 'Max locked memory' or 'Max open files' in it")
    return {"memlock": found["locked memory"], "nofile": found["open files"]}


def size_of_shm(mounted: Iterable[mounts.Mount], meminfo: str) -> Optional[int]:
    """Return the bytes that /dev/shm may hold; None where nothing is mounted there. Raises ParseError."""
    size = None
    for mount in mounted:
        if mount.folder.rstrip("/") == "/dev/shm":
            given = [option[5:] for option in mount.options if option.startswith("size=")]
            # A tmpfs without a size takes half of the memory.
            size = _bytes(given[-1] if given else "50%", meminfo)
    return size


def _bytes(text: str, meminfo: str) -> int:
    match = re.fullmatch(r"([0-9]+)([kmgtpe%]?)", text.lower())
    memory = re.search(r"^MemTotal: +([0-9]+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise ParseError("size=%s of /dev/shm is not a size" % text[:20])
    if match.group(2) != "%":
        return int(match.group(1)) << 10 * " kmgtpe".index(match.group(2) or " ")
    if memory is None:
        raise ParseError("%s: no line MemTotal in it" % MEMINFO)
    return int(memory.group(1)) * 1024 * int(match.group(1)) // 100


def read(host: Host) -> LimitsState:
    """Raises ReadError where the settings cannot be read."""
    problems: List[Problem] = []
    shm = planned = None
    with noted(mounts.PATH, problems):
        mounted, meminfo = host.read(mounts.PATH), host.read(MEMINFO)
        if mounted is None:
            problems.append(Problem(mounts.PATH, "is not there"))
        else:
            shm = size_of_shm(mounts.parse(mounted), meminfo or "")
            planned = size_of_shm(mounts.parse_fstab(host.read_system(mounts.FSTAB) or ""), meminfo or "")
    daemons, unread = _daemons(host)
    paths = [_LOGIN_MAIN, *(path for _name, path in systemd_files.by_name(host, [_LOGIN_FOLDER], ".conf"))]
    logins = [(path, host.read_system(path)) for path in paths]
    return LimitsState(
        login=tuple((path, text) for path, text in logins if text is not None),
        service=tuple(systemd_files.configuration(host, "system.conf").items()),
        daemons=daemons,
        shm=shm,
        planned_shm=planned,
        problems=tuple(problems),
        unread=unread,
        units={
            USER_CONF: systemd_files.configuration(host, USER_CONF),
            **{unit: _unit_files(host, unit) for unit in (*UNITS.values(), *systemd_files.instances(host, UNITS[""]))},
        },
        sessions=pam.read(host),
    )


def _unit_files(host: Host, unit: str) -> Dict[str, str]:
    """None where only drop-ins for all services are there: it is not installed."""
    found = systemd_files.unit_files(host, unit)
    return found if any("/%s" % unit in path for path in found) else {}


def _daemons(host: Host) -> Tuple[Dict[str, Tuple[Dict[str, str], ...]], Dict[str, Problem]]:
    """Limits of the processes by name, and why those of one are not known."""
    found: Dict[str, Tuple[Dict[str, str], ...]] = {}
    unread: Dict[str, Problem] = {}
    for pid, name in processes(host, DAEMONS):
        path = "/proc/%s/limits" % pid
        try:
            text = host.read(path)
            found[name] = (*found.get(name, ()), *([parse_proc_limits(text)] if text is not None else []))
        except ParseError as error:
            unread[name] = Problem(path, str(error))
        except ReadError:
            continue  # it has ended meanwhile
    return {name: limits for name, limits in found.items() if limits}, unread
