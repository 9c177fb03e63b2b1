"""What programs and launchers say beside NCCL: quoted with who wrote it, told as what it is, and never as more."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, quotes, signal_numbers, signals
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def read(text: str) -> job.Log:
    return job.read([text.encode()])


def found(text: str) -> dict[str, str]:
    return {finding.check: finding.have or "" for finding in judge.judge(read(text)) if not finding.ok}


def printed(text: str) -> str:
    log = read(text)
    return " ".join(render(log, split(log), judge.judge(log), 100).split())


@pytest.mark.parametrize(
    ("line", "kind", "about"),
    [
        ("[alpha:41   :0:44] Caught signal 7 (Bus error: nonexistent physical address)", "death", "/dev/shm"),
        ("[alpha:00041] Signal: Segmentation fault (11)", "death", "signal 11"),
        ("srun: error: alpha: task 3: Exited with exit code 137", "death", "Slurm"),
        (
            "mpirun noticed that process rank 2 with PID 9 on node alpha exited on signal 9 (Killed).",
            "death",
            "SIGKILL",
        ),
        ("  Exit code:    139", "death", "signal 11"),
        ("bash: line 1: 77 Bus error               (core dumped) ./train", "death", "signal 7"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected error.", "death", "Ray"),
        ("    reason: OOMKilled", "death", "memory"),
        ("  what():  [1] is not ready", "error", "C++"),
        ("RuntimeError: Triton Error [CUDA]: misaligned address", "error", "Triton"),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:5] Timed out waiting 5000ms for send", "error", "Gloo"),
        ("my.own.package.ShapeError: no such shape", "error", "exception in Python"),
        ("worker 3 could not do it", "error", ""),
        ("WARNING: the device of rank 3 is slow", "warning", ""),
        ("the test is successful", "success", ""),
    ],
)
def test_each_class_of_line_is_told_as_what_it_is(line: str, kind: str, about: str) -> None:
    known = signals.classify(line.strip())
    assert known is not None
    assert (known.kind, about in known.about) == (kind, True)


@pytest.mark.parametrize(
    "line",
    [
        '  File "/x/errors.py", line 5, in fail',
        "frame #3: c10::Error::Error() + 0x57 (0x7fd in libc10.so)",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "x/y.py:3: FutureWarning: this will be an error",
        "process 4 has exit code 0",
        "epoch 3 of 5",
        "    raise ValueError(text)",
    ],
)
def test_what_reports_nothing_is_passed_over(line: str) -> None:
    assert signals.classify(line.strip()) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(137, "signal 9"), (-11, "signal 11"), (139, "signal 11"), (134, "signal 6"), (3, ""), (127, "not")],
)
def test_exit_codes_of_signals(code: int, said: str) -> None:
    assert said in signal_numbers.meaning(code)
    assert bool(said) == bool(signal_numbers.meaning(code))


def test_no_more_quotes_are_kept_and_printed_than_there_is_room_for() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "klmnopqr" for c in "stuvwx"]
    text = "".join(f"the {word} failed here\n" for word in words)
    log = read(text)
    assert len(log.quotes.all) == quotes.QUOTES
    assert log.quotes.left_out == len(words) - quotes.QUOTES
    said = printed(text)
    assert f"and {log.quotes.left_out} more kinds of lines" in said
    assert said.count("failed here") > quotes.QUOTES - 5


def test_what_a_program_prints_cannot_write_to_the_terminal() -> None:
    said = printed("the \x1b[31mqueue\x07 failed: \u202e\n" + "x" * 100_000 + " failed\n")
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert "x" * 500 not in said


def test_what_stands_before_a_head_is_looked_at_at_its_ends() -> None:
    log = read("[rank3]: " + "x" * 15_000 + " alpha:7:8 [0] a.cc:1 NCCL WARN Call to poll failed : odd\n")
    [process] = log.processes.values()
    assert (process.host, process.launcher_rank) == ("alpha", 3)


def test_a_death_is_quoted_however_much_else_failed() -> None:
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "klmnopqr" for c in "stuvwx"]
    text = "".join(f"the {word} failed here\n" for word in words) + "[alpha:7 :0:7] Caught signal 7 (Bus error)\n"
    assert "Caught signal 7" in found(text)["nccl_log.exit"]


def test_a_program_s_own_info_is_no_failure() -> None:
    said = signals.classify("INFO 07-22 12:55:39 cuda.py:12] Cannot use the fast backend for this size")
    assert said is not None
    assert said.kind == "warning"
