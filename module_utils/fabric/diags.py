# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sweeps the InfiniBand planes that a node has ports in, with the tools of infiniband-diags, and changes nothing.

A plane is known by the GUID of its master subnet manager: it is asked for at each port, and one sweep is made for each
GUID. Neither subnet prefix nor LIDs tell planes apart, since both are defaults. Each tool sends two questions at a time
and has what is left of the plane's seconds; an exit code of 0 proves nothing, so whatever stands on stderr does.
Sources: rdma-core infiniband-diags (sminfo, saquery, ibnetdiscover, iblinkinfo, ibqueryerrors, smpquery).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..core import locks
from ..core.host import Host, Output, ParseError, Problem, ReadError, ToolHung, attempt, noted
from ..machine import pci, rdma
from . import iblinkinfo, ibnetdiscover, ibqueryerrors, merge, smpquery, subnet_manager, told
from .sweep import CA, Sweep
from .told import Told

TOOLS = ("sminfo", "saquery", "ibnetdiscover", "iblinkinfo", "ibqueryerrors", "smpquery")
LOCK = "fabric"
# Seconds for whom somebody else's sweep is waited, and for one answer of a subnet manager.
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
# What the tools say where they cannot open /dev/infiniband/umad*, or where the port is no InfiniBand.
_NO_UMAD = re.compile(
    r"open UMAD port|Failed to open |client_register for mgmt|ib_umad module loaded|No SM/SA found on port"
)


@dataclass(frozen=True)
class LocalPort:
    """link_layer, active: None where they were not read, as of a port that was asked for by its name.

    of_nvswitch: its device manages the NVSwitches of the board, and leads to no other node.
    """

    device: str
    port: int
    link_layer: Optional[str] = None
    active: Optional[bool] = None
    of_nvswitch: bool = False

    def __str__(self) -> str:
        return "%s:%d" % (self.device, self.port)


@dataclass(frozen=True)
class Reading:
    """ports: those that were asked.   skipped: ports that no sweep was made through -> why.

    missing: tools that are not installed, or not trusted.   hung: tools that did not end.   busy: somebody else sweeps.
    unread: logs of subnet managers that were not read, or in part.
    refused: port -> what the tools said where the management device cannot be opened.
    """

    sweeps: Tuple[Sweep, ...] = ()
    ports: Tuple[LocalPort, ...] = ()
    local: Tuple[LocalPort, ...] = ()
    missing: Tuple[Problem, ...] = ()
    hung: Tuple[Problem, ...] = ()
    refused: Tuple[Problem, ...] = ()
    silent: Tuple[Problem, ...] = ()
    problems: Tuple[Problem, ...] = ()
    unread: Tuple[Problem, ...] = ()
    busy: bool = False


def parse_port(text: str) -> LocalPort:
    """``mlx5_0:1``. Raises ParseError."""
    match = _PORT.fullmatch(text.strip())
    if match is None or not 1 <= int(match.group(2)) <= 254:
        raise ParseError("%.80r is not a port: write DEVICE:PORT, as in mlx5_0:1" % text)
    return LocalPort(match.group(1), int(match.group(2)))


def local_ports(host: Host, problems: List[Problem]) -> Tuple[LocalPort, ...]:
    """Every port of every RDMA device, in natural order."""
    found: List[LocalPort] = []
    with noted(rdma.DEVICES, problems):
        for device in sorted(host.listdir(rdma.DEVICES), key=pci.natural_key):
            folder = "%s/%s/ports" % (rdma.DEVICES, device)
            for number in sorted(host.listdir(folder), key=pci.natural_key):
                path = "%s/%s" % (folder, number)
                state = pci.read_value(host, path + "/state", rdma.parse_state, problems)
                layer = pci.read_value(host, path + "/link_layer", pci.parse_text, problems)
                found.append(
                    replace(parse_port("%s:%s" % (device, number)), link_layer=layer, active=state == "ACTIVE")
                )
    ethernet = {one.device for one in found if one.link_layer != "InfiniBand"}
    bridges = rdma.nvswitch_bridges(host, sorted({one.device for one in found} - ethernet))
    return tuple(replace(one, of_nvswitch=one.device in bridges) for one in found)


def read(
    host: Host,
    devices: Sequence[str] = (),
    seconds: float = 120.0,
    counters: bool = True,
    partitions: bool = False,
    known: Sequence[str] = (),
) -> Reading:
    """One sweep for each plane. Raises ParseError of a port that cannot be one, and ReadError where no lock can be had.

    devices: the ports to sweep through; none: every active InfiniBand port.   seconds: granted to each plane.
    partitions: ask each host port for its keys, a question and a process a port.
    known: planes, by the GUIDs of their subnet managers, that somebody else has swept; they are left out.
    """
    problems: List[Problem] = []
    local = local_ports(host, problems)
    ports = tuple(map(parse_port, dict.fromkeys(devices)))
    by_name = {(one.device, one.port): one for one in local}
    ports = tuple(by_name.get((one.device, one.port), one) for one in ports)
    if not ports:
        ports = tuple(one for one in local if one.link_layer == "InfiniBand" and one.active and not one.of_nvswitch)
    about = Reading(ports=ports, local=local, problems=tuple(problems))
    wanted = [name for name in TOOLS if counters or name != "ibqueryerrors"]
    missing = _missing(host, [name for name in wanted if partitions or name != "smpquery"])
    if missing or not ports:
        return replace(about, missing=missing)
    try:
        with locks.hold(host, LOCK, PATIENCE):
            return _Planes(host, seconds, counters, partitions, known).read(about)
    except BlockingIOError:
        return replace(about, busy=True)


def _missing(host: Host, names: Sequence[str]) -> Tuple[Problem, ...]:
    missing = []
    for name in names:
        try:
            host.tool(name)
        except ReadError as error:
            missing.append(error.problem)
    return tuple(missing)


class _Planes:
    """One look at all planes of a node."""

    def __init__(self, host: Host, seconds: float, counters: bool, partitions: bool, known: Sequence[str] = ()) -> None:
        self.host = host
        self.seconds = seconds
        self.counters = counters
        self.partitions = partitions
        self.known = known
        self.deadline = 0.0
        self.hung: List[Problem] = []
        self.refused: List[Problem] = []
        self.silent: List[Problem] = []
        self.unread: List[Problem] = []
        self.decodes_xdr = False
        self.logs: Dict[str, Told] = {}
        self.unhealthy: Dict[Tuple[str, int], str] = {}

    def read(self, about: Reading) -> Reading:
        self.decodes_xdr = self._version() >= _XDR
        self._read_logs()
        planes: Dict[str, LocalPort] = {}
        alone: List[LocalPort] = []
        for port in about.ports:
            if port.link_layer not in (None, "InfiniBand") or port.of_nvswitch:
                continue
            master = self._master(port)
            if master is None or master in self.known:
                continue
            if master == "":
                alone.append(port)
            else:
                planes.setdefault(master, port)
        sweeps = [self._sweep(port, master) for master, port in planes.items()]
        seen: Set[str] = {node.guid for sweep in sweeps for node in sweep.nodes}
        for port in alone:
            # Without a manager's answer nothing tells its plane; what another sweep has found this node in is that.
            if self._own_guid(port) in seen:
                continue
            sweep = self._sweep(port, "")
            seen |= {node.guid for node in sweep.nodes}
            sweeps.append(sweep)
        # Of a manager that no plane lists, and of ports that no sweep has seen.
        left = tuple(event for log in self.logs.values() for event in log.events)
        if sweeps and (left or self.unhealthy):
            unhealthy = {**sweeps[0].unhealthy, **self.unhealthy}
            sweeps[0] = replace(sweeps[0], events=sweeps[0].events + left, unhealthy=unhealthy)
        return replace(
            about,
            sweeps=tuple(sweeps),
            hung=tuple(self.hung),
            refused=tuple(self.refused),
            silent=tuple(self.silent),
            unread=tuple(self.unread),
        )

    def _version(self) -> int:
        """Of rdma-core; 0 where it is not said."""
        try:
            said = self.host.run(["ibnetdiscover", "--version"], timeout=min(ASK, self.seconds))
        except ReadError:
            return 0
        match = _VERSION.search(said.stdout + said.stderr)
        return int(match.group(1)) if match else 0

    def _read_logs(self) -> None:
        """Read logs of subnet managers that run or ran here, by the GUID of their port, and the unhealthy ports."""
        # Every node where no manager runs lacks them.
        names = attempt(lambda: self.host.listdir_system(LOGS), LOGS, self.unread) or []
        for name in filter(_LOG.fullmatch, names):
            text = self._read_log("%s/%s" % (LOGS, name))
            events = subnet_manager.events_of_log(text, time.localtime())
            for guid, engine in (subnet_manager.routing_of_log(text) or {"": None}).items():
                # Several logs may name no port.
                earlier = self.logs[guid].events if not guid and guid in self.logs else []
                self.logs[guid] = Told(name, routing=engine, events=earlier + events)
                events = []
        if UNHEALTHY_PORTS in names:
            path = "%s/%s" % (LOGS, UNHEALTHY_PORTS)
            text = attempt(lambda: self.host.read_system(path, "replace", LOG), path, self.unread) or ""
            self.unhealthy = subnet_manager.parse_unhealthy(text).unhealthy

    def _read_log(self, path: str) -> str:
        """Read a log, of a larger one its end, which is enough where that has all recent lines."""
        try:
            return self.host.read_system(path, "replace", LOG) or ""
        except ReadError as error:
            text = attempt(lambda: self.host.read_system(path, "replace", LOG, tail=True), path, self.unread) or ""
            if text and not subnet_manager.covers_recent(text, time.localtime()):
                self.unread.append(Problem(path, "%s: only its end was read" % error.problem.message))
            return text

    def _master(self, port: LocalPort) -> Optional[str]:
        """GUID of the subnet manager of a port; "" where none answers, None where the port cannot be asked."""
        try:
            said = self.host.run(["sminfo", *_at(port)], timeout=min(ASK, self.seconds))
        except ToolHung as error:
            self.hung.append(error.problem)
            return ""
        except ReadError as error:
            self.refused.append(Problem(str(port), str(error)))
            return None
        if _NO_UMAD.search(said.stderr):
            self.refused.append(Problem(str(port), "%s: %.200s" % (said.command, said.last_words)))
            return None
        found = subnet_manager.parse_sminfo(said.stdout, said.command)
        if said.rc != 0 or not found.managers:
            self.silent.append(Problem(str(port), "%s: %.200s" % (said.command, said.last_words)))
            return ""
        return found.managers[0].guid

    def _own_guid(self, port: LocalPort) -> str:
        """GUID of the node that the port is of, "" where it does not say."""
        try:
            return told.guid(
                smpquery.parse_nodeinfo(self.host.query(["smpquery", *_at(port), "-D", "nodeinfo", "0"], timeout=ASK))[
                    "Guid"
                ]
            )
        except (ReadError, ParseError, ValueError):
            return ""

    # -- one plane ---------------------------------------------------------------------------------------------------

    def _sweep(self, port: LocalPort, master: str) -> Sweep:
        """master: GUID of its subnet manager, "" where none has answered."""
        began = time.monotonic()
        self.deadline = began + self.seconds
        problems: List[Problem] = []
        at = _at(port)
        outputs: List[Told] = []
        merged = merge.Merged(self.decodes_xdr)
        if not master:
            problems.append(told.problem("sminfo " + " ".join(at), "no subnet manager responds"))
        for argv, parse in (
            (["ibnetdiscover", *at], ibnetdiscover.parse),
            (["iblinkinfo", "--line", *at], iblinkinfo.parse),
            (["sminfo", *at], subnet_manager.parse_sminfo),
            (["saquery", "SMIR", *at], subnet_manager.parse_records),
        ):
            if not master and argv[0] in ("sminfo", "saquery"):
                continue
            said = self._run(argv, (0,), problems)
            if said is not None:
                found = parse(said.stdout, said.command)
                found.partial += told.complaints(said.stderr)
                merged.add(found)
                outputs.append(found)
        if master in self.logs:
            merged.routing = self.logs[master].routing
        for guid in [guid for guid in self.logs if guid == master or guid in merged.managers]:
            merged.events += self.logs.pop(guid).events
        for end in [end for end in self.unhealthy if end[0] in merged.nodes]:
            merged.unhealthy[end] = self.unhealthy.pop(end)
        if self.counters and merged.nodes:
            merged.count(self._count(at, problems))
        if self.partitions:
            self._ask_for_keys(at, merged, problems)
        if master and self._master_now(at) != master:
            problems.append(
                told.problem("sminfo " + " ".join(at), "another subnet manager, or none, responds at the end")
            )
        return merged.sweep(
            outputs,
            problems,
            plane=master,
            device=port.device,
            port=port.port,
            at=time.time(),
            seconds=round(time.monotonic() - began, 3),
            source="infiniband-diags",
        )

    def _count(self, at: List[str], problems: List[Problem]) -> List[Told]:
        """Errors of ports that have some, with thresholds of 0, and the data counters of every port."""
        found: List[Told] = []
        for options in (["--details", "--threshold-file", "/dev/null"], ["--counters"]):
            # 1: a port is above a threshold, which none of an error is.
            said = self._run(["ibqueryerrors", *options, *at], (0, 1), problems)
            if said is not None:
                found.append(ibqueryerrors.parse(said.stdout, said.stderr, said.command))
        return found

    def _ask_for_keys(self, at: List[str], merged: merge.Merged, problems: List[Problem]) -> None:
        """Of every host port that has a LID. The manager refuses the table of all."""
        unread = 0
        first = ""
        for guid, node in merged.nodes.items():
            for port in merged.ports[guid].values():
                if node["kind"] != CA or not port.get("lid") or guid in merged.keys:
                    continue
                try:
                    if time.monotonic() >= self.deadline:
                        raise ReadError("smpquery pkeys", "the plane's time limit of %g s is over" % self.seconds)
                    argv = ["smpquery", *at, "pkeys", str(port["lid"])]
                    merged.keys[guid] = smpquery.parse_pkeys(self.host.query(argv, timeout=ASK))
                except (ReadError, ParseError) as error:
                    unread += 1
                    first = first or "%s: %s" % (guid, error)
        if unread:
            problems.append(told.problem("smpquery pkeys", "the keys of %d ports were not read: %s" % (unread, first)))

    def _master_now(self, at: List[str]) -> str:
        try:
            found = subnet_manager.parse_sminfo(self.host.run(["sminfo", *at], timeout=ASK).stdout)
        except ReadError:
            return ""
        return found.managers[0].guid if found.managers else ""

    def _run(self, argv: List[str], codes: Tuple[int, ...], problems: List[Problem]) -> Optional[Output]:
        """What a tool printed in what is left of the plane's time; None, and a problem, where that is nothing."""
        name = " ".join(argv)
        if time.monotonic() >= self.deadline:
            problems.append(told.problem(name, "was not queried: the plane's limit of %g s was over" % self.seconds))
            return None
        try:
            said = self._run_now(argv)
            if said.rc < 0:
                # It crashed. It only reads: a second try changes nothing.
                said = self._run_now(argv)
        except ToolHung as error:
            self.hung.append(error.problem)
            problems.append(told.problem(*_parts(error)))
            return None
        except ReadError as error:
            problems.append(told.problem(*_parts(error)))
            return None
        if said.rc not in codes:
            problems.append(told.problem(name, "exited with %d: %.200s" % (said.rc, said.last_words)))
        return said

    def _run_now(self, argv: List[str]) -> Output:
        left = self.deadline - time.monotonic()
        return self.host.run(argv, timeout=max(round(left, 1), 0.1), limit=OUTPUT)


def _at(port: LocalPort) -> List[str]:
    return ["-C", port.device, "-P", str(port.port)]


def _parts(error: ReadError) -> Tuple[str, str]:
    return error.problem.source, error.problem.message
