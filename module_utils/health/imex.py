# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge IMEX (memory access between GPUs of several nodes over NVLink): service, list of nodes, channel.

One service runs on each node of a domain, all with the same list, which is read when it starts. If jobs start IMEX
(profile: imex job), an idle service is right, and only the channel is judged.
Sources: NVIDIA IMEX guide (config options, channels, command service); NVIDIA/DCGM DcgmImexManager.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, attempt, problem_of
from ..core.systemd_files import start
from ..driver import nvidia_options
from ..machine.platform_checks import NVLINK_FABRIC
from ..machine.profile import NvlinkDomain
from . import service, smi
from .service import RECHECK, Service

UNIT = "nvidia-imex.service"
NODES = "/etc/nvidia-imex/nodes_config.cfg"
CHANNELS = "/dev/nvidia-caps-imex-channels"
DEVICES = "/proc/devices"
_DRIVER = "nvidia-caps-imex-channels"
_OPTION = "CreateImexChannel0"
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
(`imex: job`): does the host not start it"""
NODES_CONFIG = Check(
    "imex.nodes",
    why="IMEX reaches the nodes of this list and no others; it is read when the service starts",
    fix="write the address of each node of the domain into %s, one a line and the same file on all of them, then"
    " systemctl restart %s on all; %s" % (NODES, UNIT, RECHECK),
    severity="critical",
    aspect="persisted",
)
"""Can the list of nodes be read, has it one address a line, none twice and no more than the domain has; over the run's
hosts: have all nodes of a domain the same"""
STATE = Check(
    "imex.state",
    why="if the domain is not UP, a node cannot export or import memory: NCCL fails, or uses no NVLink between nodes",
    fix="run nvidia-imex-ctl -N -H on the node, read /var/log/nvidia-imex.log on those that are not READY; %s"
    % RECHECK,
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
"Does the device of IMEX channel 0 exist, with the current major number of the driver"


MEMBERSHIP = Check(
    "imex.domain",
    why="a GPU without the UUID of an NVLink domain belongs to none: NCCL then silently uses no NVLink between nodes,"
    " for the whole job",
    fix="look at the switch trays' Fabric Manager and NMX-C, and at nvidia-smi -q (Fabric) on the node; reset the GPU"
    " or reboot the node; %s" % RECHECK,
    severity="critical",
)
"Do all GPUs of the node report the same NVLink domain, a pair of UUID and clique"
ZEROS = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Domain:
    """A domain as one node sees it. state: UP, DEGRADED, DOWN, ...   nodes: (host, status, version) of each."""

    state: str
    nodes: Tuple[Tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class ImexState(Service):
    """nodes: the list, None where there is none.   domain: None where it was not queried or did not respond.

    channel: what is wrong with it, "" for nothing.   asked: whether the domain's state is wanted.
    off: the driver was loaded without channel 0.   problems: by part: nodes, state, channel.
    """

    nodes: Optional[Tuple[str, ...]] = None
    domain: Optional[Domain] = None
    channel: str = ""
    asked: bool = True
    off: bool = False
    problems: Dict[str, Problem] = field(default_factory=dict)


def parse_nodes(text: str) -> Tuple[str, ...]:
    """Return addresses in their order. Raises ParseError."""
    found: List[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            found.append(str(ip_address(word)))
        except ValueError as error:
            raise ParseError("line %d is %.60r, expected one address" % (number, word)) from error
        if len(found) > MOST:
            raise ParseError("has more than %d addresses" % MOST)
    return tuple(found)


def parse_domain(text: str) -> Domain:
    """Parse the output of nvidia-imex-ctl -N -j. Raises ParseError."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("%.80r is not JSON" % text.strip()) from error
    if not isinstance(said, dict) or not isinstance(said.get("status"), str):
        raise ParseError("has no status")
    entries = said.get("nodes", {})
    if not isinstance(entries, dict) or not all(isinstance(one, dict) for one in entries.values()):
        raise ParseError("nodes is not a mapping of mappings")
    if len(entries) > MOST:
        raise ParseError("has more than %d nodes" % MOST)
    each = [entry for _number, entry in sorted(entries.items())]
    nodes = tuple((_word(one, "host"), _word(one, "status"), _word(one, "version")) for one in each)
    return Domain(said["status"][:40], nodes)


def _word(entry: Dict[str, Any], key: str) -> str:
    value = entry.get(key, "")
    return value[:60] if isinstance(value, str) else ""


def read(host: Host, domain: NvlinkDomain, ask: bool = True) -> ImexState:
    """Read IMEX on this node. ask: query the state of the whole domain, which may take seconds."""
    problems: Dict[str, List[Problem]] = {"channel": [], "nodes": [], "state": []}
    channel = _channel(host, problems["channel"])
    loaded = attempt(lambda: host.read(nvidia_options.PARAMS), nvidia_options.PARAMS, []) or ""
    unit = service.read(host, UNIT)
    nodes = seen = None
    if domain.imex != "job":
        text = attempt(lambda: host.read_system(NODES), NODES, problems["nodes"])
        nodes = attempt(lambda: parse_nodes(text or ""), NODES, problems["nodes"]) if text is not None else None
        if unit.active and ask:
            seen = attempt(lambda: parse_domain(host.query(TOOL, TIMEOUT)), " ".join(TOOL), problems["state"])
    return ImexState(
        **vars(unit),
        nodes=nodes,
        domain=seen,
        channel=channel,
        asked=ask or domain.imex == "job",
        off=re.search(r"(?m)^%s: 0$" % _OPTION, loaded) is not None,
        problems={part: several[0] for part, several in problems.items() if several},
    )


def _channel(host: Host, problems: List[Problem]) -> str:
    path = CHANNELS + "/channel0"
    try:
        devices = host.read(DEVICES) or ""
        match = re.search(r"(?m)^\s*([0-9]{1,5})\s+%s$" % _DRIVER, devices)
        if match is None:
            return "the driver has no %s" % _DRIVER
        if "channel0" not in host.listdir(CHANNELS):
            return "there is no %s" % path
        found = os.stat(host.hardware(path))
    except ReadError as error:
        problems.append(error.problem)
        return ""
    except OSError as error:
        problems.append(Problem(path, "cannot be read: %s" % error.strerror))
        return ""
    if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != int(match.group(1)):
        return "%s has major number %d, the driver %s" % (path, os.major(found.st_rdev), match.group(1))
    return ""


def judge(have: ImexState, domain: NvlinkDomain, driver: Optional[str], options: Sequence[str] = ()) -> List[Finding]:
    """Judge IMEX. driver: its version, None if not known.   options: of the driver, that the profile wants."""
    found = [_judge_channel(have, _OPTION in options)]
    if domain.imex != "rack":
        return found + _judge_owner(have)
    other = "where jobs (Slurm, ComputeDomains) start IMEX, set imex: job in the profile's nvlink_domain"
    log = "/var/log/nvidia-imex.log"
    unit = service.judge(SERVICE, UNIT, UNIT, have, "active and enabled", None, log, other)
    found += [unit, _judge_nodes(have, domain, unit)]
    return [*found, _judge_state(have, driver, unit)] if have.asked else found


def _judge_channel(have: ImexState, by_driver: bool) -> Finding:
    path, want = CHANNELS + "/channel0", "a device with the driver's major number"
    if "channel" in have.problems:
        problem = have.problems["channel"]
        return CHANNEL.judge(path, "unknown", want, str(problem), path, "run this as root, and look at %s" % path)
    because = nvidia_options.OPTIONS.finding_id("NVreg_" + _OPTION) if have.off and by_driver else None
    return CHANNEL.judge(path, "drift" if have.channel else "ok", want, have.channel or want, path, because=because)


def _judge_owner(have: ImexState) -> List[Finding]:
    """Judge the host's own service where jobs start IMEX; a job may have started this very unit."""
    want, source = "not started by the host: jobs do that", "systemctl show %s" % UNIT
    if have.problem is not None:
        fix = "run %s on the node" % source
        return [SERVICE.judge(UNIT, "unknown", want, str(have.problem), source, fix, severity="major")]
    if have.enabled:
        text = "%s, enabled: it holds the port and the channels that a job's IMEX needs" % have.state
        fix = "systemctl disable --now %s (where ComputeDomains start IMEX, also systemctl mask %s); %s"
        fix %= (UNIT, UNIT, RECHECK)
        return [SERVICE.judge(UNIT, "drift", want, text, source, fix, severity="major")]
    text = "%s, %s" % (have.state, "masked" if have.mask else "not enabled")
    return [] if have.active is None else [SERVICE.judge(UNIT, "ok", want, text, source)]


def _judge_nodes(have: ImexState, domain: NvlinkDomain, unit: Finding) -> Finding:
    want = "one address a line, of %d nodes at most" % domain.nodes
    if "nodes" in have.problems:
        return NODES_CONFIG.judge(NODES, "unknown", want, str(have.problems["nodes"]), NODES)
    nodes = have.nodes or ()
    twice = sorted({one for one in nodes if nodes.count(one) > 1})
    text, state, because = "%d addresses" % len(nodes), "drift", None
    if not nodes:
        text = "no address" if have.nodes is not None else "absent"
        because = unit if have.installed is False or (have.mask and not have.active) else None
    elif twice:
        text = "%s is listed twice" % twice[0]
    elif len(nodes) <= domain.nodes:
        state = "ok"
    return NODES_CONFIG.judge(NODES, state, want, text, because=because)


def _judge_state(have: ImexState, driver: Optional[str], unit: Finding) -> Finding:
    subject, want, source = "imex domain", "UP, every node READY", " ".join(TOOL)
    if have.domain is None:
        problem = have.problems.get("state")
        text = str(problem) if problem else "not checked: the service does not run"
        because = None if have.active else unit
        severity = "major" if have.mask and not have.active else None
        fix = None if problem is None else "run %s on the node; where it hangs, restart %s" % (source, UNIT)
        return STATE.judge(subject, "unknown", want, text, source, fix, because, severity=severity)
    away = ["%s %s" % (host, status or "?") for host, status, _version in have.domain.nodes if status != "READY"]
    versions = sorted({version for _host, _status, version in have.domain.nodes if version})
    state, text, fix = "ok", "UP, %d nodes READY" % len(have.domain.nodes), None
    if have.domain.state != "UP" or away:
        more = ": %s%s" % (away[0], " and %d more" % (len(away) - 1) if away[1:] else "") if away else ""
        state, text = "drift", have.domain.state + more
    elif driver is not None and versions and versions != [driver]:
        state, want, text = "drift", "version %s" % driver, "versions %s" % ", ".join(versions)
        fix = "install nvidia-imex of the driver's version %s on every node, then systemctl restart %s" % (driver, UNIT)
    elif not have.domain.nodes:
        state, text = "unknown", "UP, and no node is listed"
    return STATE.judge(subject, state, want, text, source, fix)


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
    lost = [gpu.pci for gpu in gpus if _pair_of(gpu) is None]
    if not gpus:
        return "", "%s lists no GPU" % source
    if lost:
        return "", "%d of %d GPUs have no UUID and clique of one (%s; %s)" % (len(lost), len(gpus), lost[0], source)
    domains = _domains(gpus)
    return (domains[0], "") if len(domains) == 1 else ("", "its GPUs are of %d domains (%s)" % (len(domains), source))


def _domains(gpus: Iterable[smi.Gpu]) -> List[str]:
    """Return ``UUID.clique`` of each domain, "" of GPUs that are in none."""
    return sorted({".".join(_pair_of(gpu) or ()) for gpu in gpus})


def judge_membership(gpus: Mapping[str, smi.Gpu], names: Mapping[str, str]) -> List[Finding]:
    """Judge the domain of each GPU. gpus, names: by address."""
    source, want = "%s, fabric" % " ".join(smi.COMMAND), "UUID and clique of an NVLink domain"
    found = []
    pairs: Dict[Tuple[str, str], int] = {}
    for pci, gpu in gpus.items():
        pair = _pair_of(gpu)
        name = names.get(pci, pci)
        if pair is not None:
            pairs[pair] = pairs.get(pair, 0) + 1
            found.append(MEMBERSHIP.judge(name, "ok", want, "%s, clique %s" % pair, source))
            continue
        state = gpu.fabric.get("state", "").lower()
        unread = "clusterUuid" not in gpu.fabric or "cliqueId" not in gpu.fabric
        said = "UUID %s, clique %s" % tuple(gpu.fabric.get(key, "not shown") for key in ("clusterUuid", "cliqueId"))
        # Before it is registered it has neither.
        because = None if state == "completed" else NVLINK_FABRIC.finding_id("nvlink fabric")
        how = "unknown" if not state or (unread and state == "completed") else "drift"
        found.append(MEMBERSHIP.judge(name, how, want, said, source, because=because))
    if len(pairs) > 1:
        said = "; ".join("%s, clique %s: %d GPUs" % (*pair, count) for pair, count in sorted(pairs.items()))
        found.append(MEMBERSHIP.judge("gpus", "drift", "one domain for all GPUs", said, source))
    return found


def fleet_facts(have: Optional[ImexState], gpus: Mapping[str, smi.Gpu]) -> Optional[Dict[str, Any]]:
    """Return what the control node compares over all nodes of a domain; None if there is nothing to compare."""
    domains = _domains(gpus.values())
    if have is None or not have.nodes or len(domains) != 1 or not domains[0]:
        return None
    return {"domain": domains[0], "nodes": list(have.nodes)}
