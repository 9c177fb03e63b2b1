# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about how a job failed: what came first, and who merely lost a connection to it.

A rank that reports a closed connection is a victim. What came first is told by times of one clock, or by the order of
the lines of one file; where neither is there, it is not told.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from . import alike, by_place, cuda_errors, ends, fail_words, judge_watchdog, outcome, signals
from .failure_causes import AREAS, LAST, POSSIBLE, POSSIBLE_AT, PROVEN, RESULTS, STAGES, SYSTEM, SYSTEM_OF, WORDS
from .failure_checks import CHECKS, CONNECTION, EXIT, FOLLOWS, MERELY, MINOR, OPEN, OWN, WARNING
from .failures import STATUSES, cut
from .job import Call, Process, Reported
from .jobs import Job, missing, names, numbers
from .transport import SOCKETS

_UNREACHABLE = ("timed out", "nreachable", "No route", "Host is down")
# Kinds of which each code is a finding of its own.
_BY_CODE = (
    *("completion", "cuda", "port", "net_plugin", "fabric_manager", "verbs", "registration", "xid", "rccl_host"),
    "limits",
    *("port_in_use", "unresolved", "sxid"),
)
_BY_TEXT = ("warning", "plugin_warning", "value", "topology", "system")
_NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d+)\b")
_RANKS = re.compile(r"\brank (\d{1,8})\b")
_PID = re.compile(r"\bpid (\d{1,10})")
_ADDRESS = re.compile(r"\bip=([\d.]{7,15}|[0-9a-f:]{2,39})\b")
_SIZE = re.compile(r"\(size \d+\)|\b\d+ bytes")
_LINK_LOCAL = ("169.254.", "fe80:")


def judge(job: Job) -> List[Finding]:
    """Findings of all failures; the first one is the cause of those that only follow from it."""
    if any(one.done for one in job.communicators):
        # NCCL went on.
        job = replace(job, failures=tuple(one for one in job.failures if _kind(one) != "libfabric"))
    job = replace(job, failures=tuple(_by_stage(job, _tried(job, one)) for one in job.failures))
    said_again = {id(one) for one, behind in zip(job.failures, job.failures[1:]) if alike.said_again(one, behind)}
    job = replace(job, failures=tuple(one for one in job.failures if id(one) not in said_again))
    if any(_kind(one) == "completion" for one in job.failures):
        # The completion itself says more than that there was one with an error.
        job = replace(job, failures=tuple(one for one in job.failures if "Got CQE with error" not in one.failure.text))
    groups: Dict[Tuple[str, str], List[Reported]] = {}
    for one in job.failures:
        groups.setdefault((_kind(one), _code(one)), []).append(one)
    first = _first(job)
    cause: Optional[Finding] = None
    if first is not None:
        cause = _finding(job, groups[_kind(first), _code(first)], None, first)
    found = [cause] if cause is not None else []
    for (kind, code), reported in groups.items():
        if kind not in CHECKS or (first is not None and (kind, code) == (_kind(first), _code(first))):
            continue
        down = first is not None and _kind(first) == "port" and kind == "completion"
        # A process that CUDA has failed once gets other errors from then on.
        again = (
            first is not None
            and kind == _kind(first) == "cuda"
            and {one.process for one in reported} == {first.process}
        )
        # The kernel tells the same GPU's end in several numbers.
        again = again or (kind == "cuda" and first is not None and ends.gpu_failed(first, reported))
        again = again or (kind == "xid" and ends.xid_follows(reported, job.failures))
        by_cuda = first is not None and _kind(first) == "cuda" and kind == "shared_memory"
        again = again or (by_cuda and not any("error" in one.failure.text.partition("(size")[2] for one in reported))
        flushed = (kind, code) == ("completion", "5")
        lost_before = (kind == "closed" or flushed) and first is not None and _came_before(reported, first)
        # The device was gone before it was asked for events.
        down = down or (first is not None and _kind(first) == "port" and code == "ibv_get_async_event")
        follows = cause if down or again or kind in FOLLOWS or flushed else None
        follows = None if lost_before else follows
        found.append(_finding(job, reported, follows, None))
    if not any(one.check == CONNECTION.id for one in found):
        found += _retries(job)
    if cause is None:
        found = _ended_last(job, found)
    if not found or (first is None and all(one.check == EXIT.id for one in found)):
        bare = _bare(job)
        found = bare + [replace(one, because=one.because or bare[0].id) if bare else one for one in found]
    return found


def _ended_last(job: Job, found: List[Finding]) -> List[Finding]:
    """Where ranks say that they waited or lost somebody, and then end or are ended: the ends follow from that."""
    told = {
        one.failure.kind for one in job.failures if _kind(one) in ("watchdog", "closed", "connect", "store", "stuck")
    }
    ended = [one for one in job.failures if _kind(one) in ("exit", "cancelled")]
    waits = [one for one in job.failures if _kind(one) in told]
    first = (in_order([*waits, *ended]) or [None])[0] if waits and ended else None
    if first is None or first in ended or any(ends.by_itself(one.failure) for one in ended):
        return found
    root = next((one for one in found if one.subject.startswith("%s %s" % (job.name, _kind(first)))), None)
    if root is None:
        return found
    return [replace(one, because=root.id) if one.check == EXIT.id and one is not root else one for one in found]


def _retries(job: Job) -> List[Finding]:
    """TCP connections that were tried again and again, of which no end is in the log."""
    tried = [process for process in job.processes if process.retries is not None]
    if not tried or any(one.done for one in job.communicators):
        return []
    last = max((process.retries for process in tried if process.retries), key=lambda one: (one.tried, one.peer))
    have = "a TCP connection is tried again and again: %s" % last.why
    have += ", %d of %d tries" % (last.tried, last.most) if last.most else ""
    have += "; to %s" % last.peer if last.peer else "; the address is not named"
    have += "; on %s" % names([job.who(process) for process in tried], 4)
    have += "; possible causes: %s" % POSSIBLE["connect", ""]
    why, fix = OWN["connect", ""]
    state = "drift" if last.most and last.tried >= last.most else "unknown"
    return [CONNECTION.judge("%s retries" % job.name, state, "connected", have, "retrying", fix, why=why)]


def _came_before(reported: Sequence[Reported], first: Reported) -> bool:
    """Whether another process reported it before the first failure: then it is not told what it follows from."""
    if first.process is None:
        return False  # a launcher says at the end what came before
    ordered = in_order([*reported, first])
    return ordered is not None and ordered[0] is not first and ordered[0].process is not first.process


# Of these who says what is told by words of their own.
_TOLD_APART = ("completion", "connect", "closed", "watchdog", "exit", "progress", "exception", "duplicate_gpu", "xid")
_NO_CALL = ("progress", "left", "exit", "cancelled")


def _bare(job: Job) -> List[Finding]:
    """Where only exceptions, what NCCL says after another warning, or the calls that returned an error are here."""
    said = [one.failure.text for one in job.failures if _kind(one) == "exception"]
    said = said or [one.failure.text for one in job.failures if _kind(one) not in _NO_CALL]
    traced = _calls(job)
    if not said and not traced:
        return []
    have, came_to = said[0] if said else "", ""
    if traced:
        call, process = traced[0]
        others = {one.key for _call, one in traced} - {process.key}
        have += "; " if have else ""
        have += "calls of NCCL returned an error, first %s -> %d on %s" % (
            call.place,
            call.result,
            _with_gpu(job.who(process), call.device),
        )
        have += ", and on %s" % names([job.who(one) for _call, one in traced if one.key in others], 4) if others else ""
        have += _other_gpus(job, traced)
        own = [one for one, by in traced if by is process and one.device == call.device]
        stage, came_to = _stage([one.place for one in own]), outcome.came_to(own)
        have += "; %s" % stage if stage else ""
    have += _test_hosts(job) + _proxy_calls(job)
    code = str(traced[0][0].result) if traced else ""
    meant = [text for number, words, text in RESULTS if number == code or any(word in have for word in words)]
    have += "; that is: %s" % meant[0] if meant else ""
    have += "; %s" % came_to if came_to else ""
    errors = [one for one in job.quotes if one.kind == signals.ERROR and not one.nccl and one.text[:150] not in have]
    errors = [one for one in errors if not one.about or "NCCL" not in one.about.replace("nccl-", "NCCL")]
    if errors:
        # What no rule knows may be the cause.
        have += (
            "; this command knows no line of this log that names the cause; other programs say: %s"
            % errors[0].text[:200]
        )
    elif not any(_kind(one) in ("warning", "fallback") for one in job.failures):
        have += "; the warning before it, which names the cause, is not in this log"
    fix = "run it again with NCCL_DEBUG=WARN at least, and give this command the logs of all ranks"
    return [WARNING.judge(job.name, "unknown", "no failure", have, "", fix, severity="critical")]


def _test_hosts(job: Job) -> str:
    """Hosts on which nccl-tests reports the failure of a call."""
    hosts = {one.failure.peer for one in job.failures if _kind(one) == "test"} - {""}
    ranks = {one.failure.rank for one in job.failures if _kind(one) == "exception"} - {None}
    text = "; reported on %s" % names(hosts, 12) if hosts else ""
    return text + ("; reported by rank %s" % numbers(rank for rank in ranks if rank is not None) if ranks else "")


def _other_gpus(job: Job, traced: Sequence[Tuple[Call, Process]]) -> str:
    """What calls of other GPUs of the same process returned, where that is another result."""
    first, process = traced[0]
    seen = {first.result}
    text = ""
    for call, by in traced:
        if by is process and call.result not in seen and len(seen) < 4:
            seen.add(call.result)
            meant = next((words for number, _said, words in RESULTS if number == str(call.result)), "")
            text += "; %s -> %d%s (%s)" % (
                call.place, call.result, " on GPU %d" % call.device if call.device is not None else "", meant,
            )  # fmt: skip
    return text


def _calls(job: Job) -> List[Tuple[Call, Process]]:
    """Calls that returned an error, in the order of the log."""
    said = [(call, process) for process in job.processes if not ends.shut_down(process) for call in process.calls]
    return sorted(said, key=lambda pair: (pair[0].source, pair[0].order))


def _stage(places: Sequence[str]) -> str:
    """What went on, by the files of NCCL's sources that calls name, innermost first; "" where none tells."""
    for exact in (True, False):
        # "at the initialisation" is true of most calls in the end.
        for place in places:
            for pattern, stage in STAGES[:-4] if exact else STAGES:
                if re.search(pattern, place.partition(":")[0]):
                    return stage
    return ""


def _by_stage(job: Job, one: Reported) -> Reported:
    """A failure of CUDA's of which calls tell that it was about NVLink SHARP, or NCCL's next line that it was MNNVL."""
    if _kind(one) == "cuda" and any(
        said.process is one.process and said.failure.code == "MNNVL" and 0 < said.order - one.order <= 4
        for said in job.failures
    ):
        return replace(one, failure=replace(one.failure, kind="consequence"))
    if _kind(one) == "cuda" and "NVLS" in _stage_of(one):
        return replace(one, failure=replace(one.failure, kind="fabric_manager", code="NVLS"))
    return one


def _tried(job: Job, one: Reported) -> Reported:
    """A TCP connection that was not made at one try, where the process says that it tries again, and not its end."""
    if _kind(one) != "connect" or one.process is None or one.process.retries is None:
        return one
    last = one.process.retries
    if any(other.failure.kind in ("exception", "closed", "watchdog", "exit") for other in job.failures):
        return one
    if "exceeded" in one.failure.text or (last.most and last.tried >= last.most) or one.process.calls:
        return one
    return replace(one, failure=replace(one.failure, kind="merely_tried"))


def _stage_of(one: Reported) -> str:
    after = []
    if one.process is not None:
        after = [
            call.place
            for call in one.process.calls
            if call.source == one.source and call.device == one.device and call.order > one.order
        ]
    return _stage([one.place, *after]) if one.place or after else ""


def _with_gpu(who: str, device: Optional[int]) -> str:
    """NCCL prints a number without meaning where a thread has no GPU."""
    return "%s, GPU %d" % (who, device) if device is not None and 0 <= device < 64 else who


def _kind(one: Reported) -> str:
    return one.failure.kind


def _code(one: Reported) -> str:
    """Failures with the same are one finding."""
    if one.failure.kind in _BY_CODE:
        return one.failure.code
    if one.failure.kind == "queue_pair":
        return "unreachable" if any(word in one.failure.code for word in _UNREACHABLE) else ""
    if one.failure.kind == "connect":
        return "refused" if "refused" in one.failure.text else ""
    if one.failure.kind == "exit":
        known = ("exit", one.failure.code) in POSSIBLE or ("exit", one.failure.code) in OWN
        return one.failure.code if known else ""
    # Warnings that differ by numbers alone are one.
    return _NUMBER.sub("#", one.failure.text[:60]) if one.failure.kind in _BY_TEXT else ""


def in_order(reported: Sequence[Reported]) -> Optional[List[Reported]]:
    """The failures as they came; None where no clock and no file tells."""
    if len({one.clock for one in reported}) == 1 and all(one.time for one in reported):
        return sorted(reported, key=lambda one: (one.time, one.order))
    if len({one.source for one in reported}) <= 1:
        return sorted(reported, key=lambda one: one.order)
    return None


def _first(job: Job) -> Optional[Reported]:
    """What came before what merely follows; None where it is not told."""
    roots = [
        one
        for one in job.failures
        if _kind(one) not in FOLLOWS and not (_kind(one) == "completion" and _code(one) == "5")
    ]
    known = [one for one in roots if _kind(one) not in MERELY or outcome.ended_a_call(job, one)]
    known = [one for one in known if _kind(one) != "xid" or not ends.xid_follows([one], known)]
    # A connection that was never made comes before those that were lost for it.
    never = [one for one in job.failures if _kind(one) in ("connect", "closed")]
    if not roots and (in_order(never) or [None])[0] is not None and _kind((in_order(never) or never)[0]) == "connect":
        return (in_order(never) or never)[0]
    # A process that ends after calls or tests had failed follows from them.
    ended = [one for one in job.failures if _kind(one) == "exit"]
    ended = [one for one in ended if not ends.by_order(one.failure)] or ended
    told = ("consequence", "exception", "test", "watchdog")
    # Who did not find the store ends by that, unless somebody ended it.
    told += () if any(ends.by_itself(one.failure) for one in ended) else ("store", "stuck")
    before = [one for one in job.failures if _kind(one) in told]
    if before and ended and (in_order([*before, *ended]) or before)[0] not in ended:
        ended = []
    for reported in (known, ended, roots):
        ordered = in_order(reported)
        if ordered:
            return ordered[0]
    return None


def _finding(job: Job, reported: List[Reported], cause: Optional[Finding], first: Optional[Reported]) -> Finding:
    kind, code = _kind(reported[0]), _code(reported[0])
    check = CHECKS[kind]
    ordered = in_order(reported) or reported
    ordered = ends.launched(ordered) if kind == "exit" else ordered
    one = ordered[0]
    parts = [_what(one, code) if kind != "watchdog" else judge_watchdog.gave_up(job, reported)]
    parts = [ends.xid_said(reported)[0]] if kind == "xid" else parts
    last_words = outcome.last_words(job, one)
    if first is not None and last_words:
        parts[0] += " (NCCL's last error, by which the call failed)"
    elif first is not None and len(job.failures) > len(reported):
        earlier = [one for one in in_order(job.failures) or [] if _kind(one) == "warning"]
        lost = [
            one for one in job.failures if _kind(one) == "closed" or (_kind(one), _code(one)) == ("completion", "5")
        ]
        known = " that is known here" if earlier and earlier[0].order < first.order and kind != "warning" else ""
        if kind in OPEN and not outcome.ended_a_call(job, one):
            parts[0] += " (the first warning of this log)"
        elif cuda_errors.waited_before(job.quotes, first.source, first.order):
            parts[0] += " (%s)" % cuda_errors.waited_before(job.quotes, first.source, first.order)
        elif lost and kind != "closed" and _came_before(lost, first):
            parts[0] += " (a connection was lost before it in the log: which came first is not told)"
        else:
            parts[0] += " (the first failure of this log%s)" % known
        after = sum(_kind(one) == "consequence" for one in job.failures)
        parts[0] += ", from which %d more warnings follow" % after if after else ""
        raised = sorted({one.failure.code for one in job.failures if _kind(one) == "exception" and one.failure.code})
        parts[0] += (
            "; PyTorch's exception (%s) names no cause of its own" % raised[0] if raised and kind != "exception" else ""
        )
    who = _who(job, ordered)
    if who:
        parts.append(who)
    parts.append(alike.without_warning(job, ordered) if first is not None else "")
    stage = _stage_of(one)
    if stage:
        parts.append(stage)
    if kind not in (
        "completion",
        "connect",
        "closed",
        "watchdog",
        "exit",
        "progress",
        "exception",
        "duplicate_gpu",
        "xid",
    ):
        parts.append(alike.each(job, ordered))
    outcome_of = outcome.came_to(outcome.own_calls(job, one) if kind in MERELY else outcome.after(one))
    parts.append(outcome_of)
    last = [other for other in job.failures if other.process is None and _kind(other) == "consequence"]
    if last and first is one:
        parts.append("NCCL's last error: %s (line %d)" % (last[-1].failure.text[:160], last[-1].order))
    parts += _sizes(job, reported)
    where = _where(reported) if kind not in ("xid", "sxid") else ""
    if where:
        parts.append(where)
    if kind == "closed":
        parts.append(_went_away(job, reported))
        parts.append(_before(job, ordered))
    if kind == "duplicate_gpu":
        ranks = [int(rank) for one in reported for rank in _RANKS.findall(one.failure.text)]
        parts.append("ranks %s" % numbers(ranks) if ranks else "")
    if kind in ("completion", "queue_pair"):
        parts += fail_words.gids(reported) + _gid_changed(job, one)
        parts.append(_two_layers(job))
        parts.append(_link_local(job, reported))
    if kind == "sharp":
        others = {_NUMBER.sub("#", other.failure.text[-50:]): other.failure.text for other in reported[1:]}
        others.pop(_NUMBER.sub("#", one.failure.text[-50:]), None)
        parts += ["also: %s" % text[-120:] for text in list(others.values())[:2]]
    if kind == "net_plugin" and any(SOCKETS in by.networks or by.interfaces for by in job.processes):
        left = [by for by in job.processes if by.interfaces and not by.devices]
        parts.append("NET/Socket (TCP) is what is left" if left and job.networks <= {SOCKETS} else "")
    if kind in ("completion", "queue_pair") and (
        any("::ffff:" in one.failure.text for one in reported) or any(one.roce for one in job.processes)
    ):
        parts.append("RoCE: the GIDs are IPv4 addresses")
    if kind == "queue_pair" and one.process is None:
        whose = signals.classify(one.failure.text)
        parts.append("a connection of another program than NCCL" + ("; %s" % whose.about if whose else ""))
    if kind == "cuda":
        parts.append(cuda_errors.failed_check(one.failure.code, job.quotes, one.order))
    if kind in ("connect", "merely_tried"):
        parts += [_unreached(job, reported), alike.retrying(job, reported)]
    if kind == "connect":
        parts.append(alike.tried_before(reported))
    if kind == "merely_tried" and one.process is not None and one.process.retries is not None:
        last = one.process.retries
        parts.append("NCCL tries again" + (" (%d of %d)" % (last.tried, last.most) if last.most else ""))
    if kind == "watchdog":
        if not judge_watchdog.out_of_step(parts[0]):
            parts.append(judge_watchdog.behind(job))
        parts += judge_watchdog.waits(job, reported)
        parts.append(_waits_for_ended(job, reported, cause))
    if kind == "oom":
        parts.append(ends.killed(job.failures))
    if kind == "mismatch":
        parts += fail_words.fingerprints(one.failure.text)
    if kind == "plugin_waits":
        peers = ", ".join(sorted({"%s on %s" % (one.failure.peer, one.failure.device) for one in reported})[:6])
        waited = max(int(one.failure.code) for one in reported) / 1e9
        parts.append("GPUDirectTCPX or FasTrak waits: not received from %s, for up to %.0f s" % (peers, waited))
    if kind == "stuck":
        parts += judge_watchdog.outstanding(reported)
    if kind == "hca_skipped" and any("device" in by.absent and not by.devices for by in job.processes):
        parts.append("none is left: NET/IB found no device that it can use")
    opened = sorted({device.name for by in job.processes for device in by.devices.values()})
    goes_on = kind == "verbs" and code == "ibv_open_device" and bool(opened)
    if goes_on:
        parts.append("NCCL goes on with the HCAs that it can open (%s): no failure by itself" % names(opened, 8))
    if kind in ("no_interface", "address"):
        parts += ["NCCL_SOCKET_IFNAME=%s" % value for value in list(job.set_to("NCCL_SOCKET_IFNAME"))[:3]]
    if kind == "exit":
        ended = {
            (_PID.findall(said) or [said])[-1] for said in (one.failure.peer or str(one.order) for one in reported)
        }
        # A launcher's list is in any order: only its own word on who was first proves it.
        proven = "the first" in one.failure.text
        which = "the first of %d to end" if proven else "%d ended; which of them was first is not proven"
        parts.append(which % len(ended) if len(ended) > 1 else "")
        codes = sorted({other.failure.code for other in reported} - {one.failure.code})
        parts.append("others ended with %s" % names([ends.ended_with(other) for other in codes], 4) if codes else "")
    if kind in OPEN:
        parts[0] += "; not known to Busbar" if kind == "warning" else ""
        parts[0] += "; a warning of the plugin %s" % one.failure.code if kind == "plugin_warning" else ""
    proven = next((cause for of, words, cause in PROVEN if of == kind and words in one.failure.text), "")
    if proven:
        parts.append("cause: %s" % proven)
    possible = "" if proven and kind != "cuda" else _possible(kind, code, one.failure.text)
    possible = next((said for of, by, at, said in POSSIBLE_AT if (of, by) == (kind, code) and at in stage), possible)
    if (kind, code) == ("cuda", "invalid argument"):
        possible = "; or ".join([*cuda_errors.shared_memory(job.processes), possible])
    placed = by_place.look_after(one)
    possible = placed.possible if placed is not None else possible
    if possible:
        parts.append("possible causes: %s" % possible)
    subject = "%s %s" % (job.name, kind) + (" %s" % code[:60] if code else "")
    have = "; ".join(part for part in parts if part)
    sure = last_words or outcome.ended_a_call(job, one)
    state = "unknown" if (kind in OPEN and not sure) or kind == "cancelled" else "drift"
    severity = "minor" if kind in MINOR or (kind in OPEN and first is None) else None
    severity = "critical" if last_words and first is not None else severity
    severity = "major" if kind in ("merely_tried", "hca_skipped") else severity
    severity = "minor" if goes_on else severity
    severity = "critical" if (kind == "net_plugin" and outcome_of) or outcome.ended_a_call(job, one) else severity
    why, fix = OWN.get((kind, one.failure.code)) or OWN.get((kind, code)) or OWN.get((kind, "")) or (None, None)
    if kind == "cuda":
        why, fix = cuda_errors.look_after(one.failure.code, one.failure.text) or (why, fix)
    if placed is not None:
        check, why, fix, _causes = placed
    if kind == "net_plugin" and outcome_of:
        why = "the plugin of the network reports a failure, and the call that needed it ended with it"
    if kind in ("warning", "system"):
        fix = _look_next(one)
    if kind == "xid":
        fix = ends.xid_said(reported)[1]
    if kind == "exit" and (kind, one.failure.code) not in OWN:
        fix = ends.look_after(one.failure.code)
    if kind == "cuda" and proven:
        fix = (
            "make the program need less: a smaller batch or sequence, activation checkpointing, sharding; see with"
            " `nvidia-smi` whether another process has memory of that GPU; no fault of the network or of the GPU"
        )
    elif (kind, code) == ("cuda", "out of memory") and "shared memory" not in stage:
        fix = (
            "`nvidia-smi` on that node shows who has the GPU's memory; leave room for NCCL: a lower fraction of the"
            " framework (XLA_PYTHON_CLIENT_MEM_FRACTION, gpu_memory_utilization), a smaller batch, fewer communicators"
        )
    if kind == "watchdog" and judge_watchdog.out_of_step(have):
        fix = (
            "compare the collectives of all ranks around that number: TORCH_NCCL_TRACE_BUFFER_SIZE (flight recorder) or"
        )
        fix += " TORCH_DISTRIBUTED_DEBUG=DETAIL shows them; the first one that differs is the program's place to look"
    return check.judge(subject, state, "none", have, _source(one), fix, because=cause, severity=severity, why=why)


def _sizes(job: Job, reported: Sequence[Reported]) -> List[str]:
    """How much was asked for, where memory gave out: it stands in the warning behind the first one."""
    kind = _kind(reported[0])
    if kind not in ("cuda", "shared_memory", "host_memory"):
        return []
    said = [one.failure.text for one in reported]
    mine = {one.process for one in reported}
    said += [one.failure.text for one in job.failures if _kind(one) == "consequence" and one.process in mine]
    sizes = [match.group() for match in map(_SIZE.search, said) if match]
    shown = sizes[0].strip("()").replace("size ", "") if sizes else ""
    # The first warning is printed.
    return [] if not shown or shown in said[0] else ["%s bytes" % shown.replace(" bytes", "")]


def _gid_changed(job: Job, failed: Reported) -> List[str]:
    """A change of the addresses of an HCA before a connection of it failed."""
    before = [one for one in job.failures if _kind(one) in ("event", "port") and "GID" in one.failure.code.upper()]
    before = [one for one in before if (in_order([one, failed]) or [failed])[0] is one]
    if not before:
        return []
    device = before[0].failure.device
    text = "before it the GID table%s changed: the address of the port came or went while the job ran" % (
        " of %s" % device if device else "",
    )  # fmt: skip
    return [text + ", and connections of it are likely to fail then (who changes it: NetworkManager, DHCP, a bond)"]


_PROXY = re.compile(r"Proxy Call to rank (\d{1,8}) failed \((\w{1,40})\)")


def _waits_for_ended(job: Job, reported: Sequence[Reported], cause: Optional[Finding]) -> str:
    """Where another rank has failed before: that it did not come is enough for the wait."""
    failed = {one.failure.rank for one in job.failures if _kind(one) in ("cuda", "oom", "exit", "xid")} - {None}
    failed -= {one.failure.rank for one in reported}
    if cause is None or not failed:
        return ""
    return "as rank %s failed before, these ranks wait for what does not come: a longer timeout mends nothing" % (
        numbers(rank for rank in failed if rank is not None)
    )


def _proxy_calls(job: Job) -> str:
    """Ranks to which a connection was not set up, as who asked for it says."""
    said = [match for match in (_PROXY.search(one.failure.text) for one in job.failures) if match]
    if not said:
        return ""
    ranks, calls = {int(match.group(1)) for match in said}, {match.group(2) for match in said}
    text = "; the connection to rank %s was not set up (%s): look at the warnings of that rank's own process" % (
        numbers(ranks), names(calls, 3),
    )  # fmt: skip
    text += ", which may name the interface (NCCL_SOCKET_IFNAME), a firewall or the device"
    hosts = {host for one in job.quotes for host in [*one.hosts, *_ADDRESS.findall(one.text)]}
    several = 1 < len(hosts) < 9
    return text + ("; the lines are of %s: a connection between nodes is likely" % names(hosts, 8) if several else "")


def _two_layers(job: Job) -> str:
    layers: Dict[str, Set[str]] = {}
    for process in job.processes:
        for device in process.devices.values():
            layers.setdefault(device.layer, set()).add(device.name)
    if len({"IB", "RoCE"} & set(layers)) < 2:
        return ""
    said = ["%s (%s)" % (names(layers[layer], 3), layer) for layer in ("IB", "RoCE")]
    return "the HCAs are of two link layers, which do not reach each other: %s" % ", ".join(said)


def _before(job: Job, ordered: Sequence[Reported]) -> str:
    """Calls that failed elsewhere before the first connection was closed."""
    one = ordered[0]
    for call, process in _calls(job):
        if call.source == one.source and call.order < one.order:
            who = _with_gpu(job.who(process), call.device)
            meant = next((text for number, _words, text in RESULTS if number == str(call.result)), "")
            places = [other.place for other in process.calls if other.device == call.device]
            return "before it calls of NCCL failed on %s: %s -> %d (%s) %s" % (
                who, call.place, call.result, meant, _stage(places),
            )  # fmt: skip
    return ""


def _possible(kind: str, code: str, text: str) -> str:
    said = next((cause for of, words, cause in WORDS if of == kind and words in text), "")
    if not said and kind != "net_plugin":
        said = POSSIBLE.get((kind, code), "") if code else ""
    if not said and kind in SYSTEM_OF:
        said = next((cause for words, cause in SYSTEM if words in text), "") or LAST.get((kind, code), "")
    return said or POSSIBLE.get((kind, code)) or POSSIBLE.get((kind, ""), "")


def _look_next(one: Reported) -> Optional[str]:
    """What to do about a warning that no rule knows: by the place in NCCL's sources where it stands."""
    for pattern, area, look in AREAS:
        if one.place and re.search(pattern, one.place.partition(":")[0]):
            return "it is from %s: see %s; then %s" % (area, look, WARNING.fix)
    return None


def _what(one: Reported, code: str) -> str:
    if one.failure.kind == "completion":
        if not code.isdigit():
            return "the HCA reports of a queue: %s" % code
        return "completion with status %s, %s" % (code, STATUSES.get(int(code), "unknown status"))
    if one.failure.kind == "exit" and "the first" not in one.failure.text:
        return "a process ended with %s" % ends.ended_with(one.failure.code)
    if one.failure.kind == "exit":
        return one.failure.text + ends.meant(one.failure.code)
    return cut(one.failure.text.partition("\n")[0], 260)


def _link_local(job: Job, reported: Sequence[Reported]) -> str:
    """Of RoCE alone: on InfiniBand such GIDs are the rule."""
    layers = {device.name: device.layer for process in job.processes for device in process.devices.values()}
    for one in reported:
        roce = one.failure.device.startswith("roce") or layers.get(one.failure.device) == "RoCE"
        if "<link-local>" in one.failure.text or (roce and "ocalGid fe80" in one.failure.text):
            return "the GIDs are link-local: as a rule a RoCE port without an address, which NCCL_IB_HCA can leave out"
    return ""


def _who(job: Job, reported: Sequence[Reported]) -> str:
    said = []
    for one in reported:
        if one.process is not None:
            # The thread that hears of an HCA's events has no GPU.
            device = None if "async" in one.failure.text else one.device
            who = _with_gpu(job.who(one.process), device)
        elif one.failure.rank is not None:
            told = one.failure.peer if one.failure.kind == "exit" else ""
            who = "rank %d" % one.failure.rank + (" (%s)" % told if told else "")
        elif one.failure.kind in ("exit", "cuda", "sharp") and one.failure.peer:
            who = one.failure.peer
        else:
            continue
        if who not in said:
            said.append(who)
    if not said:
        return "seen %d times" % len(reported) if len(reported) > 1 else ""
    if reported[0].failure.kind == "watchdog" and len(said) > 1:
        ranks = [one.failure.rank for one in reported if one.failure.rank is not None]
        ranks += judge_watchdog.groups(job) if len({(one.failure.code) for one in reported}) == 1 else ()
        text = "waiting: ranks %s" % numbers(ranks)
        if job.world is not None:
            rest = missing(ranks, job.world.ranks)
            text += "; not reported by %s" % rest if rest else ""
        return text
    if len(said) == 1:
        return "on %s" % said[0] + (", %d times" % len(reported) if len(reported) > 1 else "")
    if len(said) <= 4:
        return "on %s" % "; ".join(said) + (", %d times" % len(reported) if len(reported) > len(said) else "")
    return "first on %s, %d times on %d processes or GPUs" % (said[0], len(reported), len(said))


def _where(reported: Sequence[Reported]) -> str:
    """The HCAs and peers that are in most of the reports: who reports is not who is to blame."""
    parts = []
    for what, values in (
        ("HCA", [one.failure.device for one in reported if one.failure.device]),
        ("peer", [one.failure.peer for one in reported if one.failure.peer and one.failure.kind == "completion"]),
    ):
        counted = Counter(values).most_common(3)
        if counted:
            parts.append(
                "%s %s" % (what, ", ".join("%s (%d)" % pair if len(values) > 1 else pair[0] for pair in counted))
            )
    return "; ".join(parts)


def _unreached(job: Job, reported: Sequence[Reported]) -> str:
    """Which addresses did not answer, and those among them that no other node can reach."""
    peers = _named(job, reported)
    text = "not reached: %s" % ", ".join(peers) if peers else "the line names no address"
    local = {peer for peer in (one.failure.peer for one in reported) if peer.lower().startswith(_LINK_LOCAL)}
    if local:
        text += "; %s is a link-local address, as a rule of an interface that is not meant for this" % names(local, 2)
    return text


def _named(job: Job, reported: Sequence[Reported]) -> List[str]:
    """The three peers that most reports name, with their hosts and how often."""
    addresses: Dict[str, str] = {}
    for process in job.processes:
        if process.bootstrap is not None:
            addresses.setdefault(process.bootstrap.address, process.host)
    peers = Counter(one.failure.peer for one in reported if one.failure.peer)
    named = []
    for peer, count in peers.most_common(3):
        host = addresses.get(peer, "")
        named.append("%s%s (%d)" % (peer, " = %s" % host if host and host != peer else "", count))
    return named


def _went_away(job: Job, reported: Sequence[Reported]) -> str:
    """Whom the victims name, and who says nothing."""
    named = _named(job, reported)
    victims = {one.process.key for one in job.failures if one.process is not None}
    silent = [one for one in job.processes if one.key not in victims and one.ended != "Destroy"]
    text = "the lost peers are %s" % ", ".join(named) if named else "the lost peer is not named"
    if silent and len(silent) < len(job.processes):
        text += "; no failure is reported by %s" % names([job.who(process) for process in silent], 4)
    return text


def _source(one: Reported) -> str:
    place = "line %d" % one.order + (", %s" % one.place if one.place else "")
    if one.process is None:
        return place
    # Where the finding has its own words, all of the line.
    return "%s, %s" % (place, one.failure.text[: 60 if one.failure.kind != "completion" else 300])
