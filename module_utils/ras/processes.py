# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find processes that have libnccl mapped, their users, and the ports of their RAS. Reads /proc only.

Only two variables are read from a process's environment, which holds secrets.
Sources: proc(5): PID/maps, PID/status, PID/environ, PID/fd, net/tcp; NCCL 2.30.7, src/ras/client_support.cc
(NCCL_RAS_ADDR, localhost:28028), docs/userguide env.rst.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple

from ..core.host import Host, ParseError, Problem, attempt
from ..core.number import whole
from ..nccl_conf import grammar

PORT = 28028
ADDRESS, ENABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
_LISTEN = "0A"
# proc(5) has hundreds of bytes for each mapping; a process has 65,530 of them at most (vm.max_map_count).
_MAPS_BLOCKS = 256
_ENVIRONMENT_LIMIT = 4 << 20
_LIBRARY = re.compile(rb"(/[^\n]*/libnccl\.so[.0-9]*)(?: \(deleted\))?\n")
_ROW = re.compile(
    r"\s*\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) \S+ ([0-9A-F]{2}) \S+ \S+ \S+\s+\d+\s+\d+ (\d+)\b.*"
)
_STATUS = re.compile(r"(\w+):\s*(.*)")
_PORT = re.compile(r":([0-9]{1,5})$")
_GPU = re.compile(r"/dev/nvidia\d+")


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens. inode: the socket's; processes that share a port have several sockets."""

    address: str
    port: int
    inode: int


@dataclass(frozen=True)
class Process:
    """inner: its pid in its container, which NCCL reports.   state: letter of proc(5), T for stopped.

    library: the libnccl that it has mapped.   ras: where its RAS can be reached; it may share that with its children.
    port: where it would listen.   apart: it has its own network (container), where no other process can connect.
    disabled: NCCL_RAS_ENABLE=0 is in its environment.   gpu: it has one open.
    """

    pid: int
    inner: int
    parent: int
    user: str
    state: str
    library: str
    ras: Tuple[Listener, ...]
    port: int
    apart: bool
    gpu: bool
    disabled: bool = False


def parse_tcp(text: str) -> List[Listener]:
    """The listening sockets of /proc/net/tcp or tcp6. Raises ParseError."""
    lines = text.splitlines()
    if not lines or "local_address" not in lines[0]:
        raise ParseError("%r is not the heading of /proc/net/tcp" % text[:80])
    found = []
    for line in lines[1:]:
        match = _ROW.fullmatch(line)
        if match is None:
            raise ParseError("%r is not a line of /proc/net/tcp" % line[:80])
        if match.group(3) == _LISTEN:
            found.append(Listener(_address(match.group(1)), int(match.group(2), 16), int(match.group(4))))
    return found


def _address(word: str) -> str:
    """Words of 32 bits, each in the order of the CPU, which is little-endian wherever there is CUDA."""
    data = b"".join(bytes.fromhex(word[at : at + 8])[::-1] for at in range(0, len(word), 8))
    return str(ip_address(data))


def parse_users(text: str) -> Dict[int, str]:
    """UID -> name, of passwd(5)."""
    rows = [line.split(":") for line in text.splitlines()]
    ids = [(whole(row[2]), row[0]) for row in reversed(rows) if len(row) > 6]
    return {uid: name for uid, name in ids if uid is not None}


def parse_status(text: str) -> Dict[str, str]:
    """Parse /proc/PID/status."""
    return {match.group(1): match.group(2) for match in map(_STATUS.fullmatch, text.splitlines()) if match}


def ras_port(address: Optional[str]) -> int:
    """Return the port in a value of NCCL_RAS_ADDR; PORT if there is none, or it is invalid."""
    port = _PORT.search(address or "")
    return int(port.group(1)) if port and 0 < int(port.group(1)) < 65536 else PORT


def read(host: Host, pids: Optional[Collection[int]] = None) -> Tuple[List[Process], List[Problem]]:
    """Return the processes with libnccl mapped, and what could not be read. No other process is ever contacted.

    pids: only these, None: all.
    """
    reader = _Reader(host)
    return reader.processes(pids), reader.problems


class _Reader:
    """Read the processes of a host. problems: what could not be read."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.problems: List[Problem] = []
        self.users = parse_users(self._text("/etc/passwd"))
        pairs = grammar.assignments(self._text("/etc/nccl.conf"))
        self.address = next((pair.value for pair in pairs if pair.name == ADDRESS), None)
        self.namespace = _namespace(host, "self")
        self.listeners: List[Listener] = []
        for path in ("/proc/net/tcp", "/proc/net/tcp6"):
            # Without IPv6 there is no tcp6.
            text = attempt(partial(host.read, path), path, self.problems)
            if text is not None:
                self.listeners += attempt(partial(parse_tcp, text), path, self.problems) or []

    def _text(self, path: str) -> str:
        return attempt(lambda: self.host.read_system(path, "replace"), path, self.problems) or ""

    def processes(self, pids: Optional[Collection[int]]) -> List[Process]:
        found, hidden = [], 0
        names = map(str, pids) if pids is not None else (one for one in self.host.listdir("/proc") if one.isdigit())
        for pid in sorted(names, key=int):
            try:
                library = _library(self.host, pid)
                if library:
                    found.append(self._process(pid, library))
            except PermissionError:
                # For root in a container, init is the host's; it is not a rank.
                hidden += pid != "1"
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            except OSError as error:
                self.problems.append(Problem("/proc/%s" % pid, "cannot be read: %s" % error.strerror))
        if hidden:
            text = "of %d processes cannot be read, which only root may: run it as root (become)" % hidden
            self.problems.append(Problem("/proc/PID/maps", text))
        return found

    def _process(self, pid: str, library: str) -> Process:
        status = _status(self.host, pid)
        uid = int((status.get("Uid", "").split() or ["-1"])[0])
        variables = _environment(self.host, pid)
        port = ras_port(variables.get(ADDRESS) or self.address)
        namespace = _namespace(self.host, pid)
        apart = bool(self.namespace and namespace and self.namespace != namespace)
        listeners = [] if apart else self.listeners
        files = _open_files(self.host, pid)
        return Process(
            pid=int(pid),
            inner=int((status.get("NSpid", "").split() or [pid])[-1]),
            parent=int(status.get("PPid", "0")),
            user=self.users.get(uid, "uid %d" % uid),
            state=status.get("State", "?")[:1],
            library=library,
            ras=tuple(each for each in listeners if each.port == port and "socket:[%d]" % each.inode in files),
            port=port,
            apart=apart,
            gpu=any(_GPU.fullmatch(file) for file in files),
            disabled=variables.get(ENABLE, "").strip() == "0",
        )


def again(host: Host, processes: Sequence[Process]) -> Tuple[Process, ...]:
    """The same processes as they are by now, without those that have ended."""
    found = []
    for process in processes:
        try:
            found.append(replace(process, state=_status(host, str(process.pid)).get("State", "?")[:1]))
        except OSError:
            continue  # it has ended meanwhile
    return tuple(found)


def _library(host: Host, pid: str) -> str:
    """The libnccl that a process has mapped; "" for none. Raises OSError."""
    text = b""
    with open(host.hardware("/proc/%s/maps" % pid), "rb") as stream:
        for _block in range(_MAPS_BLOCKS):
            data = stream.read(1 << 18)
            # A path may lie across two of them.
            text = text[-8192:] + data
            match = _LIBRARY.search(text) if b"/libnccl.so" in text else None
            if match is not None:
                return match.group(1).decode("utf-8", "backslashreplace")
            if not data:
                break
    return ""


def _environment(host: Host, pid: str) -> Dict[str, str]:
    with open(host.hardware("/proc/%s/environ" % pid), "rb") as stream:
        data = stream.read(_ENVIRONMENT_LIMIT)
    found: Dict[str, str] = {}
    for variable in data.split(b"\0"):
        name, _equals, value = variable.partition(b"=")
        if name.decode("ascii", "replace") in (ADDRESS, ENABLE):
            found.setdefault(name.decode("ascii"), value[:200].decode("utf-8", "replace"))
    return found


def _status(host: Host, pid: str) -> Dict[str, str]:
    """A process may have any bytes in its name."""
    with open(host.hardware("/proc/%s/status" % pid), "rb") as stream:
        return parse_status(stream.read(1 << 16).decode("utf-8", "replace"))


def _open_files(host: Host, pid: str) -> Set[str]:
    """Return the targets of a process's descriptors, unresolved: a file may lie on a server that does not respond."""
    folder = host.hardware("/proc/%s/fd" % pid)
    found = set()
    for name in os.listdir(folder):
        try:
            found.add(os.readlink(os.path.join(folder, name)))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def _namespace(host: Host, pid: str) -> str:
    """Return a process's network namespace; "" if it cannot be read."""
    try:
        return os.readlink(host.hardware("/proc/%s/ns/net" % pid))
    except OSError:
        return ""
