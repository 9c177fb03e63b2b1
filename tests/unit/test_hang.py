"""The report of `busbar hang`: answers of several hosts joined, hostile ones refused, and what people read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.ras import answer, read, views
from ansible_collections.busbar.fabric.plugins.module_utils.ras.processes import Listener, Process
from ansible_collections.busbar.fabric.plugins.plugin_utils import hang, result_schema

from lab import ras as emulator
from tests.nested import changed


def job(**more: Any) -> dict[str, Any]:
    """Four ranks on node01 and node02."""
    made = emulator.example(ranks=4, **more)
    for number, rank in enumerate(made["communicators"][0]["ranks"]):
        rank.update(host=f"192.0.2.{1 + number // 2}", pid=4000 + number, gpu=number % 2)
    return made


def view(given: dict[str, Any], first: float = 1.0) -> views.View:
    before, now = (
        answer.parse_json(emulator.as_json(given, emulator.seen(given, [], seconds))) for seconds in (first, 2.0)
    )
    return views.View("RAS at 127.0.0.1:28028", ("alice",), views.compare(before, now), 10.0)


def process(pid: int, state: str = "S") -> Process:
    ras = (Listener("127.0.0.1", 28028, pid),)
    return Process(pid, pid, 1, "alice", state, "/opt/libnccl.so.2", ras, 28028, apart=False, gpu=True)


def told(number: int, *seen: views.View, processes: tuple[Process, ...] = ()) -> dict[str, Any]:
    """What nccl_ras_info returns on a node, through JSON and the gate."""
    reading = read.Reading(processes, seen, (), (f"192.0.2.{number}", "172.17.0.1"), ())
    given = {**Plan(tuple(read.judge(Host(), reading))).result(), **read.result(reading)}
    return result_schema.check("nccl_ras_info", json.loads(json.dumps(given)))


def both(given: dict[str, Any], state: str = "S") -> dict[str, Any]:
    return {
        "node01": told(1, view(given), processes=(process(4000), process(4001))),
        "node02": told(2, view(given), processes=(process(4002), process(4003, state))),
    }


def test_one_job_seen_from_two_hosts_is_one_and_names_come_from_the_inventory() -> None:
    report = hang.build(both(job(late={"3": 2})), ["/site/inventory"])
    assert (report["verdict"], report["exit_code"]) == ("HUNG", 2)
    [one] = report["jobs"]
    assert one["hosts"] == one["asked_on"] == ["node01", "node02"]
    assert one["processes"] == 4
    said = " ".join(hang.text(report, verbose=True).split())
    assert "rank 3 (node02 process 4003 GPU 1) has launched 98, 3 of 4 ranks 100" in said
    assert "$ ansible node02 -i /site/inventory -b -m command -a 'py-spy dump --pid 4003'" in said


def test_what_moves_is_0_and_what_is_not_known_is_3_as_is_a_host_without_an_answer() -> None:
    moves = both(job())
    assert hang.build(moves)["exit_code"] == 0
    still = {"node01": told(1, view(job(), first=2.0), processes=(process(4000),))}
    assert hang.build(still)["exit_code"] == 3
    for lost in ({"unreachable": True, "msg": "no route"}, {"msg": "Timed out"}, None, {}):
        report = hang.build({**moves, "node03": lost})
        assert report["exit_code"] == 3
        assert "no response from node03: " in hang.text(report)


def test_a_host_without_a_job_is_named_and_no_matter_where_another_has_one() -> None:
    report = hang.build({**both(job()), "node03": told(3)})
    assert report["exit_code"] == 0
    assert "no process with libnccl on node03" in hang.text(report)
    assert hang.build({"node03": told(3)})["exit_code"] == 3


def test_its_own_host_says_that_a_silent_process_is_stopped_or_gone() -> None:
    given = job()
    given["communicators"][0]["ranks"][3]["state"] = "T"
    stopped = hang.build(both(given, state="T"))
    assert "it is stopped (a signal)" in hang.text(stopped, 120)
    assert stopped["collect"][0]["commands"][1].endswith("'py-spy dump --pid 4003 --nonblocking'")
    answers = both(given)
    answers["node02"]["processes"].pop()
    assert "it is not there any more" in hang.text(hang.build(answers), 120)
    # Whoever was not asked is no host for a command.
    alone = hang.build({"node01": answers["node01"]})
    assert alone["collect"][0]["host"] == "192.0.2.2"
    assert alone["collect"][0]["commands"] == []


def test_a_loopback_address_is_the_host_on_which_it_was_heard() -> None:
    given = job(late={"0": 1})
    for rank in given["communicators"][0]["ranks"]:
        rank["host"] = "127.0.0.1"
    report = hang.build({"node01": told(1, view(given), processes=(process(4000),))})
    assert "rank 0 (node01 process 4000 GPU 0)" in hang.text(report)


def test_another_users_process_that_answers_with_the_hash_of_a_job_is_no_part_of_it() -> None:
    answers = both(job())
    fake = told(2, view(job(late={"0": 9}), first=2.0))
    fake["views"][0]["users"] = ["mallory"]
    report = hang.build({**answers, "node03": fake})
    assert [one["users"] for one in report["jobs"]] == [["alice"], ["mallory"]]
    assert [one["moved"] for made in report["jobs"] for one in made["communicators"]] == [True, False]
    behind = [finding["subject"] for finding in report["findings"] if finding["check"] == "nccl_hang.behind"]
    assert behind == ["communicator 0xa982ee6e1e529f6 of mallory"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("views.0.now.communicators.0.counts.AllReduce.0.ranks", [7], "has a rank beyond them"),
        ("views.0.now.communicators.0.counts.AllReduce.0.ranks", [99999], "expected a whole number"),
        ("views.0.now.communicators.0.counts.AllReduce.0.ranks", "$(id)", "expected a list"),
        ("views.0.now.communicators.0.counts.AllReduce.0.value", -1, "expected a whole number"),
        ("views.0.now.communicators.0.counts.AllReduce.0.value", "a\x1b[2J", "which it cannot be"),
        ("views.0.now.communicators.0.size", 3, "has a rank beyond them"),
        ("views.0.now.communicators.0.places", {"0 ": {}}, "expected a number"),
        ("views.0.now.communicators.0.name", "0xa\n", "which it cannot be"),
        ("views.0.now.communicators.0.progress.moved", 1, "expected true or false"),
        (
            "views.0.now.communicators.0.places",
            {"0": {"host": "{{ 7 }}", "pid": 1, "gpu": 0, "nvml": 0}},
            "which it cannot be",
        ),
        ("views.0.users.0", "a\x1b[2J", "which it cannot be"),
        ("processes.0.pid", "1; reboot", "expected a whole number"),
        ("processes.0.disabled", 1, "expected true or false"),
        ("addresses", ["192.0.2.1 -e x"], "which it cannot be"),
    ],
)
def test_an_answer_that_cannot_be_costs_its_own_host_the_verdict(path: str, value: Any, said: str) -> None:
    answers = both(job())
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("."))
    hostile = changed(answers["node02"], keys, value)
    report = hang.build({**answers, "node02": hostile})
    assert said in report["hosts"]["node02"]
    assert report["hosts"]["node01"] == ""
    assert report["jobs"]
    assert report["exit_code"] == 3
