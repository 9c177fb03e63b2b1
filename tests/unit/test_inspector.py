# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rank a job waits for, by the records of NCCL's Inspector."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import inspector

from busbar import inspector as command
from busbar.cli import main
from busbar.drift import job_bandwidth
from busbar.drift.run import HostResult
from tests import readings

NOW = 1_795_000_000_000_000
MINUTE = 60 * 10**6


def line(rank: int, number: int, duration: int = 500, ranks: int = 2, **more: Any) -> str:
    """Return a record as the plugin of NCCL 2.30 writes it."""
    size = more.pop("size", 1 << 20)
    values = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": duration}
    return json.dumps(
        {
            "header": {"id": more.pop("communicator", "0xa"), "rank": rank, "n_ranks": ranks, "nnodes": ranks},
            "metadata": {"dump_timestamp_us": more.pop("time", NOW), "hostname": f"n{rank}", "pid": 100 + rank},
            "coll_perf": {**values, "coll_busbw_gbs": size / duration / 1000, "coll_proto": "Simple", **more},
        }
    )


EVEN, WAITS = [500] * 40, [500] * 30 + [20_500] * 10


@pytest.mark.parametrize(("name", "durations", "verdict", "more"), readings.cases("inspector_records"))
def test_the_rank_that_the_others_wait_for(name: str, durations: Any, verdict: str, more: dict[str, Any]) -> None:
    collector = inspector.Collector()
    for rank, runs in enumerate(durations):
        of_rank = [duration for many, duration in runs for _number in range(many)]
        day = 24 * 60 * MINUTE * (rank in more.get("future", ()))
        for number, duration in enumerate(of_rank):
            collector.add_line(line(rank, number, duration, more.get("ranks", 2), time=NOW + day))
    found = inspector.judge(collector, NOW + more.get("minutes", 0) * MINUTE)
    assert command.verdict(found)[0] == verdict, name
    assert [late.rank for late in found.late] == more.get("late", [])
    assert [behind.rank for behind in found.behind] == more.get("behind", [])
    states = {"drift"} if verdict in ("slow", "stopped") else set[str]()
    states |= {"unknown"} if verdict == "unknown" or "future" in more else set()
    assert {finding.state for finding in inspector.findings(found)} == states


def test_a_process_is_named_once_and_figures_are_medians() -> None:
    collector = inspector.Collector()
    for communicator, (rank, durations) in product(("0xa", "0xb"), ((0, WAITS), (1, EVEN))):
        for number, duration in enumerate(durations):
            collector.add_line(line(rank, number, duration, communicator=communicator))
    collector.add_line(line(0, 41, 1000, size=1 << 30))
    found = inspector.judge(collector, NOW)
    assert [(late.process, late.waits, round(late.lost, 2)) for late in found.late] == [(("n1", 101), 10, 0.91)]
    figures: dict[Any, Any] = {(one.host, str(one.operation)): (one.records, one.busbw) for one in found.figures}
    assert figures["n0", "AllReduce of 1M"] == (80, pytest.approx(2.097, rel=0.01))
    assert figures["n0", "AllReduce of 1G"] == (1, pytest.approx(1074, rel=0.01))


def test_lines_that_are_no_collective() -> None:
    """As many are refused as the heading says of each line below it."""
    lines = [("", 1), ("[" * 60_000, 1), (" " * inspector.MOST_LINE + line(0, 1), 1)]
    for part in (Path(__file__).parent / "cases/inspector_lines.txt").read_text().split("#== ")[1:]:
        heading, *texts = part.splitlines()
        lines += [(text, int(heading)) for text in texts]
    for text, refused in lines:
        collector = inspector.Collector()
        collector.add_line(text)
        assert (collector.records, collector.refused) == (0, refused), text[:300]


def test_hostile_numbers_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "_MOST_MEMBERS", 3)
    collector = inspector.Collector()
    for number in range(5):
        collector.add_line(line(number, number, ranks=1 << 20, communicator=hex(number)))
    found = inspector.judge(collector, NOW)
    assert (collector.records, collector.refused) == (3, 2)
    assert found.missing["0x1"] == ((1 << 20) - 1, 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "n0"
    folder.mkdir()
    assert main(["diagnose", "--inspector", str(folder)]) == 1
    assert main(["diagnose", "--inspector", str(folder), "--recorder", str(folder)]) == 1
    for rank, durations in ((0, WAITS), (1, EVEN)):
        text = "".join(line(rank, number, duration) + "\n" for number, duration in enumerate(durations))
        (folder / f"n0-pid{rank}.log").write_text(text)
    os.mkfifo(folder / "n0-pid2.log")
    capsys.readouterr()
    assert main(["diagnose", "--inspector", str(tmp_path), "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    assert data["late"][0]["process"] == {"host": "n1", "pid": 101}
    assert [finding["check"] for finding in data["findings"]] == ["inspector.late_rank", "inspector.readable"]
    assert main(["diagnose", "--inspector", str(tmp_path), "--all"]) == 2
    assert "busbw: n1: AllReduce of 1M: 2.1 GB/s (median of 40)" in capsys.readouterr().out


def test_the_bandwidth_of_jobs_is_a_series_of_each_host(tmp_path: Path) -> None:
    for rank in range(3):
        lines = [line(rank, number, 500) for number in range(20)] + [line(rank, 20, 900, size=1 << 30)]
        (tmp_path / f"{rank}.log").write_text("\n".join(lines))
    hosts = {name: HostResult(name, "complete") for name in ("n0", "n1.example", "n2.a", "n2.b", "n3")}
    found = job_bandwidth.add(hosts, tmp_path, NOW / 1e6 + 60)
    # Which of two hosts a short name means is not known.
    assert {host for host, result in found.items() if result.busbw} == {"n0", "n1.example"}
    [(name, values)] = found["n1.example"].busbw.items()
    assert (name, values["bar"]) == ("jobs: AllReduce of 1G", None)
    assert values["busbw"] == pytest.approx(1193, rel=0.01)
    assert job_bandwidth.add(hosts, tmp_path, NOW / 1e6 + 2 * job_bandwidth.DAY) == hosts
