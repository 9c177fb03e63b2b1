"""What is judged of a run between nodes, or over the trays of an NVLink domain, from all that its programs print."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import judge, log_reader
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import collect as nccl_perf_collect
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import result as perf_answer
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import streams
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import Run, Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import Moved, Network

from tests.unit.test_nccl_perf import SIZES, output, row

WANTED = Wanted("all_reduce", 4, ("node01", "node02"), SIZES, bar_busbw=6.0, command=("mpirun", "all_reduce_perf"))
NOW = 1_800_000_000.0
RDMA = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.{node}<0>"
SOCKETS = "NET/IB : No device found.\nNET/Socket : Using [0]eth0:10.0.0.{node}<0>"


def said_by(
    rank: int, before: Sequence[str], comm: Sequence[str], version: str = "2.28.9+cuda13.0", job: str = "c0ffee"
) -> list[str]:
    """Lines of one of two ranks on each of two nodes. before: its communicator begins.   comm: of that."""
    node, local = 1 + rank // 2, rank % 2
    colon = " : " if version < "2.23" else ": "
    init = f"ncclCommInitRank comm 0xa{rank} rank {rank} nranks 4 cudaDev {local} nvmlDev {local} busId 1{local}000"
    lines = [f"NCCL version {version}", f"Bootstrap{colon}Using eth0:10.0.0.{node}<0>", *before]
    lines += [f"{init} commId 0x{job} - Init START", *comm, "Connected all rings, use ring PXN 0 GDR 1"]
    lines += [f"{init} commId 0x{job} - Init COMPLETE"]
    return [f"node0{node}:{4000 + rank}:{5000 + rank} [{local}] NCCL INFO {line}" for line in lines]


def log(
    network: str = "IB", gdr: str = "/GDRDMA", found: str = RDMA, used: tuple[int, int] = (0, 1), comm: str = "c0ffee"
) -> dict[int, list[str]]:
    """Rank -> the lines that NCCL 2.28 writes on it. used: index of each rank's HCA."""
    said = {}
    for rank in range(4):
        local, peer = rank % 2, (rank + 2) % 4
        way = f"via NET/{network}/{used[local]}{gdr}"
        before = [*found.format(node=1 + rank // 2).split("\n"), f"Using network {network}"]
        own = [
            f"comm 0xa{rank} rank {rank} nRanks 4 nNodes 2 localRanks 2 localRank {local} MNNVL 0",
            f"Channel 00/0 : {rank}[{local}] -> {peer}[{local}] [send] {way}",
            f"Channel 00/0 : {peer}[{local}] -> {rank}[{local}] [receive] {way}",
        ]
        said[rank] = said_by(rank, before, own, job=comm)
    return said


def text_of(said: dict[int, list[str]], table: str | None = None) -> str:
    """The ranks' lines one after the other, then the table."""
    lines = [line for number in range(12) for rank in said for line in said[rank][number : number + 1]]
    return "\n".join(lines) + "\n" + (output() if table is None else table)


MOVED = {node: {device: Moved(10**9, 10**9) for device in ("mlx5_0", "mlx5_1")} for node in ("node01", "node02")}


OVER_NVLINK = replace(WANTED, way="nvlink")
OLD, NEW = "2.21.5+cuda12.4", "2.30.7+cuda13.0"
UUID = "1f2e3d4c5b6a7988.99aabbccddeeff00"
QUIET = {node: {device: Moved(4096, 4096) for device in ("mlx5_0", "mlx5_1")} for node in ("node01", "node02")}


def fabric(uuid: str = UUID, clique: str = "0x7ffe", state: int = 3) -> str:
    return f"MNNVL busId 0x901000 fabric UUID {uuid} cliqueId {clique} state {state} healthMask 0x1aa"


def tray_log(
    version: str = NEW,
    way: str = "P2P/MNNVL/read",
    on: int = 1,
    nodes: int = 1,
    fabrics: tuple[str, str] = (fabric(), fabric()),
    extra: tuple[str, ...] = (),
) -> dict[int, list[str]]:
    """Rank -> the lines that NCCL writes on it, on two trays. way: between trays, "" for no line.

    fabrics: of the GPUs of either tray, "" for no line.   extra: lines of every rank.
    """
    said = {}
    for rank in range(4):
        node, local, nxt = 1 + rank // 2, rank % 2, (rank + 1) % 4
        inside = nodes == 1 or nxt // 2 == rank // 2
        channel = f"Channel 00/0 : {rank}[{local}] -> {nxt}[{nxt % 2}]"
        of_channel = f"via {way}" if inside else "[send] via NET/IB/0/GDRDMA"
        domain = " nvlDomainSize 4" if version == NEW else " "
        own = [
            *[one for one in fabrics[node - 1 : node] if one],
            *([f"MNNVL 1 cliqueId 7ffe cliqueSize 4 cliqueRank {rank}{domain}"] if on else []),
            f"comm 0xa{rank} rank {rank} nRanks 4 nNodes {nodes} localRanks {4 // nodes} localRank {local} MNNVL {on}",
            *([f"{channel} {of_channel}"] if way else []),
        ]
        # The network is named in any case, whatever carries the data.
        said[rank] = said_by(rank, [RDMA.format(node=node), "Using network IB", *extra], own, version)
    return said


JOB = launch.wanted({"kind": "mpirun", "hosts": ["node01", "node02"], "per_node": 2})


def read(folder: Path, text: str, wanted: Wanted = WANTED, rails: dict[str, dict[str, Moved]] | None = None) -> Run:
    """Without rank guards, whose findings are those of test_launch."""
    (folder / "stdout").write_text(text)
    (folder / "stderr").write_text("")
    said = nccl_perf_collect.read(str(folder / "stdout"), str(folder / "stderr"), wanted, JOB)
    network = replace(said.network, launched=(), rails=MOVED if rails is None else rails)
    return Run(wanted.command, 0, "", 60.0, NOW, stdout=said.stdout, stderr=said.stderr, network=network)


def judged(run: Run, wanted: Wanted = WANTED) -> dict[str, Finding]:
    """Check -> its finding; what is kept of the run has been written and read once."""
    run = perf_run.parse_record(perf_run.record(run))
    plan, found = perf_answer.judge(run, wanted, NOW)
    json.dumps(found, allow_nan=False)
    assert len({finding.id for finding in plan.findings}) == len(plan.findings)
    return {finding.check.partition(".")[2]: finding for finding in plan.findings}


def states(run: Run, wanted: Wanted = WANTED) -> dict[str, str]:
    return {name: finding.state for name, finding in judged(run, wanted).items() if not finding.ok}


def test_a_good_run_proves_its_transport(tmp_path: Path) -> None:
    run = read(tmp_path, text_of(log()))
    assert "NCCL INFO" not in run.stdout
    _plan, returned = perf_answer.judge(run, WANTED, NOW)
    devices = ("mlx5_0", "mlx5_1")
    host = {"ranks": 2, "devices": devices, "without_gdr": (), "found": devices}
    proof = {"networks": ("IB",), "nodes": 2, "expected": 4, "proven": True, "missing": (), "gdr": True}
    assert returned["transport"] == {**proof, "hosts": dict.fromkeys(MOVED, host)}
    assert returned["rails"]["node01"]["mlx5_0"] == {"sent": 10**9, "received": 10**9}
    assert returned["nccl_version"] == "2.28.9"
    assert returned["measured"]["ranks"] == ()


def test_a_rank_that_failed_counts_whatever_its_launcher_reports() -> None:
    done = nccl_perf_collect.complete(
        Run(WANTED.command, 0, "", 60.0, NOW), nccl_perf_collect.Output("", "", Network(), rc=3), None
    )
    assert done.rc == 3


def test_sharp_is_switched_on() -> None:
    assert replace(WANTED, algorithm="SHARP").variables["NCCL_COLLNET_ENABLE"] == "1"


# -- one stream --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["[1,%d]<stdout>:", "[prterun-node01-4242@1,%d]<stdout>: "])
@pytest.mark.parametrize("size", [7, 64, 1000])
def test_blocks_of_ranks_that_mix_are_put_together_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, size: int
) -> None:
    """mpirun --tag-output passes on what it reads, and puts the tag before it, and before each line in it."""
    said = {rank: "".join(line + "\n" for line in lines) for rank, lines in log().items()}
    said[0] += output()
    text = ""
    for at in range(0, max(map(len, said.values())), size):
        for rank, own in said.items():
            piece = own[at : at + size]
            if piece:
                body = piece[:-1].replace("\n", "\n" + tag % rank) + piece[-1]
                text += tag % rank + body
    # And no block that is read here ends where a line or a tag does.
    monkeypatch.setattr(streams, "BLOCK", 37)
    assert states(read(tmp_path, text)) == {}
    # Without tags nothing is made of it, but of large blocks, of which few lines are torn.
    untagged = read(tmp_path, re.sub(re.escape(tag).replace("%d", r"\d"), "", text))
    assert size == 1000 or states(untagged)["busbw"] == "unknown"


def test_lines_between_and_within_rows_lose_nothing(tmp_path: Path) -> None:
    rows = [row(size) for size in SIZES]
    line = log()[3][6]
    # Before a row, in the middle of one, and without an end of line before the next.
    first, second = rows[1][:60], rows[1][60:]
    text = text_of(log(), output(rows[0] + line + "\n" + first + line + "\n" + second + rows[2]))
    assert states(read(tmp_path, text)) == {}


def test_the_log_of_8000_ranks_is_read_as_it_passes(tmp_path: Path) -> None:
    """What is kept in memory does not grow with the lines."""
    block = "\n".join(line for lines in log().values() for line in lines).encode() + b"\n"
    table = output().encode()

    class Stream:
        def __init__(self, *blocks: bytes) -> None:
            self.left = list(blocks)

        def read(self, _size: int) -> bytes:
            return self.left.pop() if self.left else b""

    taken = streams.Streams(4)
    text = taken.take(Stream(table, *[block * 20] * 50), "stdout")  # type: ignore[arg-type]
    assert text.strip() == output().strip()
    assert not taken.cut
    # What is none of NCCL's has an end, too.
    endless = Stream(*[b"x" * 1000 + b"\n"] * 20000)
    assert len(taken.take(endless, "stderr")) < streams.ROOM + 4 * streams.ROOM_OF_RANK  # type: ignore[arg-type]
    assert taken.cut


def test_a_launcher_that_crashes_as_it_is_ended_is_not_why_there_is_no_result() -> None:
    text = b"[node02:00060] Signal: Segmentation fault (11)\n[node02:00061] Signal: Bus error (7)\n"
    for ended, kept in ((0, ["60", "61"]), (60, ["61"])):
        left = streams.Streams(4, ended).take(io.BytesIO(text), "stderr")
        assert re.findall(r":000(\d+)\]", left) == kept


# -- what is returned and recorded -------------------------------------------------------------------------------------


def repeated(folder: Path, algbws: Sequence[float]) -> Run:
    runs = []
    for algbw in algbws:
        rows = "".join(row(size, f"T {algbw:.2f} {1.5 * algbw:.2f} 0") for size in SIZES)
        runs.append(read(folder, text_of(log(), output(rows))))
    return replace(runs[0], others=tuple(replace(run, command=()) for run in runs[1:]))


def test_repeats_are_judged_by_their_median(tmp_path: Path) -> None:
    _plan, returned = perf_answer.judge(repeated(tmp_path, [4.10, 4.17, 4.20]), replace(WANTED, repeats=3), NOW)
    assert returned["busbw"] == 6.25
    last = returned["statistics"][-1]
    assert (last["size"], last["busbw"], last["repeats"]) == (SIZES[2], 6.25, 3)
    assert last["spread"] == pytest.approx((6.30 - 6.15) / 6.25)
    assert last["time_p99_us"] == pytest.approx(SIZES[2] / 4.10 / 1e3, abs=0.01)
    assert [one["busbw"] for one in returned["repeats"]] == [6.15, 6.25, 6.3]


def test_one_repeat_without_proof_is_no_proof(tmp_path: Path) -> None:
    run = replace(repeated(tmp_path, [4.17]), others=(read(tmp_path, text_of({})),))
    _plan, returned = perf_answer.judge(run, replace(WANTED, repeats=2), NOW)
    assert not returned["transport"]["proven"]


@pytest.mark.parametrize("change", [{"hosts": 3}, {"hosts": {"a": {}}}, {"rails": {"a": {"b": {}}}}, {"quoted": [{}]}])
def test_a_damaged_record_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    data = json.loads(perf_run.record(read(tmp_path, text_of(log()))))
    data["network"].update(change)
    with pytest.raises(ParseError):
        perf_run.parse_record(json.dumps(data))


# -- NVLink -------------------------------------------------------------------------------------------------


def diagnosed(said: dict[int, list[str]]) -> str | None:
    """Return state and text of nccl_log.mnnvl."""
    result = judge.judge(log_reader.read(text_of(said, "").encode()))
    own = {finding.check: finding for finding in result.findings}.get("nccl_log.mnnvl")
    return None if own is None else f"{own.state}: {own.have}"


def test_a_log_shows_whether_nvlink_between_hosts_is_on() -> None:
    assert diagnosed(tray_log()) == "ok: NVLink"
    off = tray_log(on=0, nodes=2, extra=("NCCL_P2P_DISABLE set by environment to 1.",))
    assert diagnosed(off) == "drift: NVLink between hosts is off; cause: NCCL_P2P_DISABLE=1"
    # Who has switched it off knows; and of two racks, or of a board without NVLinks to others, nothing is wrong.
    assert diagnosed(tray_log(on=0, nodes=2, extra=("NCCL_MNNVL_ENABLE set by environment to 0.",))) is None
    other = fabric(UUID.replace("1f", "2f"))
    for fabrics in ((fabric(), other), (fabric("0.0", "0x0"), fabric("0.0", "0x0")), ("", "")):
        assert diagnosed(tray_log(on=0, nodes=2, fabrics=fabrics)) is None


def test_a_job_that_is_not_asked_for_nvlink_proves_none_of_it(tmp_path: Path) -> None:
    assert read(tmp_path, text_of(tray_log()), WANTED, QUIET).network.nvlink is None  # type: ignore[union-attr]
