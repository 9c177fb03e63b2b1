# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about how a job failed: what came first, and what likely follows from it.

A rank that reports a closed connection is a victim. The parts: ``failure_order`` (what came first),
``failure_finding`` (one finding), ``failure_more`` (what is of one kind alone), ``failure_who``, and ``judge_calls``
(where no warning names a cause).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from ..core.finding import Finding
from . import aftermath, alike, ends
from .failure_causes import POSSIBLE
from .failure_checks import CHECKS, CONNECTION, EXIT, FOLLOWS, OWN
from .failure_finding import finding
from .failure_order import after_a_wait, came_before, code_of, first_of, in_order, kind_of, settled, waited
from .job import Reported
from .jobs import Job, names
from .judge_calls import bare, stage_of


def judge(job: Job) -> List[Finding]:
    """Findings of all failures; the first one is the likely cause of those that come of such as it."""
    job = replace(job, failures=_worth_telling(job))
    groups: Dict[Tuple[str, str], List[Reported]] = {}
    for one in job.failures:
        groups.setdefault((kind_of(one), code_of(one)), []).append(one)
    first = first_of(job)
    mine = (kind_of(first), code_of(first)) if first is not None else None
    cause = finding(job, groups[mine], None, first) if mine is not None else None
    found = [cause] if cause is not None else []
    for (kind, code), reported in groups.items():
        if kind in CHECKS and (kind, code) != mine:
            follows = first is not None and _follows(job, first, reported)
            found.append(finding(job, reported, cause if follows else None, None))
    if not any(one.check == CONNECTION.id for one in found):
        found += _retries(job)
    if cause is None:
        found = _ended_last(job, found)
    if not found or (first is None and all(one.check == EXIT.id for one in found)):
        alone = bare(job)
        found = alone + [replace(one, because=one.because or alone[0].id) if alone else one for one in found]
    return found


def _worth_telling(job: Job) -> Tuple[Reported, ...]:
    """The failures without those that others say again, each of the kind that its neighbours show it to be."""
    failures = settled(job.failures)
    if any(kind_of(one) == "port_in_use" for one in failures):
        # Why no port could be opened is reported there.
        failures = tuple(one for one in failures if code_of(one) != "port")
    if any(kind_of(one) == "watchdog" for one in failures):
        # A rank that timed out reports it itself: what the others heard of it tells how far they came.
        failures = tuple(
            replace(one, failure=replace(one.failure, kind="progress")) if kind_of(one) == "signalled" else one
            for one in failures
        )
    if any(one.done for one in job.communicators):
        # NCCL went on.
        failures = tuple(one for one in failures if kind_of(one) != "libfabric")
    failures = tuple(_by_stage(job, _tried(job, one)) for one in failures)
    said_again = {id(one) for one, behind in zip(failures, failures[1:]) if alike.said_again(one, behind)}
    said_again |= {id(behind) for one, behind in zip(failures, failures[1:]) if alike.named_again(one, behind)}
    failures = tuple(one for one in failures if id(one) not in said_again)
    if any(kind_of(one) == "completion" for one in failures):
        # The completion itself says more than that there was one with an error.
        failures = tuple(one for one in failures if "Got CQE with error" not in one.failure.text)
    return failures


def _follows(job: Job, first: Reported, reported: Sequence[Reported]) -> bool:
    """Whether failures are such as come of the first one, and did not come before it."""
    kind, code, by = kind_of(reported[0]), code_of(reported[0]), kind_of(first)
    flushed = (kind, code) == ("completion", "5")
    if (kind == "closed" or flushed or any(map(waited, reported))) and came_before(reported, first):
        return False
    if kind in FOLLOWS or flushed:
        return True
    if all(after_a_wait(job, one) is not None for one in reported):
        return True
    if by == "port" and (kind == "completion" or code == "ibv_get_async_event"):
        return True  # the device was gone before it was asked for events
    if kind == "cuda":
        # A process that CUDA has failed once gets other errors from then on; so does one whose GPU failed.
        same = by == "cuda" and {one.process for one in reported} == {first.process}
        return same or ends.gpu_failed(first, reported)
    if kind == "xid":
        # The kernel tells the same GPU's end in several numbers.
        return ends.xid_follows(reported, job.failures)
    return (
        kind == "shared_memory"
        and by == "cuda"
        and not any("error" in one.failure.text.partition("(size")[2] for one in reported)
    )


def _ended_last(job: Job, found: List[Finding]) -> List[Finding]:
    """Where ranks say that they waited or lost somebody, and then end or are ended: the ends follow from that."""
    told = {one.failure.kind for one in job.failures if kind_of(one) in ("closed", "connect", "store") or waited(one)}
    ended = [one for one in job.failures if kind_of(one) in ("exit", "cancelled")]
    waits = [one for one in job.failures if kind_of(one) in told]
    ordered = in_order([*waits, *(one for one in ended if not ends.aborted(one.failure))])
    first = (ordered or [None])[0] if waits and ended else None
    if first is None or first in ended or any(ends.by_itself(one.failure) for one in ended):
        return found
    root = next((one for one in found if one.subject.startswith("%s %s" % (job.name, kind_of(first)))), None)
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


def _by_stage(job: Job, one: Reported) -> Reported:
    """A failure of CUDA's of which calls tell that it was about NVLink SHARP, or NCCL's next line that it was MNNVL.

    And what follows from a failure of the same process.
    """
    mnnvl = kind_of(one) == "cuda" and any(
        said.process is one.process and said.failure.code == "MNNVL" and 0 < said.order - one.order <= 4
        for said in job.failures
    )
    if mnnvl or aftermath.follows(job, one):
        return replace(one, failure=replace(one.failure, kind="consequence"))
    if kind_of(one) == "cuda" and "NVLS" in stage_of(one):
        return replace(one, failure=replace(one.failure, kind="fabric_manager", code="NVLS"))
    return one


def _tried(job: Job, one: Reported) -> Reported:
    """A TCP connection that was not made at one try, where the process says that it tries again, and not its end."""
    if kind_of(one) != "connect" or one.process is None or one.process.retries is None:
        return one
    last = one.process.retries
    if any(other.failure.kind in ("exception", "closed", "watchdog", "exit") for other in job.failures):
        return one
    if "exceeded" in one.failure.text or (last.most and last.tried >= last.most) or one.process.calls:
        return one
    return replace(one, failure=replace(one.failure, kind="merely_tried"))
