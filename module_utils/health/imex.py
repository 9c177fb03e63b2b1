# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge IMEX (memory access between GPUs of several nodes over NVLink): service, list of nodes, channel.

One service runs on each node of a domain, all with the same list, which is read when it starts. If jobs start IMEX
(profile: imex job), an idle service is right, and only the channel is judged. ComputeDomains of Kubernetes
(compute_domain) run IMEX in pods and make channels there: the host needs the driver's major number, and no service.
Sources: NVIDIA IMEX guide (config options, channels, command service); NVIDIA/DCGM DcgmImexManager; prerequisites and
sources of kubernetes-sigs/dra-driver-nvidia-gpu 0.4.1.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, attempt, problem_of
from ..core.systemd_files import start
from ..driver import nvidia_options
from ..machine.gpu import VERSION
from ..machine.minimum_versions import version_key
from ..machine.platform_checks import NVLINK_FABRIC
from ..machine.profile import NvlinkDomain
from . import service, smi
from .service import RECHECK, Service

UNIT = "nvidia-imex.service"
NODES = "/etc/nvidia-imex/nodes_config.cfg"
_DRIVER = "nvidia-caps-imex-channels"
CHANNELS = "/dev/" + _DRIVER
DEVICES = "/proc/devices"
_OPTION = "CreateImexChannel0"
# IMEX of driver 570.158.01 and later takes names of hosts, too. One that ends in a number is no name.
_HOST = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,62}\.)*(?![0-9]+$)[a-z0-9][a-z0-9-]{0,62}")
# Where the kubelet finds the plugin for ComputeDomains, and the oldest driver for it.
SOCKETS, SOCKET = "/var/lib/kubelet/plugins_registry", "compute-domain.nvidia.com-reg.sock"
OLDEST = "570.158.01"
COMPUTE_DOMAIN_MODE = "compute_domain"
TOOL = ("nvidia-imex-ctl", "-N", "-j")
# It may hang, for ever (dra-driver-nvidia-gpu#1417).
TIMEOUT = 10.0
# Entries: a domain has 72 GPUs at most today; a longer list is invalid.
MOST = 1024
SERVICE = Check(
    "imex.service",
    why="without IMEX on every node of the NVLink domain, jobs over several nodes cannot use NVLink between them",
    fix="install nvidia-imex of the driver's version, then %s; %s" % (start(UNIT, ""), RECHECK),
    severity="critical",
)
"""Trays of an NVLink domain: is IMEX installed, does it run, now and after a reboot; where jobs start their own IMEX
(`imex: job`, `compute_domain`): does the host not start it"""
NODES_CONFIG = Check(
    "imex.nodes",
    why="IMEX reaches the nodes of this list and no others; it is read when the service starts",
    fix="write the address of each node into %s, the same file on all, then systemctl restart %s; " % (NODES, UNIT)
    + RECHECK,
    severity="critical",
    aspect="persisted",
)
"""Can the list of nodes be read, has it one address or host name a line, none twice and no more than the domain has;
over the run's hosts: have all nodes of a domain the same"""
STATE = Check(
    "imex.state",
    why="if the domain is not UP, a node cannot export or import memory: NCCL fails, or uses no NVLink between nodes",
    fix="run nvidia-imex-ctl -N -H, read /var/log/nvidia-imex.log on nodes that are not READY; " + RECHECK,
    severity="critical",
)
"Is the IMEX domain UP, and are all its nodes READY with the driver's version"
CHANNEL = Check(
    "imex.channel",
    why="without an IMEX channel CUDA refuses to share memory between nodes (insufficient permission)",
    fix="load the NVIDIA driver with NVreg_CreateImexChannel0=1 (driver_options of the profile, site.yml --tags"
    " nvidia_peermem, then reboot); %s" % RECHECK,
    severity="critical",
)
"""Does the device of IMEX channel 0 exist, with the current major number of the driver; for ComputeDomains: has the
driver such a number"""
COMPUTE_DOMAIN = Check(
    "imex.compute_domain",
    why="without both, pods of a ComputeDomain stay Pending or ContainerCreating on this node",
    fix="see that the pod of the DRA driver's kubelet plugin runs on this node (kubectl get pods -A -o wide); "
    + RECHECK,
    severity="critical",
)
"""Where ComputeDomains start IMEX (`imex: compute_domain`): is the driver new enough, and is the kubelet plugin
registered"""
MEMBERSHIP = Check(
    "imex.domain",
    why="a GPU without the UUID of an NVLink domain belongs to none: NCCL then silently uses no NVLink between nodes",
    fix="look at Fabric Manager and NMX-C of the switch trays; reset the GPU or reboot the node; " + RECHECK,
    severity="critical",
)
"Do all GPUs of the node report the same NVLink domain, a pair of UUID and clique"
ZEROS = "00000000-0000-0000-0000-000000000000"


class Domain(NamedTuple):
    """A domain as one node sees it. state: UP, DEGRADED, DOWN, ...   nodes: (host, status, version) of each."""

    state: str
    nodes: Tuple[Tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class ImexState(Service):
    """nodes: the list, None where there is none.   domain: None where it was not queried or did not respond.

    channel: what is wrong with it, "" for nothing.   asked: whether the domain's state is wanted.
    off: the driver was loaded without channel 0.   registered: whether the kubelet has the plugin for ComputeDomains,
    None where it is not wanted.   problems: by part: nodes, state, channel, plugin.
    """

    nodes: Optional[Tuple[str, ...]] = None
    domain: Optional[Domain] = None
    channel: str = ""
    asked: bool = True
    off: bool = False
    registered: Optional[bool] = None
    problems: Dict[str, Problem] = field(default_factory=dict)


def parse_nodes(text: str) -> Tuple[str, ...]:
    """Return addresses and names in their order. Raises ParseError."""
    found: List[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip().lower()
        try:
            found += [word if len(word) < 254 and _HOST.fullmatch(word) else str(ip_address(word))] if word else []
        except ValueError as error:
            raise ParseError("line %d is %.60r, expected one address or name" % (number, word)) from error
        if len(found) > MOST:
            raise ParseError("has more than %d addresses" % MOST)
    return tuple(found)


def parse_domain(text: str) -> Domain:
    """Parse the output of nvidia-imex-ctl -N -j. Raises ParseError."""
    try:
        data = json.loads(text)
        entries = [entry for _number, entry in sorted(data.get("nodes", {}).items())]
        words = [[entry.get(key, "") for key in ("host", "status", "version")] for entry in entries]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("%.80r is not a domain" % text.strip()) from error
    if not isinstance(data.get("status"), str) or len(entries) > MOST:
        raise ParseError("has no status, or more than %d nodes" % MOST)
    nodes = [[word[:60] if isinstance(word, str) else "" for word in each] for each in words]
    return Domain(data["status"][:40], tuple((host, status, version) for host, status, version in nodes))


def read(host: Host, domain: NvlinkDomain, ask: bool = True) -> ImexState:
    """Read IMEX on this node. ask: query the state of the whole domain, which may take seconds."""
    problems: Dict[str, List[Problem]] = {"channel": [], "nodes": [], "state": [], "plugin": []}
    in_pods = domain.imex == COMPUTE_DOMAIN_MODE
    channel = attempt(partial(_channel, host, not in_pods), CHANNELS, problems["channel"]) or ""
    loaded = attempt(partial(host.read, nvidia_options.PARAMS), nvidia_options.PARAMS, []) or ""
    unit = service.read(host, UNIT)
    nodes = seen = registered = None
    if in_pods:
        names = attempt(partial(host.listdir_system, SOCKETS), SOCKETS, problems["plugin"])
        registered = None if names is None else SOCKET in names
    if domain.imex == "rack":
        text = attempt(partial(host.read_system, NODES), NODES, problems["nodes"])
        nodes = None if text is None else attempt(partial(parse_nodes, text), NODES, problems["nodes"])
        if unit.active and ask:
            seen = attempt(lambda: parse_domain(host.query(TOOL, TIMEOUT)), " ".join(TOOL), problems["state"])
    return ImexState(
        **vars(unit),
        nodes=nodes,
        domain=seen,
        channel=channel,
        asked=ask or domain.imex != "rack",
        off=re.search(r"(?m)^%s: 0$" % _OPTION, loaded) is not None,
        registered=registered,
        problems={part: several[0] for part, several in problems.items() if several},
    )


def _channel(host: Host, device: bool) -> str:
    """Return what is wrong with the driver's number, and with the device of channel 0. Raises ReadError."""
    path = CHANNELS + "/channel0"
    match = re.search(r"(?m)^\s*([0-9]{1,5})\s+%s$" % _DRIVER, host.read(DEVICES) or "")
    if match is None:
        return "the driver has no %s" % _DRIVER
    if not device:
        return ""
    if "channel0" not in host.listdir(CHANNELS):
        return "there is no %s" % path
    try:
        found = os.stat(host.hardware(path))
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != int(match.group(1)):
        return "%s has major number %d, the driver %s" % (path, os.major(found.st_rdev), match.group(1))
    return ""


def judge(have: ImexState, domain: NvlinkDomain, driver: Optional[str], options: Sequence[str] = ()) -> List[Finding]:
    """Judge IMEX. driver: its version, None if not known.   options: of the driver, that the profile wants."""
    if domain.imex == COMPUTE_DOMAIN_MODE:
        # Pods of a ComputeDomain get their channels of the driver's number.
        fix = "load the NVIDIA driver %s or later; %s" % (OLDEST, RECHECK)
        channel = _judge_channel(have, DEVICES, "%s in it" % _DRIVER, fix)
        return [channel, *_judge_owner(have, True), *_judge_compute_domain(have, driver)]
    because = nvidia_options.OPTIONS.finding_id("NVreg_" + _OPTION) if have.off and _OPTION in options else None
    want = "a device with the driver's major number"
    found = [_judge_channel(have, CHANNELS + "/channel0", want, because=because)]
    if domain.imex != "rack":
        return found + _judge_owner(have, False)
    other = "where jobs start IMEX, set imex: job (Slurm) or compute_domain (Kubernetes) in the profile's nvlink_domain"
    log = "/var/log/nvidia-imex.log"
    unit = service.judge(SERVICE, UNIT, UNIT, have, "active and enabled", None, log, other)
    found += [unit, _judge_nodes(have, domain, unit)]
    return [*found, _judge_state(have, driver, unit)] if have.asked else found


def _judge_channel(
    have: ImexState, path: str, want: str, fix: Optional[str] = None, because: Optional[str] = None
) -> Finding:
    """Judge what the node has of the channel. path: of the device, or of the list with the driver's number."""
    if "channel" in have.problems:
        fix = "run this as root, and look at %s" % path
        return CHANNEL.judge(path, "unknown", want, str(have.problems["channel"]), path, fix)
    return CHANNEL.judge(path, "drift" if have.channel else "ok", want, have.channel or want, path, fix, because)


def _judge_compute_domain(have: ImexState, driver: Optional[str]) -> Iterator[Finding]:
    """Judge what the node needs before pods of a ComputeDomain start."""
    want = "%s or later" % OLDEST
    release = version_key(driver)
    state = "unknown" if release is None else "ok" if release >= (version_key(OLDEST) or ()) else "drift"
    fix = "install the NVIDIA driver %s; %s" % (want, RECHECK)
    yield COMPUTE_DOMAIN.judge("driver", state, want, driver or "not loaded", VERSION, fix)
    problem, want = have.problems.get("plugin"), "registered (%s)" % SOCKET
    state = "unknown" if have.registered is None else "ok" if have.registered else "drift"
    text = str(problem) if problem else want if have.registered else "absent"
    yield COMPUTE_DOMAIN.judge("kubelet plugin", state, want, text, SOCKETS)


def _judge_owner(have: ImexState, in_pods: bool) -> List[Finding]:
    """Judge the host's own service where jobs start IMEX; in Slurm a job may have started this very unit."""
    want, source = "not started by the host: jobs do that", "systemctl show %s" % UNIT
    if have.problem is not None:
        fix = "run %s on the node" % source
        return [SERVICE.judge(UNIT, "unknown", want, str(have.problem), source, fix, severity="major")]
    if have.active is None:
        return []
    if have.enabled or (in_pods and have.active):
        enabled = "enabled" if have.enabled else "not enabled"
        text = "%s, %s: it holds the port and the channels that a job's IMEX needs" % (have.state, enabled)
        more = " && systemctl mask %s" % UNIT if in_pods else "; with ComputeDomains set imex: compute_domain"
        fix = "systemctl disable --now %s%s" % (UNIT, more)
        return [SERVICE.judge(UNIT, "drift", want, text, source, "%s; %s" % (fix, RECHECK), severity="major")]
    return [SERVICE.judge(UNIT, "ok", want, "%s, %s" % (have.state, "masked" if have.mask else "not enabled"), source)]


def _judge_nodes(have: ImexState, domain: NvlinkDomain, unit: Finding) -> Finding:
    want, nodes, because = "one address a line, of %d nodes at most" % domain.nodes, have.nodes or (), None
    if "nodes" in have.problems:
        return NODES_CONFIG.judge(NODES, "unknown", want, str(have.problems["nodes"]), NODES)
    twice = sorted({one for one in nodes if nodes.count(one) > 1})
    text = "%s is listed twice" % twice[0] if twice else "%d addresses" % len(nodes)
    if not nodes:
        text = "no address" if have.nodes is not None else "absent"
        because = unit if have.installed is False or (have.mask and not have.active) else None
    state = "ok" if nodes and not twice and len(nodes) <= domain.nodes else "drift"
    return NODES_CONFIG.judge(NODES, state, want, text, because=because)


def _judge_state(have: ImexState, driver: Optional[str], unit: Finding) -> Finding:
    subject, want, source, domain = "imex domain", "UP, every node READY", " ".join(TOOL), have.domain
    if domain is None:
        problem = have.problems.get("state")
        text = str(problem) if problem else "not checked: the service does not run"
        severity = "major" if have.mask and not have.active else None
        fix = None if problem is None else "run %s on the node; where it hangs, restart %s" % (source, UNIT)
        because = None if have.active else unit
        return STATE.judge(subject, "unknown", want, text, source, fix, because, severity=severity)
    away = ["%s %s" % (host, status or "?") for host, status, _version in domain.nodes if status != "READY"]
    versions = sorted({version for _host, _status, version in domain.nodes if version})
    if domain.state != "UP" or away:
        text = "%s: %s" % (domain.state, ", ".join(away[:3]) or "every node READY")
        return STATE.judge(subject, "drift", want, text, source)
    if driver is not None and versions and versions != [driver]:
        fix = "install nvidia-imex of the driver's version %s on every node, then systemctl restart %s" % (driver, UNIT)
        return STATE.judge(subject, "drift", "version %s" % driver, "versions " + ", ".join(versions), source, fix)
    lacking = sum(not version for _host, _status, version in domain.nodes)
    state = "ok" if domain.nodes and driver is not None and not lacking else "unknown"
    text = "UP, %d nodes READY" % len(domain.nodes) + (", %d of unknown version" % lacking if lacking else "")
    return STATE.judge(subject, state, want, text, source, severity="major" if lacking else None)


# -- the domain -------------------------------------------------------------------------------------------------


def _pair_of(gpu: smi.Gpu) -> Optional[Tuple[str, str]]:
    """Return UUID and clique of a GPU's domain; None if it is in none, or does not report it."""
    uuid, clique = gpu.fabric.get("clusterUuid", ""), gpu.fabric.get("cliqueId", "")
    known = re.fullmatch(r"[0-9a-fA-F-]{36}", uuid) is not None and uuid != ZEROS and clique.isdigit()
    return (uuid.lower(), clique) if known else None


def domain_of(host: Host) -> Tuple[str, str]:
    """Return UUID and clique that all GPUs of the node have, or why there is no such pair; the other is ""."""
    source = " ".join(smi.COMMAND)
    try:
        gpus = smi.parse(host.query(smi.COMMAND))
    except (ReadError, ParseError) as error:
        return "", str(problem_of(error, source))
    domains = _domains(gpus)
    if len(domains) == 1 and domains[0]:
        return domains[0], ""
    lost = [gpu.pci for gpu in gpus if _pair_of(gpu) is None]
    if lost:
        return "", "%d of %d GPUs have no UUID and clique of one (%s; %s)" % (len(lost), len(gpus), lost[0], source)
    return "", "its GPUs are of %d domains (%s)" % (len(domains), source) if gpus else "%s lists no GPU" % source


def _domains(gpus: Iterable[smi.Gpu]) -> List[str]:
    """Return ``UUID.clique`` of each domain, "" of GPUs that are in none."""
    return sorted({".".join(_pair_of(gpu) or ()) for gpu in gpus})


def judge_membership(gpus: Mapping[str, smi.Gpu], names: Mapping[str, str]) -> List[Finding]:
    """Judge the domain of each GPU. gpus, names: by address."""
    source, want = "%s, fabric" % " ".join(smi.COMMAND), "UUID and clique of an NVLink domain"
    found = []
    for pci, gpu in gpus.items():
        text = "UUID %s, clique %s" % tuple(gpu.fabric.get(key, "not shown") for key in ("clusterUuid", "cliqueId"))
        state = gpu.fabric.get("state", "").lower()
        unread = "clusterUuid" not in gpu.fabric or "cliqueId" not in gpu.fabric
        judged = "unknown" if not state or (unread and state == "completed") else "drift"
        judged = judged if _pair_of(gpu) is None else "ok"
        # Before it is registered it has neither.
        because = None if state == "completed" else NVLINK_FABRIC.finding_id("nvlink fabric")
        found.append(MEMBERSHIP.judge(names.get(pci, pci), judged, want, text, source, because=because))
    domains = [one for one in _domains(gpus.values()) if one]
    if len(domains) > 1:
        text = "; ".join(domains)
        found.append(MEMBERSHIP.judge("gpus", "drift", "one domain for all GPUs", text, source))
    return found


def fleet_facts(have: Optional[ImexState], gpus: Mapping[str, smi.Gpu]) -> Optional[Dict[str, object]]:
    """Return what the control node compares over all nodes of a domain; None if there is nothing to compare."""
    domains = _domains(gpus.values())
    if have is None or not have.nodes or len(domains) != 1 or not domains[0]:
        return None
    return {"domain": domains[0], "nodes": list(have.nodes)}
