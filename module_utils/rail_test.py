# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""This host's end of tests between rails: all programs at once, counters before and after, and the stored result."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict, replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import nic_counters, perftest, perftest_errors
from .change import apply, busy
from .core import process_group, temp_files, trusted
from .core.finding import Finding
from .core.host import Host, ParseError, ReadError, Untrusted, search_path
from .core.plan import FileChange
from .machine import rdma
from .perftest import Options, Port, Result, Session, Tested

STORE = "/var/lib/busbar/perftest/%s.json"
# Seconds during which a client knocks again at a server that is not up yet.
KNOCK = 30.0
OUTPUT_LIMIT = 1 << 20
PEERMEM = "/sys/module/nvidia_peermem"


class Rail:
    """One session at this end: where it runs, what came of it, and why it cannot run, "" if it can."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.port: Optional[Port] = None
        self.netdev = ""
        self.problem, self.fix = "", ""
        self.results: List[Result] = []
        self.before = self.moved = nic_counters.Counters({})

    def find(self, devices: Sequence[rdma.RdmaDevice], family: str) -> None:
        session = self.session
        mine = [one for one in devices if one.pci == session.pci] if session.pci else []
        mine = mine or [one for one in devices if one.name == session.device]
        ports = [port for one in mine[:1] for port in one.ports]
        active = next((port for port in ports if port.state == "ACTIVE"), None)
        self.fix = "run site.yml --tags platform for this host"
        if active is None:
            self.problem = "%s has no ACTIVE port" % (mine[0].name if mine else session.pci or session.device)
            return
        gid = None
        if session.link_layer == "Ethernet":
            found = rdma.rocev2(active, family)
            if found is None:
                self.problem = "%s has no RoCE v2 GID with an address (%s)" % (mine[0].name, family)
                return
            gid, self.netdev = found.index, found.netdev or ""
        self.port = Port(mine[0].name, active.number, gid)


class Given(NamedTuple):
    """The module's options."""

    sessions: Sequence[Mapping[str, object]]
    tests: Sequence[str]
    seconds: int
    timeout: float
    share: float
    latency: Optional[float]
    traffic_class: int
    priority: int
    address_family: str
    memory: str
    require_idle: bool
    max_age_days: float
    store_result: bool


class Task:
    """All sessions of this host. Raises ParseError and ReadError."""

    def __init__(self, host: Host, given: Given) -> None:
        self.host = host
        self.given = given
        self.tests = given.tests
        if not self.tests or given.seconds < perftest.LEAST_SECONDS or given.timeout <= given.seconds:
            raise ParseError(
                "tests must name one at least, seconds be %d or more, timeout more than seconds"
                % perftest.LEAST_SECONDS
            )
        self.rails = [Rail(perftest.session_of(one)) for one in given.sessions]
        self.wanted = perftest.Bar(given.share, given.latency)
        self.options = Options(given.seconds, given.traffic_class)
        self.priority = given.priority if given.priority >= 0 else None
        self.deadline = time.monotonic() + given.timeout
        self.help = ""
        self.notes: List[str] = []
        devices, problems = rdma.read(host)
        if not devices and problems:
            raise ReadError(problems[0].source, problems[0].message)
        for rail in self.rails:
            rail.find(devices, given.address_family)

    def measure(self) -> Tuple[List[Finding], Optional[float]]:
        """Test all rails if the node is idle. Return findings and time. Raises ParseError, ReadError."""
        if len({rail.session.role for rail in self.rails}) > 1:
            raise ParseError("sessions are of both roles: a host is server or client of a test, never both at once")
        found: List[Finding] = []
        if self.given.require_idle:
            users = busy.read(self.host)
            found.append(perftest.idle(users.reasons, users.problems))
            if not found[0].ok:
                return found + [self.not_run(rail, found[0]) for rail in self.rails], None
        self.prepare()
        self.run()
        finished = time.time()
        if self.given.store_result:
            self.store(finished)
        return found + [finding for rail in self.rails for finding in self.findings(rail)], finished

    def not_run(self, rail: Rail, cause: Finding) -> Finding:
        lost = perftest.unproven(rail.session, "not run: the node is in use", self.command(rail), cause.fix)
        return replace(lost, because=cause.id)

    def command(self, rail: Rail) -> str:
        """The first of the rail's tests, for provenance."""
        return shlex.join(self.argv(rail, self.tests[0]))

    def commands(self) -> List[str]:
        """Return the commands of all tests of all rails."""
        return [shlex.join(self.argv(rail, test)) for rail in self.rails for test in self.tests]

    def sessions(self) -> List[Dict[str, Any]]:
        """Each session with its results, and the counters that moved."""
        return [
            asdict(Tested(rail.session, tuple(rail.results), {name: n for name, n in rail.moved.values.items() if n}))
            for rail in self.rails
        ]

    @property
    def simulated(self) -> bool:
        return any(one.simulated for rail in self.rails for one in rail.results)

    def argv(self, rail: Rail, test: str) -> Tuple[str, ...]:
        port = rail.port or Port(rail.session.device or rail.session.pci, 1, None)
        return perftest.argv(rail.session, port, test, self.options, self.help)

    def prepare(self) -> None:
        """Find the programs, and the memory that they can use; without the programs every rail has a problem."""
        try:
            for test in self.tests:
                self.host.tool(perftest.PROGRAMS[test])
            # Its exit code for --help is 1.
            done = self.host.run([perftest.PROGRAMS[perftest.BANDWIDTH], "--help"])
        except ReadError as error:
            fix = trusted.WAY_OUT if isinstance(error, Untrusted) else "install the package perftest on this host"
            for rail in self.rails:
                rail.problem, rail.fix = str(error), fix
            return
        self.help = done.stdout + done.stderr
        if self.given.memory == "host" or not any(rail.session.gpu for rail in self.rails):
            return
        if "--use_cuda" not in self.help:
            self.notes.append(
                "perftest ran over host memory: this ib_write_bw is built without CUDA, so that the path to the GPUs'"
                " memory is not in its figures"
            )
            return
        peermem = os.path.isdir(self.host.hardware(PEERMEM))
        dmabuf = not peermem and "--use_cuda_dmabuf" in self.help
        self.options = replace(self.options, memory="gpu", dmabuf=dmabuf)

    def run(self) -> None:
        able = [rail for rail in self.rails if not rail.problem]
        for rail in able:
            rail.before = self.counters(rail)
        if able and able[0].session.role == perftest.SERVER:
            self.start([(rail, test) for rail in able for test in self.tests])
        for test in self.tests if able and able[0].session.role == perftest.CLIENT else ():
            self.knock([rail for rail in able if not _nobody_there(rail)], test)
        for rail in able:
            rail.moved = nic_counters.difference(rail.before, self.counters(rail))

    def counters(self, rail: Rail) -> nic_counters.Counters:
        if rail.port is None:
            raise AssertionError("only rails with a port are tested")
        return nic_counters.read(self.host, rail.port.device, rail.port.number, rail.netdev)

    def knock(self, rails: Sequence[Rail], test: str) -> None:
        """Test all rails at once, and again each second those whose server does not listen yet, for KNOCK seconds."""
        end = min(time.monotonic() + KNOCK, self.deadline)
        while rails:
            self.start([(rail, test) for rail in rails])
            rails = [rail for rail in rails if _nobody_there(rail)]
            if not rails or time.monotonic() + 1 >= end:
                return
            for rail in rails:
                rail.results.pop()
            time.sleep(1)

    def start(self, work: Sequence[Tuple[Rail, str]]) -> None:
        """Runs all at once, and adds a result to each rail."""
        if not work:
            return
        with temp_files.new_directory("busbar-perftest-") as directory:
            programs, commands = [], []
            for number, (rail, test) in enumerate(work):
                argv = self.argv(rail, test)
                commands.append(shlex.join(argv))
                path = os.path.join(directory, str(number))
                full = (self.host.tool(argv[0]), *argv[1:])
                programs.append(process_group.Program(full, path + ".out", path + ".err"))
            # By default CUDA numbers GPUs by speed.
            environment = {"PATH": search_path(), "LC_ALL": "C", "HOME": "/", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            limit = max(1.0, self.deadline - time.monotonic())
            ended = process_group.run_all(programs, directory, environment, limit, OUTPUT_LIMIT)
            for (rail, test), program, command, end in zip(work, programs, commands, ended):
                text = _text(program.stdout) + _text(program.stderr)
                result = perftest.result(test, command, end.rc, end.ending, text)
                rail.results.append(replace(result, memory=self.options.memory))

    # -- what it means -------------------------------------------------------------------------------------------

    def findings(self, rail: Rail) -> Tuple[Finding, ...]:
        session = rail.session
        if rail.problem:
            return (perftest.unproven(session, rail.problem, self.command(rail), rail.fix),)
        found = list(perftest.judge(session, rail.results, self.wanted))
        if any(one.figure is not None for one in rail.results):
            simulated = "simulated: " if any(one.simulated for one in rail.results) else ""
            source = simulated + ("ethtool -S %s, hw_counters" % rail.netdev if rail.netdev else "hw_counters")
            sends = session.role == perftest.CLIENT
            priority = self.priority if session.link_layer == "Ethernet" else None
            found += nic_counters.judge(session.subject, rail.moved, sends, priority, source)
        return perftest.explained(found)

    def store(self, finished: float) -> None:
        """Raises ReadError."""
        role = self.rails[0].session.role
        done = [Tested(rail.session, tuple(rail.results), rail.moved.to_store) for rail in self.rails if rail.results]
        if done:
            path, text = STORE % role, perftest.render_record(perftest.Record(finished, tuple(done)))
            apply.write(self.host, FileChange(path, self.host.read_system(path), text))

    def recall(self) -> Tuple[List[Finding], Optional[float]]:
        """Return findings of the last results, and the time of the oldest of them."""
        stored = {role: self.stored(role) for role in {rail.session.role for rail in self.rails}}
        found: List[Finding] = []
        times = []
        for rail in self.rails:
            role = rail.session.role
            finished, of_rail, problem = stored[role]
            last, own = of_rail.get(rail.session.rail), rail.session
            if last is None or (last.session.pci, last.session.link_layer) != (own.pci, own.link_layer):
                why = "not run in check mode; %s" % (problem or "nothing was measured of this rail yet")
                found.append(perftest.unproven(rail.session, why, self.command(rail), perftest.FRESH.fix))
                continue
            times.append(finished)
            # The figures are of the last test, and what is wanted is declared now.
            rail.session = replace(last.session, rate_gbps=own.rate_gbps, mtu=own.mtu)
            rail.results, rail.problem = list(last.results), ""
            rail.moved = nic_counters.Counters(last.moved)
            found += self.findings(rail)
            days = self.given.max_age_days
            found.append(perftest.fresh(rail.session.subject, finished, time.time(), days, STORE % role))
        return found, min(times, default=None)

    def stored(self, role: str) -> Tuple[float, Dict[int, Tested], str]:
        """Return when the last tests of a role ended, rail -> its test, and why there is none."""
        path = STORE % role
        try:
            text = self.host.read_system(path)
            if text is None:
                return 0.0, {}, "nothing was measured yet"
            record = perftest.parse_record(text)
        except ReadError as error:
            return 0.0, {}, str(error)
        except ParseError as error:
            return 0.0, {}, "%s %s" % (path, error)
        return record.finished, {one.session.rail: one for one in record.sessions}, ""


def _nobody_there(rail: Rail) -> bool:
    return bool(rail.results) and rail.results[-1].reason.startswith(perftest_errors.NOT_LISTENING)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(OUTPUT_LIMIT)
