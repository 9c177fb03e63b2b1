# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The finding on failures of one kind: what they say, what came of them, which causes fit, and what to do."""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

from ..core.finding import Finding
from ..core.number import whole
from . import alike, by_place, cuda_errors, ends, judge_watchdog, net_plugins, outcome
from .failure_causes import AREAS, LAST, POSSIBLE, POSSIBLE_AT, PROVEN, SYSTEM, SYSTEM_OF, WORDS
from .failure_checks import BY_WORDS, CHECKS, MERELY, MINOR, OPEN, OWN, WARNING
from .failure_more import Case, more, went_on_with
from .failure_order import came_before, code_of, in_order, kind_of, named_gone, waited
from .failure_who import announced, devices_differ, late, sizes, when, where, who
from .failures import STATUSES, cut
from .job import Reported
from .jobs import Job
from .judge_calls import stage_of

# Of these who says what is told by their own words.
_TOLD_APART = (
    "signalled",
    "completion",
    "connect",
    "closed",
    "watchdog",
    "exit",
    "progress",
    "exception",
    "duplicate_gpu",
    "xid",
)


def finding(job: Job, reported: List[Reported], cause: Optional[Finding], first: Optional[Reported]) -> Finding:
    """first: the job's first failure, where it is one of these.   cause: the finding that these likely follow from."""
    kind, code = kind_of(reported[0]), code_of(reported[0])
    ordered = in_order(reported) or reported
    ordered = ends.launched(ordered) if kind == "exit" else ordered
    case = Case(job, kind, code, reported, ordered, cause)
    one, stage = case.one, stage_of(case.one)
    came = outcome.came_to(outcome.own_calls(job, one) if kind in MERELY else outcome.after(one))
    have = "; ".join(part for part in [
        _what(case) + (_order(case, first) if first is not None else "") + _of_no_rule(case),
        "" if kind == "signalled" else who(job, _same_end(case)),
        alike.without_warning(job, ordered) if first is not None else "",
        stage,
        "" if kind in _TOLD_APART else alike.each(job, ordered),
        came,
        _last_error(job) if first is one else "",
        when(ordered),
        announced(job, case.one),
        *sizes(job, reported),
        where(job, reported) if kind not in ("xid", "sxid") else "",
        *more(case),
        *_causes(case, stage),
    ] if part)  # fmt: skip
    last_words = outcome.last_words(job, one)
    state = "unknown" if (kind in OPEN and not last_words and not case.ended_a_call) or kind == "cancelled" else "drift"
    placed = by_place.look_after(one)
    why, fix = (placed.why, placed.fix) if placed is not None else _why_and_fix(case, stage, came)
    subject = "%s %s" % (job.name, kind) + (" %s" % code[:60] if code else "")
    return (CHECKS[kind] if placed is None else placed.check).judge(
        subject, state, "none", have, _source(job, one, have), fix,
        because=cause, severity=_severity(case, first, came), why=why,
    )  # fmt: skip


def _what(case: Case) -> str:
    failure = case.one.failure
    if case.kind == "watchdog":
        what, apart, rest = case.gave_up.partition(";")
        return what + late(case.job, case.reported) + apart + rest
    if case.kind == "stuck":
        return judge_watchdog.stuck(case.one.failure.text) or cut(failure.text, 260)
    if case.kind == "signalled":
        return judge_watchdog.signalled(case.job, case.reported)
    if case.kind == "xid":
        return ends.xid_said(case.reported)[0]
    if case.kind == "completion":
        status = whole(case.code)
        if status is None:
            return "the HCA reports of a queue: %s" % case.code
        return "completion with status %s, %s" % (case.code, STATUSES.get(status, "unknown status"))
    if case.kind == "exit" and "the first" not in failure.text:
        return "a process ended with %s" % ends.ended_with(failure.code)
    if case.kind == "exit":
        in_vain = any(waited(one) for one in case.job.failures)
        text = failure.text + ends.meant(failure.code)
        return text + (": the first to end, which need not be where it started" if in_vain else "")
    more = " and other devices" if case.kind == "hca_skipped" and devices_differ(case.reported) else ""
    # NCCL breaks a text of its sources in two, and prints what stands before the second half.
    return cut(re.sub(r" {3,}", " ", failure.text.partition("\n")[0]), 260) + more


_SWITCH = re.compile(r"nvswitch\d{1,3}: SXid \([^)]{1,40}\): (\d{1,6})")


def _order(case: Case, first: Reported) -> str:
    """What is known of what came before and after the job's first failure."""
    job, kind = case.job, case.kind
    if outcome.last_words(job, case.one):
        return " (NCCL's last error, by which the call failed)"
    below = next((one for one in job.failures if kind == "net_plugin" and kind_of(one) == "libfabric"), None)
    if below is not None and (below.source, below.order) < (first.source, first.order):
        return " (libfabric reports before it, in line %d: %s)" % (below.order, cut(below.failure.text, 160))
    if len(job.failures) <= len(case.reported):
        return ""
    lost = [
        one for one in job.failures if kind_of(one) == "closed" or (kind_of(one), code_of(one)) == ("completion", "5")
    ]
    in_vain = cuda_errors.waited_before(job.quotes, first.source, first.order)
    if kind in OPEN and not case.ended_a_call:
        # Another one, of whatever kind, may stand before it.
        if any(one.nccl and (one.source, one.order) < (first.source, first.order) for one in job.quotes):
            return ""
        text = "the first warning of this log"
    elif in_vain:
        text = in_vain
    elif kind == "exit" and first in named_gone(job):
        text = "of the same host whose connections others lost: it likely failed first, wherever its line is"
    elif waited(first):
        text = "the first failure of this log: the rank that it waited for may have failed or ended before"
    elif kind != "closed" and came_before(lost, first):
        text = "a connection was lost before it in the log: which came first is unknown"
    elif came_before([one for one in job.failures if waited(one)], first):
        text = "a wait was given up before it in the log, and it may be how that ended"
    else:
        earlier = [one for one in in_order(job.failures) or [] if kind_of(one) == "warning"]
        switch = next((one for one in job.quotes if _SWITCH.search(one.text) and one.source == first.source), None)
        if kind == "xid" and switch is not None and switch.order < first.order:
            return " (an NVSwitch reports SXid %s before it, in line %d)" % (
                _SWITCH.findall(switch.text)[0], switch.order,
            )  # fmt: skip
        known = kind != "warning" and bool(earlier) and earlier[0].order < first.order
        text = "the first failure of this log" + (" that is known here" if known else "")
    after = any(kind_of(one) == "consequence" for one in job.failures)
    raised = sorted({one.failure.code for one in job.failures if kind_of(one) == "exception" and one.failure.code})
    return " (%s)" % text + (", after which NCCL warns of more" if after else "") + (
        "; the program's exception (%s) names no other cause" % raised[0] if raised and kind != "exception" else ""
    )  # fmt: skip


def _same_end(case: Case) -> List[Reported]:
    """The failures whose processes are named: of ends those by the same code or signal alone."""
    if case.kind != "exit" or case.one.process is not None:
        return list(case.ordered)
    code = case.one.failure.code
    number = ends.signal_of(code)
    return [
        one for one in case.ordered
        if one.failure.code == code or (number and ends.signal_of(one.failure.code) == number)
    ]  # fmt: skip


def _of_no_rule(case: Case) -> str:
    if case.kind == "warning":
        return "; not known to Busbar"
    return "; a warning of the plugin %s" % case.one.failure.code if case.kind == "plugin_warning" else ""


def _last_error(job: Job) -> str:
    last = [one for one in job.failures if one.process is None and kind_of(one) == "consequence"]
    return "NCCL's last error: %s (line %d)" % (last[-1].failure.text[:160], last[-1].order) if last else ""


def _proven(case: Case) -> str:
    if cuda_errors.absurd(case.one.failure.text):
        return ""
    return next((cause for of, words, cause in PROVEN if of == case.kind and words in case.one.failure.text), "")


def _causes(case: Case, stage: str) -> List[str]:
    """The cause that the words prove, and those that fit."""
    kind, code, proven = case.kind, case.code, _proven(case)
    possible = "" if proven and kind != "cuda" else _possible(kind, code, case.one.failure.text)
    possible = next((said for of, by, at, said in POSSIBLE_AT if (of, by) == (kind, code) and at in stage), possible)
    if (kind, code) == ("cuda", "invalid argument"):
        possible = "; or ".join([*cuda_errors.shared_memory(case.job.processes), possible])
    if case.kind == "cuda" and cuda_errors.absurd(case.one.failure.text):
        possible = _NO_NEED
    placed = by_place.look_after(case.one)
    possible = placed.possible if placed is not None else possible
    possible = net_plugins.here(case.job.processes, possible, net_plugins.NO_EFA_CAUSE)
    return ["cause: %s" % proven if proven else "", "possible causes: %s" % possible if possible else ""]


def _possible(kind: str, code: str, text: str) -> str:
    said = next((cause for of, words, cause in WORDS if of == kind and words in text), "")
    if not said and kind != "net_plugin":
        said = POSSIBLE.get((kind, code), "") if code else ""
    if not said and kind in SYSTEM_OF:
        said = next((cause for words, cause in SYSTEM if words in text), "") or LAST.get((kind, code), "")
    return said or POSSIBLE.get((kind, code)) or POSSIBLE.get((kind, ""), "")


def _severity(case: Case, first: Optional[Reported], came: str) -> Optional[str]:
    """None: that of the check."""
    if (case.kind == "net_plugin" and came) or case.ended_a_call:
        return "critical"
    if went_on_with(case):
        return "minor"
    if case.kind in ("merely_tried", "hca_skipped"):
        return "major"
    if first is not None and outcome.last_words(case.job, case.one):
        return "critical"
    only = case.kind == "plugin_warning" and _by_words(case) is not None
    return "minor" if only or case.kind in MINOR or (case.kind in OPEN and first is None) else None


_LESS = (
    "make the program need less: a smaller batch or sequence, activation checkpointing, sharding; see with"
    " `nvidia-smi` whether another process has memory of that GPU; no fault of the network or of the GPU"
)
_NO_NEED = (
    "a size that is not really needed: invalid data of a collective that did not complete before it (all_gather_object"
    " and its"
    " like make room by a size that they gather first), or a wrong shape; less often one tensor that no GPU can hold"
)
_SIZE = (
    "find where the size comes from, in the call that requested it: a smaller batch does not repair a wrong size; look"
    " first at what failed or waited before it; the GPU is not at fault"
)
_ROOM = (
    "`nvidia-smi` on that node shows which process has the GPU's memory; leave room for NCCL: a lower fraction of the"
    " framework (XLA_PYTHON_CLIENT_MEM_FRACTION, gpu_memory_utilization), a smaller batch, fewer communicators"
)
_COMPARE = (
    "compare the collectives of all ranks around that number: TORCH_NCCL_TRACE_BUFFER_SIZE (flight recorder) or"
    " TORCH_DISTRIBUTED_DEBUG=DETAIL shows them; the first one that differs is the program's place to look"
)


def _why_and_fix(case: Case, stage: str, came: str) -> Tuple[Optional[str], Optional[str]]:
    """None: that of the check."""
    kind, code, failure = case.kind, case.code, case.one.failure
    why, fix = (
        _by_words(case) or OWN.get((kind, failure.code)) or OWN.get((kind, code)) or OWN.get((kind, "")) or (None, None)
    )
    if kind == "cuda":
        why, fix = cuda_errors.look_after(failure.code) or (why, fix)
        if cuda_errors.absurd(failure.text):
            why, fix = "a program requested more memory than the GPU has in total", _SIZE
        elif _proven(case):
            fix = _LESS
        elif code == "out of memory" and "shared memory" not in stage:
            fix = _ROOM
    elif came and (kind == "net_plugin" or (kind == "plugin_warning" and case.ended_a_call)):
        why = "the plugin of the network reports a failure, and the call that needed it ended with it"
    elif kind in ("warning", "system"):
        fix = _look_next(case.one)
    elif kind == "xid":
        fix = ends.xid_said(case.reported)[1]
        if int(code) in ends.OWN_FAULT:
            why = (
                "the driver reports an error on a GPU (Xid): this one usually comes from the GPU, its links or its"
                " driver,"
            )
            why += " and not of a program or of NCCL"
        if ends.xid_follows(case.reported, case.job.failures):
            fix = "nothing: see the findings for the other Xids of this GPU"
    elif kind == "exit" and (kind, failure.code) not in OWN:
        fix = ends.look_after(failure.code)
    elif kind == "connect" and any(one.done for one in case.job.communicators):
        why = (
            "a TCP connection was not made once an initialisation had completed: the way to the peer is gone since, or"
        )
        why += " the peer is, or it is not for that communicator (RAS has its own connections)"
    elif kind == "watchdog":
        fix = _COMPARE if case.out_of_step else judge_watchdog.look_after(case.job) or fix
    return why, net_plugins.here(case.job.processes, fix or "", net_plugins.NO_EFA_FIX) or None


def _by_words(case: Case) -> Optional[Tuple[str, str]]:
    text = case.one.failure.text
    return next(((why, fix) for of, words, why, fix in BY_WORDS if of == case.kind and re.search(words, text)), None)


def _look_next(one: Reported) -> Optional[str]:
    """What to do about a warning that no rule knows: by the place in NCCL's sources where it stands."""
    for pattern, area, look in AREAS:
        if one.place and re.search(pattern, one.place.partition(":")[0]):
            return "it is from %s: see %s; then %s" % (area, look, WARNING.fix)
    return None


def _source(job: Job, one: Reported, have: str) -> str:
    """The place, who wrote it where others may have, and all of the line where the finding has its own words."""
    place = "line %d" % one.order
    place += " of %s" % job.who(one.process) if one.process is not None and len(job.processes) > 1 else ""
    place += ", %s" % one.place if one.place else ""
    text = cut(one.failure.text.partition("\n")[0], 300)
    if text[:200] not in have:
        return "%s, %s" % (place, text)
    return place if one.process is None else "%s, %s" % (place, text[:60])
