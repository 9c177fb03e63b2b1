# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings on what programs and launchers report, where no rule on NCCL's failures says it: deaths and errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from . import cuda_errors, ends, failure_checks, signals, table_told
from .failure_checks import EXIT, MISMATCH, STORE
from .job import Log
from .jobs import Job, missing, names, numbers
from .own_failure import (
    ARGUMENTS,
    BESIDE_WAIT,
    CAUGHT,
    FIRST,
    LAST_WORDS,
    OPEN_ORDER,
    merely_code,
    own_failure,
    went_on,
)
from .quotes import CUT_OFF, Quote

PROGRAM = Check(
    "nccl_log.program",
    why="a program reports a failure, which the lines do not show to be NCCL's",
    fix="read it with the lines around it, of the rank that reports it first: a traceback there, if there is one, names"
    " the call that failed",
    severity="critical",
)
"Do the programs of the job report no failure"

# Kinds of failures that say how a process ended.
_ENDED = ("exit", "oom", "time_limit", "node_failure")


def judge(log: Log, job: Job, failed: Sequence[Finding], network: Sequence[Finding]) -> List[Finding]:
    """What programs report, and ``failed``, which follows from it where a program failed by itself before.

    failed: findings on what NCCL and launchers report.   network: findings on the same log.
    """
    others = [*failed, *network]
    own = own_failure(log, job)
    if own is not None:
        cause = _own(job, *own)
        # Who lost a connection is a victim of somebody.
        # What only is its last word proves nothing of the others.
        open_order = own[1] == BESIDE_WAIT or (own[1] == LAST_WORDS and not _merely_ended(job))
        rest = failed if open_order else [_after(cause, one) for one in failed]
        return [cause, *_barrier(log, job), *_trace(log, job), *rest]
    found = _barrier(log, job) + _trace(log, job)
    worst = next((one for one in [*others, *found] if not one.ok and one.severity == "critical"), None)
    said = " ".join(" ".join((one.have or "").split()) for one in others)
    reports = [one for one in job.quotes if not one.nccl and " ".join(one.text[:150].split()) not in said]
    deaths = [one for one in reports if one.kind == signals.DEATH]
    errors = [one for one in reports if one.kind == signals.ERROR and not signals.MERELY.search(one.text)]
    # What is tried again is told where nothing worse is.
    errors = [one for one in errors if not signals.AGAIN.search(one.text)] or errors
    if any(one.kind == signals.ORDER and "KeyboardInterrupt" in one.text for one in reports):
        # The traceback without an exception is that of who was interrupted.
        errors = [one for one in errors if one.about != CUT_OFF]
    # What only says that a process ended adds nothing to a failure that is known.
    strong = [one for one in deaths if _STRONG.search(one.about)] or (deaths if worst is None else [])
    if not any(_STRONG.search(one.about) for one in strong) and any(
        signals.EXCEPTION.search(one.text) for one in errors
    ):
        strong = []  # who says that a process ended may say it above the process's own last lines
    of_others = _of_others(job, errors, others)
    if of_others is not None:
        return [of_others, *found, *[_after(of_others, one) for one in failed]]
    death = None
    if strong and not any(one.failure.kind in _ENDED for one in job.failures):
        death = _death(job, strong, errors, worst if worst is None or not _merely_ordered(worst) else None)
        found.append(death)
    known = worst or next(
        (one for one in others if not one.ok and one.severity == "major" and one.state == "drift"), None
    )
    if (
        errors
        and known is None
        and not (strong and (strong[0].order < errors[0].order or signals.AGAIN.search(errors[0].text)))
    ):
        found.append(_error(log, job, errors))
    orders = [one for one in reports if one.kind == signals.ORDER]
    if orders and known is None and not found:
        found.append(_told_to_end(log, job, orders))
    failed = _behind_errors(job, failed)
    ran_out = _ran_out(job)
    if ran_out is not None and not found:
        return [ran_out, *[_after(ran_out, one) for one in failed]]
    if death is not None:
        failed = [_after(death, one) if _merely_ordered(one) else one for one in failed]
    return [*found, *failed]


def _ran_out(job: Job) -> Optional[Finding]:
    """A wait within kernels that ran out before CUDA failed: such a kernel ends itself, and CUDA tells that later."""
    first = min(job.failures, key=lambda one: (one.source, one.order), default=None)
    if first is None or first.failure.kind not in ("cuda", "consequence"):
        return None
    waits = cuda_errors.in_vain(job.quotes, first.source, first.order)
    if not waits:
        return None
    said = []
    for one in waits[:_WAITS]:
        others = ", ".join(part for part in (", ".join(one.others), "up to line %d" % one.last) if part)
        text = one.text[:220].replace(";", ",")
        said.append("line %d: %s%s" % (one.order, text, " (and %s)" % others if one.count > 1 else ""))
    have = "a wait for a peer ran out before CUDA failed, %s" % "; ".join(said)
    have += "; and %d more kinds of such lines" % (len(waits) - _WAITS) if len(waits) > _WAITS else ""
    have += _set_up(job)
    have += "; no line shows why the data did not come: the peer may be late, stuck or gone"
    why = "a kernel waited for a peer's data until its timeout, and usually ends itself then: CUDA's error, what"
    why += " NCCL warns of behind it and the end of the communicator are likely its consequence"
    fix = "look at what the ranks waited for (src_rank) did at that time: their own lines, py-spy, `dmesg -T | grep -i"
    fix += " xid` on their nodes; a longer timeout helps if they were only late"
    return PROGRAM.judge("%s wait" % job.name, "unknown", "none", have, "line %d" % waits[0].order, fix, why=why)


# Kinds of waits that are reported.
_WAITS = 3


def _set_up(job: Job) -> str:
    """That NCCL's own set-up had worked, as far as lines tell."""
    ready = [one for one in job.processes if one.rings]
    if any(one.done for one in job.communicators):
        return "; NCCL's own set-up had worked: a communicator is complete (Init COMPLETE)"
    if not ready:
        return ""
    return "; NCCL's own set-up had come as far as rings that are connected, on %s" % names(map(job.who, ready), 3)


def _merely_ended(job: Job) -> bool:
    """Whether all that launchers tell are codes of processes that ended by themselves: why, the programs say."""
    said = [one.failure for one in job.failures if one.failure.kind not in ("left", "progress")]
    return all(one.kind == "exit" and merely_code(one.code) for one in said)


def _of_others(job: Job, errors: Sequence[Quote], others: Sequence[Finding]) -> Optional[Finding]:
    """Where launchers tell ends alone, and programs before them what they lost or waited for."""
    last = [one for one in job.failures if one.failure.kind in ("exit", "cancelled")]
    if not last or len(last) != len([one for one in job.failures if one.failure.kind not in ("left", "progress")]):
        return None
    if any(one.failure.kind == "exit" and not merely_code(one.failure.code) for one in last):
        return None
    told = [one for one in errors if not CAUGHT.search(one.text)]
    before = [one for one in told if all(one.order < end.order and one.source == end.source for end in last)]
    if not before:
        return None
    have = "the first report of a failure: %s" % _told(before[0])
    later = [said.text[:120] for said in before[1:3] if said.text[:60] != before[0].text[:60]]
    have += "; also: %s" % "; ".join(later) if later else ""
    have += "; a process that ended or failed first, elsewhere, is not in these lines" if before[0].about else ""
    return PROGRAM.judge("%s program" % job.name, "unknown", "none", have, "line %d" % before[0].order,
                         _fix(before[0]) or _look(before[0]))  # fmt: skip


def _behind_errors(job: Job, failed: Sequence[Finding]) -> List[Finding]:
    """Findings on a wait, with what a program reported before it: it may be what kept a rank."""
    if not job.failures or any(
        one.failure.kind not in ("watchdog", "progress", "signalled", "stuck") for one in job.failures
    ):
        return list(failed)
    first = min(job.failures, key=lambda one: (one.source, one.order))
    before = [one for one in job.quotes if one.kind == signals.ERROR and not one.nccl and one.about]
    before = [one for one in before if one.source == first.source and one.order < first.order]
    before = [one for one in before if "watchdog" not in one.about]
    if not before or not failed or failed[0].ok:
        return list(failed)
    what, rest = (failed[0].have or "").partition(";")[::2]
    said = "; before it a program reports: %s (line %d), which may be why a rank did not come" % (
        before[0].text[:160], before[0].order,
    )  # fmt: skip
    have = what + said.replace("; ", ", ", 1).replace(";", ",") + (";" + rest if rest else "")
    return [replace(failed[0], have=have), *failed[1:]]


def _merely_ordered(one: Finding) -> bool:
    return one.check == EXIT.id and " cancelled" in one.subject


_FIRST = re.compile(r" \(the first (?:failure|warning) of this log[^)]*\)")


def _after(cause: Finding, one: Finding) -> Finding:
    """A finding that follows from another one."""
    if one.ok:
        return one
    return replace(one, have=_FIRST.sub("", one.have or ""), because=cause.id)


_SURE = {
    FIRST: "a program failed (the first failure of this log): ",
    BESIDE_WAIT: "a program failed (a wait that was given up after it may have started before: which came first is"
    " unknown): ",
    OPEN_ORDER: "a program failed (a connection was lost before it in the log, as by its end: which came first is"
    " unknown): ",
    LAST_WORDS: "the last that a program reports before the end: ",
}


def _own(job: Job, one: Quote, order: str) -> Finding:
    """What a program says of its own failure."""
    proven = order != LAST_WORDS
    have = _SURE[order] + _told(one)
    known = bool(job.failures) or any(said.nccl and said.kind == signals.ERROR for said in job.quotes)
    if not known:
        have += "; no failure of NCCL is in these lines"
    elif order == FIRST:
        have += "; what else fails in this log comes after it"
    why = "a program of the job reports an error%s: its cause is neither a network nor a setting of NCCL, as far as" % (
        ", before anything else failed" if order == FIRST else ""
    )
    why += " these lines show"
    state = "drift" if proven else "unknown"
    return PROGRAM.judge(
        "%s program" % job.name, state, "none", have, "line %d" % one.order, _fix(one) or _look(one),
        why=why if proven else None,
    )  # fmt: skip


def _told(one: Quote) -> str:
    # Of C++ what it ends by stands in the line below.
    own = [line for line in one.behind if "what():" in line]
    have = " ".join([one.text[:300] + ("..." if len(one.text) > 300 else ""), *own]) + _where(one)
    behind = [line for line in one.behind if line not in own]
    have += "; %s" % "; ".join(behind)[:240] if behind else ""
    have += "; called from %s" % one.trail if one.calls else ""
    have += "; at the launch of the program's kernel %s" % one.kernel if one.kernel else ""
    words = [line.partition("what():")[2].strip() for line in own]
    meant = [known.about for known in map(signals.classify, words) if known is not None and known.about]
    have += "; %s" % one.about if one.about else ""
    return have + ("; %s" % meant[0] if meant and "C++" in one.about else "")


def _look(one: Quote) -> Optional[str]:
    """What to do about a program's own error, by its words."""
    for pattern, fix in _LOOK:
        if pattern.search(one.text):
            return fix
    if one.calls:
        return "look at %s in the program: its message above shows the error, and the lines above it the input" % (
            one.calls[-1],
        )  # fmt: skip
    return None


_LOOK = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (
            r"unrecognized arguments: --local[-_]rank",
            "the launcher hands over --local_rank or --local-rank (torch.distributed.launch) and the program does not"
            " take it: let it read LOCAL_RANK from the environment, and start it by torchrun",
        ),
        (
            ARGUMENTS.pattern,
            "the program's command line: `--help` of that program lists its options",
        ),
        (
            r"ModuleNotFoundError|ImportError|cannot open shared object|undefined symbol",
            "the module or library is not in this environment, or not of the release that the program was built with:"
            " use one image or environment on all nodes",
        ),
        (
            r"No space left on device",
            "`df -h` and `df -i` of the directory that the line names, on its node: make room, or put it elsewhere"
            " (TMPDIR for temporary files; /dev/shm in containers: --shm-size)",
        ),
        (
            r"FileNotFoundError|No such file or directory",
            "the file is not on the node that reports this: a path that only one node has, or a file system that is not"
            " mounted there",
        ),
        (
            r"divisible|[Nn]umber of \S{0,20} ?GPUs|world[_ ]size|parallel_size|num_gpus|nproc",
            "the numbers of ranks, GPUs or parallel sizes that the program is started with do not go together: change"
            " them as the line requires",
        ),
        (
            r"PermissionError|ermission denied",
            "the user of the job may not do this there: `ls -l` of the file or device in the job",
        ),
        (
            r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
            "the process sees no GPU: `nvidia-smi -L` and CUDA_VISIBLE_DEVICES in the job itself (set to nothing it"
            " hides all); then how the container gets GPUs (--gpus, the device plugin) or the scheduler gives them"
            " (--gres), and the driver; NCCL is not at fault",
        ),
        (
            r"ulimit|oo many open files|Errno 24",
            "`ulimit -n` in the job itself: raise it (LimitNOFILE, docker --ulimit)",
        ),
    )
)


def _told_to_end(log: Log, job: Job, orders: Sequence[Quote]) -> Finding:
    one = orders[0]
    stopped = table_told.stopped(log.table)
    have = "the job was ended on request: %s%s; %s" % (one.text[:220], _where(one), one.about)
    have += "; %s" % stopped if stopped else ""
    have += "; no failure stands before it: who or what gave the order is not in these lines (scheduler, time limit, a"
    have += " user, another node's failure, or another program that watches this one)"
    why = "an order to end is not a failure of the process that gets it"
    fix = "`sacct -j JOB` or the pod's events, and the logs of the other nodes and programs of the job at that time"
    return EXIT.judge("%s order" % job.name, "unknown", "none", have, "line %d" % one.order, fix, why=why)


_ABSENT = re.compile(r"[Mm]issing ranks:? ?(\d{1,7}(?:, ?\d{1,7}){0,40})")
_LISTED = re.compile(r"(?:^|\] ?)(\d{1,7}): ?\[")
_STRONG = re.compile(r"\bsignal \d|^Ray |memory of the host|^Kubernetes|^Slurm|lost a node|requested MPI")


def _where(one: Quote) -> str:
    parts = []
    if one.ranks:
        parts.append("rank%s %s" % ("" if len(one.ranks) == 1 else "s", numbers(one.ranks)))
    if one.pids:
        parts.append("process %s" % names([pid.lstrip(":") for pid in one.pids], 6))
    elif one.hosts:
        parts.append(names(one.hosts, 6))
    parts.append("line %d" % one.order + (", %d alike" % one.count if one.count > 1 else ""))
    parts[-1] += " (others: %s)" % "; ".join(one.others) if one.others and not (one.ranks or one.pids) else ""
    return "; on %s" % ", ".join(parts) if len(parts) > 1 else "; %s" % parts[0]


_ENDS = re.compile(r"exit ?code|[Ss]ignal \d|Killed|status \d")


def _death(job: Job, deaths: Sequence[Quote], errors: Sequence[Quote], worst: Optional[Finding]) -> Finding:
    # A crash says more than the launcher that cleans up after it.
    one = next((said for said in deaths if "signal" in said.about), deaths[0])
    have = one.text[:220] + _where(one)
    alike = [said for said in deaths if said is not one and said.about == one.about]
    processes = {pid.lstrip(":") for said in alike for pid in said.pids} - {pid.lstrip(":") for pid in one.pids}
    have += "; the same of %s" % names(processes, 6) if processes else ""
    have += "; %s" % "; ".join(one.behind)[:240] if one.behind else ""
    have += "; %s" % one.about if one.about else ""
    before = [said for said in job.failures if said.order < one.order and said.failure.kind not in ("left", "progress")]
    calls = [call for process in job.processes for call in process.calls if call.order < one.order]
    own = [said for said in errors if said.order < one.order]
    if before or calls:
        have += "; it comes after other failures of this log (%s), from which it may follow" % (
            "%s -> %d" % (calls[0].place, calls[0].result) if calls else before[0].failure.text[:80]
        )
    elif own:
        have += "; before it: %s" % own[0].text[:160]
        if signals.AGAIN.search(own[0].text):
            have += " (tried again, so not a failure: the peer may not have been there yet, or no longer)"
    else:
        warned = any(said.nccl for said in job.quotes)
        have += "; no failure%s stands before it in this log" % ("" if warned else " and no warning of NCCL's")
    trees = sum(process.trees for process in job.processes)  # later connections have none
    if 0 < trees < len(job.processes) and not any(said.done for said in job.communicators):
        have += "; it comes in an initialisation: trees are connected on %d of %d processes, and none is complete" % (
            trees, len(job.processes),
        )  # fmt: skip
    kinds = {way[0] for process in job.processes for way, _count in process.ways}
    if kinds and kinds <= {"p2p", "shm"}:
        have += "; the connections shown are within the node (%s), no network is involved" % ", ".join(
            sorted({"P2P" if kind == "p2p" else "shared memory" for kind in kinds})
        )
    fix = ends.look_after(one.text) if _ENDS.search(one.text) else None
    if "SIGBUS" in one.about:
        fix = "`df -h /dev/shm` in the job: start containers with --shm-size=16g or --ipc=host (Kubernetes: an"
        fix += " emptyDir of medium Memory on /dev/shm); enough room there: `dmesg -T` on the node for errors of memory"
    why = "a process ended: the others then usually wait for it or lose their connection to it"
    because = worst if before or calls else None
    return EXIT.judge(
        "%s death" % job.name, "drift", "none", have, "line %d" % one.order, fix, why=why, because=because
    )


def _heading(one: Quote) -> str:
    """A line that reports something, with the next one where it only announces that."""
    text = one.text[:300] + ("..." if len(one.text) > 300 else "")
    if "NVRM: " in text and one.behind:
        # The GPU's driver breaks what it says into lines.
        return " ".join([text, *one.behind])[:300]
    return "%s %s" % (text, one.behind[0][:200]) if text.endswith(":") and one.behind else text


def _error(log: Log, job: Job, errors: Sequence[Quote]) -> Finding:
    one = errors[0]
    have = _heading(one) + _where(one)
    have += "; %s" % "; ".join(one.behind)[:240] if one.behind else ""
    absent = sorted({said for other in errors for said in _ABSENT.findall(" ".join([other.text, *other.behind]))})
    lists = [line for other in errors if other.text.endswith("issing ranks:") for line in other.behind]
    absent += sorted({match.group(1) for match in map(_LISTED.search, lists) if match})
    have += "; missing: ranks %s" % "; ".join(absent[:4]) if absent else ""
    have += "; called from %s" % one.trail if one.calls else ""
    have += "; at the launch of the program's kernel %s" % one.kernel if one.kernel else ""
    have += "; %s" % one.about if one.about else ""
    later = [
        said.text[:120] + (" (and %s)" % ", ".join(said.others) if said.others else "")
        for said in errors[1:3]
        if said.text[:60] != one.text[:60]
    ]
    have += "; also: %s" % "; ".join(later) if later else ""
    nccl = any(said.nccl for said in job.quotes) or job.failures or "call of NCCL" in one.about
    have += "" if nccl else "; no failure of NCCL is in these lines"
    subject = "%s program" % job.name
    fix = next((_RESET for said in errors[:40] if "to be reset" in said.about), _fix(one))
    severity = "critical" if one.about else "major"
    # A watchdog speaks of one communicator: another one that is made proves nothing of it.
    on = 0 if "watchdog" in one.text else went_on(log, one)
    if on:
        severity = "minor"
        have += "; the program continues behind it (line %d)" % on
    why = None
    if "call of NCCL" in one.about:
        why = (
            "the program reports that a call of NCCL failed: NCCL's own warning, which names the cause, is not in these"
        )
        why += " lines"
    return PROGRAM.judge(subject, "unknown", "none", have, "line %d" % one.order, fix, severity=severity, why=why)


_RESET = "`nvidia-smi --gpu-reset -i GPU` with nothing running on it, or restart the node; drain it where it comes back"


def _fix(one: Quote) -> Optional[str]:
    if "Fabric Manager" in one.about:
        return (
            "on that host: `systemctl status nvidia-fabricmanager`, its version against"
            " `cat /proc/driver/nvidia/version`, and `nvidia-smi -q | grep -A3 Fabric` (State: Completed);"
            " else take another host"
        )
    if "IMEX" in one.about:
        return (
            "on all nodes of the domain: `nvidia-imex-ctl -N`, `systemctl status nvidia-imex`, one version and one"
            " nodes_config.cfg; in the container /dev/nvidia-caps-imex-channels; NCCL_MNNVL_ENABLE=0 to continue"
            " without"
        )
    if "CUDA" in one.about or "Triton" in one.about:
        return failure_checks.CUDA.fix
    if "Gloo" in one.about:
        return (
            "see what the other ranks did at that time: each rank's own log and a py-spy dump while it hangs; a rank"
            " that is late (checkpoint, data) needs a longer timeout of init_process_group, one that is gone does not"
        )
    if "JAX" in one.about or "XLA" in one.about:
        return (
            "see the log of the task or process that it names, and of the one that ended first; a process that is late"
            " (compilation, pinning of memory) needs a longer timeout, one that is gone does not"
        )
    if "Horovod" in one.about:
        return "see what the missing ranks do: their logs, and `py-spy dump --pid PID` on them while it stalls"
    return STORE.fix if "store" in one.about else None


def _barrier(log: Log, job: Job) -> List[Finding]:
    """PyTorch's barrier before NCCL begins."""
    of = log.programs
    if not of.waiting or max(of.waiting.values()) >= of.expected:
        return []
    came = max(of.waiting.values())
    have = "PyTorch's store-based barrier waits: %d of %d processes had come (worker_count), so %d had not" % (
        came, of.expected, of.expected - came,
    )  # fmt: skip
    have += "; waiting: ranks %s" % numbers(of.waiting)
    absent = missing(of.waiting, of.expected)
    have += "; no line is of rank %s: look at its process and its log first" % absent if absent else ""
    have += "; NCCL has not started" if not job.communicators else ""
    why = "a process group is made when all processes have come: a waiting process is not the cause, and usually no"
    why += " network of NCCL's is in use yet"
    return [STORE.judge("%s barrier" % job.name, "drift", "%d processes" % of.expected, have, "store based barrier",
                        why=why)]  # fmt: skip


def _trace(log: Log, job: Job) -> List[Finding]:
    """Ranks that call different things under one number."""
    apart = [one for one in log.trace.apart if log.trace.alone(one.group)]
    if not apart:
        return []
    one = apart[0]
    have = "ranks call different things as one operation (opCount %x) of a communicator %s: %s by %s, %s by %s" % (
        one.number, one.group, one.one, one.by, one.other, one.by_other,
    )  # fmt: skip
    have += "; the same at %s" % ", ".join("%x" % other.number for other in apart[1:4]) if apart[1:] else ""
    seen = {stream.who for stream in log.trace.streams.values() if stream.group == one.group}
    size = max(stream.ranks for stream in log.trace.streams.values() if stream.group == one.group)
    have += "; calls of %d of %d ranks are shown" % (len(seen), size)
    sure = not one.group.startswith("of ")
    have += "" if sure else "; the lines name the communicator by its size alone: if it is one, the program's ranks are"
    have += "" if sure else " out of step"
    why = "ranks that call different collectives wait for each other forever, or fail: usually an error of the program"
    why += " order of calls (a branch, another number of steps), and no network"
    fix = (
        "compare the calls of all ranks around that number in the program; the first number at which they differ is it"
    )
    state = "drift" if sure else "unknown"
    return [MISMATCH.judge("%s trace" % job.name, state, "the same calls", have, "opCount", fix, why=why,
                           severity="critical")]  # fmt: skip
