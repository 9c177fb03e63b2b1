# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the table of nccl-tests by its own rows: what no healthy machine prints, whatever its bar is.

busbw and its formulas: doc/PERFORMANCE.md of NVIDIA/nccl-tests.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.size import size_text
from .checks import WARNING
from .names import names, numbers
from .table import Program, Row, Table

# Latency rules below this size, in bytes.
_LEAST = 64 << 10
# Time of a size, as a share of that of a smaller one, from which the smaller one took a slow way.
_FASTER = 0.6
# busbw at the largest sizes, as a share of the highest.
_FALLEN = 0.6
# GB/s that any way within or between nodes reaches at a size of at least that many bytes.
_FLOOR, _FLOOR_SIZE = 2.0, 64 << 20
_ROWS = 3
BUSBW = Check(
    "nccl_log.busbw",
    why="the table of nccl-tests shows it, whatever the bar is",
    fix="run nccl-tests on each node alone, then on pairs (playbooks/localise.yml)",
)
"Does the bandwidth in the table of nccl-tests rise with the size, and stay there"


def failures(table: Table) -> List[Finding]:
    """Return a finding on wrong values, or on programs that ran without MPI."""
    if any(map(_is_apart, table.programs)):
        have = "several processes of nccl-tests each ran as a job of one rank (busbw 0): no GPU waits for another"
        why = "nccl-tests built without MPI ignores the launcher: each process is rank 0 of a separate job"
        fix = "build nccl-tests with MPI=1 MPI_HOME=DIRECTORY, and start it with its mpirun, or srun --mpi=pmix"
        return [BUSBW.judge("nccl-tests", "drift", "one job", have, "", fix, why=why, severity="critical")]
    have = "nccl-tests counted %s wrong values" % (table.wrong or "some")
    why = "ranks received other data than was sent: no result of this job can be trusted"
    fix = (
        "run nccl-tests on each node alone, then on pairs, and drain the node where it recurs (`nvidia-smi -q -d ECC`);"
    )
    fix += " with an IOMMU or in a VM try NCCL_P2P_DISABLE=1 on one node to find the path"
    wrong = WARNING.judge("nccl-tests", "drift", "no wrong values", have, "", fix, why=why, severity="critical")
    return [wrong] if table.failed or table.wrong else []


def _is_apart(program: Program) -> bool:
    """Return whether the output is that of several processes that each ran as a job of one rank (no MPI)."""
    sizes = [row.size for row in program.rows]
    several = program.lists > 1 or (len(sizes) > _ROWS and sizes != sorted(sizes))
    return several and not any(map(_busbw, program.rows)) and not set(program.ranks) - {0}


def judge(table: Table) -> List[Finding]:
    """Return a finding for each program of several ranks whose rows show a slow path."""
    found = []
    for number, program in enumerate(table.programs):
        subject = "nccl-tests" if len(table.programs) == 1 else "nccl-tests program %d" % (number + 1)
        ranks: Dict[str, List[int]] = {}
        for number_, rank in sorted(program.ranks.items()) if program.lists < 2 else ():
            # Older releases print the bus alone, which GPUs of several PCI domains have in common.
            if ":" in rank.bus:
                ranks.setdefault("%s %s" % (rank.host, rank.bus), []).append(number_)
        shared = ["%s: ranks %s" % (gpu, numbers(on)) for gpu, on in ranks.items() if len(on) > 1]
        if shared:
            have, why = "several ranks share a GPU: %s" % names(shared), "ranks on one GPU share its memory and engines"
            fix = "start as many ranks a node as it has GPUs, one for each (-g 1), and let each see all of them"
            found.append(BUSBW.judge("%s ranks" % subject, "drift", "one GPU a rank", have, "", fix, why=why))
        rows = [row for row in program.rows if row.size >= _LEAST and row.time > 0]
        sizes = [row.size for row in rows]
        if len(rows) >= _ROWS and sizes == sorted(sizes) and any(map(_busbw, rows)):
            for have, why, fix in (_fallen(rows) or _faster(rows) or _low(rows, program))[:1]:
                found.append(BUSBW.judge(subject, "drift", None, have, "the table's rows", fix, why=why))
    return found


def _busbw(row: Row) -> float:
    return max(row.out, row.inside or 0.0)


def _figure(row: Row) -> str:
    return "%.3g GB/s at %s" % (_busbw(row), size_text(row.size))


def _fallen(rows: Sequence[Row]) -> List[Tuple[str, str, str]]:
    """Return have, why and fix of a busbw that falls behind its highest, and does not come back."""
    best = max(range(len(rows)), key=lambda number: _busbw(rows[number]))
    after = rows[best + 1 :]
    if len(after) < 2 or any(_busbw(row) > _FALLEN * _busbw(rows[best]) for row in after):
        return []
    have = "busbw falls from %s to %s" % (_figure(rows[best]), _figure(after[-1]))
    why = "busbw stays at its highest with larger messages: a fall shows congestion, throttling, or memory that ran out"
    fix = (
        "run it again beside `nvidia-smi dmon -s pc` (clocks, power); playbooks/verify.yml compares the NICs' counters"
    )
    return [(have, why, fix)]


def _faster(rows: Sequence[Row]) -> List[Tuple[str, str, str]]:
    """Return have, why and fix of a size that takes much longer than a larger one, out of place and in place."""
    for row, larger in zip(rows, rows[1:]):
        # In place, too; the time there is the size by busbw.
        rises = row.inside is None or (larger.inside or 0.0) * row.size > row.inside * larger.size / _FASTER
        if larger.size > row.size and larger.time < _FASTER * row.time and rises:
            sizes = (size_text(row.size), row.time, size_text(larger.size), larger.time)
            why = "more data takes less time: NCCL chose a slow algorithm or protocol for the smaller sizes"
            fix = "take NCCL_ALGO, NCCL_PROTO and tuner plugins out of the job (NCCL_DEBUG_SUBSYS=INIT,TUNING shows the"
            fix += " choice), and try NCCL_PROTO=Simple for these sizes; then another release of NCCL"
            return [("%s takes %.4g us and %s only %.4g us" % sizes, why, fix)]
    return []


def _low(rows: Sequence[Row], program: Program) -> List[Tuple[str, str, str]]:
    best, last = max(rows, key=_busbw), rows[-1]
    hosts = Counter(rank.host for rank in program.ranks.values())
    most = max(hosts.values(), default=0)
    # All of a host may share one NIC where each rank sends to each, as in alltoall. There busbw is no more than the
    # algorithm's bandwidth; a reduction over more than two ranks shows more.
    shared = len(hosts) > 1 and last.out * last.time <= 1.01 * last.size / 1000
    if last.size < _FLOOR_SIZE or _busbw(best) * (most if shared else 1) >= _FLOOR:
        return []
    why = "that is less than two lanes of PCIe 3.0, or a port of 25 Gbit/s, carry"
    fix = "between the nodes NCCL's lines (NCCL_DEBUG=INFO) show the network: RDMA, or TCP and over which interface"
    fix += "" if most == 1 else "; in a node `nvidia-smi topo -m` and `nvidia-smi topo -p2p r` show the path"
    return [("the highest busbw is %s" % _figure(best), why, fix)]
