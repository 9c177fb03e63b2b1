# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Test a rail of one host against the same rail of another by perftest: command lines, parser, and bar.

Exit code 0 proves nothing: without a figure there is no result. The text is read and not --out_json, which perftest 4.5
and 6.06 write without quotes around its keys, and which has no errors in it.
Sources: perftest 6.06 (--help and its texts), 23.x and 24.x logs; headers: IBTA volume 1 annex A17, IEEE 802.3.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Mapping, Optional, Sequence, Tuple

from . import nic_counters, perftest_errors
from .core.check import Check
from .core.finding import Finding
from .core.host import ParseError
from .nccl_tests.codec import decode

BANDWIDTH, LATENCY = "bw", "lat"
TESTS = (BANDWIDTH, LATENCY)
SERVER, CLIENT = "server", "client"
PROGRAMS = {BANDWIDTH: "ib_write_bw", LATENCY: "ib_write_lat"}
# Bytes and queue pairs that fill one 400 Gb/s port; bytes and iterations of the latency test.
SIZE, QUEUE_PAIRS, LATENCY_SIZE, LATENCY_ITERATIONS = 1 << 16, 4, 8, 1000
# Seconds at both ends that do not count (perftest's default is 2: too long for a short run).
MARGIN = 1
LEAST_SECONDS = 2 * MARGIN + 1
# Of a queue pair, 4 us times 2 to this power: a second. NCCL waits as long; perftest's default of 67 ms ends the
# test, instead of slowing it, when a lossy path, or a slow CPU, delays a response.
TIMEOUT = 18
# Ports of both tests of rail 0. perftest's default is 18515.
FIRST_PORT = {BANDWIDTH: 18600, LATENCY: 18700}
# Most typical microseconds of a small write, by link layer and least Gb/s of the rail. Two ports with three switches
# between them take 2 to 5 (public bars: imbue 4.2 at 99 %, InfiniBand; OCI 5, and 9 on GB200, RoCE). Twice that
# and more, since other pairs load the same switches meanwhile: a detour, a sleeping CPU or software takes longer still.
LATENCY_BARS = {
    "InfiniBand": ((100, 10.0), (0, 20.0)),
    "Ethernet": ((100, 15.0), (0, 30.0)),
}
# Bytes around the payload of a packet. Ethernet: preamble and gap 20, header 14, FCS 4, IPv4 20, UDP 8, BTH 12, ICRC 4;
# InfiniBand: LRH 8, BTH 12, ICRC 4, VCRC 2.
HEADERS = {"Ethernet": 82, "InfiniBand": 26}
FORMAT = 1
_HEAD = re.compile(r"#bytes\s+#iterations\s+(.*)")
_NAMED = re.compile(r"\S[^\[\]]*\[[^\]]+\]")
_COLUMNS = {BANDWIDTH: "BW average[Gb/sec]", LATENCY: "t_typical[usec]"}
_FIRST_CELLS = re.compile(r"\s*[0-9]+(?:\s+[0-9.]|\s*$)")
_ROW = re.compile(r"\s*[0-9]+\s+[0-9]+(?:\s+(?:[0-9]+(?:\.[0-9]+)?|-?inf|-?nan))+\s*")
_MTU = re.compile(r"Mtu\s*:\s*([0-9]+)\[B\]")

RAIL_BANDWIDTH = Check(
    "perftest.bandwidth",
    why="NCCL can be no faster than RDMA on this rail",
)
"Does RDMA from this host reach its minimum bandwidth on each rail; shows the output of perftest if it does not run"

RAIL_LATENCY = Check(
    "perftest.latency",
    why="a detour or a queue on the path shows first in its latency",
    fix="compare with other rails and pairs: a longer way (rail order, cabling), or a CPU that sleeps (C-states)",
)
"Does RDMA from this host stay below the maximum latency on each rail; shows the output of perftest if it does not run"

SERVED = Check(
    "perftest.served",
    why="a rail that sends well may still receive badly: both roles have to be proven",
)
"Did this host serve the tests of its partner to their end"

IDLE = Check(
    "perftest.idle",
    why="a test beside a job disturbs it and proves nothing",
    fix="run it again when the node is idle, or drain it first",
    severity="minor",
)
"Is the node idle"

FRESH = Check(
    "perftest.fresh",
    why="an old result does not show the rail's current state",
    fix="run playbooks/verify.yml without --check when the node is idle",
    severity="minor",
)
"With `--check`: is the last result recent"


@dataclass(frozen=True)
class Session:
    """One rail of this host against one of a peer, seen from this end.

    role: server or client; the client sends.   pci, device: of the rail's NIC.   address: where the server listens.
    rate_gbps: of the profile. mtu: RDMA MTU that is intended. gpu, gpu_index: the rail's GPU, "" where it has none.
    """

    role: str
    rail: int
    pci: str
    device: str
    peer: str
    address: str
    rate_gbps: float
    link_layer: str = "Ethernet"
    mtu: int = 4096
    gpu: str = ""
    gpu_index: int = 0

    @property
    def subject(self) -> str:
        return "rail %d %s %s" % (self.rail, "to" if self.role == CLIENT else "from", self.peer)


@dataclass(frozen=True)
class Port:
    """Device of a session, as it is now. gid: its index, None on InfiniBand."""

    device: str
    number: int
    gid: Optional[int]


@dataclass(frozen=True)
class Options:
    """traffic_class: -1 for none.   seconds: of a bandwidth test.   memory: "gpu" or "host".   dmabuf: for "gpu"."""

    seconds: int
    traffic_class: int = -1
    memory: str = "host"
    dmabuf: bool = False


@dataclass(frozen=True)
class Result:
    """Result of one program.

    figure: Gb/s, or typical microseconds; None without a result: then ``reason`` has the cause, ``fix`` where to look.
    mtu: RDMA MTU that both ends agreed on.   memory: as in Options.
    """

    test: str
    command: str
    figure: Optional[float] = None
    mtu: Optional[int] = None
    reason: str = ""
    fix: str = ""
    rc: Optional[int] = None
    memory: str = "host"
    simulated: bool = False


@dataclass(frozen=True)
class Bar:
    """share: of what the rail's rate carries.   latency: most microseconds; 0: none, None: that of LATENCY_BARS."""

    share: float
    latency: Optional[float] = None


# -- command line ----------------------------------------------------------------------------------------------------


def argv(session: Session, port: Port, test: str, options: Options, help_text: str = "") -> Tuple[str, ...]:
    """help_text: of this program's --help; options that a package's build has not are not given."""
    words = [PROGRAMS[test], "-F", "-d", port.device, "-i", str(port.number), "-u", str(TIMEOUT)]
    words += ["-p", str(FIRST_PORT[test] + session.rail)]
    if port.gid is not None:
        words += ["-x", str(port.gid)]
        # InfiniBand sends no GRH to a neighbour, so there is no traffic class.
        words += ["--tclass=%d" % options.traffic_class] if options.traffic_class >= 0 else []
    if test == BANDWIDTH:
        words += ["-q", str(QUEUE_PAIRS), "-s", str(SIZE), "--report_gbits"]
        words += ["-D", str(options.seconds), "-f", str(MARGIN)]
    else:
        words += ["-s", str(LATENCY_SIZE), "-n", str(LATENCY_ITERATIONS)]
    if options.memory == "gpu" and session.gpu and test == BANDWIDTH:
        if "--use_cuda_bus_id" in help_text:
            words.append("--use_cuda_bus_id=%s" % session.gpu)
        else:
            words.append("--use_cuda=%d" % session.gpu_index)
        words += ["--use_cuda_dmabuf"] if options.dmabuf else []
    return (*words, session.address) if session.role == CLIENT else tuple(words)


# -- what it prints --------------------------------------------------------------------------------------------------


def parse(test: str, text: str) -> Tuple[float, Optional[int]]:
    """Figure and agreed MTU: Gb/s on average, or typical microseconds. Raises ParseError where there is none.

    A row counts with all its columns and the end of its line: one that is cut may end in the middle of a number.
    """
    column, columns, row = -1, 0, ""
    for line in text.splitlines(keepends=True):
        head = _HEAD.search(line)
        if head is not None:
            names = _NAMED.findall(head.group(1))
            if _COLUMNS[test] not in names:
                raise ParseError("%r is not the heading of %s" % (head.group(1).strip()[:120], PROGRAMS[test]))
            # Behind bytes and iterations.
            column, columns, row = 2 + names.index(_COLUMNS[test]), 2 + len(names), ""
        elif column >= 0 and _FIRST_CELLS.match(line):
            row = line
    if column < 0 or not row:
        raise ParseError("%s printed no result" % PROGRAMS[test])
    words = row.split()
    if len(words) < columns or not row.endswith("\n") or _ROW.fullmatch(row) is None:
        raise ParseError("%r is cut off, expected a row of %d columns" % (row.strip()[:120], columns))
    mtu = _MTU.search(text)
    return float(words[column]), int(mtu.group(1)) if mtu else None


def result(test: str, command: str, rc: Optional[int], ending: str, text: str) -> Result:
    """ending: as process_group has it. text: both outputs together."""
    simulated = "simulated" in text
    empty = Result(test, command, rc=rc, simulated=simulated)
    if ending == "timeout":
        waits = "Waiting for client to connect" in text and "remote address" not in text
        why = "no client connected in time" if waits else "it did not end in time"
        return replace(empty, reason=why, fix="look at the other host's finding on this rail")
    if rc != 0 or ending:
        why, fix = perftest_errors.reason(text)
        return replace(empty, reason=why, fix=fix)
    try:
        figure, mtu = parse(test, text)
    except ParseError as error:
        return replace(empty, reason=str(error), fix="run it by hand: %s" % command)
    if not 0 < figure < float("inf"):
        # It ends with 0 then.
        said = "it reports %g: it could not measure this CPU's clock, or nothing was completed" % figure
        return replace(empty, reason=said, fix="run it again on an idle node, with more perftest_seconds")
    return replace(empty, figure=figure, mtu=mtu)


# -- the bar ---------------------------------------------------------------------------------------------------------


def carries(session: Session) -> float:
    """Gb/s of payload that the rail's rate carries in packets of the MTU that is intended."""
    return session.rate_gbps * session.mtu / (session.mtu + HEADERS[session.link_layer])


def latency_bar(session: Session, wanted: Bar) -> float:
    """Most microseconds, 0 for none."""
    if wanted.latency is not None:
        return wanted.latency
    return next(most for least, most in LATENCY_BARS[session.link_layer] if session.rate_gbps >= least)


def judge(session: Session, results: Sequence[Result], wanted: Bar) -> Tuple[Finding, ...]:
    """The findings of one session. A server only has to have served: its peer has the figures."""
    if session.role == SERVER:
        return (_served(session, results),)
    judged = {BANDWIDTH: _bandwidth, LATENCY: _latency}
    return tuple(judged[one.test](session, one, wanted) for one in results)


def _bandwidth(session: Session, one: Result, wanted: Bar) -> Finding:
    least = wanted.share * carries(session)
    want = "%.4g Gb/s or more: %g of what %g Gb/s carries in packets of %d bytes" % (
        least,
        wanted.share,
        session.rate_gbps,
        session.mtu,
    )
    if one.figure is None:
        return _judge(RAIL_BANDWIDTH, session, one, "unknown", want, one.reason, one.fix)
    have = "%.4g Gb/s" % one.figure
    if one.mtu is not None:
        have += " in packets of %d bytes" % one.mtu
    if one.memory == "host" and session.gpu:
        have += ", to host memory"
    state = "ok" if one.figure >= least else "drift"
    if one.mtu is not None and one.mtu < session.mtu:
        fix = "an end has a smaller MTU: run site.yml --tags mtu for this host and %s" % session.peer
    else:
        fix = "look at counters.* of this rail here and on %s, then at roce_qos, mtu, pcie_path of both" % session.peer
    return _judge(RAIL_BANDWIDTH, session, one, state, want, have, fix)


def _latency(session: Session, one: Result, wanted: Bar) -> Finding:
    most = latency_bar(session, wanted)
    want = "%g us or less" % most if most else "a result"
    if most and wanted.latency is None:
        want += ", as %s of %g Gb/s has it (perftest_latency is not set)" % (session.link_layer, session.rate_gbps)
    if one.figure is None:
        return _judge(RAIL_LATENCY, session, one, "unknown", want, one.reason, one.fix)
    state = "ok" if not most or one.figure <= most else "drift"
    return _judge(RAIL_LATENCY, session, one, state, want, "%.4g us" % one.figure)


def _served(session: Session, results: Sequence[Result]) -> Finding:
    want = "each test served to its end"
    bad = next((one for one in results if one.figure is None), None)
    if bad is None:
        return _judge(SERVED, session, results[0], "ok", want, "served")
    return _judge(SERVED, session, bad, "unknown", want, "%s: %s" % (PROGRAMS[bad.test], bad.reason), bad.fix)


def _judge(
    check: Check, session: Session, one: Result, state: str, want: str, have: str, fix: Optional[str] = None
) -> Finding:
    source = ("simulated: " if one.simulated else "") + one.command
    return check.judge(session.subject, state, want, have, source, fix)


def explained(findings: Sequence[Finding]) -> Tuple[Finding, ...]:
    """One cause, one line. findings: of one session. Data in a wrong queue is lost, and what is lost is sent again."""
    chain = (nic_counters.PRIORITY, nic_counters.LOSS, RAIL_BANDWIDTH)
    drifted = [one.id for one in chain if any(f.check == one.id and f.state == "drift" for f in findings)]
    first = next((one.id for one in findings if drifted and one.check == drifted[0]), None)

    counters = [check.id for check in nic_counters.CHECKS]

    def follows(one: Finding) -> bool:
        # Pauses are counted only where PFC is on.
        return one.check in drifted[1:] or (one.state == "unknown" and one.check in counters)

    return tuple(replace(one, because=first) if follows(one) else one for one in findings)


def idle(reasons: Sequence[str], problems: Sequence[object]) -> Finding:
    """Judge whether the node is idle. Unknown is not idle."""
    said = ["busy: %s" % reason for reason in reasons] or ["not known to be idle: %s" % one for one in problems]
    state, have = "unknown" if said else "ok", "; ".join(said[:3]) or "idle"
    return IDLE.judge("host", state, "the node is idle", have, "nvidia-smi, cgroups, kubelet")


def unproven(session: Session, why: str, command: str, fix: str) -> Finding:
    """Return the finding of a session without any test."""
    check = RAIL_BANDWIDTH if session.role == CLIENT else SERVED
    return _judge(check, session, Result(BANDWIDTH, command), "unknown", "a result", why, fix)


def fresh(subject: str, finished: float, now: float, days: float, path: str) -> Finding:
    """Judge whether a stored result is young enough. finished, now: seconds since 1970."""
    age = (now - finished) / 86400
    state = "ok" if 0 <= age <= days else "unknown"
    have = "%.1f days old" % age if age >= 0 else "from the future: the clock of the node is wrong"
    return FRESH.judge(subject, state, "a result of the last %g days" % days, have, path)


# -- the stored result -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tested:
    """A session with its results. moved: name of a counter -> its growth."""

    session: Session
    results: Tuple[Result, ...]
    moved: Mapping[str, int]


@dataclass(frozen=True)
class Record:
    """The results of one run. finished: seconds since 1970."""

    finished: float
    sessions: Tuple[Tested, ...]


def render_record(record: Record) -> str:
    """Return the text of a file."""
    return json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n"


def parse_record(text: str) -> Record:
    """Return what ``render_record`` wrote. Raises ParseError."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ParseError("it has not format %d" % FORMAT)
        record: Record = decode(Record, data, "the record")
    except (ValueError, RecursionError) as error:
        raise ParseError("is not a stored result: %s" % error) from error
    for one in record.sessions:
        _check_session(one.session)
        if any(result.test not in TESTS for result in one.results):
            raise ParseError("is not a stored result: test %r" % one.results[0].test)
    return record


def session_of(data: Mapping[str, object]) -> Session:
    """Return a session of the module's options. Raises ParseError that names what is wrong."""
    names = {field.name for field in fields(Session)}
    if not set(data) <= names:
        raise ParseError("a session has %s" % ", ".join(sorted(names)))
    defaults = {field.name: field.default for field in fields(Session) if field.default is not MISSING}
    session: Session = decode(Session, {**defaults, **data}, "session")
    _check_session(session)
    return session


def _check_session(session: Session) -> None:
    if session.role not in (SERVER, CLIENT) or session.link_layer not in HEADERS:
        raise ParseError("session: role %r, link_layer %r" % (session.role, session.link_layer))
    if not 0 <= session.rail < 100 or session.mtu <= 0:
        raise ParseError("session: rail is %d, mtu is %d" % (session.rail, session.mtu))
    words = (session.pci, session.device, session.peer, session.address, session.gpu)
    if any(word.startswith("-") for word in words):
        raise ParseError("session: %r are not all names" % (words,))
