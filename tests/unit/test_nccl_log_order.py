"""What ended a job: its cause comes first, and orders to end, exit codes and lost connections follow from it."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, signals
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

RAISED = """Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    main()
  File "/x/train.py", line 5, in main
    check(args)
  File "/x/args.py", line 3, in check_sizes
    assert not args.size % 3
AssertionError: size 8 is no multiple of 3
"""
CLOSED = "beta:9:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer alpha<40001>\n"


def verdict(text: str) -> str:
    log = job.read([text.encode()])
    said = " ".join(render(log, split(log), judge.judge(log), 400).split())
    return said.partition("verdict: ")[2].partition(" critical")[0]


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("./run.sh: line 3: 2311 Killed                  python3 -m server --tp 16", "SIGKILL"),
        ("[2025] Received sigquit from a child process. It usually means the child failed.", "SGLang"),
        ("ERROR 06-24 02:48:49 [x.py:1] Worker pid 311 died, exit code: -15", "SIGTERM"),
    ],
)
def test_more_ways_to_tell_an_end(line: str, about: str) -> None:
    known = signals.classify(line)
    assert known is not None
    assert (known.kind, about in known.about) == ("death" if about == "SIGKILL" else "order", True)


def test_a_flight_recorder_that_is_off_wrote_nothing() -> None:
    said = signals.classify("Stack trace not found, potentially because FlightRecorder is disabled. Set the variable")
    assert said is not None
    assert "has no record" in said.about


@pytest.mark.parametrize("form", ["{:>4}  {}", "{}\t{}", "{:>3} | {}"])
def test_lines_that_were_copied_with_their_numbers(form: str) -> None:
    text = "".join(form.format(number, line) for number, line in enumerate((RAISED + CLOSED).splitlines(True), 98))
    assert "AssertionError: size 8" in verdict(text)
    assert verdict(text) == verdict(RAISED + CLOSED)
    # A launcher's labels are no such numbers.
    labelled = "".join(f"{rank}: {line}" for rank, line in enumerate([CLOSED] * 6))
    assert len(job.read([labelled.encode()]).failures) == 6
