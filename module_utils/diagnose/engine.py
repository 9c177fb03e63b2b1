# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order the events of a log and find the one upstream of all others, with the confidence that relations give it.

A relation is a row. Beside these rows one rule holds for all events: what is more upstream (``events.py``) comes first,
of the same tier the earliest, and effects and reports follow from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .events import CAUSE, EFFECT, NETWORK, NOTICE, ORDER, OUTSIDE, REPORT, WEAK, Group, Occurrence
from .jobs import Job
from .lines import same_day
from .log_reader import Log
from .names import UNNAMED
from .state import Call

# Confidence in a root or relation: a line or a proven relation states it; it is upstream of all others; reported.
PROVEN, LIKELY, REPORTED = "proven", "likely", "reported"


class Relation(NamedTuple):
    """effect, cause: events, with a code behind a blank where it has to be that one.

    condition: before: the cause is earlier.   any: in any order, as launchers report ends late.   peer: the cause is on
    the host that the effect names as its peer, or on its own device.   other: another process or rank.   lost: the
    effect names the cause's host as lost.   own: each rank of the effect has had the cause before.
    link: how sure the relation is where the condition holds.
    """

    effect: str
    cause: str
    condition: str
    link: str


_KILLED = ("exit signal 9", "exit signal 11", "exit signal 7", "oom", "node_failure", "evicted")
_LOST = ("closed", "connect", "completion", "store", "gloo", "tcp", "exception_remote", "coordination", "uds")
RELATIONS: Tuple[Relation, ...] = (
    # A link that went down: the peer's, as the address of the completion shows, or one of the job's at all.
    Relation("completion", "port port error", "peer", PROVEN),
    Relation("completion", "port", "before", LIKELY),
    Relation("completion", "link_down", "before", LIKELY),
    Relation("hca_lost", "port", "before", LIKELY),
    Relation("hca_lost", "completion", "any", LIKELY),
    Relation("completion 5", "completion", "any", LIKELY),
    # What a call reports, and the line that says what the call was for.
    Relation("system", "shared_memory", "any", LIKELY),
    # A process that was killed: its peers lose it, and say so before the launcher reports its end.
    *(Relation(effect, cause, "other", LIKELY) for effect in _LOST for cause in _KILLED),
    Relation("exception_nccl", "exit signal 9", "other", LIKELY),
    Relation("closed", "exit", "lost", LIKELY),
    Relation("closed", "connect", "before", LIKELY),
    Relation("exit signal 9", "oom", "any", LIKELY),
    Relation("exit signal 11", "xid", "before", LIKELY),
    Relation("exit signal 11", "cuda", "before", LIKELY),
    # Hardware below CUDA, and what CUDA reports of it.
    Relation("cuda", "xid", "before", LIKELY),
    Relation("cuda", "sxid", "before", LIKELY),
    Relation("cuda", "gpu_lost", "any", LIKELY),
    Relation("cuda", "gpu_reset", "any", LIKELY),
    Relation("cuda", "fabric_manager MNNVL", "any", LIKELY),
    Relation("cuda device-side assert triggered", "kernel_assert", "any", PROVEN),
    Relation("cuda unspecified launch failure", "expert_wait", "before", LIKELY),
    Relation("xid 45", "xid", "any", LIKELY),
    Relation("gpu_lost", "xid 79", "any", PROVEN),
    # An interruption before a wait ran out.
    Relation("watchdog", "order", "before", PROVEN),
    Relation("watchdog", "cancelled", "before", LIKELY),
    Relation("signalled", "closed", "any", LIKELY),
    Relation("signalled", "watchdog", "any", PROVEN),
    Relation("stuck", "watchdog", "any", LIKELY),
    Relation("gloo", "watchdog", "before", LIKELY),
    Relation("store", "store_port", "any", LIKELY),
    Relation("store_connect", "store_port", "any", LIKELY),
    Relation("store", "store_connect", "any", LIKELY),
    # A plugin that failed leaves NCCL without a network; a login that was refused, the launcher without its daemon.
    Relation("no_network", "net_plugin", "before", LIKELY),
    Relation("no_network", "libfabric", "before", LIKELY),
    Relation("node_failure", "remote_shell", "before", PROVEN),
    # Ranks that wait, and PyTorch's or Horovod's list of those that have not come.
    *(Relation(effect, "behind", "any", PROVEN) for effect in ("watchdog", "signalled", "stall")),
    # An exception of the call that the watchdog has ended.
    Relation("exception", "watchdog", "own", LIKELY),
)
# Functions that the program has called, by file of NCCL's sources: an error that they return ends a call of it.
_PROGRAM_CALLS = re.compile(r"(?:^|/)(?:init|transport|generic|group|enqueue|collectives)\.(?:cc|cpp|cu):")
# Reports, the one that says most of what failed first.
_REPORTS = (
    *("signal", "exception_nccl", "test", "exit", "mpi_abort"),
    *("worker_lost", "exception_remote", "consequence", "error_line"),
)


@dataclass
class Diagnosis:
    """groups: events that matter, the root first.   root: None where nothing failed.   confidence: of the root."""

    groups: List[Group] = field(default_factory=list)
    root: Optional[Group] = None
    confidence: str = ""


def diagnose(log: Log, jobs: Sequence[Job]) -> Diagnosis:
    """Return the events of a log in the order of cause and effect."""
    groups = [group for group in log.groups.values() if group.event.id not in ("harmless", "progress")]
    failing = [group for group in groups if group.tier != NOTICE]
    _name_ranks(failing, jobs)
    raised = any(group.event.id == "exception_nccl" for group in failing)
    for group in failing:
        group.tier = _tier(group, raised)
    _link(failing, log)
    root = _root(log, failing)
    if root is not None:
        for group in failing:
            _follow(group, root)
    failing.sort(key=lambda group: (group is not root, group.because is not None, group.tier, group.first.order))
    notices = [group for group in groups if group.tier == NOTICE]
    return Diagnosis([*failing, *notices], root, _confidence(root, failing))


def _name_ranks(groups: Sequence[Group], jobs: Sequence[Job]) -> None:
    """Add the ranks of the processes that wrote warnings."""
    job_of = {id(process): job for job in jobs for process in job.processes}
    for group in groups:
        for one in group.kept:
            job = job_of.get(id(one.process))
            rank = job.rank_of(one.process, one.device) if job is not None else None
            if rank is not None:
                one.rank = rank
                group.ranks.add(rank)


def _tier(group: Group, raised: bool) -> int:
    """Return a group's tier: a warning that need not be a failure is one where its call returned an error.

    raised: the program reports that a call of NCCL failed: PyTorch quotes a warning without process as its last error.
    """
    if _recovered(group):
        return WEAK
    quoted = raised and group.tier == WEAK and any(one.process is None for one in group.kept)
    lenient = group.tier == WEAK or (group.tier == NETWORK and group.event.id == "net_plugin")
    return CAUSE if quoted or (lenient and any(map(_ended_a_call, group.kept))) else group.tier


def _recovered(group: Group) -> bool:
    """Return whether each process tried the connection again later, or took another network."""
    for one in group.kept if group.event.id in ("connect", "net_plugin", "sharp") else ():
        later = 0
        if one.process is not None and group.event.id == "connect":
            later = one.process.retry["_where"][1] if one.process.retry is not None else 0
        elif one.process is not None:
            later = max(one.process.completed, one.process.networked)
        if later <= one.order:
            return False
    return group.event.id in ("connect", "net_plugin", "sharp")


def _ended_a_call(one: Occurrence) -> bool:
    """Return whether calls behind a warning returned an error to the program or to the thread that moves its data."""
    plugin = one.event.id == "plugin_warning"
    return any(to_program(call) or (plugin and call.place.startswith("proxy.")) for call in calls_after(one))


def calls_after(one: Occurrence) -> List[Call]:
    """Return calls of the warning's process and GPU that returned an error behind it."""
    calls = one.process.calls if one.process is not None else ()
    behind = [call for call in calls if call.source == one.source and call.order > one.order]
    return [call for call in behind if call.device in (one.device, None)]


def to_program(call: Call) -> bool:
    return call.progress or _PROGRAM_CALLS.search(call.place) is not None


def _link(groups: Sequence[Group], log: Log) -> None:
    """Set ``because`` of groups by the table of relations."""
    processes = log.state.processes.values()
    addresses = {address: one.host for one in processes for _name, address in (one.bootstrap, one.oob) if address}
    by_name: Dict[str, List[Group]] = {}
    for group in groups:
        for name in {group.event.id, "%s %s" % (group.event.id, group.code)}:
            by_name.setdefault(name, []).append(group)
    for relation in RELATIONS:
        for effect in by_name.get(relation.effect, ()):
            for cause in by_name.get(relation.cause, ()) if effect.because is None else ():
                if not _leads_to(cause, effect) and _holds(relation.condition, effect, cause, addresses):
                    effect.because, effect.link = cause, relation.link
                    break


def _leads_to(group: Group, to: Group) -> bool:
    """Return whether a group is another one, or follows from it, however indirectly."""
    at: Optional[Group] = group
    for _step in range(64):
        if at is None or at is to:
            break
        at = at.because
    return at is to


def _holds(condition: str, effect: Group, cause: Group, addresses: Dict[str, str]) -> bool:
    earlier = before(cause.first, effect.first)
    if condition in ("any", "before"):
        return earlier or condition == "any"
    if condition == "own":
        return bool(effect.ranks) and effect.ranks <= cause.ranks and earlier
    if condition == "other":
        # A launcher reports an end after the others were ended.
        late = cause.event.id in ("exit", "oom", "node_failure", "evicted")
        return (earlier or late) and not (cause.ranks and cause.ranks == effect.ranks)
    named = [one.fields.get("peer") or "" for one in effect.kept]
    peers = {_short(addresses.get(peer, peer)) for peer in named} & {_short(host) for host in cause.hosts} - {""}
    if condition == "peer":
        ports = {(one.fields.get("device"), one.host) for one in cause.kept if one.fields.get("device")}
        own = any((one.fields.get("device"), one.host) in ports for one in effect.kept)
        return earlier and (own or bool(peers))
    # lost
    return cause.code != "signal 6" and bool(peers - {_short(host) for host in effect.hosts})


def _short(host: str) -> str:
    return host.partition(".")[0].lower() if host[:1].isalpha() else host


def before(one: Occurrence, other: Occurrence) -> bool:
    """Return whether one came before the other: by the lines of one file, else by their clocks."""
    if one.source != other.source and one.time and other.time:
        return same_day(one.time) <= same_day(other.time)
    return one.order <= other.order


def _root(log: Log, groups: Sequence[Group]) -> Optional[Group]:
    open_groups = [group for group in groups if group.because is None]
    failures = [group for group in open_groups if group.tier not in (ORDER, WEAK)]
    orders = [group for group in open_groups if group.event.id in ("order", "cancelled")]
    if orders and not any(group.tier == OUTSIDE for group in failures):
        first = _earliest(orders)
        reports = ("exit", "worker_lost", "error_line")
        others = [group for group in groups if group.tier not in (ORDER, WEAK) and group.event.id not in reports]
        if not others or before(first.first, _earliest(others).first):
            return first
    if not failures:
        return None
    least = min(group.tier for group in failures)
    if least != REPORT:
        return _earliest([group for group in failures if group.tier == least], failures)
    # The end of a process that explains what others report of it.
    ends = [one for one in failures if one.event.id == "exit" and any(group.because is one for group in groups)]
    best = min(ends or failures, key=_report_rank)
    if best.event.id == "exit" and not _crashed(best):
        lines = [one for one in failures if one.event.id == "error_line" and before(one.first, best.first)]
        return max(lines, key=lambda group: group.first.order, default=best)
    weak = [group for group in open_groups if group.tier == WEAK and not continued(log, group)]
    return _earliest(weak) if weak and best.event.id != "exit" else best


def _crashed(group: Group) -> bool:
    """Return whether a signal ended a process; SIGABRT is the end of an exception that nothing caught."""
    return group.event.id == "exit" and group.code.startswith("signal") and group.code != "signal 6"


def _report_rank(group: Group) -> Tuple[int, int]:
    """Return how much a report says of what failed: a signal, NCCL's result, a launcher's words."""
    name = "signal" if _crashed(group) else group.event.id
    return (_REPORTS.index(name) if name in _REPORTS else len(_REPORTS), group.first.order)


def _earliest(groups: Sequence[Group], beside: Sequence[Group] = ()) -> Group:
    """Return the first by its clock, where all have one and several files are read; else by its line."""
    every = beside or groups
    clocks = len({group.first.source for group in every}) > 1 and all(group.first.time for group in every)
    return min(groups, key=lambda group: (same_day(group.first.time) if clocks else "", group.first.order))


def _follow(group: Group, root: Group) -> None:
    """Let an effect or report that no relation explains follow from the root."""
    later = before(root.first, group.first)
    if group.because is None and not _leads_to(root, group) and (
        (group.tier in (EFFECT, ORDER, REPORT) and group.tier >= root.tier)
        or (root.tier == ORDER and group.tier != OUTSIDE and later)
        or (group.tier == NETWORK and root.tier in (OUTSIDE, CAUSE) and later)
    ):  # fmt: skip
        group.because, group.link = root, LIKELY


def _confidence(root: Optional[Group], groups: Sequence[Group]) -> str:
    if root is None:
        return ""
    proves = root.tier < EFFECT and any(one.because is root and one.link == PROVEN for one in groups)
    if root.event.plain or root.detail.proven or root.tier in (OUTSIDE, ORDER) or proves:
        return PROVEN
    return LIKELY if root.tier == CAUSE else REPORTED


def continued(log: Log, group: Group) -> int:
    """Return the line by which the job continued behind an event; 0 where none shows it."""
    later = max(log.last_step, log.last_success)
    if log.table.finished or _all_destroyed(log):
        later = log.lines
    others = [other for other in log.groups.values() if other is not group and other.event.id != "consequence"]
    failed = [other for other in others if other.tier in (OUTSIDE, CAUSE, EFFECT, REPORT)]
    ended = len(log.sources) > 1 or later <= group.last or any(other.last > group.first.order for other in failed)
    return 0 if ended else later


def _all_destroyed(log: Log) -> bool:
    """Return whether every rank of the largest communicator ended in order."""
    world = max(log.state.communicators.values(), key=lambda one: one.ranks, default=None)
    return world is not None and len(world.gone.get("Destroy", ())) == world.ranks


def in_order(log: Log) -> str:
    """Return how the job completed, as lines prove it; "" where none does."""
    if _all_destroyed(log):
        return "Destroy COMPLETE of all ranks"
    if log.table.finished:
        last = log.table.programs[-1]
        checked = "out of bounds values 0 OK" if last.bounds else "average printed"
        return "nccl-tests: %s" % ("values were not checked" if last.wrong is None and last.rows else checked)
    if log.last_step < log.last_success and log.last_step:
        return "the program reports its end in line %d" % log.last_success
    return ""


# NCCL reports errors and returns as asynchronous events (ncclIbAsyncThreadMain in src/transport/net_ib): fatal until
# 2.28.3, from 2.28.7 on "non-fatal", as the job survives where the link returns within the retry time.


def _ports(log: Log) -> Dict[Tuple[str, str], List[Occurrence]]:
    """Return host and device of the ports that reported an error, and their errors and returns in order."""
    found: Dict[Tuple[str, str], List[Occurrence]] = {}
    every = [one for group in log.groups.values() for one in group.kept]
    for one in sorted(every, key=lambda one: one.order):
        if one.event.id == "port_active" or (one.event.id == "port" and one.code == "port error"):
            found.setdefault((one.host, str(one.fields.get("device") or "a port")), []).append(one)
    return {port: events for port, events in found.items() if any(one.event.id == "port" for one in events)}


def tolerate_ports(log: Log, diagnosis: Diagnosis) -> None:
    """Take a port error for no failure where each port came back and nothing else failed."""
    root = diagnosis.root
    if root is None or root.event.id != "port" or root.code != "port error":
        return
    failed = {group.event.id for group in diagnosis.groups if group.tier in (OUTSIDE, CAUSE, NETWORK, EFFECT)}
    if failed == {"port"} and all(events[-1].event.id == "port_active" for events in _ports(log).values()):
        root.tier = WEAK
        diagnosis.root, diagnosis.confidence = None, ""


def describe_ports(log: Log, group: Group) -> List[str]:
    """Return the life of each port of a group, in sentences."""
    found = []
    for (host, device), events in list(_ports(log).items())[:4] if group.code == "port error" else ():
        count = sum(one.event.id == "port" for one in events)
        times, back = "once" if count == 1 else "%d times" % count, events[-1].event.id == "port_active"
        text = "link of %s on %s went down %s and %s"
        found.append(text % (device, host or UNNAMED, times, "came back" if back else "is not back here"))
    return found
