# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge limits that containers get from their runtime, and the RDMA resources that the kubelet can assign.

Docker uses daemon.json, which dockerd reads when it is started: a reload takes default-shm-size, and never
default-ulimits. Containers of containerd inherit its limits; host_limits.daemon judges its present ones. In Kubernetes
the pod has the rest (docs/containers.md).
Sources: dockerd's reference, moby daemon/reload.go and reload_unix.go; systemd.unit(5), systemd.exec(5); proc_stat(5);
the kubelet's pkg/kubelet/cm/devicemanager, whose checkpoint lists the healthy devices of each plugin.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import busy, written
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import Host, ParseError, Problem, ReadError, ToolMissing
from ..core.plan import FileChange, Plan, merge
from ..core.systemd_files import UNITS, unit_files
from . import plan as host_limits

# Runtime -> its program and the check that names it.
_PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "kubelet": "kubelet"}
DAEMON_JSON = "/etc/docker/daemon.json"
DROPIN = "/etc/systemd/system/containerd.service.d/99-busbar.conf"
# Keys of daemon.json that Busbar writes.
_KEYS = ("default-ulimits", "default-shm-size")
_DOCKER_OPTIONS = ("/etc/default/docker", "/etc/sysconfig/docker")
# dockerd does not start if one of the first two and daemon.json both set it; with the third it reads another file.
_FLAGS = ("--default-ulimit", "--default-shm-size", "--config-file")
_STAT = "/proc/stat"
# Configuration of runtimes that are not a package of the system, and how their limits are set.
_ELSEWHERE = {
    "docker": (("/var/snap/docker/current/config/daemon.json", "in that file, then snap restart docker"),),
    "containerd": (
        (
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "with LimitMEMLOCK=infinity in a drop-in of k3s.service or k3s-agent.service (systemctl edit)",
        ),
        (
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
            "with LimitMEMLOCK=infinity in a drop-in of rke2-server.service or rke2-agent.service (systemctl edit)",
        ),
    ),
}
# USER_HZ, the unit of times in /proc on every architecture with an NVIDIA driver.
_TICKS = 100
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([kmgtp]?)i?b?")
DOCKER = Check(
    "host_limits.docker",
    why="a container gets its limits from dockerd, by default 64 MiB of /dev/shm and the memlock of containerd: NCCL"
    " ends with 'Cannot allocate memory' or a bus error",
    fix=host_limits.RUN,
    aspect="persisted",
)
"""If configured: is Docker installed, and does its daemon.json give containers the limits and `/dev/shm`;
`not_owned` for a snap's Docker"""
DOCKER_LOADED = Check(
    "host_limits.docker_loaded",
    why="dockerd takes default-ulimits when it is started, and not by a reload",
    fix="on a drained node: systemctl restart docker (without live-restore that stops every container)",
    disruption="driver",
)
"Was the dockerd that runs started after daemon.json was last changed"
KUBERNETES = Check(
    "host_limits.kubernetes",
    why="a pod that requests the resource is not started on this node, and one that does not has no /dev/infiniband:"
    " NCCL falls back to TCP",
    fix="repair the RDMA device plugin's pod on this node (kubectl get pods -A -o wide, then its log and its"
    " configuration); Busbar does not install it",
    severity="critical",
)
"Does the kubelet have healthy devices of each configured RDMA resource"
_CHECKS = {"docker": DOCKER, "containerd": host_limits.CONTAINERD, "kubelet": KUBERNETES}


@dataclass(frozen=True)
class Want:
    """runtimes: some of docker, containerd, kubelet. resources: names such as rdma/hca_shared_devices_a."""

    runtimes: Tuple[str, ...]
    resources: Tuple[str, ...]
    limits: host_limits.LimitsWanted

    def __post_init__(self) -> None:
        """Raise ParseError: a runtime without a wanted limit would be silently skipped."""
        if ("kubelet" in self.runtimes) != bool(self.resources):
            raise ParseError(
                "the kubelet is looked at where container_runtimes has it and kubernetes_rdma_resources names what it"
                " has to have: set both or neither"
            )


@dataclass(frozen=True)
class Have:
    """State of the wanted runtimes; the rest is empty.

    missing: runtimes that are not installed. elsewhere: runtime -> (configuration, fix) of one with a separate one.
    problems: runtime -> why it cannot be judged.
    daemon_json: text, None for no file; mode and changed (seconds since 1970, of its last change) belong to it.
    docker: text of the files that may hold flags of dockerd, by path.
    containerd: unit and drop-ins in the order in which they count, by path.
    started: running program -> seconds since 1970.
    registered: resource -> healthy devices; None if there never was a device plugin.
    """

    missing: Tuple[str, ...] = ()
    elsewhere: Mapping[str, Tuple[str, str]] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)
    daemon_json: Optional[str] = None
    mode: Optional[int] = None
    changed: float = 0.0
    docker: Mapping[str, str] = field(default_factory=dict)
    containerd: Mapping[str, str] = field(default_factory=dict)
    started: Mapping[str, float] = field(default_factory=dict)
    registered: Optional[Mapping[str, int]] = None


# -- parsers ---------------------------------------------------------------------------------------------------------


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


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, runtimes: Sequence[str]) -> Have:
    """Whatever cannot be read is a problem of its runtime."""
    missing: List[str] = []
    elsewhere: Dict[str, Tuple[str, str]] = {}
    problems: Dict[str, Problem] = {}
    found: Dict[str, Any] = {}
    for runtime in runtimes:
        program = _PROGRAMS[runtime]
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
            there = [one for one in _ELSEWHERE.get(runtime, ()) if os.path.exists(host.system(one[0]))]
            if there:
                elsewhere[runtime] = there[0]
            else:
                missing.append(runtime)
        except ReadError as error:
            problems[runtime] = error.problem
    return Have(missing=tuple(missing), elsewhere=elsewhere, problems=problems, **found)


def configured(host: Host) -> Dict[str, bool]:
    """Return the installed runtimes, and whether limits of containers are set there, right or wrong."""
    installed = [name for name in ("docker", "containerd") if host.has(_PROGRAMS[name])]
    have = read(host, installed)
    words = {"docker": (*_KEYS, *_FLAGS[:2]), "containerd": ("LimitMEMLOCK",)}
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
        registered = _read_registered(host) if _started(host, _PROGRAMS["kubelet"]) else None
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
    text = host.read_system(busy.KUBELET)
    try:
        return None if text is None else parse_registered(text)
    except ParseError as error:
        raise ReadError(busy.KUBELET, str(error)) from error


def _started(host: Host, program: str) -> Dict[str, float]:
    """The first of that name: others may be inside containers."""
    found: List[float] = []
    for pid in host.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            if host.read("/proc/%s/comm" % pid) != program:
                continue
            stat = host.read("/proc/%s/stat" % pid)
        except ReadError:
            continue  # it has ended meanwhile
        try:
            found += [] if stat is None else [parse_started(stat, host.read(_STAT) or "")]
        except ParseError as error:
            raise ReadError("/proc/%s/stat" % pid, str(error)) from error
    return {program: min(found)} if found else {}


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want) -> Plan:
    plans = []
    for runtime in _PROGRAMS:
        if runtime not in want.runtimes:
            continue
        if runtime in have.missing:
            plans.append(Plan((_missing(runtime),)))
        elif runtime in have.elsewhere:
            plans.append(Plan((_others(runtime, *have.elsewhere[runtime]),)))
        elif runtime in have.problems:
            plans.append(Plan((_unreadable(runtime, have.problems[runtime]),)))
        else:
            plans.append({"docker": _docker, "containerd": _containerd, "kubelet": _kubelet}[runtime](have, want))
    return merge(*plans)


def _missing(runtime: str) -> Finding:
    # Not "persisted": that no file of ours mends it must not look like a repair.
    return _CHECKS[runtime].judge(
        runtime,
        "drift",
        want="%s is installed (host_limits_container_runtimes)" % runtime,
        have="no program %s" % _PROGRAMS[runtime],
        source=_PROGRAMS[runtime],
        why="the inventory declares a container runtime that this node does not have, so its limits cannot be checked",
        fix="install %s, or take it out of host_limits_container_runtimes for this host" % runtime,
        severity="major",
        aspect="live",
    )


def _others(runtime: str, path: str, way_out: str) -> Finding:
    """Report a runtime with a separate configuration; host_limits.daemon judges what its containers inherit."""
    return _CHECKS[runtime].judge(
        runtime,
        "not_owned",
        want="%s with limits that Busbar can write" % runtime,
        have="one that brings its own configuration, %s" % path,
        source=path,
        fix="set them %s; then take %s out of host_limits_container_runtimes for this host" % (way_out, runtime),
    )


def _unreadable(runtime: str, problem: Problem) -> Finding:
    return _CHECKS[runtime].judge(
        runtime,
        "unknown",
        want="a response",
        have=str(problem),
        source=problem.source,
        why="what cannot be read cannot be judged; nothing was written for %s" % runtime,
        fix="look at %s on the host and repair it" % problem.source,
        severity="major",
        aspect="live",
    )


# -- Docker ----------------------------------------------------------------------------------------------------------


def edit(text: str, want: Want) -> Tuple[str, List[str]]:
    """daemon.json with the limits and everything else as it was, and what it lacked. Raises ParseError.

    The text comes back untouched where nothing is lacking.
    """
    data = parse_json(text)
    limits: Dict[str, Any] = dict(data.get("default-ulimits") or {})
    lacks = []
    for name, least in (("memlock", -1), ("nofile", want.limits.nofile)):
        soft, hard = _ulimit(limits.get(name), name)
        # -1 would be more open files than the kernel allows: no container would start.
        good = soft == hard == -1 if least == -1 else min(soft or 0, hard or 0) >= least
        if not good:
            lacks.append("%s is %s" % (name, "not set" if soft is None else "%d:%s" % (soft, hard)))
            limits[name] = {"Name": name, "Hard": least if least == -1 else max(hard or 0, least), "Soft": least}
    if lacks:
        data["default-ulimits"] = limits
    size = data.get("default-shm-size")
    if want.limits.shm and (parse_size(size) or 0) < want.limits.shm:
        said = "not set, 64 MiB by default" if size is None else printable(str(size))[:40]
        lacks.append("default-shm-size is %s" % said)
        data["default-shm-size"] = _size(want.limits.shm)
    if not lacks:
        return text, []
    indent = re.match(r'\s*\{[ \t\r]*\n([ \t]+)"', text)
    # A text that spells letters as \u may spell some that cannot be written otherwise.
    plain = text.isascii() or "\\u" in text
    return json.dumps(data, indent=indent.group(1) if indent else "  ", ensure_ascii=plain) + "\n", lacks


def _ulimit(value: object, name: str) -> Tuple[Optional[int], Optional[int]]:
    """Soft and hard; None for what dockerd would not take. It does not look at the case of these keys."""
    keys = {key.lower(): item for key, item in value.items()} if isinstance(value, dict) else {}
    soft, hard = keys.get("soft"), keys.get("hard")
    # A bool is an int.
    if any(isinstance(item, bool) or not isinstance(item, int) for item in (soft, hard)) or keys.get("name") != name:
        return None, None
    return soft, hard


def _size(size: int) -> str:
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << shift) == 0:
            return "%d%s" % (size >> shift, unit)
    return str(size)


def _docker(have: Have, want: Want) -> Plan:
    theirs = flags(have.docker)
    try:
        after, lacks = edit(have.daemon_json or "", want)
    except ParseError as error:
        return Plan((_unreadable("docker", Problem(DAEMON_JSON, str(error))),))
    persisted = DOCKER.judge(
        DAEMON_JSON,
        "not_owned" if theirs else "drift" if lacks else "ok",
        want="memlock unlimited, nofile at least %d%s"
        % (want.limits.nofile, ", /dev/shm at least %s" % host_limits.gib(want.limits.shm) if want.limits.shm else ""),
        have="; ".join(theirs or lacks) or "as wanted",
        source=theirs[0].partition(": ")[0] if theirs else DAEMON_JSON,
        why="dockerd does not start where a flag and daemon.json both set a limit" if theirs else None,
        fix="remove the flag from the file, because daemon.json sets it, then run this again" if theirs else None,
    )
    if theirs:
        return Plan((persisted,))
    shown = _redacted(have.daemon_json), _redacted(after)
    change = FileChange(DAEMON_JSON, have.daemon_json, after, have.mode or 0o644, have.mode, shown=shown)
    return Plan((persisted, *_loaded(have, not lacks)), (change,) if lacks else ())


def _redacted(text: Optional[str]) -> str:
    """Return what a diff may show of the file: other keys hold passwords of proxies and tokens of log drivers."""
    if text is None:
        return ""
    data = parse_json(text)
    ours = {name: data[name] for name in _KEYS if name in data}
    more = "(other keys are not shown)\n" if len(data) > len(ours) else ""
    return json.dumps(ours, indent=2) + "\n" + more


def _loaded(have: Have, good: bool) -> Tuple[Finding, ...]:
    """Judge whether the running dockerd has read the file: it reports these limits nowhere."""
    if "dockerd" not in have.started:
        return ()
    started = have.started["dockerd"]
    loaded = good and have.changed <= started
    since = "dockerd has run since %s" % _utc(started)
    later = "%s, %s was last changed at %s" % (since, DAEMON_JSON, _utc(have.changed))
    finding = DOCKER_LOADED.judge(
        "dockerd",
        "ok" if loaded else "drift",
        want="dockerd was started after %s was last changed" % DAEMON_JSON,
        have=later if good else "%s, without these limits" % since,
        source="/proc/PID/stat of dockerd",
    )
    return (finding,)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# -- containerd ------------------------------------------------------------------------------------------------------


def _containerd(have: Have, want: Want) -> Plan:
    unit = [path for path in have.containerd if path.endswith("/containerd.service")]
    if not unit:
        finding = host_limits.CONTAINERD.judge(
            DROPIN,
            "not_owned",
            want="a unit containerd.service that the limits can be written for",
            have="no containerd.service in %s" % ", ".join(UNITS),
            source=UNITS[0],
            fix="set LimitMEMLOCK=infinity and LimitNOFILE=%d where containerd is started: systemctl status $(pidof"
            " containerd)" % want.limits.nofile,
        )
        return Plan((finding,))
    values: Dict[str, str] = {}
    for text in have.containerd.values():
        values.update(host_limits.parse_service(text, "[Service]"))
    good = all(
        host_limits.enough(part, least)
        for name, least in (("LimitMEMLOCK", None), ("LimitNOFILE", want.limits.nofile))
        for part in values.get(name, "").split(":")
    )
    others = [(path, text) for path, text in have.containerd.items() if path not in unit]
    return host_limits.persisted(host_limits.CONTAINERD, DROPIN, render(want), good, others, want.limits)


def render(want: Want) -> str:
    head = "# Written by Busbar (role host_limits): containers inherit them.\n"
    limits = "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=%d\n" % want.limits.nofile
    return written.seal(DROPIN, head + limits)


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def _kubelet(have: Have, want: Want) -> Plan:
    if "kubelet" not in have.started:
        problem = Problem("kubelet", "does not run, so its checkpoint is out of date")
        return Plan((_unreadable("kubelet", problem),))
    return Plan(tuple(_resource(have.registered, name) for name in want.resources))


def _resource(registered: Optional[Mapping[str, int]], name: str) -> Finding:
    if registered is None:
        text = "no device plugin has ever registered: there is no %s" % busy.KUBELET
    elif name in registered:
        text = "%d healthy devices" % registered[name]
    else:
        others = ", ".join(printable(other) for other in sorted(registered)) or "nothing"
        text = "not registered; registered: %s" % others
    good = bool(registered and registered.get(name))
    return KUBERNETES.judge(name, "ok" if good else "drift", "at least one healthy device", text, busy.KUBELET)
