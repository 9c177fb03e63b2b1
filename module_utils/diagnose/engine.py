# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order the events of a log and find the one upstream of all others, with the confidence that relations give it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from .event import CAUSE, EFFECT, NETWORK, NOTICE, ORDER, OUTSIDE, REPORT, WEAK, Group, Occurrence
from .jobs import Job
from .lines import same_day
from .log_reader import Log
from .relations import LIKELY, PROVEN, RELATIONS
from .state import Call, Process

# Confidence in a root: a line or a proven relation states it; it is upstream of all others; it is only reported.
REPORTED = "reported"
# Functions that the program has called, by file of NCCL's sources: an error that they return ends a call of it.
_PROGRAM_CALLS = re.compile(r"(?:^|/)(?:init|transport|generic|group|enqueue|collectives)\.(?:cc|cpp|cu):")

# Reports, the one that says most of what failed first.
_REPORTS = (
    *("signal", "exception_nccl", "test", "exit", "mpi_abort"),
    *("worker_lost", "exception_remote", "consequence", "error_line"),
)


@dataclass
class Diagnosis:
    """groups: events that matter, the root first.   root: None where nothing failed.   confidence: of the root.

    calls: calls within NCCL that returned an error to the program, without a warning.
    """

    groups: List[Group] = field(default_factory=list)
    root: Optional[Group] = None
    confidence: str = ""
    calls: List[Tuple[Process, Call]] = field(default_factory=list)


def diagnose(log: Log, jobs: Sequence[Job]) -> Diagnosis:
    """Return the events of a log in the order of cause and effect."""
    groups = [group for group in log.groups.values() if group.event.id not in ("harmless", "progress")]
    addresses = {process.bootstrap[1]: process.host for process in log.state.processes.values() if process.bootstrap[1]}
    addresses.update({process.oob[1]: process.host for process in log.state.processes.values() if process.oob[1]})
    failing = [group for group in groups if group.tier != NOTICE]
    _name_ranks(failing, jobs)
    _promote(failing)
    _link(failing, addresses)
    root = _root(log, failing)
    if root is not None:
        _follow(failing, root)
    failing.sort(key=lambda group: (group is not root, group.because is not None, group.tier, group.first.order))
    notices = [group for group in groups if group.tier == NOTICE]
    calls = _calls(log) if root is None or root.tier >= EFFECT else []
    return Diagnosis([*failing, *notices], root, _confidence(root, failing), calls)


def _name_ranks(groups: Iterable[Group], jobs: Sequence[Job]) -> None:
    """Add the ranks of the processes that wrote warnings."""
    job_of = {id(process): job for job in jobs for process in job.processes}
    for group in groups:
        for one in group.kept:
            job = job_of.get(id(one.process))
            rank = job.rank_of(one.process, one.device) if job is not None else None
            if rank is not None:
                one.rank = rank
                group.ranks.add(rank)


def _promote(groups: Iterable[Group]) -> None:
    """Make a warning that need not be a failure one where its call returned an error to the program."""
    raised = any(group.event.id == "exception_nccl" for group in groups)
    for group in groups:
        if _recovered(group):
            group.tier = WEAK
        elif group.tier in (WEAK, NETWORK) and (group.tier == WEAK or group.event.id == "net_plugin"):
            if any(ended_a_call(one) for one in group.kept):
                group.tier = CAUSE
            elif raised and group.tier == WEAK and any(one.process is None for one in group.kept):
                # PyTorch quotes it as NCCL's last error.
                group.tier = CAUSE


def _recovered(group: Group) -> bool:
    """Return whether each process tried the connection again later, or took another network."""
    if group.event.id == "connect":
        retries = [(one.process.retry if one.process is not None else None, one.order) for one in group.kept]
        return all(retry is not None and retry.fields.get("order", 0) > order for retry, order in retries)
    started = (max(one.process.completed, one.process.networked) > one.order if one.process is not None else False
               for one in group.kept)  # fmt: skip
    return group.event.id in ("net_plugin", "sharp") and all(started)


def ended_a_call(one: Occurrence) -> bool:
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


def _calls(log: Log) -> List[Tuple[Process, Call]]:
    """Return the first failed call of each process that has no warning before it."""
    warned = {id(group_one.process) for group in log.groups.values() for group_one in group.kept
              if group_one.process is not None and group.tier not in (NOTICE, REPORT)}  # fmt: skip
    silent = [one for one in log.state.processes.values() if one.calls and id(one) not in warned]
    return [(process, process.calls[0]) for process in silent[:64]]


# -- links -------------------------------------------------------------------------------------------------------------


def _link(groups: Sequence[Group], addresses: Dict[str, str]) -> None:
    """Set ``because`` of groups by the table of relations."""
    by_event: Dict[str, List[Group]] = {}
    for group in groups:
        by_event.setdefault(group.event.id, []).append(group)
    for relation in RELATIONS:
        effect_id, _blank, effect_code = relation.effect.partition(" ")
        cause_id, _blank, cause_code = relation.cause.partition(" ")
        for effect in by_event.get(effect_id, ()):
            if effect.because is not None or (effect_code and effect.code != effect_code):
                continue
            for cause in by_event.get(cause_id, ()):
                wanted = not cause_code or cause.code == cause_code
                if cause is effect or not wanted or _leads_to(cause, effect):
                    continue
                if _holds(relation.condition, effect, cause, addresses):
                    effect.because, effect.link = cause, relation.link
                    break


def _leads_to(group: Group, to: Group) -> bool:
    """Return whether a group already follows from another one, however indirectly."""
    seen = 0
    at: Optional[Group] = group
    while at is not None and seen < 64:
        if at is to:
            return True
        at, seen = at.because, seen + 1
    return False


def _holds(condition: str, effect: Group, cause: Group, addresses: Dict[str, str]) -> bool:
    if condition == "any":
        return True
    if condition == "before":
        return before(cause.first, effect.first)
    named = [one.fields.get("peer") or "" for one in effect.kept]
    peers = {_short(addresses.get(peer, peer)) for peer in named} & {_short(host) for host in cause.hosts} - {""}
    if condition == "peer":
        own = any(_one_device(one, other) for one in effect.kept for other in cause.kept)
        return before(cause.first, effect.first) and (own or bool(peers))
    if condition == "lost":
        return cause.code != "signal 6" and bool(peers - {_short(host) for host in effect.hosts})
    if condition == "own":
        return bool(effect.ranks) and effect.ranks <= cause.ranks and before(cause.first, effect.first)
    if condition == "other":
        apart = not (cause.ranks and cause.ranks == effect.ranks)
        return apart and (before(cause.first, effect.first) or _reported_late(cause))
    raise ValueError("relation condition %r is not known" % condition)


def _reported_late(group: Group) -> bool:
    """Return whether a launcher, which reports an end after the others were ended, is the reporter."""
    return group.event.id in ("exit", "oom", "node_failure", "evicted") and group.tier != ORDER


def _one_device(one: Occurrence, other: Occurrence) -> bool:
    device = one.fields.get("device")
    return bool(device) and device == other.fields.get("device") and one.host == other.host


def _short(host: str) -> str:
    return host.partition(".")[0].lower() if host[:1].isalpha() else host


def before(one: Occurrence, other: Occurrence) -> bool:
    """Return whether one came before the other: by the lines of one file, else by their clocks."""
    if one.source != other.source and one.time and other.time:
        return same_day(one.time) <= same_day(other.time)
    return one.order <= other.order


# -- the root ----------------------------------------------------------------------------------------------------------


def _root(log: Log, groups: Sequence[Group]) -> Optional[Group]:
    open_groups = [group for group in groups if group.because is None]
    failures = [group for group in open_groups if group.tier not in (ORDER, WEAK)]
    orders = [group for group in open_groups if group.event.id in ("order", "cancelled")]
    outside = [group for group in failures if group.tier == OUTSIDE]
    if orders and not outside:
        first = _earliest(orders)
        others = [group for group in groups if group.tier not in (ORDER, WEAK) and not _late_exit(group)]
        if not others or before(first.first, _earliest(others).first):
            return first
    if failures:
        best = min(failures, key=lambda group: (group.tier, _position(group, failures)))
        if best.tier == REPORT:
            weak = [group for group in open_groups if group.tier == WEAK and not continued(log, group)]
            best = min(failures, key=_report_rank)
            if best.event.id == "exit" and not _crashed(best):
                lines = [one for one in failures if one.event.id == "error_line" and before(one.first, best.first)]
                best = max(lines, key=lambda group: group.first.order, default=best)
            elif weak and best.event.id != "exit":
                best = _earliest(weak)
        return best
    return None


def _crashed(group: Group) -> bool:
    """Return whether a signal ended a process; SIGABRT is the end of an exception that nothing caught."""
    return group.event.id == "exit" and group.code.startswith("signal") and group.code != "signal 6"


def _late_exit(group: Group) -> bool:
    return group.event.id in ("exit", "worker_lost", "error_line")


def _report_rank(group: Group) -> Tuple[int, int]:
    """Return how much a report says of what failed: a signal, NCCL's result, a launcher's words."""
    name = "signal" if _crashed(group) else group.event.id
    return (_REPORTS.index(name) if name in _REPORTS else len(_REPORTS), group.first.order)


def _position(group: Group, groups: Sequence[Group]) -> Tuple[str, int]:
    """Return what groups of one tier are ordered by: clocks where all have one and several files are read."""
    sources = {other.first.source for other in groups}
    clocks = len(sources) > 1 and all(other.first.time for other in groups)
    return (same_day(group.first.time) if clocks else "", group.first.order)


def _earliest(groups: Sequence[Group]) -> Group:
    return min(groups, key=lambda group: _position(group, groups))


def _follow(groups: Iterable[Group], root: Group) -> None:
    """Let effects and reports that no relation explains follow from the root."""
    for group in groups:
        if group is root or group.because is not None or _leads_to(root, group):
            continue
        if (
            (group.tier in (EFFECT, ORDER, REPORT) and group.tier >= root.tier)
            or (root.tier == ORDER and group.tier != OUTSIDE and before(root.first, group.first))
            or (group.tier == NETWORK and root.tier in (OUTSIDE, CAUSE) and before(root.first, group.first))
        ):
            group.because, group.link = root, LIKELY


def _confidence(root: Optional[Group], groups: Sequence[Group]) -> str:
    if root is None:
        return ""
    if root.event.plain or root.detail.proven:
        return PROVEN
    proves = any(one.because is root and one.link == PROVEN for one in groups)
    if root.tier in (OUTSIDE, ORDER) or (root.tier < EFFECT and proves):
        return PROVEN
    return LIKELY if root.tier == CAUSE else REPORTED


def continued(log: Log, group: Group) -> int:
    """Return the line by which the job continued behind an event; 0 where none shows it."""
    if len(log.sources) > 1:
        return 0
    later = max(log.last_step, log.last_success)
    if log.table.finished:
        later = max(later, log.lines)
    if _all_destroyed(log):
        later = log.lines
    others = [other for other in log.groups.values() if other is not group and other.event.id != "consequence"]
    failed = [other for other in others if other.tier in (OUTSIDE, CAUSE, EFFECT, REPORT)]
    return 0 if later <= group.last or any(other.last > group.first.order for other in failed) else later


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
