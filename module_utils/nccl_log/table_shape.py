# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the run of nccl-tests' figures over the sizes tells: plateaus, leaps of the time, a GPU's share of a network."""

from __future__ import annotations

import re
from typing import List, Sequence

from .table import Table, Test
from .table_rows import Row, size

# Of the best bandwidth, to be as good as it.
_AS_GOOD = 0.9
# Microseconds of a call from which on it may be called slow, and how many times less than it a larger size takes.
_SLOW, _LESS = 100.0, 1.25
# Bytes up to which a call shows latency alone, how many sizes show it, and how many times more one takes that is slow.
_SMALL, _SEVERAL, _TIMES = 4096, 3, 5.0
# What times may differ by that are about the same, and microseconds that no call of a small size needs.
_SAME, _LONG = 1.1, 1000.0
# What a call takes more of than the one before it, of twice the size.
_JUMP = 3.0
# GPUs of nodes that have a NIC of 400 Gbit/s for each, usually, its GB/s, and what is a good share of it.
_FAST = re.compile(r"\b(?:H100|H200|H800|H20|GH200|B200|B300|GB200|GB300)\b")
_NIC, _GOOD = 50.0, 0.75


def shape(test: Test, table: Table) -> List[str]:
    """Sentences on one test whose sizes rise."""
    rows = test.rows
    if len(rows) < 4 or any(one.size >= two.size for one, two in zip(rows, rows[1:])):
        return []
    return [
        said
        for said in (_plateau(test), _jump(rows), _slow(rows), _latency(rows), _fixed(rows), _share(test, table))
        if said
    ]


def _plateau(test: Test) -> str:
    """The size from which on the bandwidth is about the best."""
    rows = test.rows
    best = max(row.best for row in rows)
    if test.flat or best <= 0 or rows[-1].best < _AS_GOOD * best:
        return ""
    begin = len(rows) - 1
    while begin and rows[begin - 1].best >= _AS_GOOD * best:
        begin -= 1
    if begin in (0, len(rows) - 1):
        return ""
    return "within %.0f %% of the best from %s on" % (100 - 100 * _AS_GOOD, size(rows[begin].size))


def _slow(rows: Sequence[Row]) -> str:
    """Sizes whose call takes longer than one of a larger size, with the times. The first row may warm up."""
    least: List[float] = []
    for row in reversed(rows):
        least.append(min([row.time, *least[-1:]]))
    late = [
        place
        for place, row in enumerate(rows[:-1])
        if place and row.time >= _SLOW and row.time >= _LESS * least[len(rows) - 2 - place]
    ]
    if not late:
        return ""
    first, last = rows[late[0]], rows[late[-1]]
    most = max((rows[place] for place in late), key=lambda row: row.time)
    text = "odd: %s takes longer than larger sizes do: " % (
        size(first.size) if first is last else "what is between %s and %s" % (size(first.size), size(last.size))
    )
    shown = {rows[late[0] - 1].size: rows[late[0] - 1], first.size: first, most.size: most, last.size: last}
    after = rows[late[-1] + 1]
    shown[after.size] = after
    text += ", ".join("%s %g us" % (size(one), shown[one].time) for one in sorted(shown))
    return text


def _fixed(rows: Sequence[Row]) -> str:
    """Sizes up to a large one that take about as long as each other."""
    count, least = 0, rows[0].time
    while count < len(rows) and least <= rows[count].time < _SAME * least:
        count += 1
    if count < _SEVERAL or rows[count - 1].size < 1 << 20 or rows[count - 1].time < _LONG:
        return ""
    times = [row.time for row in rows[:count]]
    return "up to %s a call takes about as long whatever the size, %g to %g us: a fixed delay of each call" % (
        size(rows[count - 1].size), min(times), max(times),
    )  # fmt: skip


def _latency(rows: Sequence[Row]) -> str:
    """Middle sizes that take far longer than latency and bandwidth make together."""
    small = sorted(row.time for row in rows if row.size <= _SMALL and row.time > 0)
    large = max(rows, key=lambda row: row.alg)
    if len(small) < _SEVERAL or large.alg <= 0 or large.size < 1 << 24:
        return ""
    still = small[len(small) // 2]
    slow = [
        row
        for row in rows
        if _SMALL < row.size < large.size
        and row.time >= _SLOW
        and row.time >= _TIMES * (still + row.size / large.alg / 1000)
    ]
    if len(slow) < _SEVERAL:
        return ""
    worst = max(slow, key=lambda row: row.time / (still + row.size / large.alg / 1000))
    expected = still + worst.size / large.alg / 1000
    text = "between %s and %s calls take %g times and more what the latency of small sizes (%g us) and the bandwidth of"
    text += " large ones give together (%s: %g us, not some %.0f): it is latency or the way that these sizes take"
    text += " (protocol, algorithm, congestion, a NIC or its interrupts, another job), and no limit of bandwidth; which"
    text += " of them the table does not show"
    return text % (
        size(slow[0].size),
        size(slow[-1].size),
        _TIMES,
        still,
        size(worst.size),
        worst.time,
        expected,
    )


def _jump(rows: Sequence[Row]) -> str:
    """The first size whose call takes far more than the one before it, with the times."""
    for before, row in zip(rows[1:], rows[2:]):
        if before.size < row.size <= 2 * before.size and row.time >= _SLOW and row.time >= _JUMP * before.time > 0:
            return "the time jumps from %g us at %s to %g us at %s" % (
                before.time,
                size(before.size),
                row.time,
                size(row.size),
            )
    return ""


def _share(test: Test, table: Table) -> str:
    """What a GPU's share of the best bandwidth over nodes is, where it is as good as its NIC can be."""
    each = {host: sum(one.host == host for one in table.ranks.values()) for host in table.hosts}
    gpus = {one.gpu for one in table.ranks.values()}
    if table.twice or len(each) < 2 or len(set(each.values())) != 1 or not all(_FAST.search(gpu) for gpu in gpus):
        return ""
    count = next(iter(each.values()))
    best = max((row.best for row in test.rows), default=0.0)
    if best / count < _GOOD * _NIC:
        return ""
    return (
        "the best value is good for %d nodes with %d such GPU%s each: a GPU's share is %.3g GB/s, and one NIC of 400"
        " Gbit/s a GPU carries %g (with GPUDirect RDMA; collectives that reduce within the node get more)"
    ) % (len(each), count, "" if count == 1 else "s", best / count, _NIC)
