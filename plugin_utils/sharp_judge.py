# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge whether SHARP was used and helped: two records of a benchmark between nodes, with it and without. Pure.

Judged by algbw: where switches reduce, busbw exceeds the wire and is no bandwidth. docs/fabric.md#sharp.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import results_compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import Job, Record, Row
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD, UNKNOWN

SHARP = "SHARP"
# Bytes: below, latency counts more than what the switches save.
LARGE = 10**9
PROOF = Check(
    "sharp.proof",
    why="the plugin's own line, and a busbw above the wire within one node (NVLS), look like SHARP but are not",
    fix="playbooks/sharp.yml lists what nodes lack; run `busbar diagnose` on a job's NCCL_DEBUG output",
)
"Did every rank of the benchmark log `Connected CollNet`"
GAIN = Check(
    "sharp.gain",
    why="SHARP that is connected without a gain still exposes jobs to its faults",
    fix="leave NCCL_COLLNET_ENABLE out of nccl_conf_extra, or look for the cause in the fabric (docs/fabric.md#sharp)",
)
"Is algbw from 1 GB on higher than without SHARP, but not above the possible maximum"


def bound(ranks: int) -> float:
    """Return the largest speedup of an all-reduce: rings send each byte 2(n-1)/n times, SHARP once."""
    return 2 * (ranks - 1) / ranks


def algbw(row: Row, ranks: int) -> float | None:
    """Return GB/s of an all-reduce."""
    return row.algbw or (row.busbw / bound(ranks) if row.busbw and ranks > 1 else None)


def _by_sharp(job: Job) -> bool:
    return job.algorithm == SHARP and job.collective == "all_reduce"


def judge(record: Record, without: Record | None) -> list[Finding]:
    """Return a proof and a gain for each all_reduce by SHARP. without: the same hosts by rings; None: not measured.

    Jobs without SHARP may be in either record.
    """
    others = [job for one in (without, record) if one is not None for job in one.jobs]
    found = []
    for job in record.jobs:
        if _by_sharp(job):
            proof = _proof(job)
            found += [proof, _gain(job, others, proof, record, without)]
    return found


def of_two(before: Sequence[Record], after: Sequence[Record]) -> list[Finding]:
    """Judge two results if each is one record, and SHARP was used in just one of them; [] otherwise."""
    for records, others in ((after, before), (before, after)):
        asked = [any(_by_sharp(job) for record in of for job in record.jobs) for of in (records, others)]
        if len(records) == len(others) == 1 and asked == [True, False]:
            return judge(records[0], others[0])
    return []


def _proof(job: Job) -> Finding:
    subject = f"{job.name} over {len(job.hosts)} nodes"
    want = f"Connected CollNet on all {job.ranks} ranks"
    missing: Sequence[str] = job.transport.get("missing") or ()
    if job.transport.get("proven") and not missing:
        return PROOF.judge(subject, "ok", want, "on all", "NCCL's log")
    told = [one for one in missing if "SHARP" in one]
    text = (told or [*missing, "NCCL's log of the job was not read"])[0]
    return PROOF.judge(subject, "drift" if told else "unknown", want, text, "NCCL's log")


def _gain(job: Job, others: Sequence[Job], proof: Finding, record: Record, without: Record | None) -> Finding:
    most = bound(job.ranks)
    subject = f"{job.name} over {len(job.hosts)} nodes"
    want = f"more algbw than without, {most:.3g} times at most"

    def unknown(have: str, fix: str | None = None) -> Finding:
        return GAIN.judge(subject, "unknown", want, have, "the records", fix, because=proof)

    alike = [
        other
        for other in others
        if not _by_sharp(other)
        and other.collective == job.collective
        and sorted(other.hosts) == sorted(job.hosts)
        and other.ranks == job.ranks
    ]
    if not proof.ok:
        return unknown("it is not proven that SHARP was used")
    if without is not None and without.simulated != record.simulated:
        return unknown("one is simulated, and one measured")
    pairs = [
        (mine, theirs)
        for mine in job.rows
        for other in alike
        for theirs in other.rows
        if mine.size == theirs.size >= LARGE and algbw(mine, job.ranks) and algbw(theirs, job.ranks)
    ]
    if not pairs:
        text = "no all_reduce of 1 GB and more over the same hosts without SHARP"
        return unknown(text, "measure once without NCCL_COLLNET_ENABLE, and compare (docs/fabric.md#sharp)")
    mine, theirs = max(pairs, key=lambda pair: pair[0].size)
    by, rings = algbw(mine, job.ranks) or 0.0, algbw(theirs, job.ranks) or 1.0
    noise, _measured = results_compare.noise_of(theirs, mine)
    times = by / rings
    if noise is None:
        return unknown(f"{times:.3g} times, measured too seldom to know the noise", "set nccl_benchmark_repeats: 5")
    have = f"{by:.4g} GB/s beside {rings:.4g} at {size_text(mine.size)}: {times:.3g} times (noise {100 * noise:.0f} %)"
    if times > most * (1 + noise):
        return unknown(f"{have}: more than SHARP can bring, so the run without SHARP was slow", "measure both again")
    return GAIN.judge(subject, "ok" if times > 1 + noise else "drift", want, have, "the records")


def sentences(found: Sequence[Finding]) -> list[str]:
    """Return a line for each finding."""
    return [f"SHARP, {one.subject}: {one.check.partition('.')[2]} {one.state}: {one.have}" for one in found]


def exit_code(found: Sequence[Finding]) -> int:
    """Return FINDINGS where it has no gain or was not used, UNKNOWN where that is not known."""
    states = {one.state for one in found}
    return FINDINGS if "drift" in states else UNKNOWN if states - {"ok"} else GOOD
