# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar diagnose --inspector``: which rank a slow job waits for, out of the records of NCCL's Inspector plugin."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import inspector
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.inspector import Collector, Judgement, findings
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.recorder_dump import to_plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import counted

from .job_files import NOT_KNOWN, OK, SLOW, STOPPED, JobFilesError, Report, open_regular, walk

# A sparse file of a job's owner must not hold a nightly run for hours.
_MOST_BYTES = 8 << 30


def report(directory: Path) -> Report:
    """Report on the records below a directory. Raises JobFilesError, OSError."""
    judgement = inspector.judge(load(directory), time.time_ns() // 1000)
    figures = [
        f"busbw: {figure.host}: {figure.operation}: {figure.busbw:.1f} GB/s (median of {figure.records})"
        for figure in judgement.figures
    ]
    facts = (
        f"{counted(judgement.records, 'record')}, {counted(judgement.communicators, 'communicator')}"
        f" of up to {counted(judgement.ranks, 'rank')}"
    )
    if judgement.figures:
        most = max(judgement.figures, key=lambda figure: figure.records * figure.operation.size)
        facts += f", {most.operation} {most.busbw:.0f} GB/s busbw on {most.host}"
    missing = {name: {"ranks": ranks, "first": first} for name, (ranks, first) in judgement.missing.items()}
    # Durations in microseconds, busbw in GB/s.
    data = {**to_plain(judgement), "missing": missing}
    return Report(verdict(judgement), findings(judgement), facts, figures, data)


def load(directory: Path, since: int = 0) -> Collector:
    """Read the records below a directory, those since a time (microseconds). Raises JobFilesError, OSError."""
    collector = Collector(since)
    room = _MOST_BYTES
    for path in walk(directory):
        try:
            with open_regular(path) as stream:
                if os.fstat(stream.fileno()).st_mtime * 1e6 < since:
                    continue
                # A longer line is refused in parts.
                while line := stream.readline(inspector.MOST_LINE + 1):
                    room -= len(line)
                    if room < 0:
                        raise JobFilesError(f"{directory} has more than {_MOST_BYTES >> 30} GiB; name that of one job")
                    collector.add_line(line.decode("utf-8", "replace"))
        except OSError:
            collector.refused += 1
    if not collector.records and not since:
        raise JobFilesError(f"{directory} has no record of NCCL's Inspector (format v4, NCCL 2.28 and later)")
    return collector


def verdict(judgement: Judgement) -> tuple[str, str]:
    """Return STOPPED, SLOW, OK or NOT_KNOWN, and a sentence."""
    if judgement.behind:
        first = judgement.behind[0]
        return STOPPED, f"rank {first.rank} on {first.process.host} has not finished what its peers have"
    if judgement.late:
        first_late = judgement.late[0]
        return SLOW, f"the others wait for rank {first_late.rank} on {first_late.process.host}"
    if findings(judgement):
        return NOT_KNOWN, "no rank is late in the records, and some are missing"
    return OK, f"no rank is late in {judgement.compared} collectives"
