# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Calls of NCCL that returned an error: what went on in them, and what they tell where no warning names a cause."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from . import ends, outcome, signals, survived
from .failure_causes import RESULTS, STAGES
from .failure_checks import WARNING
from .failure_order import kind_of
from .job import Call, Process, Reported
from .jobs import Job, names, numbers, of_ranks

_ADDRESS = re.compile(r"\bip=([\d.]{7,15}|[0-9a-f:]{2,39})\b")

_COLLECTIVE = re.compile(r"WorkNCCL\(SeqNum=(?P<number>\d{1,20}), OpType=(?P<op>\w{1,60})")
_PROXY = re.compile(r"Proxy Call to rank (\d{1,8}) failed \((\w{1,40})\)")

_NETWORKS = re.compile(r"(?:^|/|^plugin/)net\.(?:cc|cpp|cu):")
_NO_CALL = ("progress", "signalled", "left", "exit", "cancelled")


def bare(job: Job) -> List[Finding]:
    """Where only exceptions, what NCCL says after another warning, or the calls that returned an error are here."""
    said = [one.failure.text for one in job.failures if kind_of(one) == "exception"]
    said = said or [one.failure.text for one in job.failures if kind_of(one) not in _NO_CALL]
    traced = calls_of(job)
    if not said and not traced:
        return []
    have, came_to = said[0] if said else "", ""
    aborted = [one for one in job.processes if one.ended == "Abort"]
    if not said and aborted and all(ends.shut_down(process, True) for _call, process in traced):
        return [_aborted(job, aborted, traced[0][0])]
    if traced:
        call, process = traced[0]
        others = {one.key for _call, one in traced} - {process.key}
        have += "; " if have else ""
        have += "calls of NCCL returned an error, first %s -> %d on %s" % (
            call.place,
            call.result,
            with_gpu(job.who(process), call.device),
        )
        have += ", and on %s" % names([job.who(one) for _call, one in traced if one.key in others], 4) if others else ""
        have += _other_gpus(job, traced)
        own = [one for one, by in traced if by is process and one.device == call.device]
        during, came_to = stage([one.place for one in own]), outcome.came_to(own)
        have += "; %s" % during if during else ""
    have += _works(job) + _test_hosts(job) + _proxy_calls(job)
    code = str(traced[0][0].result) if traced else ""
    meant = [text for number, words, text in RESULTS if number == code or any(word in have for word in words)]
    have += "; that is, usually: %s" % meant[0] if meant else ""
    have += "; %s" % came_to if came_to else ""
    errors = [one for one in job.quotes if one.kind == signals.ERROR and not one.nccl and one.text[:150] not in have]
    errors = [one for one in errors if not one.about or "NCCL" not in one.about.replace("nccl-", "NCCL")]
    if errors:
        # What no rule knows may be the cause.
        have += "; no known line of this log names the cause; other programs report: %s" % errors[0].text[:200]
    elif not any(kind_of(one) in ("warning", "fallback") for one in job.failures):
        have += "; the warning before it, which names the cause, is not in this log"
    fix = "run it again with NCCL_DEBUG=WARN at least, and give this command the logs of all ranks"
    if any(process.networks or process.connections for process in job.processes):
        # It was at INFO.
        fix = "give this command the logs of all ranks, and what each process printed beside them (stderr)"
    why = "calls of NCCL failed, and no line that a rule knows names the cause"
    # An initialisation that came back to the program failed for certain, whatever the cause.
    warned = any(one.process is not None for one in job.failures)
    state = "drift" if warned and "the initialisation" in came_to else "unknown"
    if not job.failures and not job.communicators and _alone(traced):
        have += "; no call around it returned an error: NCCL may have recovered"
        return [WARNING.judge(job.name, "unknown", "no failure", have, "", fix, severity="minor", why=_LONE)]
    return [WARNING.judge(job.name, state, "no failure", have, "", fix, severity="critical", why=why)]


_LONE = "an error that a call within NCCL returned is a failure only if its callers return one, too"


def _alone(traced: Sequence[Tuple[Call, Process]]) -> bool:
    """Whether each is the only call of its process and GPU that returned an error, deep within NCCL."""
    whose = [(process.key, call.device) for call, process in traced]
    return len(whose) == len(set(whose)) and not any(outcome.to_program(call) for call, _process in traced)


def _aborted(job: Job, aborted: Sequence[Process], call: Call) -> Finding:
    """Where all calls that returned an error are such as an abort ends."""
    have = "a communicator was aborted (Abort COMPLETE), by %s" % names([job.who(one) for one in aborted], 4)
    told = next((one for one in job.quotes if "failed or timed out" in one.text), None)
    have += "; PyTorch reports that operations of NCCL failed or timed out (line %d)" % told.order if told else ""
    have += "; calls on sockets that returned an error (first %s -> %d) usually go with that, and are not a cause" % (
        call.place, call.result,
    )  # fmt: skip
    have += "; what was before it is not in these lines"
    why = "a process that aborts a communicator usually gave up a wait, met an error, or was ending"
    fix = "read the lines before it in the logs of all ranks: a timeout of PyTorch's watchdog, an exception, a warning"
    return WARNING.judge(job.name, "unknown", "no failure", have, "", fix, severity="critical", why=why)


def _works(job: Job) -> str:
    """The collectives of PyTorch's that exceptions name, where ranks name different ones."""
    at: Dict[str, Set[int]] = {}
    for one in job.failures:
        match = _COLLECTIVE.search(one.failure.text) if kind_of(one) == "exception" else None
        if match is not None and one.failure.rank is not None:
            at.setdefault("%s number %s" % match.group("op", "number"), set()).add(one.failure.rank)
    each = ["%s on %s" % (work, of_ranks(numbers(ranks))) for work, ranks in at.items()]
    return "; the ranks were at different collectives: %s" % names(each, 6) if len(at) > 1 else ""


def _test_hosts(job: Job) -> str:
    """Hosts on which nccl-tests reports the failure of a call."""
    hosts = {one.failure.peer for one in job.failures if kind_of(one) == "test"} - {""}
    ranks = {one.failure.rank for one in job.failures if kind_of(one) == "exception"} - {None}
    text = "; reported on %s" % names(hosts, 12) if hosts else ""
    return text + ("; reported by rank %s" % numbers(rank for rank in ranks if rank is not None) if ranks else "")


def _other_gpus(job: Job, traced: Sequence[Tuple[Call, Process]]) -> str:
    """What calls of other GPUs of the same process returned, where that is another result."""
    first, process = traced[0]
    seen = {first.result}
    text = ""
    for call, by in traced:
        if by is process and call.device != first.device and call.result not in seen and len(seen) < 4:
            seen.add(call.result)
            meant = next((words for number, _said, words in RESULTS if number == str(call.result)), "")
            text += "; %s -> %d%s (%s)" % (
                call.place, call.result, " on GPU %d" % call.device if call.device is not None else "", meant,
            )  # fmt: skip
    return text


def calls_of(job: Job) -> List[Tuple[Call, Process]]:
    """Calls that returned an error, in the order of the log."""
    said = [
        (call, process)
        for process in job.processes
        if process.calls and not ends.shut_down(process)
        for call in process.calls[len(survived.calls(job, process)) :]
    ]
    if job.networks:
        # A plugin that does not start gives way to the next network.
        said = [(call, process) for call, process in said if not _NETWORKS.search(call.place)]
    return sorted(said, key=lambda pair: (pair[0].source, pair[0].order))


def stage(places: Sequence[str]) -> str:
    """What went on, by the files of NCCL's sources that calls name, innermost first; "" where none tells."""
    for exact in (True, False):
        # "at the initialisation" is true of most calls in the end.
        for place in places:
            for pattern, stage in STAGES[:-5] if exact else STAGES:
                if re.search(pattern, place.partition(":")[0]):
                    return stage
    return ""


def stage_of(one: Reported) -> str:
    after = []
    if one.process is not None:
        after = [
            call.place
            for call in one.process.calls
            if call.source == one.source and call.device == one.device and call.order > one.order
        ]
    places = [one.place, *after]
    if one.failure.kind == "usage":
        # init.cc has the checks of every call on a communicator, too.
        places = [place for place in places if not re.search(r"(?:^|/)init\.", place)]
    return stage(places) if any(places) else ""


def with_gpu(who: str, device: Optional[int]) -> str:
    """NCCL prints a number without meaning where a thread has no GPU."""
    return "%s, GPU %d" % (who, device) if device is not None and 0 <= device < 64 else who


def _other_ends(job: Job, ranks: Set[int]) -> str:
    """With whom ranks are connected over the network, and by which device."""
    ends, by = set(), set()
    for process in job.processes:
        ends |= {other for pair in process.crossed if ranks & set(pair) for other in pair} - ranks
        by |= {
            "NET/%s/%s" % (way[1], way[2]) for rank in ranks for way in process.connections.get(rank, ())
            if way[0] == "net" and way[2] is not None
        }  # fmt: skip
    if not 0 < len(ends) <= 8 or not by:
        return ""
    text = "; over the network these lines connect it with rank %s by %s" % (numbers(ends), names(by, 4))
    several = any(one.startswith("NET/Socket/") and not one.endswith("/0") for one in by)
    return text + (
        ", not the first interface that NET/Socket takes: one that does not reach the other node (NCCL_SOCKET_IFNAME"
        " leaves it out) is a possible cause" if several else ""
    )  # fmt: skip


def _proxy_calls(job: Job) -> str:
    """Ranks whose proxy thread did not do what a thread of their node asked for: the line names no other end."""
    said = [match for match in (_PROXY.search(one.failure.text) for one in job.failures) if match]
    if not said:
        return ""
    ranks, calls = {int(match.group(1)) for match in said}, {match.group(2) for match in said}
    text = "; the proxy thread of rank %s did not do what was requested (%s)" % (numbers(ranks), names(calls, 3))
    text += (
        ": the warnings of that rank's process may name the interface (NCCL_SOCKET_IFNAME), a firewall or the device"
        + _other_ends(job, ranks)
    )
    hosts = {host for one in job.quotes for host in [*one.hosts, *_ADDRESS.findall(one.text)]}
    several = 1 < len(hosts) < 9
    return text + ("; the lines are of %s: a connection between nodes is likely" % names(hosts, 8) if several else "")
