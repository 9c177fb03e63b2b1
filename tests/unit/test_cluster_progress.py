"""What is said of a round as soon as it has ended: one line a job, few lines for many, and no terminal is commanded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.action import nccl_cluster_round
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_progress


def job(number: int, **more: Any) -> dict[str, Any]:
    hosts = [f"n{2 * number}", f"n{2 * number + 1}"]
    own = {"name": f"pair-{number}", "head": hosts[0], "hosts": hosts, "collective": "all_reduce", "algorithm": "Ring"}
    return {**own, "max_bytes": 8 << 30, "bar": 340.0, **more}


def result(busbw: float | None, *findings: dict[str, Any]) -> dict[str, Any]:
    return {"busbw": busbw, "findings": [*findings]}


SLOW = {"state": "drift", "because": None, "have": "170 GB/s", "want": "340 GB/s"}


def test_a_job_is_a_line_with_its_figure_or_why_there_is_none() -> None:
    jobs = [job(0), job(1, algorithm="", bar=None), job(2), job(3)]
    results = {"pair-0": result(170.0, {**SLOW, "because": "x"}, SLOW), "pair-1": result(350.0)}
    assert cluster_progress.lines(3, 12, jobs, results, {"pair-2": "n4: no end within 900 s"}) == [
        "round 3 of 12: all_reduce (Ring) 8G over n[0-1]: 170.0 GB/s, 50 % of the bar; drift: 170 GB/s",
        "round 3 of 12: all_reduce 8G over n[2-3]: 350.0 GB/s",
        "round 3 of 12: all_reduce (Ring) 8G over n[4-5]: no figure: n4: no end within 900 s",
        "round 3 of 12: all_reduce (Ring) 8G over n[6-7]: no figure",
    ]


def test_many_jobs_are_few_lines() -> None:
    jobs = [job(number) for number in range(500)]
    results = {f"pair-{number}": result(350.0 - number / 100) for number in range(490)}
    failures = {f"pair-{number}": f"reason {number % 7}" for number in range(490, 500)}
    lines = cluster_progress.lines(1, 2, jobs, results, failures)
    first = "490 of 500 jobs, all_reduce (Ring) 8G: median 347.6 GB/s, lowest 345.1 over n[978-979], bar 340.0"
    assert lines[0] == f"round 1 of 2: {first}"
    assert lines[1] == "round 1 of 2: n[980-981,994-995]: no figure: reason 0"
    assert len(lines) == 6
    assert lines[5] == "round 1 of 2: and 3 other reasons without a result"
    assert cluster_progress.lines(1, 2, jobs, {}, {}) == ["round 1 of 2: n[0-999]: no figure"]


@pytest.mark.parametrize("count", [1, 5])
def test_what_a_node_says_commands_no_terminal(count: int) -> None:
    jobs = [job(number, hosts=["\x1b[2J"]) for number in range(count)]
    failures = {one["name"]: "\x1b]0;x\x07" * 1000 for one in jobs}
    lines = cluster_progress.lines(1, 1, jobs, {}, failures)
    assert all(line.isprintable() and len(line) < 1000 for line in lines)


def test_the_round_is_read_from_what_the_run_has_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"rounds": [{}, {"n0": job(0)}]}
    raw = {"n0": {"nccl_cluster_plan_result": plan, "nccl_cluster_done": {"msg": "it hung"}}, "n1": {}}
    told: list[str] = []
    monkeypatch.setattr(nccl_cluster_round.display, "display", told.append)
    action = nccl_cluster_round.ActionModule.__new__(nccl_cluster_round.ActionModule)
    action._task = SimpleNamespace(args={"round": 1})
    monkeypatch.setattr(ActionBase, "run", lambda *_given: {})
    monkeypatch.setattr(action, "validate_argument_spec", lambda **_given: (None, {"round": 1}))
    variables = {"hostvars": SimpleNamespace(raw_get=raw.get), "ansible_play_hosts_all": ["n0", "n1"]}
    assert action.run(None, {**variables, "inventory_hostname": "n0"}) == {"changed": False, "lines": told}
    assert told == ["round 2 of 2: all_reduce (Ring) 8G over n[0-1]: no figure: n0: it hung"]
