"""SHARP: what a node lacks for it, what NCCL's log proves of it, and what two benchmarks say that it brings."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import judge, log_reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.jobs import jobs
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.transport import collnet
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile as profiles
from ansible_collections.busbar.fabric.plugins.module_utils.sharp import module
from ansible_collections.busbar.fabric.plugins.module_utils.sharp import plan as sharp
from ansible_collections.busbar.fabric.plugins.module_utils.sharp.read import SharpState, SharpWanted, reached
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema, sharp_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import Job, Record, Row
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import shipped

from busbar.cli import main
from lab import sharp_faults, sharp_files
from tests import goldens
from tests.unit import finding_rows
from tests.unit.diagnose.job_log import HEALTHY, ranks
from tests.unit.sample_cluster_record import GIB, JOB, RECORD

PROFILE = shipped()["hgx-h100"]
WANT = SharpWanted(profiles.for_fabric(profiles.parse(PROFILE, "hgx-h100"), "infiniband"), manager="am01", nodes=4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node that has all it needs."""
    root = tmp_path / "node"
    sharp_files.install(root)
    sharp_files.switch_on(root)
    return root


def planned(root: Path, want: SharpWanted = WANT, said: str = "") -> tuple[Finding, ...]:
    return sharp.plan(SharpState(Host(str(root), str(root)), want, lambda _host, _port: said), want).findings


def found(root: Path, want: SharpWanted = WANT, said: str = "") -> list[tuple[str, str, str]]:
    """check, subject and state of what is not ok."""
    return [(one.check, one.subject, one.state) for one in planned(root, want, said) if not one.ok]


# -- a node ----------------------------------------------------------------------------------------------------------


def answered(root: Path, **changes: Any) -> dict[str, Any]:
    """What the module gives. changes: of its options."""
    given = {"profile": PROFILE, "profile_name": "hgx-h100", "fabric": "infiniband", "directories": [], "manager": ""}
    return module.work(Host(str(root), str(root)), {**given, "nodes": 4, **changes}, True)


@pytest.mark.golden
@pytest.mark.parametrize("name", sharp_faults.FAULTS)
def test_every_fault_has_its_finding_and_no_other(root: Path, name: str) -> None:
    fault = sharp_faults.FAULTS[name]
    sharp_faults.make(root, name)
    assert found(root) == [(f"sharp.{fault['check']}", fault["subject"], fault.get("state", "drift"))]
    rows = [[*finding_rows.row(one, "sharp."), one.source] for one in planned(root) if not one.ok]
    goldens.check("sharp", name, rows)


def test_directories_of_the_site_are_the_only_places(root: Path) -> None:
    (root / "srv").mkdir()
    moved = replace(WANT, directories=("/srv",))
    assert [check for check, _subject, _state in found(root, moved)] == ["sharp.library", "sharp.plugin"]
    lib = f"/{sharp_files.HPCX}"
    both = replace(WANT, directories=(f"{lib}/sharp/lib", f"{lib}/nccl_rdma_sharp_plugin/lib"))
    assert found(root, both) == []


def test_the_environment_comes_before_the_file(root: Path) -> None:
    sharp_faults.make(root, "collnet-off")
    sharp_files.add(root, sharp_files.ENVIRONMENT, "NCCL_COLLNET_ENABLE=0x1")
    assert found(root) == []


def test_the_manager_is_unknown_until_somebody_says_where_it_is(root: Path) -> None:
    assert found(root, replace(WANT, manager="")) == [("sharp.manager", "sharp_am", "unknown")]
    assert found(root, said="no response within 3 s") == [("sharp.manager", "am01", "drift")]


def test_a_port_is_asked_by_one_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reached("127.0.0.1", port) == ""
    assert reached("127.0.0.1", port) == "Connection refused"


@pytest.mark.parametrize(
    ("fabric", "rate", "have"),
    [("ethernet", 400, "RoCE switches do not reduce"), ("infiniband", 100, "rail 0 of 100 Gbit/s")],
)
def test_where_the_fabric_cannot_nothing_else_is_asked(root: Path, fabric: str, rate: float, have: str) -> None:
    data = {**PROFILE, "rail_defaults": {**PROFILE["rail_defaults"], "rate_gbps": rate}}
    result = answered(root, profile=data, fabric=fabric)
    assert [(one["check"], one["state"]) for one in result["findings"]] == [("sharp.fabric", "unsupported")]
    assert have in result["findings"][0]["have"]


def test_the_module_s_answer_is_valid_and_says_what_it_does_not_prove(root: Path) -> None:
    result = answered(root, nodes=1)
    result_schema.check("sharp", json.loads(json.dumps(result)))
    assert [one["check"] for one in result["findings"]] == ["sharp.manager", "sharp.threshold"]
    assert "only NCCL's log proves" in result["notes"][0]
    with pytest.raises(ParseError, match="'lib' is not an absolute path"):
        answered(root, directories=["lib"])


def test_a_threshold_is_taken_out_of_the_file_that_sets_it(root: Path) -> None:
    sharp_files.add(root, sharp_files.ENVIRONMENT, "NCCL_COLLNET_NODE_THRESHOLD=9")
    [one] = [one for one in answered(root)["findings"] if one["check"] == "sharp.threshold"]
    assert re.fullmatch("remove it from /etc/environment:[0-9]+: the default of both thresholds is 2", one["fix"])


@pytest.mark.parametrize("odd", ["pipe", "folder", "garbage", "nothing"])
def test_odd_files_are_no_plugin_and_hold_nobody_up(root: Path, odd: str) -> None:
    file = root / sharp_files.HPCX / "nccl_rdma_sharp_plugin/lib/libnccl-net.so"
    sharp_faults.make(root, "plugin-missing")
    file.parent.mkdir(parents=True)
    if odd == "pipe":
        os.mkfifo(file)
    elif odd == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"\x7fELF\x02\x01" + bytes(300) if odd == "garbage" else b"")
    state = "drift" if odd in ("pipe", "folder") else "unknown"
    assert found(root) == [("sharp.plugin", "libnccl-net.so", state)]


# -- NCCL's log ------------------------------------------------------------------------------------------------------


CONNECTED = ["node%d:%d:%d [0] NCCL INFO rank %d Connected CollNet" % (n, 100 + n, 100 + n, n) for n in range(2)]


def split(rank: int) -> list[str]:
    """Lines of a communicator of one rank, which connects in it."""
    head = f"node{rank}:{100 + rank}:{100 + rank} [0] NCCL INFO "
    begin = f"{head}ncclCommSplit comm 0xb{rank} rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 parent 0xa{rank}"
    begin += f" color {rank} key 0 commId 0x{rank}ff - Init"
    return [f"{begin} START", f"{head}rank 0 Connected CollNet", f"{begin} COMPLETE"]


@pytest.mark.parametrize(
    ("said", "lines", "missing"),
    [
        # Each rank has to log it, for itself, and in the job's communicator.
        ([], CONNECTED, ""),
        ([], CONNECTED[:1], "1 of 2 ranks did not connect to SHARP (Connected CollNet): ranks 1"),
        ([], [CONNECTED[0].replace("rank 0", "rank 1")], "2 of 2 ranks did not connect to SHARP"),
        ([], [*split(0), *split(1)], "2 of 2 ranks did not connect to SHARP"),
        (["SHARP rank 0/2 initialized on mlx5_0:1"], [], "the plugin's own line of 2 ranks is not a proof"),
        (["64 coll channels, 64 collnet channels, 16 nvls channels, 64 p2p channels, 8 p2p channels per peer"], [],
         "NVLS is there, which reduces in the node's NVSwitch and not in the fabric"),
        (["SHARP rank 0/2 initialized on mlx5_0:1", "Cannot initialize CollNet, using point-to-point network instead"],
         [], "NCCL reports: Cannot initialize CollNet"),
        (["Communicator has 2 nodes which is less than CollNet node threshold 4, disabling CollNet"], [],
         "less than CollNet node threshold 4"),
    ],
)  # fmt: skip
def test_only_nccls_log_proves_it(said: list[str], lines: list[str], missing: str) -> None:
    content = ranks(*HEALTHY, "NCCL_COLLNET_ENABLE set by environment to 1.", *said) + "".join(f"{x}\n" for x in lines)
    found = log_reader.read(content.encode())
    proof = collnet(jobs(found.state)[0])
    assert (proof.ranks, proof.proven) == (2, not missing)
    assert missing in proof.missing
    effects = [one.have or "" for one in judge.judge(found).findings if one.check == "nccl_log.variable_effect"]
    assert bool(effects) is bool(missing)
    assert all(missing in effect for effect in effects)


# -- two benchmarks --------------------------------------------------------------------------------------------------


def measured(algbw: float, algorithm: str = "", size: int = 4 * GIB, **more: Any) -> Job:
    busbw = algbw * sharp_judge.bound(16)
    rows = (
        Row(size=size, time_us=size / algbw / 1e3, algbw=algbw, busbw=busbw, spread=0.01, repeats=5),
        Row(size=1 << 20, time_us=50.0, algbw=1000.0, busbw=1900.0, spread=0.01, repeats=5),
    )
    return replace(JOB, rows=rows, max_bytes=size, busbw=busbw, algorithm=algorithm, **more)


def record(*jobs: Job) -> Record:
    return replace(RECORD, jobs=jobs, findings=())


UNPROVEN = {**JOB.transport, "proven": False}
LOST = {**UNPROVEN, "missing": ["3 of 16 ranks did not connect to SHARP (Connected CollNet): ranks 2-4"]}


@pytest.mark.parametrize(
    ("job", "without", "expected"),
    [
        (measured(290.0, "SHARP"), record(measured(190.0)), ["ok", "ok"]),
        (measured(191.0, "SHARP"), record(measured(190.0)), ["ok", "drift"]),
        (measured(150.0, "SHARP"), record(measured(190.0)), ["ok", "drift"]),
        # At most 2(n-1)/n, 1.875 over 16 ranks: nothing makes it 2 to 4.
        (measured(400.0, "SHARP"), record(measured(190.0)), ["ok", "unknown"]),
        (measured(290.0, "SHARP"), None, ["ok", "unknown"]),
        (measured(290.0, "SHARP"), replace(record(measured(190.0)), simulated=False), ["ok", "unknown"]),
        (measured(290.0, "SHARP"), record(measured(190.0, size=GIB // 2)), ["ok", "unknown"]),
        (measured(290.0, "SHARP", hosts=("n1", "n3")), record(measured(190.0)), ["ok", "unknown"]),
        (measured(290.0, "SHARP", transport=LOST), record(measured(190.0)), ["drift", "unknown"]),
        (measured(290.0, "SHARP", transport=UNPROVEN), record(measured(190.0)), ["unknown", "unknown"]),
        (measured(290.0, "SHARP", transport={}), record(measured(190.0)), ["unknown", "unknown"]),
    ],
)
def test_sharp_is_judged_by_algbw_beside_a_run_without(job: Job, without: Record | None, expected: list[str]) -> None:
    proof, gain = sharp_judge.judge(record(job), without)
    assert [proof.state, gain.state] == expected
    assert gain.because == (None if proof.ok else proof.id)


def test_two_records_are_judged_where_one_of_them_used_it() -> None:
    rings, switches = record(measured(190.0)), record(measured(290.0, "SHARP"))
    assert sharp_judge.of_two([rings], [switches]) == sharp_judge.judge(switches, rings)
    assert sharp_judge.of_two([switches], [rings]) == sharp_judge.judge(switches, rings)
    for before, after in (([rings], [rings]), ([switches], [switches]), ([rings, rings], [switches]), ([], [switches])):
        assert sharp_judge.of_two(before, after) == []


@pytest.mark.parametrize(("algbw", "code", "said"), [(290.0, 0, "gain ok: 290 GB/s"), (191.0, 2, "gain drift: 191")])
def test_busbar_benchmark_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algbw: float, code: int, said: str
) -> None:
    cluster_record.write(tmp_path / "rings", record(measured(190.0)))
    cluster_record.write(tmp_path / "sharp", record(measured(algbw, "SHARP")))
    rings, sharp = (str(tmp_path / name) for name in ("rings", "sharp"))
    for result, other in ((rings, sharp), (sharp, rings)):
        assert main(["benchmark", result, "--against", other]) == code
        assert said in " ".join(capsys.readouterr().out.split())
    assert main(["benchmark", sharp, "--against", rings, "--json"]) == code
    assert [one["check"] for one in json.loads(capsys.readouterr().out)["sharp"]][:1] == (["sharp.proof"])
