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
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..core import locks
from ..core.host import Host, Output, ParseError, Problem, ReadError, ToolHung, attempt, noted
from ..machine import pci, rdma
from . import iblinkinfo, ibnetdiscover, ibqueryerrors, merge, subnet_manager, tool_output
from .sweep import CA, ManagerEvent, Sweep

TOOLS = ("sminfo", "saquery", "ibnetdiscover", "iblinkinfo", "ibqueryerrors", "smpquery")
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


@dataclass
class Reading:
    """ports: those to sweep from.   local: all of the host.

    missing: tools that are not installed, or not trusted.   hung: tools that did not end.   busy: another sweep runs.
    refused: ports whose management device cannot be opened.   silent: ports without a response of a subnet manager.
    unread: logs of subnet managers that were not read, or in part.
    """

    sweeps: List[Sweep] = field(default_factory=list)
    ports: List[LocalPort] = field(default_factory=list)
    local: List[LocalPort] = field(default_factory=list)
    missing: List[Problem] = field(default_factory=list)
    hung: List[Problem] = field(default_factory=list)
    refused: List[Problem] = field(default_factory=list)
    silent: List[Problem] = field(default_factory=list)
    problems: List[Problem] = field(default_factory=list)
    unread: List[Problem] = field(default_factory=list)
    busy: bool = False


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
    counters: bool = True,
    partitions: bool = False,
    known: Sequence[str] = (),
) -> Reading:
    """Return one sweep for each plane. Raises ParseError for an impossible port, ReadError where no lock can be had.

    devices: the ports to sweep from; none: every active InfiniBand port.   seconds: limit of each plane.
    partitions: query each host port for its keys, one process for each port.
    known: planes, by the GUIDs of their subnet managers, that another host has swept; they are left out.
    """
    reading = Reading()
    reading.local = local_ports(host, reading.problems)
    by_name = {str(port): port for port in reading.local}
    reading.ports = [by_name.get(str(port), port) for port in map(parse_port, dict.fromkeys(devices))] or [
        port for port in reading.local if port.link_layer == "InfiniBand" and port.active and not port.of_nvswitch
    ]
    for name in TOOLS:
        if (counters or name != "ibqueryerrors") and (partitions or name != "smpquery"):
            try:
                host.tool(name)
            except ReadError as error:
                reading.missing.append(error.problem)
    if not reading.missing and reading.ports:
        try:
            with locks.alone(host, LOCK, PATIENCE):
                _Planes(host, reading, seconds, counters, partitions).read(known)
        except BlockingIOError:
            reading.busy = True
    return reading


class _Planes:
    """Fill a reading with sweeps."""

    def __init__(self, host: Host, reading: Reading, seconds: float, counters: bool, partitions: bool) -> None:
        self.host = host
        self.reading = reading
        self.seconds = seconds
        self.counters = counters
        self.partitions = partitions
        self.deadline = 0.0
        self.decodes_xdr = False
        # GUID of a manager's port, "" where its log names none -> its routing engine and the events of its logs.
        self.routing: Dict[str, str] = {}
        self.events: Dict[str, List[ManagerEvent]] = {}
        self.unhealthy: Dict[Tuple[str, int], str] = {}

    def read(self, known: Sequence[str]) -> None:
        try:
            version = self.host.run(["ibnetdiscover", "--version"], timeout=min(ASK, self.seconds))
        except ReadError:
            pass
        else:
            match = _VERSION.search(version.stdout + version.stderr)
            self.decodes_xdr = match is not None and int(match.group(1)) >= _XDR
        self._read_logs()
        planes: Dict[str, LocalPort] = {}
        without_manager: List[LocalPort] = []
        for port in self.reading.ports:
            if port.link_layer in (None, "InfiniBand") and not port.of_nvswitch:
                master = self._master(port)
                if master == "":
                    without_manager.append(port)
                elif master is not None and master not in known:
                    planes.setdefault(master, port)
        sweeps = [self._sweep(port, master) for master, port in planes.items()]
        for port in without_manager:
            seen: Set[str] = {node.guid for sweep in sweeps for node in sweep.nodes}
            # Its plane is unknown, unless another sweep has found its node.
            if self._node_guid(port) not in seen:
                sweeps.append(self._sweep(port, ""))
        # Of a manager that no plane lists, and of ports that no sweep has.
        rest = tuple(event for events in self.events.values() for event in events)
        if sweeps:
            unhealthy = {**sweeps[0].unhealthy, **self.unhealthy}
            sweeps[0] = replace(sweeps[0], events=sweeps[0].events + rest, unhealthy=unhealthy)
        self.reading.sweeps = sweeps

    def _read_logs(self) -> None:
        """Read logs of subnet managers on this host, and their unhealthy ports."""
        unread = self.reading.unread
        # A node without a manager has none.
        names = attempt(lambda: self.host.listdir_system(LOGS), LOGS, unread) or []
        for name in filter(_LOG.fullmatch, names):
            text = self._read_log("%s/%s" % (LOGS, name))
            engines = subnet_manager.routing_of_log(text)
            self.routing.update(engines)
            # Several logs may name no port.
            self.events.setdefault(next(iter(engines), ""), []).extend(
                subnet_manager.events_of_log(text, time.localtime())
            )
        if UNHEALTHY_PORTS in names:
            path = "%s/%s" % (LOGS, UNHEALTHY_PORTS)
            text = attempt(lambda: self.host.read_system(path, "replace", LOG), path, unread) or ""
            self.unhealthy = subnet_manager.parse_unhealthy(text).unhealthy

    def _read_log(self, path: str) -> str:
        """Read a log, or the end of a larger one, which is enough where that has all recent lines."""
        try:
            return self.host.read_system(path, "replace", LOG) or ""
        except ReadError as error:
            unread = self.reading.unread
            text = attempt(lambda: self.host.read_system(path, "replace", LOG, tail=True), path, unread) or ""
            if text and not subnet_manager.covers_recent(text, time.localtime()):
                unread.append(Problem(path, "%s: only its end was read" % error.problem.message))
            return text

    def _master(self, port: LocalPort) -> Optional[str]:
        """Return the GUID of a port's subnet manager; "" where none responds, None where the port cannot be opened."""
        try:
            output = self.host.run(["sminfo", *port.options], timeout=min(ASK, self.seconds))
        except ToolHung as error:
            self.reading.hung.append(error.problem)
            return ""
        except ReadError as error:
            self.reading.refused.append(Problem(str(port), str(error)))
            return None
        problem = Problem(str(port), "%s: %.200s" % (output.command, output.last_words))
        if _NO_UMAD.search(output.stderr):
            self.reading.refused.append(problem)
            return None
        managers = subnet_manager.parse_sminfo(output.stdout).managers
        if output.rc == 0 and managers:
            return managers[0].guid
        self.reading.silent.append(problem)
        return ""

    def _node_guid(self, port: LocalPort) -> str:
        argv = ["smpquery", *port.options, "-D", "nodeinfo", "0"]
        try:
            return subnet_manager.parse_node_guid(self.host.ask(argv, timeout=ASK))
        except (ReadError, ParseError):
            return ""

    # -- one plane ---------------------------------------------------------------------------------------------------

    def _sweep(self, port: LocalPort, master: str) -> Sweep:
        """Sweep one plane. master: GUID of its subnet manager, "" where none responds."""
        began = time.monotonic()
        self.deadline = began + self.seconds
        problems: List[Problem] = []
        merged = merge.Merged(self.decodes_xdr)
        if not master:
            problems.append(tool_output.problem("sminfo " + " ".join(port.options), "no subnet manager responds"))
        for name, parse in (
            (["ibnetdiscover"], ibnetdiscover.parse),
            (["iblinkinfo", "--line"], iblinkinfo.parse),
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
        if self.counters and merged.nodes:
            outputs = []
            # Errors of ports that have some, with thresholds of 0, and the data counters of every port.
            for options in (["--details", "--threshold-file", "/dev/null"], ["--counters"]):
                # 1: a port is above a threshold.
                printed = self._run(["ibqueryerrors", *options, *port.options], (0, 1), problems)
                if printed is not None:
                    outputs.append(ibqueryerrors.parse(printed.stdout, printed.stderr, printed.command))
            merged.count(outputs)
        if self.partitions:
            self._read_pkeys(port, merged, problems)
        if master and self._master_now(port) != master:
            text = "another subnet manager, or none, responds at the end"
            problems.append(tool_output.problem("sminfo " + " ".join(port.options), text))
        return merged.sweep(
            problems,
            plane=master,
            device=port.device,
            port=port.port,
            at=time.time(),
            seconds=round(time.monotonic() - began, 3),
            source="infiniband-diags",
        )

    def _read_pkeys(self, local: LocalPort, merged: merge.Merged, problems: List[Problem]) -> None:
        """Query every host port that has a LID. The manager refuses the table of all."""
        unread: List[str] = []
        for guid, node in merged.nodes.items():
            for port in merged.ports[guid].values() if node["kind"] == CA else ():
                if not port.get("lid") or guid in merged.keys:
                    continue
                try:
                    if time.monotonic() >= self.deadline:
                        raise ReadError("smpquery pkeys", "the plane's time limit of %g s is over" % self.seconds)
                    argv = ["smpquery", *local.options, "pkeys", str(port["lid"])]
                    merged.keys[guid] = subnet_manager.parse_pkeys(self.host.ask(argv, timeout=ASK))
                except (ReadError, ParseError) as error:
                    unread.append("%s: %s" % (guid, error))
        if unread:
            text = "the keys of %d ports were not read: %s" % (len(unread), unread[0])
            problems.append(tool_output.problem("smpquery pkeys", text))

    def _master_now(self, port: LocalPort) -> str:
        try:
            text = self.host.run(["sminfo", *port.options], timeout=ASK).stdout
        except ReadError:
            return ""
        return next((manager.guid for manager in subnet_manager.parse_sminfo(text).managers), "")

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
                self.reading.hung.append(error.problem)
            source, text, output = error.problem.source, error.problem.message, None
        if output is not None:
            text = "exited with %d: %.200s" % (output.rc, output.last_words) if output.rc not in codes else ""
        if text:
            problems.append(tool_output.problem(source, text))
        return output
