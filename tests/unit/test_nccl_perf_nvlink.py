"""What is judged of a run over the trays of one NVLink domain, from NCCL's lines of two releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_run import Run, Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.perf_transport import Moved, Nvlink
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, mnnvl
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.shown import shown

from tests.unit.test_nccl_perf_network import WANTED as OVER_NETWORK
from tests.unit.test_nccl_perf_network import judged, read, states, text_of

WANTED = replace(OVER_NETWORK, way="nvlink")
OLD, NEW = "2.21.5+cuda12.4", "2.30.7+cuda13.0"
UUID = "1f2e3d4c5b6a7988.99aabbccddeeff00"
QUIET = {node: {device: Moved(4096, 4096) for device in ("mlx5_0", "mlx5_1")} for node in ("node01", "node02")}


def fabric(uuid: str = UUID, clique: str = "0x7ffe", state: int = 3) -> str:
    return f"MNNVL busId 0x901000 fabric UUID {uuid} cliqueId {clique} state {state} healthMask 0x1aa"


def log(
    version: str = NEW,
    way: str = "P2P/MNNVL/read",
    on: int = 1,
    nodes: int = 1,
    fabrics: tuple[str, str] = (fabric(), fabric()),
    extra: tuple[str, ...] = (),
) -> dict[int, list[str]]:
    """Rank -> the lines that NCCL writes on it; two ranks on each of two trays. way: between trays, "" for no line.

    fabrics: of the GPUs of either tray, "" for no line.   extra: lines of every rank.
    """
    said = {}
    for rank in range(4):
        node, local, nxt = 1 + rank // 2, rank % 2, (rank + 1) % 4
        head = f"node0{node}:{4000 + rank}:{5000 + rank} [{local}] NCCL INFO "
        init = f"ncclCommInitRank comm 0xa{rank} rank {rank} nranks 4 cudaDev {local} nvmlDev {local} busId 1{local}000"
        domain = " nvlDomainSize 4" if version == NEW else " "
        inside = nodes == 1 or nxt // 2 == rank // 2
        channel = f"Channel 00/0 : {rank}[{local}] -> {nxt}[{nxt % 2}]"
        lines = [
            f"NCCL version {version}",
            f"Bootstrap{': ' if version == NEW else ' : '}Using eth0:10.0.0.{node}<0>",
            f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.{node}<0>",
            # Said in any case, whatever carries the data.
            "Using network IB",
            *extra,
            f"{init} commId 0xc0ffee - Init START",
            *[one for one in fabrics[node - 1 : node] if one],
            *([f"MNNVL 1 cliqueId 7ffe cliqueSize 4 cliqueRank {rank}{domain}"] if on else []),
            f"comm 0xa{rank} rank {rank} nRanks 4 nNodes {nodes} localRanks {4 // nodes} localRank {local} MNNVL {on}",
            *([f"{channel} via {way if inside else 'NET/IB/0/GDRDMA'}"] if way else []),
            "Connected all rings, use ring PXN 0 GDR 1",
            f"{init} commId 0xc0ffee - Init COMPLETE",
        ]  # fmt: skip
        if not inside:
            lines[-3] = f"{channel} [send] via NET/IB/0/GDRDMA"
        said[rank] = [head + line for line in lines]
    return said


def run(folder: Path, said: dict[int, list[str]], wanted: Wanted = WANTED, moved: object = None) -> Run:
    rails = QUIET if moved is None else moved
    return read(folder, text_of(said), wanted, rails)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_good_run_proves_that_it_went_over_nvlink_alone(tmp_path: Path, version: str) -> None:
    found = judged(run(tmp_path, log(version)), WANTED)
    assert [name for name, finding in found.items() if finding.ok] == [
        *("ran", "fresh", "sizes", "ranks", "correct", "nonzero", "busbw", "transport", "nvlink"),
    ]
    assert found["transport"].have == f"NVLink over 2 nodes, 4 ranks, NCCL {version.partition('+')[0]}"
    assert found["nvlink"].have == "NVLink between 2 trays, nothing over the network"
    assert found["nvlink"].subject == "all_reduce 4 ranks 4M over NVLink node01,node02"


def test_switches_that_reduce_for_all_trays_are_a_connection_between_them(tmp_path: Path) -> None:
    group = "NVLS comm 0x55d headRank 0 nHeads 4 nvlsRanks 4 buffSize 1 nvlsPerRankSize 2 nvlsTotalSize 3"
    assert states(run(tmp_path, log(way="", extra=(group,))), WANTED) == {}
    assert states(run(tmp_path, log(way="")), WANTED) == {**dict.fromkeys(("busbw", "transport", "nvlink"), "unknown")}
    # Between ranks of one tray alone it proves nothing of others.
    within = {rank: [line.replace("-> 2[0]", "-> 0[0]").replace("-> 0[0]", "-> 1[1]") for line in lines]
              for rank, lines in log().items()}  # fmt: skip
    for rank in (2, 3):
        within[rank] = [line.replace("-> 1[1]", "-> 2[0]").replace("-> 3[1]", "-> 2[0]") for line in within[rank]]
    found = judged(run(tmp_path, within), WANTED)
    assert (found["transport"].have or "").startswith("no connection of node01, node02 to another host is shown")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        # One tray's GPUs in no domain switch it off for all, silently.
        ({"fabrics": (fabric(), fabric("0.0", "0x0"))}, "GPUs of node02 are in no NVLink domain (no UUID of one)"),
        ({"fabrics": (fabric(state=2), fabric())}, "GPUs of node01 are not registered with the fabric (state 2"),
        ({"fabrics": (fabric(), "")}, "GPUs of node02 are in no NVLink domain (no UUID of one)"),
        ({"fabrics": (fabric(), fabric(clique="0x1"))}, "clique 0x1 of node02, not the clique 0x7ffe of domain 1f2e"),
        ({"extra": ("NCCL_CUMEM_ENABLE set by environment to 0.",)}, "NCCL_CUMEM_ENABLE=0"),
        ({"extra": ("NCCL_P2P_LEVEL set by environment to LOC",)}, "NCCL_P2P_LEVEL=LOC"),
        ({}, "NCCL's log gives no reason"),
    ],
)  # fmt: skip
def test_the_network_in_its_place_is_drift_with_its_cause_and_no_verdict_on_the_figure(
    tmp_path: Path, said: dict[str, object], cause: str
) -> None:
    found = judged(run(tmp_path, log(on=0, nodes=2, **said), moved={}), WANTED)  # type: ignore[arg-type]
    one = found["nvlink"]
    assert one.state == "drift"
    assert (one.have or "").startswith("the network (IB) between node01, node02; ")
    assert cause in (one.have or "")
    # The bar is cleared, and that says nothing.
    assert (found["busbw"].state, found["busbw"].because) == ("unknown", one.id)
    variable = cause.partition("=")[0] if "=" in cause else ""
    assert (variable in one.fix and "--tags nccl_conf" in one.fix) if variable else "imex.*" in one.fix


def test_cliques_that_each_have_nvlink_are_still_joined_by_the_network(tmp_path: Path) -> None:
    said = log(
        nodes=2, fabrics=(fabric(), fabric(clique="0x1")), extra=("NCCL_MNNVL_CLIQUE_ID set by environment to 1.",)
    )
    one = judged(run(tmp_path, said), WANTED)["nvlink"]
    assert one.state == "drift"
    assert "NVLink joins only parts of them, 2 by NCCL's count" in (one.have or "")
    assert "take NCCL_MNNVL_CLIQUE_ID out of nccl_benchmark_environment" in one.fix


def test_what_the_log_does_not_tell_is_no_proof(tmp_path: Path) -> None:
    silent = {rank: [line.partition(" MNNVL 1")[0] for line in lines] for rank, lines in log(OLD).items()}
    found = judged(run(tmp_path, silent), WANTED)
    assert "not every rank reports whether it uses NVLink between hosts" in (found["transport"].have or "")
    assert {name: found[name].state for name in ("transport", "nvlink", "busbw")} == dict.fromkeys(
        ("transport", "nvlink", "busbw"), "unknown"
    )
    lost = {rank: lines for rank, lines in log().items() if rank != 3}
    assert "rank 3 of 4 is not in this log" in (judged(run(tmp_path, lost), WANTED)["transport"].have or "")


def test_rails_that_carried_it_contradict_the_log(tmp_path: Path) -> None:
    moved = {node: {"mlx5_0": Moved(10**9, 10**9)} for node in ("node01", "node02")}
    found = judged(run(tmp_path, log(), moved=moved), WANTED)
    assert (found["nvlink"].state, found["busbw"].state) == ("drift", "unknown")
    assert "the rails sent 2" in (found["nvlink"].have or "")


def test_imex_that_does_not_work_ends_the_run_and_is_what_is_told(tmp_path: Path) -> None:
    # It is tried before a rank says how many nodes there are.
    said = {rank: [line for line in lines if " nRanks " not in line] for rank, lines in log(on=0, way="").items()}
    line = (
        "\nnode02:4002:5002 [0] mnnvl.cc:74 NCCL WARN MNNVL (cliqueSize 4) is available but not working on this system."
        " Check the IMEX configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.\n"
    )
    found = judged(replace(read(tmp_path, text_of(said, "") + line, WANTED, {}), rc=3), WANTED)
    assert found["ran"].state == "drift"
    assert "IMEX" in (found["ran"].have or "")
    assert "nvidia-imex-ctl -N" in found["ran"].fix
    assert [name for name, finding in found.items() if not finding.ok and finding.because is None] == ["ran"]


def test_a_figure_below_the_bar_names_what_to_look_at_on_nvlinks(tmp_path: Path) -> None:
    slow = replace(WANTED, bar_busbw=700.0)
    found = judged(run(tmp_path, log(), slow), slow)
    assert (found["busbw"].state, found["busbw"].because) == ("drift", None)
    assert "nvidia-smi nvlink -e" in found["busbw"].fix


# -- busbar diagnose -------------------------------------------------------------------------------------------------


def diagnosed(said: dict[int, list[str]]) -> tuple[str | None, str]:
    """State of nccl_log.mnnvl, and what is shown."""
    read_ = job.read([text_of(said, "").encode()])
    [one] = split(read_)
    found = {finding.check: finding for finding in judge.judge(read_)}
    own = found.get("nccl_log.mnnvl")
    return None if own is None else f"{own.state}: {own.have}", "\n".join(shown(read_, one))


def test_a_log_tells_whether_nvlink_between_hosts_is_on() -> None:
    state, text = diagnosed(log())
    assert state == "ok: NVLink"
    assert "NVLink between hosts (MNNVL) is on, on node01, node02" in text
    state, _text = diagnosed(log(on=0, nodes=2, extra=("NCCL_P2P_DISABLE set by environment to 1.",)))
    assert state == "drift: NVLink between hosts is off; cause: NCCL_P2P_DISABLE=1"
    # Whoever has switched it off knows; and of two racks, or of a board without NVLinks to others, there is nothing.
    state, text = diagnosed(log(on=0, nodes=2, extra=("NCCL_MNNVL_ENABLE set by environment to 0.",)))
    assert state is None
    assert "switched off by NCCL_MNNVL_ENABLE=0, though node01, node02 are of one NVLink domain" in text
    other = fabric(UUID.replace("1f", "2f"))
    for fabrics in ((fabric(), other), (fabric("0.0", "0x0"), fabric("0.0", "0x0")), ("", "")):
        assert diagnosed(log(on=0, nodes=2, fabrics=fabrics))[0] is None


def test_a_job_that_is_not_asked_for_nvlink_proves_none_of_it(tmp_path: Path) -> None:
    assert run(tmp_path, log(), OVER_NETWORK).network.nvlink is None  # type: ignore[union-attr]
    assert mnnvl.read(split(job.read([b""]))[0]) == Nvlink()
