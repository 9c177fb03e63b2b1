# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make findings of what the flight recorder's dumps show."""

from __future__ import annotations

from typing import List, Sequence, Union

from ..core.check import Check
from ..core.finding import Finding, worst_first
from ..core.host import ParseError
from ..nccl_conf import known_bad
from ..nccl_conf.known_bad import HANG, SCALE
from ..nccl_conf.version import parse_version
from .names import numbers, of_ranks
from .recorder import ABSENT, BEHIND, LIKELY, NO_DUMP, PAIR, SUSPECT, Judgement, Mismatch, Suspect, Wait
from .recorder_dump import Group, Operation

_FIXES = {
    BEHIND: "on the host: `dmesg` (Xid, link down), `nvidia-smi -q`; NCCL's log of the rank, its NIC's counters",
    ABSENT: "`py-spy dump --pid PID` on the host: data loader, storage, exception handler, another program path",
    NO_DUMP: "copy its dump here; if its host has none: `ps` (T stopped, Z dead, D in the kernel), `dmesg` there",
}

RANK = Check(
    "recorder.rank",
    severity="critical",
    why="the others wait in this collective for the rank, and every collective after it waits too",
)
"Has every rank launched and finished the collectives that its peers wait in"
MATCH = Check(
    "recorder.match",
    severity="critical",
    why="ranks that call different collectives, sizes or types under one number hang, or mix up their data",
    fix="compare the code paths of these ranks at the places above: a condition on the rank, uneven batches, a barrier",
)
"Do all ranks call the same collective, size and type under each number"
ORDER = Check(
    "recorder.order",
    severity="critical",
    why="each of these ranks waits in one group for a rank that waits for it in another: the order of calls differs",
    fix="call the collectives of the groups in the same order on all ranks, or wait for one before the next",
)
"Do ranks call the collectives of several groups in the same order"
DUMPS = Check(
    "recorder.dumps",
    why="what a rank without a dump does is unknown; a stopped or dead process writes none",
    fix="copy the dumps of all hosts into one directory (TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
)
"Is there a dump of each rank"
READABLE = Check(
    "recorder.readable",
    why="a dump that cannot be read, or lacks records, says nothing about its rank",
    fix="copy the file again; for missing records set TORCH_FR_BUFFER_SIZE=20000 (before PyTorch 2.9: "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=20000)",
)
"Could each dump be read, with all records that are needed"
STUCK = Check(
    "recorder.stuck",
    why="every rank has launched the collective and none has finished it: no rank is late",
    fix="look at the network and the GPUs: NCCL's log of these ranks (busbar diagnose LOG), port counters, Xid",
)
"Does a collective that all ranks have launched end"
RELEASE = Check("recorder.release", severity="minor", why="this release of NCCL is known to hang")
"Is the NCCL of the dumps a release that is known to hang"

# Characters of an operation in a sentence.
_TEXT = 160
_SOURCE = "flight recorder"


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-3,7``, and of many parts how many there are."""
    return of_ranks(numbers(ranks))


def describe_group(group: Group) -> str:
    return "group %s%s" % (group.name, " (%s)" % group.description if group.description else "")


def describe_operation(operation: Operation) -> str:
    """Return ``nccl:all_reduce [4096, 8] Float``."""
    sizes = ["[%s]" % ", ".join(map(str, shape)) for shape in operation.input_sizes[:2]]
    more = ["..."] if len(operation.input_sizes) > 2 else []
    return " ".join([operation.name, *sizes, *more, *sorted(set(operation.input_types))])[:_TEXT]


def findings(judgement: Judgement) -> List[Finding]:
    """Return what is wrong and what is unknown, worst first."""
    found = [_mismatch_finding(mismatch) for mismatch in judgement.mismatches]
    pairs = zip(judgement.mismatches, found)
    hung_in = {(mismatch.group, mismatch.number): finding for mismatch, finding in pairs if not mismatch.finished}
    in_cycle = {rank: cycle for cycle in judgement.cycles for rank in cycle}
    for cycle in judgement.cycles:
        have = "%s wait for each other" % describe_ranks(cycle)
        found.append(ORDER.judge(describe_ranks(cycle), "drift", "one order", have, _SOURCE))
    for suspect in judgement.suspects:
        because: Union[Finding, str, None] = hung_in.get((suspect.group, suspect.number))
        if suspect.rank in in_cycle:
            because = ORDER.finding_id(describe_ranks(in_cycle[suspect.rank]))
        elif suspect.causes:
            because = RANK.finding_id("rank %d" % suspect.causes[0])
        found.append(_suspect_finding(suspect, because))
    if not judgement.suspects and not hung_in:
        found += map(_stuck, judgement.waits)
        if judgement.pairs and not judgement.waits:
            have = "%s: open sends or receives; no dump shows for whom they wait" % describe_ranks(judgement.pairs)
            found.append(STUCK.judge("the job", "unknown", "they end", have, _SOURCE))
    found += _incomplete(judgement)
    is_certain = any(suspect.confidence != SUSPECT for suspect in judgement.suspects)
    if judgement.waits and not is_certain and not judgement.mismatches:
        found += [finding for version in judgement.releases for finding in _release(version)]
    return worst_first(found)


def _mismatch_finding(mismatch: Mismatch) -> Finding:
    sides = [describe_ranks(side.ranks) + ": " + describe_operation(side.operation) for side in mismatch.sides[:3]]
    sides = [text + (side.place and " at " + side.place) for text, side in zip(sides, mismatch.sides)]
    sides += ["%d more" % (len(mismatch.sides) - 3)] if len(mismatch.sides) > 3 else []
    subject = "%s collective %d" % (describe_group(mismatch.group), mismatch.number)
    want, have = "one %s" % mismatch.what, "different %ss: %s" % (mismatch.what, "; ".join(sides))
    # It has ended: what the ranks got is in doubt, but it is not what they wait for.
    return MATCH.judge(subject, "drift", want, have, _SOURCE, severity="major" if mismatch.finished else None)


def _suspect_finding(suspect: Suspect, because: Union[Finding, str, None]) -> Finding:
    what = "send or receive" if PAIR.match(suspect.operation.name) else "collective"
    where = "%s %d in %s, " % (what, suspect.number, describe_group(suspect.group))
    where += describe_operation(suspect.operation)
    waiters = "%s wait%s" % (describe_ranks(suspect.waiting), "s" * (len(suspect.waiting) == 1))
    at = suspect.place and " at " + suspect.place
    doubt = " (the rank has nothing unfinished)" if suspect.confidence == LIKELY else ""
    texts = {
        BEHIND: "not finished: %s%s; %s in a later one" % (where, at, waiters),
        ABSENT: "not launched%s: %s; %s in it%s" % (doubt, where, waiters, at),
        NO_DUMP: "no dump; %s in %s%s" % (waiters, where, at),
    }
    subject, have, fix = "rank %d" % suspect.rank, texts[suspect.kind], _FIXES[suspect.kind]
    return RANK.judge(subject, "drift", "the same place as its peers", have, _SOURCE, fix, because)


def _stuck(wait: Wait) -> Finding:
    subject = "%s collective %d" % (describe_group(wait.group), wait.number)
    have = "launched and not finished on %s: %s" % (describe_ranks(wait.ranks), describe_operation(wait.operation))
    if not wait.unknown:
        return STUCK.judge(subject, "drift", "it ends", have, _SOURCE)
    have += "; the dump of %s does not show it" % describe_ranks(wait.unknown)
    why = "whether every rank has launched the collective is unknown: the dumps have unfinished records only"
    return STUCK.judge(subject, "unknown", "it ends", have, _SOURCE, why=why)


def _incomplete(judgement: Judgement) -> List[Finding]:
    """Return findings on dumps that are missing, not read, or without the records that are needed."""
    rows = [(READABLE, name, why) for name, why in sorted(judgement.problems.items())]
    missing = sorted(set(judgement.missing) - {suspect.rank for suspect in judgement.suspects})
    if missing:
        have = "no dump of %s; the job has %d ranks" % (describe_ranks(missing), len(judgement.world))
        rows.append((DUMPS, "the job", have))
    if not judgement.has_world:
        have = "no dump names the group of all ranks: how many ranks the job has is unknown"
        rows.append((DUMPS, "the group of all ranks", have))
    if judgement.unlisted:
        rows.append((READABLE, describe_ranks(judgement.unlisted), "the dump lists no collectives"))
    for group, number in judgement.overwritten:
        have = "%d rank%s: unfinished collectives were overwritten" % (number, "s" * (number > 1))
        rows.append((READABLE, describe_group(group), have))
    want = "a whole dump of each rank"
    return [check.judge(subject, "unknown", want, have, _SOURCE) for check, subject, have in rows]


def _release(version: str) -> List[Finding]:
    """Return a finding where the release is known to hang; on which hosts it does, the dumps do not show."""
    try:
        release = parse_version(version)
    except ParseError:
        return []
    defects = known_bad.possible_defects(release, None)
    hangs = [defect for defect in defects if defect.effect == HANG and defect.needs in ("", SCALE)]
    if not hangs:
        return []
    return [known_bad.judge(RELEASE, "NCCL", release, None, hangs, _SOURCE)]
