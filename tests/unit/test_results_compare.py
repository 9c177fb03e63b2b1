"""Two results compared: what is better or worse is said to be, noise never is, and what cannot be told is said, too."""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.plugin_utils import benchmark_results, results_compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.benchmark_results import Results, of_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import Job, Row

from busbar.cli import main
from tests import campaigns, goldens
from tests.nested import changed, places
from tests.unit.sample_cluster_record import GIB, JOB, RECORD

SMALL = Row(size=8, time_us=20.0, algbw=0.0, busbw=0.0, time_p99_us=22.0, spread=0.02, repeats=5)
RUN = campaigns.RUN | {"finished": 1795000000.0, "simulated": False, "stored": False, "nccl_library": "2.28.3"}
RUN |= {"busbw": 360.0, "rows": [{"size": 8 * GIB, "out_of_place": 360.0, "in_place": 361.0}], "nccl_tests": "2.17.6"}
NODE: dict[str, Any] = {"format": 1, "host": "n1", "simulated": False, "runs": [RUN], "findings": [], "passed": []}


def job(busbw: float, spread: float | None = 0.01, repeats: int = 5, **more: Any) -> Job:
    last = Row(size=GIB, time_us=1.0, algbw=1.0, busbw=busbw, spread=spread, repeats=repeats)
    return replace(JOB, rows=(SMALL, last), **more)


def results(*jobs: Job, **more: Any) -> Results:
    return of_record(replace(RECORD, jobs=jobs, **more), "x")


def verdicts(before: Results, after: Results, **more: Any) -> list[str]:
    return [one.verdict for one in results_compare.compare(before, after, **more)]


@pytest.mark.parametrize(
    ("after", "spread", "repeats", "verdict"),
    [
        (300.0, 0.01, 5, "worse"),
        (380.0, 0.01, 5, "better"),
        (345.0, 0.01, 5, "within noise"),
        # 6 % of both spreads, and less than that of the two together.
        (330.0, 0.03, 5, "within noise"),
        (325.0, 0.03, 5, "worse"),
        # Three repeats may lie close together by chance.
        (325.0, 0.03, 3, "within noise"),
        # However well repeats agree, days differ.
        (341.0, 0.0, 10, "within noise"),
        # Not repeated, or once only: no verdict, however large the difference.
        (345.0, None, 1, "not judged"),
        (100.0, None, 1, "not judged"),
        (330.0, 0.04, 2, "not judged"),
    ],
)
def test_a_difference_counts_where_it_exceeds_the_noise_of_both(
    after: float, spread: float | None, repeats: int, verdict: str
) -> None:
    before, later = results(job(350.0, spread, repeats)), results(job(after, spread, repeats))
    assert verdicts(before, later) == ["within noise", verdict]


def _share(draw: Callable[[], float], true: float, repeats: int, day: float = 0.005) -> float:
    """Return the share of 4000 comparisons that call it worse. draw: a figure of one repeat, about 1."""
    chance, worse = random.Random(17), 0

    def point(middle: float) -> Row:
        today = middle * chance.gauss(1, day)
        each = [today * draw() for _ in range(repeats)]
        median = statistics.median(each)
        return Row(size=GIB, busbw=median, spread=(max(each) - min(each)) / median, repeats=repeats)

    for _ in range(4000):
        old, new = point(350.0), point(350.0 * true)
        noise, measured = results_compare.noise_of(old, new)
        assert (noise is not None) == measured == (repeats >= 3)
        worse += noise is not None and (new.busbw or 0) / (old.busbw or 1) - 1 < -noise
    return worse / 4000


CHANCE = random.Random(18)
DISTRIBUTIONS = {
    "normal 1 %": lambda: CHANCE.gauss(1, 0.01),
    "normal 5 %": lambda: CHANCE.gauss(1, 0.05),
    "normal 15 %": lambda: max(CHANCE.gauss(1, 0.15), 0.1),
    "lognormal": lambda: CHANCE.lognormvariate(0, 0.1),
    "a fifth of them 30 % slower": lambda: CHANCE.gauss(0.7 if CHANCE.random() < 0.2 else 1, 0.01),
    "seldom very slow": lambda: CHANCE.gauss(0.3 if CHANCE.random() < 0.05 else 1, 0.02),
}


@pytest.mark.parametrize("repeats", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_of_one_distribution_is_not_worse(name: str, repeats: int) -> None:
    assert _share(DISTRIBUTIONS[name], 1.0, repeats) <= 0.01


@pytest.mark.parametrize(
    ("true", "repeats", "least"), [(0.9, 5, 0.95), (0.9, 10, 0.95), (0.9, 3, 0.75), (0.875, 5, 0.99)]
)
def test_a_regression_is_found_where_noise_is_1_percent(true: float, repeats: int, least: float) -> None:
    assert _share(DISTRIBUTIONS["normal 1 %"], true, repeats) >= least


def of_time(time_us: float | None, **more: Any) -> Job:
    return replace(job(341.0), rows=(replace(SMALL, time_us=time_us), job(341.0).rows[1]), **more)


def pairs(factor: float) -> Results:
    return results(*(job(350.0 * (factor if i == 7 else 1), hosts=(f"n{2 * i}", f"n{2 * i + 1}")) for i in range(500)))


def rails(*figures: float) -> Results:
    return results(
        *(job(busbw, scope="rail", name=f"rail sendrecv 1G rail {n} n1+n2") for n, busbw in enumerate(figures))
    )


ONE = results(job(350.0))
LARGE = results(replace(JOB, rows=(replace(job(1).rows[1], size=2 * GIB),)))
NO_ROWS = results(replace(JOB, rows=()))
GRADIENT = Row(size=14 * 10**9, busbw=351.0, spread=0.01, repeats=5)
MODEL = replace(JOB, rows=(GRADIENT,), what="whole gradient", max_bytes=14 * 10**9)
SWAPPED = results(job(350.0, hosts=("n2", "n1")), MODEL)
NEWER = results(job(200.0, versions={"nccl": "2.29.1"}))
UNREPEATED = replace(SMALL, time_us=23.0, spread=None, repeats=1)
HUNDREDS = results(*(job(350.0, hosts=(f"n{i}",)) for i in range(1000)))
SLOWER = results(*(job(100.0 if i == 7 else 300.0 + i % 3, hosts=(f"n{i}",)) for i in range(1000)))
PARTS = results(*(job(400.0 / n, hosts=tuple(f"n{i}" for i in range(n))) for n in (1, 2, 4)))
SEVERAL = [("all_gather", 340.0), ("reduce", 340.0), ("alltoall", 40.0), ("broadcast", 1.0)]
BEFORE = results(job(350.0), *(job(busbw, collective=name) for name, busbw in SEVERAL))
ONCE = job(90.0, None, 1, collective="alltoall")
AFTER = results(job(300.0), job(341.0, collective="all_gather"), of_time(47.0, collective="reduce"), ONCE)
COMPARED: dict[str, tuple[Results, Results, int, bool]] = {
    "small messages by their time": (ONE, results(of_time(47.0)), 80, False),
    "another name": (ONE, results(job(350.0, name="x")), 80, False),
    "small messages, not repeated": (ONE, results(replace(JOB, rows=(UNREPEATED, job(350.0).rows[1]))), 80, False),
    "other hosts": (ONE, results(job(350.0, hosts=("n1", "n3"))), 80, False),
    "other ranks": (ONE, results(job(350.0, ranks=8)), 80, False),
    "another collective": (ONE, results(job(350.0, collective="reduce")), 80, False),
    "another NCCL": (ONE, NEWER, 80, False),
    "another NCCL, as requested": (ONE, NEWER, 80, True),
    "simulated and measured": (ONE, results(job(350.0), simulated=False), 80, False),
    "other sizes": (ONE, LARGE, 80, False),
    "no figure": (ONE, results(replace(JOB, rows=(SMALL, Row(size=GIB)))), 80, False),
    "no figures on both sides": (NO_ROWS, NO_ROWS, 80, False),
    "nothing": (results(), results(), 80, False),
    "the order of hosts and programs": (results(MODEL, job(350.0)), SWAPPED, 80, False),
    "what changed stands first": (BEFORE, AFTER, 80, False),
    "another scope": (results(job(350.0, scope="leaf")), results(job(350.0, scope="cluster")), 120, False),
    # Where names leave no room for the noise it stands below.
    "each rail": (rails(48.0, 48.0), rails(19.0, 48.0), 72, False),
    "parts of a cluster": (PARTS, PARTS, 80, False),
    "500 pairs": (pairs(1), pairs(0.5), 120, False),
    "1000 hosts that changed alike": (HUNDREDS, SLOWER, 100, False),
    "figures next to nothing": (results(job(5e-324)), results(job(1e6)), 80, False),
}


@pytest.mark.golden
def test_two_results_compared() -> None:
    written = []
    for name, (before, after, width, versions) in COMPARED.items():
        found = results_compare.compare(before, after, versions=versions)
        for other in (40, 60, 200):
            assert max(map(len, results_compare.render(before, after, found, other).splitlines())) <= other
        code = results_compare.exit_code(found)
        written.append(f"== {name}: exit code {code}\n{results_compare.render(before, after, found, width)}\n")
    goldens.text("compare", "\n".join(written))


# -- files -------------------------------------------------------------------------------------------------------------


def write(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def run(factor: float, **more: Any) -> dict[str, Any]:
    return {**RUN, "rows": [{"size": 8 * GIB, "out_of_place": 360.0 * factor, "in_place": None}], **more}


def test_node_results_are_compared_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write(tmp_path / "a" / "n1.json", NODE)
    after = write(tmp_path / "b" / "run" / "n1.json", {**NODE, "runs": [run(0.8)]})
    (tmp_path / "b" / "latest").symlink_to("run")
    assert main(["benchmark", str(tmp_path / "b"), "--against", str(before)]) == 3
    assert "n1     all_reduce  8G    360.0   288.0  -20.0 %  -      not judged" in capsys.readouterr().out
    assert main(["benchmark", str(after), "--against", str(before), "--noise", "25", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {"worse": 0, "better": 0, "within_noise": 1, "not_judged": 0, "not_comparable": 0}
    assert data["runs"][0]["hosts"] == ["n1"]
    other = write(tmp_path / "c.json", {**NODE, "host": "n2"})
    assert main(["benchmark", str(other), "--against", str(tmp_path / "a")]) == 3
    assert "other hosts before: n1" in capsys.readouterr().out
    repeated = [{**run(factor)["rows"][0], "spread": 0.01, "repeats": 5} for factor in (1.0, 0.9)]
    files = [write(tmp_path / f"{n}.json", {**NODE, "runs": [run(1, rows=[row])]}) for n, row in enumerate(repeated)]
    assert main(["benchmark", str(files[1]), "--against", str(files[0])]) == 2
    assert main(["benchmark", str(files[0]), "--against", str(files[1])]) == 0


SLOW = perf.BUSBW.judge(RUN["subject"], "drift", "340 GB/s", "288.0 GB/s", "nccl-tests").to_dict()
STORED: dict[str, tuple[Any, int, str]] = {
    "good": ({**NODE, "passed": [perf.BUSBW.id]}, 0, "1 of 1 run ok on 1 host,"),
    "below its bar": ({**NODE, "findings": [SLOW]}, 2, "drift\n    288.0 GB/s"),
    "unknown": ({**NODE, "findings": [{**SLOW, "state": "unknown"}]}, 3, "unknown\n    288.0 GB/s"),
    "judged by nothing": (NODE, 3, "all_reduce"),
    "no runs": ({**NODE, "runs": []}, 3, "nothing is configured"),
    "between nodes": ({**cluster_record.to_dict(RECORD), "findings": []}, 0, "all_reduce"),
    "between nodes, a finding": ({**cluster_record.to_dict(RECORD), "findings": [SLOW]}, 2, "all_reduce"),
    "a finding without a state": ({**NODE, "findings": [{**SLOW, "state": ""}]}, 1, ""),
    "no findings": ({key: value for key, value in NODE.items() if key != "findings"}, 1, ""),
}


@pytest.mark.parametrize("case", STORED)
def test_a_stored_result_is_printed(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, code, shown = STORED[case]
    assert main(["benchmark", str(write(tmp_path / "x.json", data))]) == code
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--json", "--across-versions", "--noise=0"])
def test_options_of_a_comparison_need_one(option: str, tmp_path: Path) -> None:
    assert main(["benchmark", str(write(tmp_path / "x.json", {**NODE, "passed": ["a.b"]})), option]) == 1


@pytest.mark.parametrize(
    ("repeats", "point"),
    [(True, Row(size=GIB, busbw=310.0, spread=0.02, repeats=5)), (False, Row(size=GIB, busbw=300.0))],
)
def test_repeats_within_a_node_reach_its_record(repeats: bool, point: Row) -> None:
    measured = {"rows": [{"size": GIB, "out_of_place": {"busbw": 300.0}, "in_place": {"busbw": 300.0}}]}
    statistics = [{"size": GIB, "busbw": 310.0, "spread": 0.02, "repeats": 5}] * repeats
    told = {"measured": measured, "statistics": statistics, "simulated": False, "stored": False, "due": ""}
    [joined] = benchmark_results.of_nodes({"n1": [{**RUN, **nccl_benchmark.summary(RUN, told)}]}, "x").runs
    assert joined.points[GIB] == point


def test_versions_of_one_run_that_differ_are_both_told() -> None:
    rows = [{"size": GIB, "out_of_place": 1.0, "in_place": None}]
    small = run(1.0, nccl_library="2.27.3", max_bytes=GIB, rows=rows)
    [joined] = benchmark_results.of_nodes({"n1": [RUN, small]}, "x").runs
    assert joined.versions["nccl"] == "2.27.3, 2.28.3"
    [unknown] = benchmark_results.of_nodes({"n1": [{**RUN, "nccl_library": ["x"]}]}, "x").runs
    assert "nccl" not in unknown.versions


def test_the_latest_results_of_both_kinds_are_taken_and_are_the_same_as_themselves(tmp_path: Path) -> None:
    write(tmp_path / "run" / "n1.json", NODE)
    (tmp_path / "latest").symlink_to("run")
    assert {one.scope for one in benchmark_results.load(tmp_path).runs} == {"node"}
    cluster_record.write(tmp_path, RECORD)
    assert {one.scope for one in benchmark_results.load(tmp_path).runs} == {"node", "cluster"}
    for path in (tmp_path / "cluster", tmp_path / "cluster" / "latest"):
        assert benchmark_results.load(path).runs == of_record(RECORD, "").runs
        assert set(verdicts(benchmark_results.load(path), of_record(RECORD, "b"))) == {"within noise"}


@pytest.mark.parametrize("value", [[], {}, "\x1b[2J", -1, 1e300, 10**400, True, None, "x" * 5000, [[[]]]])
def test_a_hostile_file_is_refused_or_told_safely(value: Any, tmp_path: Path) -> None:
    good = results(job(350.0))
    for data in (NODE, json.loads(json.dumps(cluster_record.to_dict(RECORD)))):
        for place in places(data):
            path = write(tmp_path / "x.json", changed(data, place, value))
            try:
                found = benchmark_results.load(path)
            except ParseError as error:
                assert str(error).isprintable()
            else:
                text = results_compare.render(good, found, results_compare.compare(good, found), 60)
                assert all(line.isprintable() and len(line) <= 60 for line in text.split("\n"))
                json.dumps(results_compare.to_dict(good, found, results_compare.compare(found, good)), allow_nan=False)


def test_what_holds_no_results_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(write(tmp_path / "n1.json", NODE))
    (tmp_path / "empty").mkdir()
    for name in "ab":
        write(tmp_path / "twice" / f"{name}.json", NODE)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", cluster_record.LIMIT + 1)
    write(tmp_path / "no.json", {"runs": "\x1b[2J"})
    for name, said in (
        ("empty", "holds no results: name a file"),
        ("twice", "b.json is not a valid result: another file holds results of this host, too"),
        ("pipe", "not a regular file"),
        ("large.json", "larger than 64 MiB"),
        ("no.json", "is missing"),
        ("nothing", "No such file"),
    ):
        bad = str(tmp_path / name)
        for words in ([good, "--against", bad], [bad, "--against", good], [bad]):
            assert main(["benchmark", *words]) == 1
            told = capsys.readouterr()
            assert said in told.err
            assert name in told.err
            assert told.out == ""
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", good, "--against", good, "--noise", "-1"])
    assert ended.value.code == 1


def test_the_benchmark_of_nodes_compares_with_the_last_results(tmp_path: Path) -> None:
    hosts = {name: {"runs": [RUN], "findings": [], "passed": []} for name in ("n1", "n2", "n3")}

    def compared(new: dict[str, Any]) -> str:
        return results_compare.with_last(tmp_path, nccl_benchmark.measured_now(new), 120)

    assert compared(hosts) == ""
    nccl_benchmark.write(tmp_path, hosts, 1795000000.0)
    stored = {**hosts, "n2": {**hosts["n2"], "runs": [{**run(0.5), "stored": True}]}}
    assert compared({"n2": stored["n2"]}) == ""
    said = "COMPARED: 0 worse, 0 better, 0 within noise, 2 not judged, 0 not comparable"
    assert said in compared({**stored, "n1": {**hosts["n1"], "runs": [run(0.5)]}})
    write(tmp_path / "latest" / "n1.json", {"host": "\x1b"})
    assert "not compared with the last results" in compared(hosts)


def test_results_of_another_scope_are_not_the_last_ones(tmp_path: Path) -> None:
    cluster_record.write(tmp_path, replace(RECORD, jobs=(job(350.0, scope="pair"),)))
    folder = cluster_record.folder(tmp_path)
    assert results_compare.with_last(folder, results(job(100.0)), 80) == ""
    assert "1 worse" in results_compare.with_last(folder, results(job(100.0, scope="pair")), 80)
    assert results_compare.with_last(tmp_path / "none", results(job(1.0)), 80) == ""
