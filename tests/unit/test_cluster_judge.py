"""What the jobs between nodes say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as lldp
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import OVER_NVLINK
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import (
    cluster_judge,
    cluster_plan,
    cluster_record,
    cluster_table,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_plan import Expected
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Job, Measured
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Member, Settings

from tests import goldens

G = 1 << 30
PEERMEM = Check("gpudirect.module", why="a test", fix="a test")


def plan(count: int, scope: str = "cluster", collectives: tuple[str, ...] = ("all_reduce",)) -> cluster_plan.Plan:
    wanted = Settings("hgx-h100", scope, collectives, (1 << 20, 8 * G), 8, (0,))
    members = [Member(f"node{n:02d}", wanted, f"n{n}", f"a{n}", build="one") for n in range(count)]

    def expected(_settings: Settings, _measure: cluster_plan.Measure, nodes: int) -> Expected:
        return Expected(300.0 if nodes > 1 else None, "a test", 100.0, 400.0 - 10 * nodes, "links")

    return cluster_plan.plan(members, lambda one, _nodes: cluster_plan.measures(one, ()), expected)


def jobs_of(planned: cluster_plan.Plan) -> list[Job]:
    return [job for jobs in planned.rounds for job in jobs]


def result(job: Job, busbw: float | None, *bad: Finding, smallest: float = 47.0) -> Measured:
    rows = [
        {"size": size, "time_us": time, "algbw": 1.0, "busbw": busbw, "time_p99_us": time, "spread": 0.01, "repeats": 3}
        for size, time in {job.min_bytes: smallest, job.max_bytes: 5e4}.items()
    ]
    good = perf.RAN.judge(job.name, "ok", have="exit code 0", source="a test")
    found = {**Plan((good, *bad)).result(), "busbw": busbw, "statistics": rows, "simulated": True, "measured": {}}
    return Measured(job, found)


def judged(
    jobs: list[Job],
    figures: dict[int, float | None],
    earlier: dict[str, list[Finding]] | None = None,
    advise: bool = False,
) -> cluster_judge.Judged:
    measured = []
    for job in jobs:
        figure = figures.get(len(job.hosts))
        bad = [] if figure is None or figure > 250 else [busbw(job, figure)]
        measured.append(result(job, figure, *bad))
    return cluster_judge.judge(measured, earlier or {}, advise)


def busbw(job: Job, figure: float) -> Finding:
    return perf.BUSBW.judge(job.name, "drift", "at least 300 GB/s", f"{figure} GB/s", "a test")


HEALTHY: dict[int, float | None] = {1: 480.0, 2: 380.0, 4: 360.0, 5: 350.0}


def pairs(changes: dict[str, Any], *slow: Finding, **more: Any) -> cluster_judge.Judged:
    """Of one pair, whose job has these values, and a result with these findings."""
    job = replace(jobs_of(plan(2, "pair"))[0], **changes)
    return cluster_judge.judge([result(job, 380.0, *slow, **more)], {})


def one_failed() -> cluster_judge.Judged:
    first, other = jobs_of(plan(4, "pair"))
    return cluster_judge.judge([Measured(first, {}, "lost"), result(other, 380.0)], {})


def rails() -> cluster_judge.Judged:
    [pair] = jobs_of(plan(2, "pair"))
    jobs = [replace(pair, scope="rail", name=f"rail sendrecv 8G rail {n} node00+node01") for n in (0, 1)]
    slow = perf.BUSBW.judge("sendrecv 2 ranks 8G n0,n1", "drift", "at least 43 GB/s", "19 GB/s", "a test")
    return cluster_judge.judge([result(jobs[0], 48.0), result(jobs[1], 19.0, slow)], {})


def beside(state: str) -> cluster_judge.Judged:
    """Slow jobs, and a port of node03 in that state: one that is silent explains nothing."""
    port = lldp.PFC.judge("0000:1b:00.0 mlx5_0 eth2", state, "PFC 3", "PFC off", "lldpcli")
    return judged(jobs_of(plan(4)), {1: 480.0, 2: 180.0, 4: 170.0}, {"node03": [port]})


def explained() -> cluster_judge.Judged:
    """node03 has the cause of what is slow over it, and is named where the others report that."""
    jobs = jobs_of(plan(4, collectives=("all_reduce", "all_gather")))
    cause = PEERMEM.judge("nvidia_peermem", "drift", "loaded", "not loaded", "/proc/modules")
    return judged(jobs, {1: 480.0, 2: 180.0, 4: 170.0}, {"node03": [cause], "node01": []})


def over_nvlinks() -> cluster_judge.Judged:
    """IMEX explains what is slow over NVLinks, a rail does not, and pairs over the network would find nothing of it."""
    job = replace(jobs_of(plan(2, "pair"))[0], scope="nvlink_domain", latency_bar_us=None)
    rail = Check("platform.rail_link", why="a test", fix="a test").judge("rail 0", "drift", source="a test")
    service = Check("imex.service", why="a test", fix="a test").judge("nvidia-imex", "drift", source="a test")
    slow = perf.BUSBW.judge(f"all_reduce 8 ranks 8G{OVER_NVLINK} n0,n1", "drift", "at least 600", "96 GB/s", "a test")
    found = cluster_judge.judge([result(job, 96.0, slow)], {"node00": [rail], "node01": [rail, service]}, advise=True)
    assert not cluster_judge.misses([slow])
    assert slow.fix in {one.fix for one in found.findings["node00"]}
    return found


SCENARIOS: dict[str, Callable[[], cluster_judge.Judged]] = {
    "healthy": lambda: judged(jobs_of(plan(5)), HEALTHY),
    "slow over five": lambda: judged(jobs_of(plan(5)), {**HEALTHY, 5: 300.0}),
    "two that exceed their prediction": lambda: judged(jobs_of(plan(5)), {**HEALTHY, 2: 700.0}),
    "no figure over four": lambda: judged(jobs_of(plan(5)), {**HEALTHY, 4: None}),
    "slow small messages": lambda: pairs({}, smallest=161.0),
    "small messages that take no time": lambda: pairs({}, smallest=0.0),
    "a job that failed": one_failed,
    "no bar": lambda: pairs({"bar": None, "bar_source": "no figure for it: measure one"}),
    "no bar, a message of the user's": lambda: pairs({"bar": None, "bar_source": "no figure", "what": "DDP bucket"}),
    "a slow rail": rails,
    "a switch port that is set up wrong": lambda: beside("drift"),
    "a switch port that is silent": lambda: beside("unknown"),
    "a cause that another role has found": explained,
    "slow over NVLinks": over_nvlinks,
}


def scale(one: cluster_record.Scaling) -> str:
    return f"{one.collective} over {one.nodes}: {'none' if one.efficiency is None else f'{one.efficiency:.3f}'}"


@pytest.mark.golden
def test_what_jobs_say_of_their_hosts() -> None:
    lines = []
    for name, scenario in SCENARIOS.items():
        judged = scenario()
        lines += [f"== {name}", *map(scale, judged.scaling)]
        hosts: dict[str, list[str]] = {}
        for host, findings in judged.findings.items():
            for one in findings:
                because = f" because {one.because}" if one.because else ""
                hosts.setdefault(f"{one.check} {one.subject}: {one.state}{because}: {one.have}", []).append(host)
        lines += [f"{', '.join(names)}: {text}" for text, names in hosts.items()]
    goldens.text("cluster_judge", "\n".join(lines) + "\n")


def test_a_job_that_fails_leaves_its_hosts_without_a_state() -> None:
    records = cluster_judge.member_records(jobs_of(plan(4, "pair")), one_failed().findings, 7.0)
    states = ["unknown", "ok", "ok", "unknown"]
    assert {host: one["state"] for host, one in records.items()} == dict(zip(sorted(records), states, strict=True))


@pytest.mark.parametrize(
    ("figures", "advise", "missed", "fixes"),
    [
        ({2: 200.0}, False, True, 0),
        ({2: 200.0}, True, True, 1),
        (HEALTHY, True, False, 0),
        ({}, True, False, 0),
    ],
)
def test_a_bar_that_is_missed_is_searched_for_or_says_how_to(
    figures: dict[int, float | None], advise: bool, missed: bool, fixes: int
) -> None:
    [job] = jobs_of(plan(2, "pair"))
    found = judged([job], figures, advise=advise).findings[job.head]
    assert cluster_judge.misses(found) == missed
    assert sum(one.fix.startswith(cluster_judge.LOCALISE) for one in found) == fixes


# -- a round as soon as it has ended -----------------------------------------------------------------------------------


def pair(number: int, busbw: float | None, failure: str = "", **more: Any) -> Measured:
    hosts = more.pop("hosts", (f"n{2 * number}", f"n{2 * number + 1}"))
    given = {"collective": "all_reduce", "algorithm": "Ring", "max_bytes": 8 << 30, "bar": 340.0, **more}
    team = dict.fromkeys(("hosts", "names", "addresses"), hosts)
    job = Job(name=f"pair-{number}", scope="pair", kind="x", per_node=8, min_bytes=8, **team, **given)
    slow = {"state": "drift", "because": None, "have": f"{busbw:g} GB/s" if busbw else "", "want": "340 GB/s"}
    findings = [{**slow, "because": "x"}, slow] if busbw is not None and busbw < 340 else []
    return Measured(job, {} if failure else {"busbw": busbw, "findings": findings}, failure)


@pytest.mark.golden
def test_a_round_is_a_line_for_each_job_and_of_many_jobs_few_lines() -> None:
    figures = [pair(0, 170.0), pair(1, 350.0, algorithm="", bar=None), pair(2, None, "n4: no end"), pair(3, None)]
    fast = [pair(number, 350.0 - number / 100) for number in range(490)]
    silent = [pair(number, None, f"reason {number % 7}") for number in range(490, 500)]
    rounds = (figures, [*fast, *silent], [pair(number, None) for number in range(500)])
    lines = [line for number, of in enumerate(rounds, 1) for line in cluster_table.round_lines(number, len(rounds), of)]
    goldens.text("cluster_rounds", "\n".join(lines) + "\n")


@pytest.mark.parametrize("count", [1, 5])
def test_what_a_node_says_commands_no_terminal(count: int) -> None:
    lines = cluster_table.round_lines(
        1, 1, [pair(number, None, "\x1b]0;x\x07" * 1000, hosts=("\x1b[2J",)) for number in range(count)]
    )
    assert all(line.isprintable() and len(line) < 1000 for line in lines)


@pytest.mark.parametrize(
    ("figures", "used", "state", "fix"),
    [
        ({1: 300.0, 2: 310.0, 4: 305.0}, 1, "ok", ""),
        ({1: 200.0, 2: 310.0, 4: 305.0}, 1, "drift", 'NCCL_IB_QPS_PER_CONNECTION: "2"'),
        ({1: 200.0, 2: 310.0, 4: 305.0}, 4, "ok", ""),
        ({2: 310.0, 4: 305.0}, 1, "unknown", "nccl_benchmark_qps has to hold 1"),
        ({1: 300.0, 2: None}, 1, "unknown", "see its jobs"),
        ({1: None, 2: None}, 1, "unknown", "see its jobs"),
    ],
)
def test_queue_pairs_are_compared_with_the_best(
    figures: dict[int, float | None], used: int, state: str, fix: str
) -> None:
    [job] = [job for job in jobs_of(plan(4)) if len(job.hosts) == 4]
    swept = [
        result(
            replace(job, name=f"{number} queue pairs", what="x", bar=None, queue_pairs=number, used_queue_pairs=used),
            figure,
        )
        for number, figure in figures.items()
    ]
    found = cluster_judge.judge([result(job, 300.0), *swept], {}).findings["node00"]
    [one] = [one for one in found if one.check == cluster_judge.QUEUE_PAIRS.id]
    assert (one.state, fix in (one.fix or "")) == (state, True)
    assert all(f"{number}: " in (one.have or "") for number in figures)
    # A figure of the comparison is no scaling and misses no bar.
    assert {each.state for each in found if each.check in ("nccl_perf.busbw", "nccl_cluster.bar")} <= {"ok"}
