# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a job's failures came first: by times of one clock, or by the order of the lines of one file.

Where neither is there, it is not told. Who only lost a connection, waited or was ended is never first beside others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional, Sequence, Set, Tuple

from . import aftermath, cuda_errors, ends, outcome
from .failure_causes import POSSIBLE
from .failure_checks import FOLLOWS, MERELY, MINOR, OWN
from .failures import Failure
from .job import Reported
from .jobs import Job

_UNREACHABLE = ("timed out", "nreachable", "No route", "Host is down")

# Kinds of which each code is its own finding.
_BY_CODE = (
    *("completion", "cuda", "port", "net_plugin", "fabric_manager", "verbs", "registration", "xid"),
    "limits",
    *("port_in_use", "unresolved", "sxid"),
)

_BY_TEXT = ("warning", "plugin_warning", "value", "topology", "system")

NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d+)\b")


def kind_of(one: Reported) -> str:
    return one.failure.kind


def code_of(one: Reported) -> str:
    """Failures with the same are one finding."""
    if one.failure.kind in _BY_CODE:
        return one.failure.code
    if one.failure.kind == "store":
        return "port" if one.failure.code == "port" else "clients" if "clients joined" in one.failure.text else ""
    if one.failure.kind == "queue_pair":
        return "unreachable" if any(word in one.failure.code for word in _UNREACHABLE) else ""
    if one.failure.kind == "connect":
        return "refused" if "refused" in one.failure.text else ""
    if one.failure.kind == "exit":
        known = ("exit", one.failure.code) in POSSIBLE or ("exit", one.failure.code) in OWN
        return one.failure.code if known else ""
    # Warnings that differ by numbers alone are one.
    return NUMBER.sub("#", one.failure.text[:60]) if one.failure.kind in _BY_TEXT else ""


def waited(one: Reported) -> bool:
    """Whether a wait was given up: it began at a time that the order of the lines does not tell."""
    return kind_of(one) in ("watchdog", "stuck", "signalled") or (
        kind_of(one) == "store" and "imed out" in one.failure.text
    )


def in_order(reported: Sequence[Reported]) -> Optional[List[Reported]]:
    """The failures as they came; None where no clock and no file tells."""
    if len({one.clock for one in reported}) == 1 and all(one.time for one in reported):
        return sorted(reported, key=lambda one: (one.time, one.order))
    if len({one.source for one in reported}) <= 1:
        return sorted(reported, key=lambda one: one.order)
    return None


def came_before(reported: Sequence[Reported], first: Reported) -> bool:
    """Whether another process reported it before the first failure: then it is not told what it follows from."""
    if not reported or (first.process is None and kind_of(first) != "cuda"):
        return False  # a launcher says at the end what came before
    ordered = in_order([*reported, first])
    if ordered is None or ordered[0] is first:
        return False
    return first.process is None or ordered[0].process is not first.process


def after_a_wait(job: Job, one: Reported) -> Optional[Reported]:
    """The wait that was given up before a program asked for more memory than a GPU has: that size need not be real."""
    if kind_of(one) != "cuda" or not cuda_errors.absurd(one.failure.text):
        return None
    ordered = in_order([one, *(other for other in job.failures if waited(other))]) or [one]
    return ordered[0] if ordered[0] is not one else None


def raised(failures: Sequence[Reported]) -> Set[int]:
    """Ranks whose watchdog met an error of NCCL's: they signal a timeout to all others as if they had waited."""
    ranks = (one.failure.rank for one in failures if "async exception" in one.failure.text)
    return {rank for rank in ranks if rank is not None}


def settled(failures: Sequence[Reported]) -> Tuple[Reported, ...]:
    """The failures; a signal of a timeout that is none tells no more than how far its rank came."""
    ranks = raised(failures)
    return tuple(
        replace(one, failure=replace(one.failure, kind="progress"))
        if kind_of(one) == "signalled" and by_whom(one.failure) in ranks
        else one
        for one in failures
    )


def by_whom(said: Failure) -> Optional[int]:
    """The rank whose signal it is."""
    return int(said.peer) if said.peer else said.rank


def _lost_by(ended: Reported, before: Sequence[Reported]) -> bool:
    """Whether a process that was killed or crashed is the one whose peers say before that they lost somebody.

    A launcher tells its end when it has ended the others.
    """
    told = [one for one in before if one.source == ended.source and one.order < ended.order]
    return (
        ends.by_itself(ended.failure)
        and ended.failure.rank is not None
        and len(told) == len(before)
        and all(
            kind_of(one) == "exception"
            and ("remote process exited" in one.failure.text or "ncclRemoteError" in one.failure.text)
            and one.failure.rank != ended.failure.rank
            for one in before
        )
    )


_HOST = re.compile(r"[A-Za-z][\w-]{0,62}")


def named_gone(job: Job) -> List[Reported]:
    """Ends of processes on hosts that lost connections name, where no process reports a loss: they went first.

    A launcher tells an end when it has heard of it, which may be long after others tell what they lost.
    """
    lost = [one for one in job.failures if kind_of(one) == "closed" and not aftermath.of_itself(one)]
    if not lost:
        return []
    addresses = {one.bootstrap.address: one.host for one in job.processes if one.bootstrap is not None}
    hosts = {_short(addresses.get(one.failure.peer, one.failure.peer)) for one in lost}
    hosts -= {_short(one.process.host) for one in lost if one.process is not None} | {""}
    return [
        one
        for one in job.failures
        if kind_of(one) == "exit"
        and _short(one.failure.peer) in hosts
        and not ends.by_order(one.failure)
        and not ends.aborted(one.failure)
    ]


def _short(said: str) -> str:
    """The host's name that a text begins with, without its domain."""
    match = _HOST.match(said)
    return match.group() if match else ""


def _never_came(job: Job) -> List[Reported]:
    """The wait of PyTorch's store for processes that did not come, where it ended before others lost that store."""
    stores = in_order([one for one in job.failures if kind_of(one) == "store"]) or []
    return stores[:1] if stores and code_of(stores[0]) == "clients" else []


_CLOCK = re.compile(r"\[[EFW]\d{3,4} (\d\d:\d\d:\d\d)\.\d|(?:^| )(\d\d:\d\d:\d\d)")


def _given_up(job: Job) -> List[Reported]:
    """Waits that PyTorch gave up before the first connection was closed: who waited ended, and its peers lost it."""
    gave_up = [one for one in job.failures if kind_of(one) == "watchdog"]
    closed = [one for one in job.failures if kind_of(one) == "closed"]
    unreached = any(kind_of(one) == "connect" and any(map(one.failure.text.__contains__, _UNREACHABLE))
                    for one in job.failures)  # fmt: skip
    if not gave_up or not closed or unreached:
        return []
    clocks = [_CLOCK.search(one.failure.text[:400] if kind_of(one) == "watchdog" else one.time)
              for one in (*gave_up, *closed)]  # fmt: skip
    if all(clocks):
        at = [next(filter(None, clock.groups())) for clock in clocks if clock is not None]
        return gave_up if min(at[: len(gave_up)]) < min(at[len(gave_up) :]) else []
    ordered = in_order([*gave_up, *closed]) or closed
    return gave_up if kind_of(ordered[0]) == "watchdog" else []


def first_of(job: Job) -> Optional[Reported]:
    """What came before what only follows; None where it is not told."""
    roots = [
        one
        for one in job.failures
        if kind_of(one) not in FOLLOWS and not (kind_of(one) == "completion" and code_of(one) == "5")
    ]
    waits = [after_a_wait(job, one) for one in roots]
    if roots and all(waits):
        return waits[0]
    roots = [one for one, wait in zip(roots, waits) if wait is None]
    # What is minor whatever else is there has ended nothing.
    roots = [one for one in roots if kind_of(one) not in MINOR or outcome.ended_a_call(job, one)]
    known = [one for one in roots if kind_of(one) not in MERELY or outcome.ended_a_call(job, one)]
    known = [one for one in known if kind_of(one) != "xid" or not ends.xid_follows([one], known)]
    # A connection that was never made comes before those that were lost for it.
    never = [one for one in job.failures if kind_of(one) in ("connect", "closed")]
    if not roots and (in_order(never) or [None])[0] is not None and kind_of((in_order(never) or never)[0]) == "connect":
        return (in_order(never) or never)[0]
    # A process that ends after calls or tests had failed follows from them.
    ended = [one for one in job.failures if kind_of(one) == "exit"]
    ended = [one for one in ended if not ends.by_order(one.failure)] or ended
    told = ("consequence", "exception", "test", "watchdog", "signalled")
    # Who did not find the store ends by that, unless somebody ended it.
    told += () if any(ends.by_itself(one.failure) for one in ended) else ("store", "stuck")
    before = [one for one in job.failures if kind_of(one) in told]
    # Who aborts itself has met something, whoever tells it first.
    ended = [one for one in ended if not (before and ends.aborted(one.failure))]
    if before and ended and (in_order([*before, *ended]) or before)[0] not in ended:
        ended = named_gone(job) or [one for one in ended if _lost_by(one, before)]
    for reported in (known, ended, roots, _never_came(job), _given_up(job)):
        ordered = in_order(reported)
        if ordered:
            return ordered[0]
    return None
