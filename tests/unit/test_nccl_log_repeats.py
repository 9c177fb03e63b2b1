# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Connections of a job with more pairs of ranks than are kept: those of further channels are counted, not parsed."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.pairs import PAIRS

RANKS, CHANNELS = 2 * PAIRS, 6


def lines(prefix: str) -> list[str]:
    found = []
    for rank in range(RANKS):
        head = f"{prefix}node{rank // 8}:{1000 + rank}:{5000 + rank} [{rank % 8}] NCCL INFO "
        for channel in range(CHANNELS):
            after = (rank + 1) % RANKS
            net = rank % 8 == 7
            way = "[send] via NET/IB/0/GDRDMA" if net else "via P2P/CUMEM"
            found.append(f"{head}Channel {channel:02d}/0 : {rank}[{rank % 8}] -> {after}[{after % 8}] {way}\n")
            found.append(f"{head}Ring {channel:02d} : {(rank - 1) % RANKS} -> {rank} -> {after}\n")
    return found


@pytest.mark.parametrize("prefix", ["", "2026-11-23T04:05:06.789Z ", "[1,7]<stdout>: "])
@pytest.mark.parametrize("size", [1 << 20, 999])
def test_each_channel_counts_once_whether_it_was_parsed_or_not(
    prefix: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    take = job.Reader._info

    def noted(reader: job.Reader, line: bytes, at: int, order: int) -> None:
        parsed.append(line)
        take(reader, line, at, order)

    monkeypatch.setattr(job.Reader, "_info", noted)
    text = "".join(lines(prefix)).encode()
    log = job.read([text[at : at + size] for at in range(0, len(text), size)])
    assert log.pairs.many
    assert len(log.processes) == RANKS
    for process in log.processes.values():
        [rank] = process.connections
        [(way, channels)] = process.connections[rank].items()
        assert (way[0], channels) == ("net" if rank % 8 == 7 else "p2p", CHANNELS)
    assert log.info == len(lines(prefix))
    assert len(parsed) < len(lines(prefix)) * 0.75


def test_what_is_torn_or_has_another_line_within_is_read_as_ever() -> None:
    whole = lines("")
    torn = "node31:1255:5255 [7] NCCL INFO Channel 05/0 : 255[7] -> node0:1000:5000 [0] NCCL INFO Connected all rings\n"
    log = job.read(["".join([*whole, torn, whole[-2]]).encode()])
    last = next(process for process in log.processes.values() if process.key[1] == 1255)
    first = next(process for process in log.processes.values() if process.key[1] == 1000)
    assert list(last.connections[255].values()) == [CHANNELS + 1]
    assert first.rings == 1
