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
import re
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from ..change import written
from ..change.busy import KUBELET
from ..core.check import Check
from ..core.finding import Finding, printable
from ..core.host import ParseError, Problem
from ..core.plan import FileChange, Plan, merge
from ..core.systemd_files import UNITS
from . import plan as host_limits
from .container_runtimes import DAEMON_JSON, KEYS, PROGRAMS, Have, flags, parse_json, parse_size

DROPIN = "/etc/systemd/system/containerd.service.d/99-busbar.conf"
DOCKER = Check(
    "host_limits.docker",
    why="a container gets its limits from dockerd, by default 64 MiB of /dev/shm and the memlock of containerd: NCCL"
    " ends with 'Cannot allocate memory' or a bus error",
    fix=host_limits.RUN,
    aspect="persisted",
)
"If configured: is Docker installed, and does its daemon.json give containers the limits and `/dev/shm`"
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


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want) -> Plan:
    judges = {"docker": _docker, "containerd": _containerd, "kubelet": _kubelet}
    wanted = [runtime for runtime in judges if runtime in want.runtimes]
    return merge(*(_unjudged(have, runtime) or judges[runtime](have, want) for runtime in wanted))


def _unjudged(have: Have, runtime: str) -> Optional[Plan]:
    """Return the finding on a runtime that is not installed, or cannot be read."""
    if runtime in have.problems:
        return _unreadable(runtime, have.problems[runtime])
    judge, program = _CHECKS[runtime].judge, PROGRAMS[runtime]
    if runtime in have.missing:
        fix = "install %s, or take it out of host_limits_container_runtimes for this host: that of a snap, k3s or rke2"
        fix = (fix + " is not read") % runtime
        why = "the inventory declares a container runtime that this node does not have, so its limits cannot be checked"
        want_text, text = "%s is installed (host_limits_container_runtimes)" % runtime, "no program %s" % program
        # Not "persisted": that no file of ours mends it must not look like a repair.
        live = {"why": why, "severity": "major", "aspect": "live"}
        return Plan((judge(runtime, "drift", want_text, text, program, fix, **live),))
    return None


def _unreadable(runtime: str, problem: Problem) -> Plan:
    why = "what cannot be read cannot be judged; nothing was written for %s" % runtime
    live = {"why": why, "severity": "major", "aspect": "live"}
    fix = "look at %s on the host and repair it" % problem.source
    judge = _CHECKS[runtime].judge
    return Plan((judge(runtime, "unknown", "a response", str(problem), problem.source, fix, **live),))


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
        return _unreadable("docker", Problem(DAEMON_JSON, str(error)))
    want_text = str(want.limits)
    want_text += ", /dev/shm at least %s" % host_limits.gib(want.limits.shm) if want.limits.shm else ""
    state, have_text, source = "drift" if lacks else "ok", "; ".join(lacks) or "as wanted", DAEMON_JSON
    why = fix = None
    if theirs:
        state, have_text, source = "not_owned", "; ".join(theirs), theirs[0].partition(": ")[0]
        why = "dockerd does not start where a flag and daemon.json both set a limit"
        fix = "remove the flag from the file, because daemon.json sets it, then run this again"
    persisted = DOCKER.judge(DAEMON_JSON, state, want_text, have_text, source, fix, why=why)
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
    ours = {name: data[name] for name in KEYS if name in data}
    more = "(other keys are not shown)\n" if len(data) > len(ours) else ""
    return json.dumps(ours, indent=2) + "\n" + more


def _loaded(have: Have, good: bool) -> Tuple[Finding, ...]:
    """Judge whether the running dockerd has read the file: it reports these limits nowhere."""
    if "dockerd" not in have.started:
        return ()
    started = have.started["dockerd"]
    state = "ok" if good and have.changed <= started else "drift"
    since = "dockerd has run since %s" % _utc(started)
    later = "%s, %s was last changed at %s" % (since, DAEMON_JSON, _utc(have.changed))
    want = "dockerd was started after %s was last changed" % DAEMON_JSON
    said = later if good else "%s, without these limits" % since
    return (DOCKER_LOADED.judge("dockerd", state, want, said, "/proc/PID/stat of dockerd"),)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# -- containerd ------------------------------------------------------------------------------------------------------


def _containerd(have: Have, want: Want) -> Plan:
    unit = [path for path in have.containerd if path.endswith("/containerd.service")]
    check = host_limits.CONTAINERD
    if not unit:
        want_text, text = "a unit containerd.service that the limits can be written for", ", ".join(UNITS)
        fix = "set LimitMEMLOCK=infinity and LimitNOFILE=%d where containerd is started: systemctl status $(pidof"
        fix = (fix + " containerd)") % want.limits.nofile
        return Plan((check.judge(DROPIN, "not_owned", want_text, "no containerd.service in %s" % text, UNITS[0], fix),))
    low = want.limits.low(host_limits.values_of(have.containerd.items(), *host_limits.UNIT_KEYS))
    others = [(path, text) for path, text in have.containerd.items() if path not in unit]
    return host_limits.persisted(check, DROPIN, render(want), not low, others, want.limits)


def render(want: Want) -> str:
    head = "# Written by Busbar (role host_limits): containers inherit them.\n"
    limits = "[Service]\nLimitMEMLOCK=infinity\nLimitNOFILE=%d\n" % want.limits.nofile
    return written.seal(DROPIN, head + limits)


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def _kubelet(have: Have, want: Want) -> Plan:
    if "kubelet" not in have.started:
        return _unreadable("kubelet", Problem("kubelet", "does not run, so its checkpoint is out of date"))
    findings = []
    registered = have.registered or {}
    others = ", ".join(map(printable, sorted(registered))) or "nothing"
    for name in want.resources:
        text = "%d healthy devices" % registered.get(name, 0)
        if have.registered is None:
            text = "no device plugin has ever registered: there is no %s" % KUBELET
        elif name not in registered:
            text = "not registered; registered: %s" % others
        state = "ok" if registered.get(name) else "drift"
        findings.append(KUBERNETES.judge(name, state, "at least one healthy device", text, KUBELET))
    return Plan(tuple(findings))
