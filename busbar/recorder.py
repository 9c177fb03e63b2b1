# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar diagnose --recorder``: which rank a stopped job waits for, out of PyTorch's flight recorder dumps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import recorder, recorder_dump
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import recorder_findings as sentences
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.recorder import Judgement
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import counted

from .job_files import DIFFERENT, NOT_KNOWN, OK, STOPPED, JobFilesError, Report, open_regular, walk

# nccl_trace_rank_3, comm_lib_trace_rank_3, _dump_3, rank_3.json
_RANK = re.compile(r"(?:.*[^0-9])?([0-9]{1,7})(?:\.(?:json|pkl|pickle))?", re.DOTALL)


class Dumps(NamedTuple):
    """of_ranks: rank -> its dump.   problems: file -> why it was not read.   ignored: files without a rank."""

    of_ranks: dict[int, recorder_dump.Dump]
    problems: dict[str, str]
    ignored: int


def report(directory: Path) -> Report:
    """Report on the dumps below a directory. Raises JobFilesError, OSError."""
    dumps = load(directory)
    return describe(recorder.judge(dumps.of_ranks, dumps.problems), dumps)


def load(directory: Path) -> Dumps:
    """Read the dumps below a directory. Raises JobFilesError, OSError."""
    paths: dict[int, Path] = {}
    ignored = 0
    for path in walk(directory):
        match = _RANK.fullmatch(path.name)
        if match is None:
            ignored += 1
            continue
        other = paths.setdefault(int(match.group(1)), path)
        if other != path:
            raise JobFilesError(
                f"{other} and {path} are dumps of one rank: name a directory with the dumps of one job and run"
            )
    if not paths:
        raise JobFilesError(f"{directory} has no file whose name ends with a rank, such as nccl_trace_rank_0")
    reader = recorder_dump.Reader()
    dumps, problems = {}, {}
    for rank, path in sorted(paths.items()):
        try:
            with open_regular(path) as stream:
                dumps[rank] = reader.read(stream.read(recorder_dump.MOST_BYTES + 1))
        except (recorder_dump.DumpError, OSError) as error:
            why = error_text(error) if isinstance(error, OSError) else error
            problems[str(path.relative_to(directory))] = f"the dump of rank {rank} was not read: {why}"
    return Dumps(dumps, problems, ignored)


def verdict(judgement: Judgement) -> tuple[str, str]:
    """Return STOPPED, DIFFERENT, OK or NOT_KNOWN, and a sentence."""
    waits, mismatches = judgement.waits, judgement.mismatches
    hung = [mismatch.what for mismatch in mismatches if not mismatch.finished]
    in_cycles = {rank for cycle in judgement.cycles for rank in cycle}
    roots = [suspect for suspect in judgement.roots if suspect.rank not in in_cycles]
    without = [suspect.rank for suspect in roots if suspect.kind == recorder.NO_DUMP]
    sure = [suspect.rank for suspect in roots if suspect.kind != recorder.NO_DUMP]
    if hung:
        return STOPPED, f"ranks call different {hung[0]}s under one number and wait for each other"
    if sure:
        return STOPPED, f"{sentences.describe_ranks(sure)} hold{'s' * (len(sure) == 1)} up the job"
    if judgement.cycles:
        ranks = sentences.describe_ranks(judgement.cycles[0])
        return STOPPED, f"{ranks} wait for each other, each in another group"
    if without:
        suspects = f"the first suspect{'s' * (len(without) > 1)}"
        return STOPPED, f"no dump of {sentences.describe_ranks(without)}, {suspects}"
    if waits and judgement.complete and not any(wait.unknown for wait in waits):
        return STOPPED, "all ranks have launched the collectives that they wait in: no rank is late"
    if waits or judgement.pairs:
        return NOT_KNOWN, "ranks wait, and the dumps do not show for whom"
    if not judgement.complete:
        return NOT_KNOWN, "no rank that has a dump waits in a collective; some dumps are missing or incomplete"
    if mismatches:
        return DIFFERENT, f"ranks have called different {mismatches[0].what}s under one number"
    return OK, "no rank waits in a collective"


def describe(judgement: Judgement, dumps: Dumps) -> Report:
    waits = []
    for wait in judgement.waits:
        where = f"collective {wait.number} in {sentences.describe_group(wait.group)}"
        what = sentences.describe_operation(wait.operation)
        waits.append(f"waits: {sentences.describe_ranks(wait.ranks)}: {where}, {what}")
    groups = {group for dump in dumps.of_ranks.values() for group in dump.groups.values()}
    formats = sorted({dump.version for dump in dumps.of_ranks.values()})
    facts = f"{len(dumps.of_ranks)} of {len(judgement.world)} dumps read, {counted(len(groups), 'group')}"
    facts += f", {sum(len(dump.entries or ()) for dump in dumps.of_ranks.values())} records"
    facts += f", NCCL {', '.join(judgement.releases) or 'unknown'}, format {', '.join(formats) or 'unknown'}"
    facts += f", {dumps.ignored} other files" if dumps.ignored else ""
    found = recorder_dump.to_plain(judgement)
    data = {
        "complete": judgement.complete,
        "ranks": len(judgement.world),
        "dumps": sorted(dumps.of_ranks),
        "nccl": found["releases"],
        "formats": formats,
        **{key: found[key] for key in ("missing", "suspects", "cycles", "mismatches", "waits", "pairs")},
        "refused": found["problems"],
    }
    return Report(verdict(judgement), sentences.findings(judgement), facts, waits, data)
