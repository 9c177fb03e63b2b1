"""The module's own end of a test: with programs that print what perftest would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import rail_test
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.modules import perftest
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema

from tests.trees import line, put, rdma_device

DEVICE = "/sys/class/infiniband/mlx5_4"
SESSION = {
    "role": "client",
    "rail": 0,
    "pci": "",
    "device": "mlx5_4",
    "peer": "node02",
    "address": "10.0.0.2",
    "rate_gbps": 100.0,
    "link_layer": "InfiniBand",
}
# Counts its calls, and moves a counter as the card would.
PROGRAM = """#!/bin/sh
case "$1" in --help) echo "Usage: $0"; exit 1;; esac
echo "$@" >> {calls}
{body}
echo " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
echo " 65536      1000           0.00               98.00                0.18"
"""
LATENCY = """#!/bin/sh
echo " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
echo " 8       1000          1.00           9.00         2.00               2.10"
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    device = rdma_device(tmp_path / "hw", "mlx5_4", None, rate="100 Gb/sec (4X EDR)")
    line(device / "ports/1/hw_counters/packet_seq_err", "7")
    program(tmp_path, "")
    put(tmp_path / "sys", "/usr/bin/ib_write_lat", LATENCY, 0o755)
    return tmp_path


def program(node: Path, body: str) -> None:
    text = PROGRAM.format(calls=node / "calls", body=body)
    put(node / "sys", "/usr/bin/ib_write_bw", text, 0o755)


def calls(node: Path) -> int:
    return len((node / "calls").read_text().splitlines())


@pytest.fixture
def run(node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    # What earlier tests of this process have left.
    process_group.end_all()
    monkeypatch.setattr(rail_test, "KNOCK", 3.0)
    monkeypatch.setattr(process_group, "TERM_GRACE", 0.3)

    def call(**more: Any) -> dict[str, Any]:
        arguments = {
            "sessions": [SESSION],
            "require_idle": False,
            "timeout": 20,
            "hardware_root": str(node / "hw"),
            "system_root": str(node / "sys"),
            "_ansible_check_mode": more.pop("check_mode", False),
            "_ansible_remote_tmp": str(node),
        }
        capsys.readouterr()
        with patch_module_args(arguments | more), pytest.raises(SystemExit):
            perftest.main()
        # What it says is what the control node takes.
        return result_schema.check("perftest", json.loads(capsys.readouterr().out))

    return call


def found(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["check"], one["state"]) for one in result["findings"]]


def test_a_good_run_is_judged_and_kept_for_check_mode(node: Path, run: Run) -> None:
    result = run()
    assert found(result) == []
    assert set(result["passed"]) == {
        f"{check}[live]@rail 0 to node02" for check in ("perftest.bandwidth", "perftest.latency", "counters.loss")
    }
    stored = run(check_mode=True)
    assert found(stored) == []
    assert "perftest.fresh[live]@rail 0 to node02" in stored["passed"]
    assert calls(node) == 1


@pytest.mark.parametrize(("more", "missed"), [({}, True), ({"latency": None}, True), ({"latency": 0}, False)])
def test_latency_has_a_bar_unless_the_site_wants_none(node: Path, run: Run, more: dict[str, Any], missed: bool) -> None:
    put(node / "sys", "/usr/bin/ib_write_lat", LATENCY.replace(" 2.00 ", " 70.00 "), 0o755)
    assert found(run(**more)) == ([("perftest.latency", "drift")] if missed else [])


def test_check_mode_runs_nothing_and_says_what_it_would(node: Path, run: Run) -> None:
    result = run(check_mode=True)
    assert found(result) == [("perftest.bandwidth", "unknown")]
    assert "nothing was measured yet" in result["findings"][0]["have"]
    assert [line.split()[0] for line in result["commands"]] == ["ib_write_bw", "ib_write_lat"]
    assert not (node / "calls").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("theirs", ["usr/bin", "usr/bin/ib_write_bw"])
def test_a_program_that_others_may_change_is_not_run(node: Path, run: Run, theirs: str) -> None:
    os.chown(node / "sys" / theirs, 65533, -1)
    result = run()
    assert found(result) == [("perftest.bandwidth", "unknown")]
    assert f"/{theirs} belongs to UID 65533" in result["findings"][0]["have"]
    assert result["findings"][0]["fix"].startswith("give it to root alone")
    assert not (node / "calls").exists()


def test_what_another_test_measures_leaves_the_last_result_as_it_is(node: Path, run: Run) -> None:
    run()
    program(node, "exit 1")
    assert found(run(store_result=False)) == [("perftest.bandwidth", "unknown")]
    assert found(run(check_mode=True)) == []
    run()
    assert ("perftest.bandwidth", "unknown") in found(run(check_mode=True))


def test_an_old_result_is_unknown(run: Run) -> None:
    run()
    assert found(run(check_mode=True, max_age_days=0)) == [("perftest.fresh", "unknown")]


def test_a_store_that_is_no_result_is_unknown(node: Path, run: Run) -> None:
    put(node / "sys", rail_test.STORE % "client", "{")
    [finding] = run(check_mode=True)["findings"]
    assert "is not a stored result" in finding["have"]


def test_a_counter_that_moves_meanwhile_is_the_cause_of_a_slow_rail(node: Path, run: Run) -> None:
    program(node, f"echo 99 > {node / 'hw'}{DEVICE}/ports/1/hw_counters/packet_seq_err")
    result = run(share=1)
    loss, slow = sorted(result["findings"], key=lambda one: str(one["check"]))
    assert (loss["check"], loss["have"]) == ("counters.loss", "packet_seq_err +92")
    assert (slow["check"], slow["because"]) == ("perftest.bandwidth", loss["id"])
    [session] = result["sessions"]
    assert session["meaning"] == ["packet_seq_err +92: the other end reported missing packets"]


def test_a_server_that_is_not_up_yet_is_knocked_at_again(node: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # As long as the slowest machine may take for three calls.
    monkeypatch.setattr(rail_test, "KNOCK", 120.0)
    says = 'echo "Couldn\'t connect to 10.0.0.2:18600" >&2; exit 1'
    program(node, f'[ "$(wc -l < {node / "calls"})" -ge 3 ] || {{ {says}; }}')
    assert found(run(timeout=120)) == []
    assert calls(node) == 3


def test_a_server_that_never_comes_up_is_given_up(node: Path, run: Run) -> None:
    program(node, 'echo "Couldn\'t connect to 10.0.0.2:18600" >&2; exit 1')
    [finding] = run()["findings"]
    assert (finding["check"], finding["state"]) == ("perftest.bandwidth", "unknown")
    assert "does not listen" in finding["have"]


def test_a_hanging_program_is_ended_in_time(node: Path, run: Run) -> None:
    program(node, "sleep 60")
    start = time.monotonic()
    assert ("perftest.bandwidth", "unknown") in found(run(timeout=4, seconds=3))
    assert time.monotonic() - start < 30


def test_both_programs_of_a_server_wait_at_once(node: Path, run: Run) -> None:
    # Each waits for the other one's mark: one after the other they would wait for ever.
    for name, other, text in (("bw", "lat", PROGRAM.format(calls=node / "calls", body="")), ("lat", "bw", LATENCY)):
        wait = f"touch {node / name}; while [ ! -e {node / other} ]; do sleep 0.05; done\n"
        lines = text.splitlines(keepends=True)
        put(node / "sys", f"/usr/bin/ib_write_{name}", "".join([*lines[:2], wait, *lines[2:]]), 0o755)
    result = run(sessions=[SESSION | {"role": "server", "address": ""}])
    assert found(result) == []
    assert "perftest.served[live]@rail 0 from node02" in result["passed"]


def test_nothing_runs_beside_a_job_or_where_that_is_not_known(node: Path, run: Run) -> None:
    result = run(require_idle=True)
    assert found(result) == [("perftest.idle", "unknown"), ("perftest.bandwidth", "unknown")]
    assert result["findings"][1]["because"] == result["findings"][0]["id"]
    assert not (node / "calls").exists()


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        (f"hw{DEVICE}/ports/1/state", "1: DOWN\n", "mlx5_4 has no ACTIVE port"),
        ("sys/usr/bin/ib_write_lat", None, "ib_write_lat: is not installed"),
    ],
)
def test_what_keeps_a_test_from_running_is_named(node: Path, run: Run, path: str, text: str | None, says: str) -> None:
    if text is None:
        (node / path).unlink()
    else:
        put(node, path, text)
    [finding] = run()["findings"]
    assert finding["state"] == "unknown"
    assert says in finding["have"]
    assert not (node / "calls").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"sessions": [{"role": "both"}]}, "a session has"),
        ({"sessions": [SESSION, SESSION | {"role": "server"}]}, "of both roles"),
        ({"seconds": 1}, "seconds be 3 or more"),
        ({"tests": []}, "name one at least"),
        ({"timeout": 5}, "timeout more than seconds"),
        ({"hardware_root": "/no/such"}, "is not a directory"),
    ],
)
def test_a_wrong_argument_is_one_sentence(run: Run, more: dict[str, Any], says: str) -> None:
    assert says in run(**more)["msg"]
