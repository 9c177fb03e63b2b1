from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark as action
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_bars, intent, nccl_benchmark
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_table

from tests import goldens

ROOT = Path(__file__).resolve().parent.parent.parent
BARS = [busbw_bars.parse_bars(yaml.safe_load((ROOT / "roles/nccl_benchmark/files/bars.yml").read_text()), "bars.yml")]
G = 1 << 30


def wanted(platform: str = "hgx-h200", **values: Any) -> list[dict[str, Any]]:
    data = yaml.safe_load((ROOT / "profiles" / f"{platform}.yml").read_text())
    given = intent.read({"busbar_platform": platform, "busbar_fabric": "infiniband", **values})
    return nccl_benchmark.runs(given, profile.parse(data, platform), platform, BARS)


# Case -> values of the site.
SITES: dict[str, dict[str, Any]] = {
    "defaults": {},
    # The user's model is a message of its own.
    "a model": {"busbar_model_parameters": "7B"},
    "NVLS off in the environment": {"nccl_benchmark_environment": {"NCCL_NVLS_ENABLE": "0"}},
    "NVLS off in nccl.conf": {"nccl_conf_extra": {"NCCL_NVLS_ENABLE": 0}},
    "nothing": {"nccl_benchmark_collectives": []},
}


@pytest.mark.golden
@pytest.mark.parametrize("name", SITES)
def test_what_is_measured(name: str) -> None:
    """Each run's collective, GPUs, sizes, NVLS, bar, and prediction."""
    runs = wanted(**SITES[name])
    rows = [
        [
            one["collective"],
            one["gpus"],
            one["min_bytes"],
            one["max_bytes"],
            one["nvls"],
            one["bar"],
            round(one["prediction"] or 0, 1),
        ]
        for one in runs
    ]
    goldens.check("benchmark_runs", name, rows)
    assert {one["collective"] for one in runs} == set(busbw_bars.COLLECTIVES if runs else ())
    assert len({one["name"] for one in runs}) == len(runs)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nccl_benchmark_min_bytes": "16G"}, "doubled some times"),
        ({"nccl_benchmark_min_bytes": "3M"}, "doubled some times"),
        ({"nccl_benchmark_max_bytes": "8 GB"}, "expected bytes such as"),
        ({"busbar_model_parameters": "seven"}, "seven"),
        ({"nccl_tests_commit": ""}, r"no program to measure with: set the commit, or nccl_benchmark_collectives: \[\]"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_any_host_is_touched(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParseError, match=message):
        wanted(**values)


# -- the judgement of a host -----------------------------------------------------------------------------------------


def finding(check: str, subject: str, state: str = "drift", **more: Any) -> dict[str, Any]:
    words = {"have": "y", **dict.fromkeys(("want", "source", "why", "fix"), "x")}
    return {"check": check, "subject": subject, "state": state, "severity": "major", **words, **more}


def measured(run: dict[str, Any], figure: float | None = 400.0, *found: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What nccl_perf returns for a run."""
    rows = [] if figure is None else [{"size": run["max_bytes"], "out_of_place": {"busbw": figure}, "in_place": None}]
    return {
        "findings": list(found),
        "passed": [f"nccl_perf.ran[live]@{run['subject']}"],
        "busbw": figure,
        "finished_at": None if figure is None else 1_000_000.0,
        "measured": {"rows": rows, "nccl_library": "2.28.9", "version": "2.19.6"},
        "commands": ["all_reduce_perf"],
        "simulated": False,
        "stored": False,
        "due": "",
        "changed_since": [],
        **more,
    }


def host(runs: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, Any]:
    """What the role registers for a host."""
    plan = nccl_benchmark.judge("hgx-h200", runs, results, [])
    return {**plan.result(), "runs": [action.summary(run, result) for run, result in zip(runs, results, strict=True)]}


def test_a_subject_is_the_same_in_the_run_and_in_its_judgement() -> None:
    run = wanted()[0]
    sizes = perf_run.sizes(run["min_bytes"], run["max_bytes"], 2)
    assert perf_run.Wanted(run["collective"], run["gpus"], ("node01",), sizes).subject == run["subject"]


def test_a_figure_without_a_bar_is_unknown_and_says_what_to_write() -> None:
    data = yaml.safe_load((ROOT / "profiles" / "hgx-h200.yml").read_text())
    given = intent.read({"busbar_platform": "mine", "nccl_benchmark_collectives": ["all_reduce"]})
    (run,) = nccl_benchmark.runs(given, profile.parse(data, "mine"), "mine", BARS)
    plan = nccl_benchmark.judge("mine", [run], [measured(run)], [])
    (found,) = plan.findings
    assert (found.check, found.state) == ("nccl_benchmark.bar", "unknown")
    assert "400 GB/s measured here" in found.fix
    text = found.fix[found.fix.index("{") :].replace("<0.95 of it>", "380").replace("<it>", "400")
    (bar,) = busbw_bars.parse_bars([yaml.safe_load(text)], "bars.yml")
    assert busbw_bars.find_bar([[bar]], "mine", run["nvls"], "node", "all_reduce", run["max_bytes"]) == bar


@pytest.mark.parametrize(
    ("check", "cause", "follows"),
    [
        ("nccl_perf.busbw", "platform.nvlinks", True),
        ("nccl_perf.busbw", "node_health.throttle", True),
        ("nccl_perf.busbw", "node_health.pcie_replay", True),
        ("nccl_perf.ran", "node_health.fabric_manager", True),
        ("nccl_perf.ran", "node_health.throttle", False),
        ("nccl_perf.busbw", "node_health.kernel_log", False),
        # Wrong values follow from nothing.
        ("nccl_perf.correct", "platform.nvlinks", False),
    ],
)
def test_a_slow_or_failed_run_follows_from_what_was_found_on_the_host(check: str, cause: str, follows: bool) -> None:
    run = wanted()[0]
    slow = finding(check, run["subject"])
    found_there = finding(cause, "0000:1b:00.0 GPU5")
    plan = nccl_benchmark.judge("hgx-h200", [run], [measured(run, 300.0, slow)], [found_there])
    because = {found.check: found.because for found in plan.findings}
    assert because == {"nccl_benchmark.bar": None, check: f"{cause}[live]@0000:1b:00.0" if follows else None}


def test_a_busy_node_is_said_once() -> None:
    runs = wanted()
    results = [measured(run, None, finding("nccl_perf.idle", run["subject"], "unknown")) for run in runs]
    plan = nccl_benchmark.judge("hgx-h200", runs, results, [])
    assert [found.check for found in plan.findings if found.because is None] == ["nccl_perf.idle"]
    assert len(plan.findings) == len(runs)


def outdated(run: dict[str, Any], *parts: str) -> dict[str, Any]:
    have = f"measured with {parts[0]} a, now b"
    return measured(
        *(run, 400.0, finding("nccl_perf.fresh", run["subject"], "unknown", have=have)),
        stored=True,
        due=have,
        changed_since=[*parts],
    )


@pytest.mark.parametrize(
    ("parts", "check", "because"),
    [
        (["nccl.conf"], "nccl_conf.file", True),
        (["GPU"], "platform.gpu_count", True),
        (["firmware of NIC"], "platform.rail_firmware", True),
        (["kernel argument"], "iommu.args", True),
        (["nccl-tests", "NCCL"], "nccl_tests.build", True),
        # The driver is another, and nobody says why.
        (["nccl.conf", "NVIDIA driver"], "nccl_conf.file", False),
        (["NVIDIA driver"], "nccl_conf.file", False),
        (["kernel"], "iommu.args", False),
    ],
)
def test_an_outdated_result_follows_from_what_an_earlier_role_found_of_all_that_changed(
    parts: list[str], check: str, because: bool
) -> None:
    runs = wanted()
    earlier = finding(check, "there")
    plan = nccl_benchmark.judge(*("hgx-h200", runs, [outdated(run, *parts) for run in runs], [earlier]))
    roots = [found for found in plan.findings if not found.ok and found.because is None]
    # Seven results that are outdated for one reason are one reason.
    assert len(roots) == (0 if because else 1)
    assert len([found for found in plan.findings if not found.ok]) == 7


def test_why_runs_are_due_is_one_text_for_the_host() -> None:
    runs = wanted()
    results = [measured(run, due="31.0 days old" if number < 5 else "") for number, run in enumerate(wanted())]
    assert nccl_benchmark.due(runs, results) == "5 of 7 runs: 31.0 days old"
    assert nccl_benchmark.due(runs, [measured(wanted()[0])] * 7) == ""
    odd = [{"due": f"{number} " + "x" * 500} for number in range(7)]
    assert len(nccl_benchmark.due(runs, odd)) == nccl_benchmark.LONGEST


# -- the table -------------------------------------------------------------------------------------------------------


def table(results: dict[str, dict[str, Any]], now: float = 1e6, width: int = 160) -> str:
    return cluster_table.render_nodes(results, now, width)


def one_slow_of_twenty() -> dict[str, Any]:
    (run,) = wanted(nccl_benchmark_collectives=["all_reduce"])
    slow = finding("nccl_perf.busbw", run["subject"], have="200 GB/s")
    good = {f"node{n:02d}": host([run], [measured(run)]) for n in range(20)}
    return {**good, "node07": host([run], [measured(run, 200.0, slow)])}


def one_host(**more: Any) -> dict[str, Any]:
    runs = wanted()
    return {"node01": host(runs, [{**measured(run), **more} for run in runs])}


def busy_host() -> dict[str, Any]:
    (run,) = wanted(nccl_benchmark_collectives=["all_reduce"])
    return {"node01": host([run], [measured(run, None, finding("nccl_perf.idle", run["subject"], "unknown"))])}


def partly_stored() -> dict[str, Any]:
    runs = wanted()
    return {"node01": host(runs, [measured(run, stored=run["collective"] != "sendrecv") for run in runs])}


@pytest.mark.golden
def test_the_table() -> None:
    tables = {
        "one host": table(one_host()),
        "one slow host of twenty": table(one_slow_of_twenty()),
        "simulated": table(one_host(simulated=True)),
        "busy": table(busy_host()),
        **{
            f"stored for {days} days": table(partly_stored(), 1e6 + days * 86400).splitlines()[-1]
            for days in (3.9, 1.0, 0.3, 0.01, -0.02)
        },
        "hostile name": table({"no\x1b[8mde": one_host()["node01"]}),
    }
    goldens.text("benchmark_table", "".join(f"== {name}\n{text}\n" for name, text in tables.items()))


def test_a_run_that_measured_nothing_leaves_the_results_of_the_last_one(tmp_path: Path) -> None:
    runs = wanted()
    for stored, new in ((7, False), (6, True), (0, True)):
        results = [measured(run, stored=number < stored) for number, run in enumerate(runs)]
        found = {"node01": host(runs, results)}
        parent = tmp_path / str(stored)
        # Where there are none yet, as on another control node, they are written whatever they are.
        assert not action.nothing_new(parent, found)
        action.write(parent, found, 2e6)
        assert action.nothing_new(parent, found) is not new


def test_the_report_takes_what_is_valid_of_what_nodes_registered() -> None:
    runs = wanted()
    good = {**host(runs, [measured(run, stored=True) for run in runs]), "due": "", "changed": False}
    for run in good["runs"]:
        run["rows"] = []
    nothing: tuple[Any, ...] = (None, {}, {"failed": True, "msg": "no"}, {**good, "runs": "all"}, {**good, "runs": []})
    for said in nothing:
        assert action.reported(said) == {}
    assert action.reported(good)["runs"] == good["runs"]
