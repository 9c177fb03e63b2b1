# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the container runtimes of a node: their limits, and the RDMA resources that the kubelet can assign.

Sources: those of container_limits.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..change.busy import KUBELET
from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing
from ..core.systemd_files import unit_files

# Runtime -> its program and the check that names it.
PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "kubelet": "kubelet"}
DAEMON_JSON = "/etc/docker/daemon.json"
# Keys of daemon.json that Busbar writes.
KEYS = ("default-ulimits", "default-shm-size")
_DOCKER_OPTIONS = ("/etc/default/docker", "/etc/sysconfig/docker")
# dockerd does not start if one of the first two and daemon.json both set it; with the third it reads another file.
_FLAGS = ("--default-ulimit", "--default-shm-size", "--config-file")
_STAT = "/proc/stat"
# USER_HZ, the unit of times in /proc on every architecture with an NVIDIA driver.
_TICKS = 100
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([kmgtp]?)i?b?")


@dataclass(frozen=True)
class Have:
    """State of the wanted runtimes; the rest is empty.

    missing: runtimes that are not installed. problems: runtime -> why it cannot be judged.
    daemon_json: text, None for no file; mode and changed (seconds since 1970, of its last change) belong to it.
    docker: text of the files that may hold flags of dockerd, by path.
    containerd: unit and drop-ins in the order in which they count, by path.
    started: running program -> seconds since 1970.
    registered: resource -> healthy devices; None if there never was a device plugin.
    """

    missing: Tuple[str, ...] = ()
    problems: Mapping[str, Problem] = field(default_factory=dict)
    daemon_json: Optional[str] = None
    mode: Optional[int] = None
    changed: float = 0.0
    docker: Mapping[str, str] = field(default_factory=dict)
    containerd: Mapping[str, str] = field(default_factory=dict)
    started: Mapping[str, float] = field(default_factory=dict)
    registered: Optional[Mapping[str, int]] = None


def parse_json(text: str) -> Dict[str, Any]:
    """daemon.json; an empty one is an empty object, as for dockerd. Raises ParseError."""
    if not text.strip():
        return {}
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        said = printable(str(error) or type(error).__name__)
        raise ParseError("is not JSON that can be edited: %s" % said) from error
    if not isinstance(data, dict):
        raise ParseError("is not a JSON object")
    if not isinstance(data.get("default-ulimits") or {}, dict):
        raise ParseError("default-ulimits is not an object")
    return data


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _value in pairs]
        raise ParseError("key %r comes twice" % next(name for name in names if names.count(name) > 1)[:60])
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ParseError("%s is not a number" % text[:20])
    return value


def parse_size(text: object) -> Optional[int]:
    """Bytes of ``64M`` or ``1.5 GiB`` as dockerd reads them, powers of 1024; None for what it would not take."""
    match = _SIZE.fullmatch(text.lower()) if isinstance(text, str) else None
    if match is None:
        return None
    return int(float(match.group(1)) * 1024 ** " kmgtp".index(match.group(2) or " "))


def parse_started(stat: str, system: str) -> float:
    """Return a process's start in seconds since 1970, from /proc/PID/stat and /proc/stat. Raises ParseError.

    The boot time is in whole seconds: the result is up to a second too early, never too late.
    """
    # The name, which may hold blanks and brackets, ends with the last bracket.
    words = stat.rpartition(")")[2].split()
    boot = re.search(r"^btime ([0-9]{1,12})$", system, re.MULTILINE)
    if boot is None or len(words) < 20 or re.fullmatch(r"[0-9]{1,15}", words[19]) is None:
        raise ParseError("no start time in it, or no btime in %s" % _STAT)
    return int(boot.group(1)) + int(words[19]) / _TICKS


def parse_registered(text: str) -> Dict[str, int]:
    """Resource -> number of healthy devices, of the kubelet's checkpoint. Raises ParseError."""
    try:
        resources = json.loads(text)["Data"]["RegisteredDevices"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError("not a checkpoint of the kubelet's device manager: %s" % type(error).__name__) from error
    resources = {} if resources is None else resources
    if not isinstance(resources, dict) or any(not isinstance(found or [], list) for found in resources.values()):
        raise ParseError("not a checkpoint of the kubelet's device manager: RegisteredDevices holds no lists")
    return {name: len(found or []) for name, found in resources.items()}


def flags(files: Mapping[str, str]) -> List[str]:
    """``file: flag`` for each flag of dockerd that goes against daemon.json."""
    found = []
    for path, text in files.items():
        for line in text.splitlines():
            if not line.lstrip().startswith(("#", ";")):
                words = re.split(r"[\s=\"']+", line)
                theirs = [flag for flag in _FLAGS if flag in words]
                found += ["%s: %s" % (path, f) for f in theirs if f != "--config-file" or DAEMON_JSON not in words]
    return found


def read(host: Host, runtimes: Sequence[str]) -> Have:
    """Whatever cannot be read is a problem of its runtime."""
    missing: List[str] = []
    problems: Dict[str, Problem] = {}
    found: Dict[str, Any] = {}
    for runtime in runtimes:
        program = PROGRAMS[runtime]
        try:
            host.tool(program)
            if runtime == "docker":
                found.update(_read_docker(host))
            elif runtime == "containerd":
                found["containerd"] = unit_files(host, "containerd.service")
            else:
                found["registered"] = _read_registered(host)
            if runtime != "containerd":
                found["started"] = {**found.get("started", {}), **_started(host, program)}
        except ToolMissing:
            missing.append(runtime)
        except ReadError as error:
            problems[runtime] = error.problem
    return Have(missing=tuple(missing), problems=problems, **found)


def configured(host: Host) -> Dict[str, bool]:
    """Return the installed runtimes, and whether limits of containers are set there, right or wrong."""
    installed = [name for name in ("docker", "containerd") if host.has(PROGRAMS[name])]
    have = read(host, installed)
    words = {"docker": (*KEYS, *_FLAGS[:2]), "containerd": ("LimitMEMLOCK",)}
    texts = {"docker": [have.daemon_json or "", *have.docker.values()], "containerd": [*have.containerd.values()]}
    found = {name: any(word in text for text in texts[name] for word in words[name]) for name in installed}
    # What cannot be read, or understood, is judged, too.
    found.update(dict.fromkeys(have.problems, True))
    try:
        parse_json(have.daemon_json or "")
    except ParseError:
        found["docker"] = True
    return found


def resources(host: Host) -> Optional[List[str]]:
    """Return the RDMA resources that a running kubelet has been offered; None where its checkpoint cannot be read."""
    try:
        registered = _read_registered(host) if _started(host, PROGRAMS["kubelet"]) else None
    except ReadError:
        return None
    return [name for name in registered or () if name.startswith("rdma/")]


def _read_docker(host: Host) -> Dict[str, Any]:
    text = host.read_system(DAEMON_JSON)
    found: Dict[str, Any] = {"daemon_json": text, "mode": host.mode_system(DAEMON_JSON)}
    if text is not None:
        try:
            # Not the time of its content: a file that was put there by mv or cp -p keeps an old one.
            found["changed"] = os.stat(host.system(DAEMON_JSON)).st_ctime
        except OSError as error:
            raise ReadError(DAEMON_JSON, "cannot be read: %s" % error.strerror) from error
    unit = unit_files(host, "docker.service")
    # Docker's unit reads none of them, distributions' units do.
    options = [path for path in _DOCKER_OPTIONS if any(path in text for text in unit.values())]
    found["docker"] = {**unit, **{path: host.read_system(path) or "" for path in options}}
    return found


def _read_registered(host: Host) -> Optional[Dict[str, int]]:
    text = host.read_system(KUBELET)
    try:
        return None if text is None else parse_registered(text)
    except ParseError as error:
        raise ReadError(KUBELET, str(error)) from error


def _started(host: Host, program: str) -> Dict[str, float]:
    """The first of that name: others may be inside containers."""
    found: List[float] = []
    for pid, _name in processes(host, [program]):
        path = "/proc/%s/stat" % pid
        try:
            found.append(parse_started(host.require(path), host.read(_STAT) or ""))
        except ReadError:
            continue  # it has ended meanwhile
        except ParseError as error:
            raise ReadError(path, str(error)) from error
    return {program: min(found)} if found else {}


def processes(host: Host, names: Sequence[str]) -> Iterator[Tuple[str, str]]:
    """Yield pid and name of each process with one of these names."""
    for pid in filter(str.isdigit, host.listdir("/proc")):
        with suppress(ReadError):  # it has ended meanwhile
            name = host.read("/proc/%s/comm" % pid)
            if name in names:
                yield pid, name or ""
