"""The whole module with real processes: stand-ins for nccl-tests that end well, badly, wrongly or never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.modules import nccl_perf
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema

from tests.trees import tool

SECRET = "hunter2-do-not-store"
# A program of nccl-tests 2.19.6 in what the module sees of it. Each test replaces what it is about.
PROGRAM = """\
#!{python}
import json, os, signal, socket, subprocess, sys, time
argv = sys.argv[1:]
USAGE = "USAGE: all_reduce_perf\\n\\t[-b,--minbytes <min size in bytes>]"
HOST, COLLECTIVE, BUSBW, WRONG, RC, FOOT = socket.gethostname(), "all_reduce", 350.5, 0, 0, True
RANKS = int(argv[argv.index("-g") + 1]) if "-g" in argv else 1
MOST = int(argv[argv.index("-e") + 1]) if "-e" in argv else 0
def before(): pass
def figures(size):
    # A rank alone moves much and exchanges nothing.
    algbw = BUSBW / (2 - 2 / RANKS) if BUSBW and RANKS > 1 else 200.0
    return size / algbw / 1e3, algbw, BUSBW if RANKS > 1 else 0.0
{change}
before()
least = int(argv[argv.index("-b") + 1])
sizes = [size for size in (least << n for n in range(40)) if size <= MOST]
print("# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809")
print("# Collective test starting: %s_perf" % COLLECTIVE)
print("# nThread 1 nGpus %d minBytes %d maxBytes %d step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
      % (RANKS, least, MOST))
print("#\\n# Using devices")
for rank in range(RANKS):
    print("#  Rank %2d Group  0 Pid %6d on %10s device %2d [0000:%02x:00] NVIDIA H200"
          % (rank, os.getpid(), HOST, rank, 16 + rank))
print("#\\n#   out-of-place   in-place")
print("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\\n#  (B) (elements) (us) (GB/s)")
for size in sizes:
    print("%12d %12d float sum -1 %s %s" % (size, size // 4, *["%.2f %.2f %.2f %d" % (*figures(size), WRONG)] * 2))
if FOOT:
    print("# Out of bounds values : %d %s\\n# Avg bus bandwidth    : 1\\n#" % (WRONG, "FAILED" if WRONG else "OK"))
sys.exit(RC)
"""
Run = Callable[..., dict[str, Any]]


def program(folder: Path, change: str = "", name: str = "all_reduce_perf") -> Path:
    path = folder / name
    path.write_text(PROGRAM.format(python=sys.executable, change=change))
    path.chmod(0o755)
    return path


def arguments(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "binary": str(tmp_path / "all_reduce_perf"),
        "gpus": 2,
        "min_bytes": "1M",
        "max_bytes": "4M",
        "bar_busbw": 348,
        "timeout": 30,
        "environment": {"TOKEN": SECRET},
        "result_directory": str(tmp_path / "results"),
        "require_idle": False,
        "system_root": str(tmp_path),
        **changes,
    }
    return {name: value for name, value in given.items() if value is not None}


def called(capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> dict[str, Any]:
    """The module's result, if it is one that the control node takes, and has no secret."""
    with patch_module_args(given), pytest.raises(SystemExit):
        nccl_perf.main()
    out = capsys.readouterr().out
    assert SECRET not in out
    return result_schema.check("nccl_perf", json.loads(out))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(process_group, "TERM_GRACE", 0.3)
    # What earlier tests of this process have left would be in the way.
    process_group.end_all()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def call(*, check: bool = False, **changes: Any) -> dict[str, Any]:
        result = called(capsys, {**arguments(tmp_path, **changes), "_ansible_check_mode": check})
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return result

    return call


def states(result: dict[str, Any]) -> dict[str, str]:
    assert not result["changed"]
    return {finding["check"].partition(".")[2]: finding["state"] for finding in result["findings"]}


def said(result: dict[str, Any], check: str) -> str:
    (finding,) = [finding for finding in result["findings"] if finding["check"] == f"nccl_perf.{check}"]
    return str(finding["have"])


def nowhere(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_good_run(run: Run, tmp_path: Path) -> None:
    program(tmp_path)
    result = run()
    assert result["findings"] == []
    assert [name.partition(".")[2].partition("[")[0] for name in result["passed"]] == [
        *("ran", "fresh", "sizes", "ranks", "correct", "nonzero", "busbw")
    ]
    assert (result["busbw"], result["simulated"]) == (350.5, False)
    assert [row["size"] for row in result["measured"]["rows"]] == [1 << 20, 2 << 20, 4 << 20]
    directory = Path(result["run_directory"])
    assert sorted(path.name for path in directory.iterdir()) == ["record.json", "stderr", "stdout"]
    assert os.readlink(tmp_path / "results/latest") == directory.name
    assert directory.stat().st_mode & 0o777 == 0o700
    nowhere(tmp_path / "results")


def test_nothing_but_what_was_given_is_in_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    program(tmp_path, "before = lambda: open(%r, 'w').write(json.dumps(dict(os.environ)))" % str(tmp_path / "seen"))
    run(environment={"NCCL_NVLS_ENABLE": 0})
    seen = json.loads((tmp_path / "seen").read_text())
    assert {name for name in seen if name != "LC_CTYPE"} == {
        *("PATH", "HOME", "LC_ALL", "NCCL_NVLS_ENABLE", "OMPI_MCA_ess_singleton_isolated")
    }


# The rest of what may be wrong with an output: test_nccl_perf_golden.
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("HOST = 'elsewhere'", {"ranks": "drift"}),
        # It leaves a usage text and exit code 0 where it does not know an option.
        ("before = lambda: (print(USAGE), sys.exit(0))", {"ran": "drift"}),
        ("before = lambda: os.kill(os.getpid(), signal.SIGSEGV)", {"ran": "drift"}),
    ],
)
def test_whatever_is_not_as_asked_is_found(run: Run, tmp_path: Path, change: str, expected: dict[str, str]) -> None:
    program(tmp_path, change)
    found = states(run())
    assert {check: state for check, state in found.items() if state == "drift"} == expected


def test_repeats_stop_at_the_first_that_fails(run: Run, tmp_path: Path) -> None:
    count = tmp_path / "count"
    program(tmp_path, f"def before(): open({str(count)!r}, 'a').write('x')")
    result = run(repeats=3, algorithm="Ring")
    assert states(result) == {}
    assert (count.read_text(), len(result["repeats"]), result["busbw"]) == ("xxx", 3, 350.5)
    assert said(run(repeats=2, when="never", stored_result=result["record"]), "fresh").startswith("a result of another")
    program(tmp_path, f"def before(): open({str(count)!r}, 'a').write('y')\nRC = 2")
    result = run(repeats=3)
    assert states(result)["ran"] == "drift"
    assert count.read_text() == "xxxy"
    # One of them fails, and the others are good.
    change = f"def before():\n    open({str(count)!r}, 'a').write('z')\n"
    program(tmp_path, change + f"RC = 2 * (len(open({str(count)!r}).read()) == 5)")
    result = run(repeats=3)
    assert states(result) == {"ran": "drift", "busbw": "unknown", "spread": "unknown", "outlier": "unknown"}
    assert said(result, "ran").startswith("run 2 of 2: exit code 2")


def test_a_missing_program_is_not_a_result(run: Run, tmp_path: Path) -> None:
    result = run()
    assert states(result)["ran"] == "unknown"
    assert "not started" in said(result, "ran")
    assert result["busbw"] is None


def test_a_hung_run_is_ended_with_children_that_left_the_group(run: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program(
        tmp_path,
        "def before():\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"    open({str(pids)!r}, 'w').write('%d %d' % (os.getpid(), child.pid))\n"
        "    time.sleep(600)\n",
    )
    result = run(timeout=2)
    assert states(result)["ran"] == "drift"
    assert "no end within 2 s" in said(result, "ran")
    for pid in pids.read_text().split():
        assert not Path("/proc", pid).exists()


def test_a_secret_that_the_program_prints_is_not_returned(run: Run, tmp_path: Path) -> None:
    program(tmp_path, "def before():\n    print('node01: Test CUDA failure', os.environ['TOKEN'])\n    sys.exit(3)")
    result = run()
    assert "********" in said(result, "ran")


def test_the_newest_runs_are_kept(run: Run, tmp_path: Path) -> None:
    program(tmp_path)
    (tmp_path / "results").mkdir()
    stranger = tmp_path / "results/notes"
    stranger.mkdir()
    made = [Path(run()["run_directory"]) for _ in range(7)]
    assert [path.is_dir() for path in made] == [False] * 2 + [True] * 5
    assert stranger.is_dir()


# -- check mode and stored results -----------------------------------------------------------------------------------


def test_check_mode_runs_nothing(run: Run, tmp_path: Path) -> None:
    program(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    result = run(check=True)
    assert states(result) == {"ran": "unknown"}
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "results").exists()
    assert result["commands"] == [f"{tmp_path}/all_reduce_perf -b 1048576 -e 4194304 -f 2 -g 2 -n 20 -w 5 -c 1"]


# -- what root runs --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize(
    ("theirs", "changes"),
    [
        ("all_reduce_perf", {}),
        ("bin", {"environment": {"LD_PRELOAD": "BIN/x.so"}}),
        ("bin", {"environment": {"PATH": "BIN:/usr/bin"}}),
        ("bin", {"environment": {"LD_LIBRARY_PATH": "/usr/lib:BIN/not/yet/there"}}),
        ("bin", {"environment": {"NCCL_NET_PLUGIN": "BIN/libnccl-net.so"}}),
        ("results", {}),
    ],
)
def test_what_others_may_change_is_not_run(run: Run, tmp_path: Path, theirs: str, changes: dict[str, Any]) -> None:
    program(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "results").mkdir()
    (tmp_path / "bin").mkdir()
    changes = json.loads(json.dumps(changes).replace("BIN", str(tmp_path / "bin")))
    run(**changes)
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink(missing_ok=True)
    os.chown(tmp_path / theirs, 65533, -1)
    text = json.dumps(run(**changes))
    assert f"/{theirs} belongs to UID 65533; give it to root alone" in text
    assert '"nccl_perf.ran"' in text or "failed" in text
    assert not (tmp_path / "ran").exists()


# -- who else uses the node ------------------------------------------------------------------------------------------


def test_a_busy_node_is_left_alone(run: Run, tmp_path: Path) -> None:
    program(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    script = "echo 'pid, process_name, used_gpu_memory [MiB]'\necho '4242, python train.py, 71680 MiB'"
    tool(tmp_path / "root", "usr/bin/nvidia-smi", script)
    roots = {"hardware_root": str(tmp_path / "root"), "system_root": str(tmp_path / "root")}
    roots["result_directory"] = str(tmp_path / "root/results")
    result = run(require_idle=True, **roots)
    assert states(result) == {"idle": "unknown"}
    assert said(result, "idle").startswith("busy: process python train.py (pid 4242)")
    assert not (tmp_path / "ran").exists()
    # Not to know is not idle.
    (tmp_path / "root/usr/bin/nvidia-smi").unlink()
    assert states(run(require_idle=True, **roots)) == {"idle": "unknown"}
    assert not (tmp_path / "ran").exists()


def start(tmp_path: Path, **changes: Any) -> subprocess.Popen[str]:
    """The module in a process of its own, as on a node."""
    code = (
        "import json, sys\nfrom ansible.module_utils.testing import patch_module_args\n"
        "from ansible_collections.busbar.fabric.plugins.modules import nccl_perf\n"
        "with patch_module_args(json.loads(sys.argv[1])): nccl_perf.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", code, json.dumps(arguments(tmp_path, **changes))]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 600
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)
    return path.read_text()


WAITS = "def before():\n    open({path!r}, 'w').write(str(os.getpid()))\n    {also}time.sleep(600)\n"


def test_a_second_run_at_once_finds_the_node_busy(run: Run, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program(tmp_path, WAITS.format(path=str(pid), also=""))
    first = start(tmp_path)
    try:
        wait_for(pid)
        # This process must have no children of its own when it starts a program; it must not come to that.
        result = run(require_idle=True)
    finally:
        first.terminate()
        first.communicate()
    assert states(result) == {"idle": "unknown"}
    assert "another benchmark run" in said(result, "idle")


def gone(pid: str) -> None:
    deadline = time.monotonic() + 600
    while Path("/proc", pid).exists() and Path("/proc", pid, "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize("end", [subprocess.Popen.terminate, subprocess.Popen.kill])
def test_a_killed_module_takes_the_program_with_it(
    tmp_path: Path, run: Run, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    pid = tmp_path / "pid"
    program(tmp_path, WAITS.format(path=str(pid), also=""))
    module = start(tmp_path)
    wait_for(pid)
    end(module)
    module.communicate()
    gone(pid.read_text())
    # And the lock with it.
    program(tmp_path)
    assert run()["findings"] == []


LAUNCH = {"kind": "mpirun", "hosts": ["node01", "node02"], "per_node": 8}


# -- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"binary": "all_reduce_perf"}, "not an absolute path"),
        ({"binary": "/opt/bench"}, "does not show the collective"),
        ({"min_bytes": "8GB"}, "expected bytes"),
        ({"min_bytes": "8M"}, "is larger than the largest"),
        ({"step_factor": 1}, "factor"),
        ({"iterations": 0}, "iterations"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 100000}, "at most"),
        ({"bar_busbw": -1}, "bar_busbw"),
        ({"repeats": 0}, "repeats is 0, expected 1 to 100"),
        ({"repeats": 101}, "repeats is 101"),
        ({"algorithm": "Ring Tree"}, "is not an NCCL_ALGO"),
        ({"algorithm": "Ring", "environment": {"NCCL_ALGO": "Tree"}}, "NCCL_ALGO is what algorithm sets"),
        ({"rails": 0}, "rails is 0"),
        ({"launch": {"kind": "mpiexec"}}, "launch.kind"),
        ({"launch": LAUNCH}, "gpus is 2; with launch each process has one"),
        ({"launch": {**LAUNCH, "hosts": ["a", "10.0.0.1"]}, "gpus": 1}, "prints names, not addresses"),
        ({"launch": {**LAUNCH, "hosts": ["a.x", "a.y"]}, "gpus": 1}, "the same short name"),
        ({"environment": {"A=B": "x"}}, "not a name of a variable"),
        ({"environment": {"TOKEN": [SECRET]}}, "TOKEN is neither text nor a number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(run: Run, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    program(tmp_path)
    result = run(**changes)
    assert result["failed"]
    assert words in result["msg"]
    assert not (tmp_path / "results").exists()
