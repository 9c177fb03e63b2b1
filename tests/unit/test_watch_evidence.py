# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What RAS and Inspector report of a job that stalls, and what the ring reports of findings and of a job's time."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Session
from ansible_collections.busbar.fabric.plugins.module_utils.watch import evidence, history, job_state, program, ring
from ansible_collections.busbar.fabric.plugins.module_utils.watch.job_state import Gpu, Stall

from busbar import cli
from tests.trees import link, put
from tests.unit.test_inspector import line
from tests.unit.test_nccl_hang import Start, start  # noqa: F401
from tests.unit.test_watch import settings  # noqa: F401

AT = 1_795_000_000.0


def ras(host: Host, pids: list[int]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.check, one.ranks) for one in evidence.of_ras(host, pids)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "APART", 0.3)


@pytest.mark.parametrize(
    ("job", "stopped", "found"),
    [
        ({}, 1, [("nccl_hang.missing", (1,))]),
        ({"late": {"2": 3}}, None, [("nccl_hang.behind", (2,))]),
        ({}, None, []),
        ({"version": "2.28.3", "late": {"2": 3}}, None, [("nccl_hang.answer", ())]),
        ({"misbehaves": "garbage"}, None, [("nccl_hang.answer", ())]),
    ],
)
def test_the_ras_of_a_job_names_the_rank(
    start: Start,  # noqa: F811
    job: dict[str, Any],
    stopped: int | None,
    found: list[tuple[str, tuple[int, ...]]],
) -> None:
    _port, pids, host = start(**job)
    if stopped is not None:
        os.kill(pids[stopped], signal.SIGSTOP)
    assert ras(host, pids) == found
    # Processes of another job.
    assert ras(host, [os.getpid()]) == []


@pytest.mark.parametrize("how", ["silent", "endless", "drip"])
def test_a_ras_that_misbehaves_takes_no_longer_than_it_may(
    start: Start,  # noqa: F811
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evidence, "TOTAL", 2.0)
    begun = time.monotonic()
    _port, pids, host = start(misbehaves=how)
    assert ras(host, pids) == [("nccl_hang.answer", ())]
    assert time.monotonic() - begun < 60


def inspector(folder: Path, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    stall = Stall("job", kind, AT - 300, AT)
    return [(one.check, one.ranks) for one in evidence.of_inspector(Host(), stall, str(folder))]


def test_the_records_of_inspector_name_the_rank(tmp_path: Path) -> None:
    for seconds, kind, check in ((300, job_state.STOPPED, "behind"), (1, job_state.SLOW, "late_rank")):
        when = int((AT - seconds) * 1e6)
        for rank, last in enumerate((60, 59)):
            lines = [line(rank, number, (31_000, 500)[rank], time=when) for number in range(last)]
            (tmp_path / f"n{rank}.log").write_text("\n".join([*lines, "{torn"]))
        assert inspector(tmp_path, kind) == [(f"inspector.{check}", (1,))]
    # Another job's, a link, and a pipe that nothing writes to.
    (tmp_path / "old.log").write_text(line(0, 5, communicator="0xb", time=when - 10**10))
    (tmp_path / "link.log").symlink_to(tmp_path / "n0.log")
    os.mkfifo(tmp_path / "pipe.log")
    assert inspector(tmp_path, job_state.STOPPED) == [("inspector.behind", (1,))]
    assert inspector(tmp_path / "none", job_state.STOPPED) == []


def test_a_stall_is_reported_with_its_evidence_and_asked_about_once(
    settings: program.Settings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trusted, "doubt", lambda *_paths: "")
    asked: list[set[int]] = []

    def collect(_host: Host, _stall: Stall, pids: set[int], _folder: str) -> list[evidence.Evidence]:
        asked.append(pids)
        return [evidence.Evidence("nccl_hang.behind", (1,), "RAS names rank 1: communicator 0xa: ...")]

    monkeypatch.setattr(program, "collect", collect)
    events: list[program.Event] = []
    watch = program.Watch(settings, events.append)
    gpus = [
        Gpu(f"{job}{rank}", *values, 700.0, job, rank, 40 + rank)
        for job in ("a", "b")
        for rank, values in enumerate(((100.0, 0.0, 118.0), (0.0, 0.0, 117.0)))
    ]
    for at in range(1000, 1010):
        watch.take(float(at), gpus)
    assert (len(asked), "RAS names rank 1: communicator 0xa" in events[0].text) == (1, True)
    assert json.loads(json.dumps(events[0].details["evidence"]))[0]["ranks"] == [1]


# -- the ring ----------------------------------------------------------------------------------------------------------

GPU, NIC = "0000:1b:00.0", "0000:3b:00.0"
XID: dict[str, object] = {"kind": "Xid", "gpu": GPU, "number": 79, "since": AT}
FLAP: dict[str, object] = {"kind": "link flapped", "port": "mlx5_0/1", "since": AT + 60}
LINE: dict[str, object] = {"kind": "NIC", "device": "0000:3b:00.0", "rule": "nic.module", "since": AT}
RAIL = Check("platform.rail_state", why="w", fix="f")


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """A machine whose watch has seen an Xid twice and a flap."""
    store = ring.Ring(str(tmp_path / "var/lib/busbar/watch"))
    odd: list[dict[str, object]] = [{**XID, "gpu": "x"}, {**XID, "number": "79"}, {"gpus": []}, {**LINE, "rule": "x"}]
    odd += [{**FLAP, "port": "../x/1"}, {**FLAP, "since": "x"}]
    for at, record in zip((0, *range(1, 7), 6, 62, 9), (XID, *odd, XID, FLAP, LINE), strict=True):
        store.add(AT + at, record)
    link(tmp_path / "sys/class/infiniband/mlx5_0/device", tmp_path / f"sys/devices/pci0000:3a/{NIC}")
    return tmp_path


def test_findings_have_since_when_and_how_often(seen: Path) -> None:
    host = Host(str(seen), str(seen))
    (seen / f"sys/devices/pci0000:3a/{NIC}").mkdir(parents=True)
    other = Check("nic_firmware.version", why="w", fix="f")
    found = [check.judge(f"{NIC} mlx5_0", "drift", "a", "b").to_dict() for check in (RAIL, other)]
    found.append(Check("node_health.xid", why="w", fix="f").judge(f"{GPU} GPU0", "drift", "a").to_dict())
    texts = [one["have"] for one in history.annotate(host, found)]
    times = [time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(AT + more)) for more in (60, 62, 0, 6, 9)]
    flap = f"link flapped once since {times[0]}, last {times[1]}"
    assert texts == [
        f"b; busbar watch: {flap}; nic.module once since {times[4]}, last {times[4]}",
        "b",
        f"busbar watch: Xid 79 2 times since {times[2]}, last {times[3]}",
    ]
    assert history.annotate(Host(str(seen / "none"), str(seen / "none")), found) == found


def test_an_audit_has_it_too(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Check("node_health.xid", why="w", fix="f").judge(f"{GPU} GPU0", "drift", "a", "b")
    monkeypatch.setattr(module, "execute", lambda *_: {"findings": [finding.to_dict()]})
    step = {"module": "node_lock", "arguments": {"state": "held", "system_root": str(seen)}}
    assert "b; busbar watch: Xid 79 2 times since" in json.dumps(audit._step(step, Session()))


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        (AT + 30, [GPU, NIC, "mlx5_0"]),
        (AT - 3000, []),
        (None, [GPU, NIC, "mlx5_0"]),
    ],
)
def test_a_log_is_diagnosed_with_the_events_of_its_time(
    seen: Path, stamp: float | None, found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    when = "" if stamp is None else time.strftime("[%Y-%m-%d %H:%M:%S] ", time.localtime(stamp))
    put(seen, "log", f"{when}node01:4242:4242 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    store = str(seen / "var/lib/busbar/watch")
    cli.main(["diagnose", str(seen / "log"), "--json", "--watch", store])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [one["subject"] for one in findings if one["check"] == "nccl_log.node_events"] == found
    assert cli.main(["diagnose", str(seen / "log"), "--watch", store + "/none"]) == 3
    assert cli.main(["diagnose", "--recorder", store, "--watch", store]) == 1
    capsys.readouterr()
