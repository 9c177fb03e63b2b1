"""The module's own end of a test: with programs that print what perftest would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import rail_test
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.modules import perftest
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema

from tests import goldens
from tests.trees import line, put, rdma_device

DEVICE = "/sys/class/infiniband/mlx5_4"
SESSION = {"role": "client", "rail": 0, "pci": "", "device": "mlx5_4", "peer": "node02", "address": "10.0.0.2"}
SESSION |= {"rate_gbps": 100.0, "link_layer": "InfiniBand"}
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
    put(node / "sys", "/usr/bin/ib_write_bw", PROGRAM.format(calls=node / "calls", body=body), 0o755)


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


BW, LAT = "sys/usr/bin/ib_write_bw", "sys/usr/bin/ib_write_lat"
SLOW = {LAT: LATENCY.replace(" 2.00 ", " 70.00 ")}
DEAF = {BW: 'echo "Couldn\'t connect to 10.0.0.2:18600" >&2; exit 1'}
LOST = {BW: f"echo 99 > NODE/hw{DEVICE}/ports/1/hw_counters/packet_seq_err"}
CHECK = {"check_mode": True}
# Case -> what is otherwise on the node (text of a file, None for no file, what ib_write_bw does), and the options.
RUNS: dict[str, tuple[Mapping[str, str | None], dict[str, Any]]] = {
    "good": ({}, {}),
    "a slow latency": (SLOW, {}),
    "a slow latency, no value of the site": (SLOW, {"latency": None}),
    "a slow latency, no bar": (SLOW, {"latency": 0}),
    "check mode before any run": ({}, CHECK),
    "check mode, no stored result": ({f"sys{rail_test.STORE % 'client'}": "{}"}, CHECK),
    "a counter moves meanwhile": (LOST, {"share": 1}),
    "the server never comes up": (DEAF, {}),
    "not known to be idle": ({}, {"require_idle": True}),
    "no active port": ({f"hw{DEVICE}/ports/1/state": "1: DOWN\n"}, {}),
    "a program is not installed": ({LAT: None}, {}),
    "no role": ({}, {"sessions": [{"role": "both"}]}),
    "both roles": ({}, {"sessions": [SESSION, SESSION | {"role": "server"}]}),
    "too few seconds": ({}, {"seconds": 1}),
    "no tests": ({}, {"tests": []}),
    "no time": ({}, {"timeout": 5}),
    "no directory": ({}, {"hardware_root": "/no/such"}),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_to(node: Path, run: Run, name: str) -> None:
    files, options = RUNS[name]
    for path, text in files.items():
        if text is None:
            (node / path).unlink()
        elif path == BW:
            program(node, text.replace("NODE", str(node)))
        else:
            put(node, path, text, 0o755)
    result = run(**options)
    rows = [[one[key] for key in ("check", "state", "have", "because")] for one in result.get("findings", ())]
    programs = [line.split()[0] for line in result.get("commands", ())]
    ran = (node / "calls").exists()
    said = [*rows, result.get("passed"), programs, ran, result.get("msg")]
    goldens.check("perftest_module", name, json.loads(json.dumps(said).replace(str(node), "NODE")))


def test_a_good_run_is_kept_for_check_mode_until_it_is_old(node: Path, run: Run) -> None:
    run()
    stored = run(check_mode=True)
    assert found(stored) == []
    assert "perftest.fresh[live]@rail 0 to node02" in stored["passed"]
    assert calls(node) == 1
    # What is wanted is declared now, and another card has no result.
    faster, moved = (SESSION | {name: value} for name, value in (("rate_gbps", 400.0), ("pci", "0000:31:00.0")))
    assert found(run(check_mode=True, sessions=[faster])) == [("perftest.bandwidth", "drift")]
    assert found(run(check_mode=True, sessions=[moved])) == [("perftest.bandwidth", "unknown")]
    assert found(run(check_mode=True, max_age_days=0)) == [("perftest.fresh", "unknown")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("theirs", ["usr/bin", "usr/bin/ib_write_bw"])
def test_a_program_that_others_may_change_is_not_run(node: Path, run: Run, theirs: str) -> None:
    os.chown(node / "sys" / theirs, 65533, -1)
    [one] = run()["findings"]
    assert (one["check"], one["state"]) == ("perftest.bandwidth", "unknown")
    assert f"/{theirs} belongs to UID 65533" in one["have"]
    assert one["fix"].startswith("give it to root alone")
    assert not (node / "calls").exists()


def test_what_another_test_measures_leaves_the_last_result_as_it_is(node: Path, run: Run) -> None:
    run()
    program(node, "exit 1")
    assert found(run(store_result=False)) == [("perftest.bandwidth", "unknown")]
    assert found(run(check_mode=True)) == []
    run()
    assert ("perftest.bandwidth", "unknown") in found(run(check_mode=True))


def test_a_server_that_is_not_up_yet_is_knocked_at_again(node: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # As long as the slowest machine may take for three calls.
    monkeypatch.setattr(rail_test, "KNOCK", 120.0)
    says = 'echo "Couldn\'t connect to 10.0.0.2:18600" >&2; exit 1'
    program(node, f'[ "$(wc -l < {node / "calls"})" -ge 3 ] || {{ {says}; }}')
    assert found(run(timeout=120)) == []
    assert calls(node) == 3


def test_both_programs_of_a_server_wait_at_once(node: Path, run: Run) -> None:
    # Each waits for the other one's mark: one after the other they would wait for ever.
    for name, other, text in (("bw", "lat", PROGRAM.format(calls=node / "calls", body="")), ("lat", "bw", LATENCY)):
        wait = f"touch {node / name}; while [ ! -e {node / other} ]; do sleep 0.05; done\n"
        lines = text.splitlines(keepends=True)
        put(node / "sys", f"/usr/bin/ib_write_{name}", "".join([*lines[:2], wait, *lines[2:]]), 0o755)
    result = run(sessions=[SESSION | {"role": "server", "address": ""}])
    assert found(result) == []
    assert "perftest.served[live]@rail 0 from node02" in result["passed"]


def test_a_hanging_program_is_ended_in_time(node: Path, run: Run) -> None:
    program(node, "sleep 60")
    start = time.monotonic()
    assert ("perftest.bandwidth", "unknown") in found(run(timeout=4, seconds=3))
    assert time.monotonic() - start < 30
