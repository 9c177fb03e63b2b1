# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sweep the InfiniBand planes that a node has ports in, with the tools of infiniband-diags. Changes nothing.

A plane is known by the GUID of its master subnet manager, because subnet prefixes and LIDs are defaults: sminfo runs at
each port, and one sweep is made for each GUID. Each tool sends two queries at a time and has what is left of the
plane's seconds. Exit code 0 proves nothing, so every line on stderr counts.
Sources: rdma-core infiniband-diags (sminfo, saquery, ibnetdiscover, iblinkinfo, ibqueryerrors, smpquery).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..core import locks
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Output, ParseError, Problem, ReadError, ToolHung, attempt, noted
from ..machine import pci, rdma
from . import discovery, merge, subnet_manager, tool_output
from .sweep import CA, ManagerEvent, Sweep

PROGRAMS = ("sminfo", "saquery", "ibnetdiscover", "iblinkinfo", "ibqueryerrors", "smpquery")
LOCK = "fabric"
# Seconds to wait for another sweep of this host, and for one response of a subnet manager.
PATIENCE, ASK = 10.0, 15.0
# Where opensm writes its log and its dump of unhealthy ports, and bytes of each.
LOGS, LOG = "/var/log", 64 << 20
_LOG = re.compile(r"opensm[A-Za-z0-9_.-]*\.log")
UNHEALTHY_PORTS = "opensm-unhealthy-ports.dump"
# Bytes of one output: counters of 40,000 ports have 17 MB.
OUTPUT = 64 << 20
# rdma-core that decodes XDR.
_XDR = 50
_PORT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63}):([0-9]{1,3})")
_VERSION = re.compile(r"BUILD VERSION: ([0-9]{1,4})\b")
# The tools' messages where /dev/infiniband/umad* cannot be opened, or the port is not InfiniBand.
_NO_UMAD = re.compile(
    r"open UMAD port|Failed to open |client_register for mgmt|ib_umad module loaded|No SM/SA found on port"
)


TOOLS = Check(
    "ib_fabric.tools",
    why="the fabric is queried by infiniband-diags; without one of its tools the switches are not checked",
    fix="install it on this host: apt-get install infiniband-diags (dnf install infiniband-diags on EL)",
)
"""Are the tools that query the fabric installed, and may root run them"""
UMAD = Check(
    "ib_fabric.umad",
    why="a query needs /dev/infiniband/umad*, which only root may open, and an InfiniBand port that is up",
    fix="run the play as root (become), load the device (modprobe ib_umad), and look at ls -l /dev/infiniband",
)
"Can the host open the management device of the port that it sweeps through; `unsupported` if its ports are Ethernet"
ANSWER = Check(
    "ib_fabric.answer",
    why="if a tool hangs or the subnet manager does not respond, the state of the fabric is unknown",
    fix="run the command on the host to see what it waits for; lost management packets delay each query",
)
"""Did the tools end in time, and did the subnet manager of each port respond"""
_ACTIVE = "an active InfiniBand port"


@dataclass(frozen=True)
class LocalPort:
    """link_layer, active: None where they were not read.   of_nvswitch: its device manages the board's NVSwitches."""

    device: str
    port: int
    link_layer: Optional[str] = None
    active: Optional[bool] = None
    of_nvswitch: bool = False

    def __str__(self) -> str:
        return "%s:%d" % (self.device, self.port)

    @property
    def options(self) -> List[str]:
        return ["-C", self.device, "-P", str(self.port)]


def parse_port(text: str) -> LocalPort:
    """Parse ``mlx5_0:1``. Raises ParseError."""
    match = _PORT.fullmatch(text.strip())
    if match is None or not 1 <= int(match.group(2)) <= 254:
        raise ParseError("%.80r is not a port: write DEVICE:PORT, as in mlx5_0:1" % text)
    return LocalPort(match.group(1), int(match.group(2)))


def local_ports(host: Host, problems: List[Problem]) -> List[LocalPort]:
    """Return every port of every RDMA device, in natural order."""
    found: List[LocalPort] = []
    with noted(rdma.DEVICES, problems):
        for device in sorted(host.listdir(rdma.DEVICES), key=pci.natural_key):
            folder = "%s/%s/ports" % (rdma.DEVICES, device)
            for number in sorted(host.listdir(folder), key=pci.natural_key):
                path = "%s/%s" % (folder, number)
                state = pci.read_value(host, path + "/state", rdma.parse_state, problems)
                layer = pci.read_value(host, path + "/link_layer", pci.parse_text, problems)
                port = parse_port("%s:%s" % (device, number))
                found.append(replace(port, link_layer=layer, active=state == "ACTIVE"))
    ethernet = {port.device for port in found if port.link_layer != "InfiniBand"}
    bridges = rdma.nvswitch_bridges(host, sorted({port.device for port in found} - ethernet))
    return [replace(port, of_nvswitch=port.device in bridges) for port in found]


def read(
    host: Host,
    devices: Sequence[str] = (),
    seconds: float = 120.0,
    partitions: bool = False,
    known: Sequence[str] = (),
) -> Reading:
    """Return one sweep for each plane. Raises ParseError for an impossible port, ReadError where no lock can be had.

    devices: the ports to sweep from; none: every active InfiniBand port.   seconds: limit of each plane.
    partitions: query each host port for its keys, one process for each port.
    known: planes, by the GUIDs of their subnet managers, that another host has swept; they are left out.
    """
    problems: List[Problem] = []
    local = local_ports(host, problems)
    by_name = {str(port): port for port in local}
    ports = [by_name.get(str(port), port) for port in map(parse_port, dict.fromkeys(devices))] or [
        port for port in local if port.link_layer == "InfiniBand" and port.active and not port.of_nvswitch
    ]
    reading = Reading(host, seconds, partitions)
    found = reading.findings
    for name in PROGRAMS if partitions else PROGRAMS[:-1]:
        try:
            host.tool(name)
        except ReadError as error:
            want, problem = "installed, and writable by root alone", error.problem
            found.append(TOOLS.judge(problem.source, "drift", want, problem.message))
    if found:
        return reading
    found.append(TOOLS.judge("infiniband-diags", "ok", "installed", "installed"))
    found += map(UMAD.unreadable, problems)
    if not ports:
        found.append(_no_port(local))
        return reading
    try:
        with locks.hold(host, LOCK, PATIENCE):
            reading.sweep_planes(ports, known)
    except BlockingIOError:
        fix = "wait for the other sweep of this host, or find its process: fuser -v /run/busbar/%s" % LOCK
        found.append(ANSWER.judge("sweep", "unknown", "one sweep at a time", "another sweep is running", fix=fix))
    if reading.sweeps and not any(finding.check == ANSWER.id for finding in found):
        found.append(sweeps_read(reading.sweeps))
    return reading


def sweeps_read(sweeps: Sequence[Sweep], source: str = "sweep") -> Finding:
    return ANSWER.judge("sweep", "ok", "answers", "%d planes" % len(sweeps), source)


def _no_port(local: Sequence[LocalPort]) -> Finding:
    infiniband = [port for port in local if port.link_layer == "InfiniBand"]
    if infiniband:
        rails, bridges = ([str(port) for port in infiniband if port.of_nvswitch is flag] for flag in (False, True))
        state, have = "unknown", "none is active: %s" % ", ".join(rails) if rails else "none"
        have += "; %s manage NVSwitches" % ", ".join(bridges) if bridges else ""
        fix = "run ibstat on the host and repair its ports, or take the host out of busbar_fabric_hosts"
    else:
        state, have = "unsupported", "Ethernet alone: %s" % ", ".join(map(str, local)) if local else "no RDMA device"
        fix = "name a host with InfiniBand ports in busbar_fabric_hosts instead of this one"
    return UMAD.judge("InfiniBand ports", state, _ACTIVE, have, fix=fix)


@dataclass
class Reading:
    """Sweeps of a host, and findings of what it could and could not do.

    routing, events: GUID of a manager's port, "" where its log names none -> routing engine, and events of its logs.
    """

    host: Host
    seconds: float
    partitions: bool
    findings: List[Finding] = field(default_factory=list)
    sweeps: List[Sweep] = field(default_factory=list)
    deadline: float = 0.0
    decodes_xdr: bool = False
    routing: Dict[str, str] = field(default_factory=dict)
    events: Dict[str, List[ManagerEvent]] = field(default_factory=dict)
    unhealthy: Dict[Tuple[str, int], str] = field(default_factory=dict)

    def sweep_planes(self, ports: Sequence[LocalPort], known: Sequence[str]) -> None:
        version = attempt(lambda: self.host.run(["ibnetdiscover", "--version"], min(ASK, self.seconds)), "", [])
        match = _VERSION.search(version.stdout + version.stderr) if version else None
        self.decodes_xdr = match is not None and int(match.group(1)) >= _XDR
        self._read_logs()
        masters = {port: self._master(port) for port in ports}
        planes: Dict[str, LocalPort] = {}
        for port, master in masters.items():
            if master and master not in known:
                planes.setdefault(master, port)
        sweeps = [self._sweep(port, master) for master, port in planes.items()]
        for port in (port for port, master in masters.items() if master == ""):
            # Its plane is unknown, unless another sweep has found its node.
            if self._node_guid(port) not in {node.guid for sweep in sweeps for node in sweep.nodes}:
                sweeps.append(self._sweep(port, ""))
        if sweeps:
            # Of a manager that no plane lists, and of ports that no sweep has.
            events = tuple(event for events in (sweeps[0].events, *self.events.values()) for event in events)
            sweeps[0] = replace(sweeps[0], events=events, unhealthy={**sweeps[0].unhealthy, **self.unhealthy})
        self.sweeps = sweeps

    def _read_logs(self) -> None:
        """Read logs of subnet managers on this host, and their unhealthy ports."""
        # A node without a manager has none.
        unread: List[Problem] = []

        def text_of(path: str) -> str:
            """Return a file, or the end of a larger one, which is enough where that has all recent lines."""
            text = attempt(lambda: self.host.read_system(path, "replace", LOG, tail=True), path, unread) or ""
            size = attempt(lambda: self.host.size_system(path), path, unread) or 0
            if size > LOG and not subnet_manager.covers_recent(text, time.localtime()):
                unread.append(Problem(path, "only its last %d bytes were read" % LOG))
            return text

        for name in attempt(lambda: self.host.listdir_system(LOGS), LOGS, unread) or []:
            path = "%s/%s" % (LOGS, name)
            if name == UNHEALTHY_PORTS:
                self.unhealthy = subnet_manager.parse_unhealthy(text_of(path)).unhealthy
            elif _LOG.fullmatch(name):
                text = text_of(path)
                engines = subnet_manager.parse_log_routing(text)
                self.routing.update(engines)
                # Several logs may name no port.
                events = subnet_manager.parse_log_events(text, time.localtime())
                self.events.setdefault(next(iter(engines), ""), []).extend(events)
        fix = "check that root can read %s; rotate a larger log daily (logrotate), or limit it (opensm --log_limit)"
        for problem in unread:
            path = problem.source
            check = subnet_manager.UNHEALTHY if path.endswith(UNHEALTHY_PORTS) else subnet_manager.MANAGER_LOG
            self.findings.append(check.judge(path, "unknown", "all of it read", problem.message, path, fix % path))

    def _hung(self, error: ToolHung) -> None:
        self.findings.append(ANSWER.judge(error.problem.source, "unknown", "an end in time", error.problem.message))

    def _master(self, port: LocalPort) -> Optional[str]:
        """Return the GUID of a port's subnet manager; "" where none responds, None where the port cannot be swept."""
        name = str(port)
        if port.link_layer not in (None, "InfiniBand") or port.of_nvswitch:
            have = "manages NVSwitches" if port.of_nvswitch else port.link_layer
            fix = "take %s out of ib_fabric_devices, or set ib_fabric_devices to the ports to sweep from" % name
            self.findings.append(UMAD.judge(name, "unsupported", _ACTIVE, have, fix=fix))
            return None
        refused, master = "", ""
        try:
            output = self.host.run(["sminfo", *port.options], timeout=min(ASK, self.seconds))
        except ToolHung as error:
            self._hung(error)
        except ReadError as error:
            refused = str(error)
        else:
            have = "%s: %.200s" % (output.command, output.last_words)
            managers = subnet_manager.parse_sminfo(output.stdout).managers
            if _NO_UMAD.search(output.stderr):
                refused = have
            elif output.rc == 0 and managers:
                master = managers[0].guid
            else:
                fix = "check that a subnet manager runs in this plane: run sminfo and ibstat (SM lid) on the host"
                self.findings.append(ANSWER.judge(name, "unknown", "a response of the manager", have, fix=fix))
        state, have = ("unknown", refused) if refused else ("ok", "opened")
        self.findings.append(UMAD.judge(name, state, "a umad device that can be opened", have))
        return None if refused else master

    def _node_guid(self, port: LocalPort) -> str:
        argv = ["smpquery", *port.options, "-D", "nodeinfo", "0"]
        query = self.host.query
        return attempt(lambda: subnet_manager.parse_node_guid(query(argv, timeout=ASK)), "", []) or ""

    # -- one plane ---------------------------------------------------------------------------------------------------

    def _sweep(self, port: LocalPort, master: str) -> Sweep:
        """Sweep one plane. master: GUID of its subnet manager, "" where none responds."""
        began = time.monotonic()
        self.deadline = began + self.seconds
        problems: List[Problem] = []
        merged = merge.Merged(self.decodes_xdr)
        sminfo = "sminfo " + " ".join(port.options)
        if not master:
            problems.append(tool_output.problem(sminfo, "no subnet manager responds"))
        for name, parse in (
            (["ibnetdiscover"], discovery.parse_ibnetdiscover),
            (["iblinkinfo", "--line"], discovery.parse_iblinkinfo),
            (["sminfo"], subnet_manager.parse_sminfo),
            (["saquery", "SMIR"], subnet_manager.parse_records),
        ):
            if master or name[0] not in ("sminfo", "saquery"):
                printed = self._run([*name, *port.options], (0,), problems)
                if printed is not None:
                    output = parse(printed.stdout, printed.command)
                    output.complain(printed.stderr)
                    merged.add(output)
        merged.routing = self.routing.get(master)
        for guid in [guid for guid in self.events if guid == master or guid in merged.managers]:
            merged.events += self.events.pop(guid)
        for end in [end for end in self.unhealthy if end[0] in merged.nodes]:
            merged.unhealthy[end] = self.unhealthy.pop(end)
        if merged.nodes:
            outputs = []
            # Errors of ports that have some, with thresholds of 0, and the data counters of every port.
            for options in (["--details", "--threshold-file", "/dev/null"], ["--counters"]):
                # 1: a port is above a threshold.
                printed = self._run(["ibqueryerrors", *options, *port.options], (0, 1), problems)
                if printed is not None:
                    outputs.append(discovery.parse_ibqueryerrors(printed.stdout, printed.stderr, printed.command))
            merged.count(outputs)
        if self.partitions:
            self._read_pkeys(port, merged, problems)
        if master and self._master_now(port) != master:
            problems.append(tool_output.problem(sminfo, "another subnet manager, or none, responds at the end"))
        seconds = round(time.monotonic() - began, 3)
        about = {"plane": master, "device": port.device, "port": port.port, "at": time.time(), "seconds": seconds}
        return merged.sweep(problems, **about)

    def _read_pkeys(self, local: LocalPort, merged: merge.Merged, problems: List[Problem]) -> None:
        """Query every host port that has a LID. The manager refuses the table of all."""
        unread: List[str] = []
        hcas = [guid for guid, node in merged.nodes.items() if node["kind"] == CA]
        for guid, lid in [(one, port.get("lid")) for one in hcas for port in merged.ports[one].values()]:
            if not lid or guid in merged.keys:
                continue
            try:
                if time.monotonic() >= self.deadline:
                    raise ReadError("smpquery pkeys", "the plane's time limit of %g s is over" % self.seconds)
                argv = ["smpquery", *local.options, "pkeys", str(lid)]
                merged.keys[guid] = subnet_manager.parse_pkeys(self.host.query(argv, timeout=ASK))
            except (ReadError, ParseError) as error:
                unread.append("%s: %s" % (guid, error))
        if unread:
            text = "the keys of %d ports were not read: %s" % (len(unread), unread[0])
            problems.append(tool_output.problem("smpquery pkeys", text))

    def _master_now(self, port: LocalPort) -> str:
        output = attempt(lambda: self.host.run(["sminfo", *port.options], timeout=ASK), "", [])
        managers = subnet_manager.parse_sminfo(output.stdout).managers if output else []
        return managers[0].guid if managers else ""

    def _run(self, argv: List[str], codes: Tuple[int, ...], problems: List[Problem]) -> Optional[Output]:
        """Run a tool in what is left of the plane's time; None, and a problem, where it does not end."""
        source, output = " ".join(argv), None
        text = "was not queried: the plane's limit of %g s was over" % self.seconds
        try:
            # A tool that crashed has only read: it is run again.
            for _try in range(2):
                left = self.deadline - time.monotonic()
                if left > 0 and (output is None or output.rc < 0):
                    output = self.host.run(argv, timeout=max(round(left, 1), 0.1), limit=OUTPUT)
        except ReadError as error:
            if isinstance(error, ToolHung):
                self._hung(error)
            source, text, output = error.problem.source, error.problem.message, None
        if output is not None:
            text = "exited with %d: %.200s" % (output.rc, output.last_words) if output.rc not in codes else ""
        if text:
            problems.append(tool_output.problem(source, text))
        return output
