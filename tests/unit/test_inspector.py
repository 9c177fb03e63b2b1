# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rank a job waits for, by the records of NCCL's Inspector."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import inspector

from busbar import inspector as command
from busbar.cli import main
from busbar.drift import job_bandwidth
from busbar.drift.run import HostResult

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


class Case(NamedTuple):
    """durations: of each rank's collectives, in microseconds.   late, behind: ranks.   minutes: since the last.

    future: ranks whose clock is a day fast.
    """

    durations: dict[int, list[int]]
    verdict: str
    late: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    ranks: int = 2
    minutes: int = 0
    future: tuple[int, ...] = ()


EVEN, WAITS = [500] * 40, [500] * 30 + [20_500] * 10
STOPPED = {0: EVEN, 1: EVEN[:39]}, command.STOPPED, (), (1,)
CASES = {
    "even": Case({0: EVEN, 1: EVEN}, command.OK),
    "one is late": Case({0: WAITS, 1: EVEN}, command.SLOW, late=(1,)),
    "one of four is late": Case({0: WAITS, 1: WAITS, 2: EVEN, 3: WAITS}, command.SLOW, late=(2,), ranks=4),
    "late in turn": Case({0: EVEN[:20] + [20_500] * 20, 1: [20_500] * 20 + EVEN[:20]}, command.OK),
    "late by half a millisecond": Case({0: [1499] * 40, 1: EVEN}, command.OK),
    "late by one": Case({0: [1500] * 40, 1: EVEN}, command.SLOW, late=(1,)),
    "less than half is lost": Case({0: [3000] * 40, 1: [1600] * 40}, command.OK),
    "in the middle of a job": Case({0: EVEN, 1: EVEN[:30]}, command.OK, minutes=4),
    "stopped": Case(*STOPPED, minutes=5),
    "ended": Case({0: EVEN, 1: EVEN}, command.OK, minutes=60),
    "no record of a rank": Case({0: EVEN, 1: EVEN}, command.NOT_KNOWN, ranks=3),
    "one rank": Case({0: EVEN}, command.NOT_KNOWN, ranks=1),
    "no collective in common": Case({0: EVEN * 30, 1: EVEN}, command.NOT_KNOWN),
    "stopped, and a clock is wrong": Case(*STOPPED, minutes=5, future=(0,)),
    "a wrong clock": Case({0: EVEN, 1: EVEN}, command.NOT_KNOWN, minutes=60, future=(0,)),
    "more than the window": Case({0: WAITS + EVEN * 20, 1: EVEN * 21}, command.OK),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rank_that_the_others_wait_for(case: Case) -> None:
    collector = inspector.Collector()
    for rank, durations in case.durations.items():
        for number, duration in enumerate(durations):
            day = 24 * 60 * MINUTE * (rank in case.future)
            collector.add_line(line(rank, number, duration, case.ranks, time=NOW + day))
    found = inspector.judge(collector, NOW + case.minutes * MINUTE)
    assert command.verdict(found)[0] == case.verdict
    assert tuple(late.rank for late in found.late) == case.late
    assert tuple(behind.rank for behind in found.behind) == case.behind
    assert {finding.state for finding in inspector.findings(found)} == {
        command.OK: set(),
        command.NOT_KNOWN: {"unknown"},
    }.get(case.verdict, {"drift", *(["unknown"] if case.future else [])})


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
