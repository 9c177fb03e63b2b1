"""What is judged of a run over the trays of one NVLink domain, from NCCL's lines of two releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import judge, log_reader
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import Moved

from tests.unit.test_nccl_perf_network import WANTED as OVER_NETWORK
from tests.unit.test_nccl_perf_network import read, text_of

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


# -- busbar diagnose -------------------------------------------------------------------------------------------------


def diagnosed(said: dict[int, list[str]]) -> str | None:
    """Return state and text of nccl_log.mnnvl."""
    result = judge.judge(log_reader.read(text_of(said, "").encode()))
    own = {finding.check: finding for finding in result.findings}.get("nccl_log.mnnvl")
    return None if own is None else f"{own.state}: {own.have}"


def test_a_log_shows_whether_nvlink_between_hosts_is_on() -> None:
    assert diagnosed(log()) == "ok: NVLink"
    off = log(on=0, nodes=2, extra=("NCCL_P2P_DISABLE set by environment to 1.",))
    assert diagnosed(off) == "drift: NVLink between hosts is off; cause: NCCL_P2P_DISABLE=1"
    # Who has switched it off knows; and of two racks, or of a board without NVLinks to others, nothing is wrong.
    assert diagnosed(log(on=0, nodes=2, extra=("NCCL_MNNVL_ENABLE set by environment to 0.",))) is None
    other = fabric(UUID.replace("1f", "2f"))
    for fabrics in ((fabric(), other), (fabric("0.0", "0x0"), fabric("0.0", "0x0")), ("", "")):
        assert diagnosed(log(on=0, nodes=2, fabrics=fabrics)) is None


def test_a_job_that_is_not_asked_for_nvlink_proves_none_of_it(tmp_path: Path) -> None:
    assert read(tmp_path, text_of(log()), OVER_NETWORK, QUIET).network.nvlink is None  # type: ignore[union-attr]
