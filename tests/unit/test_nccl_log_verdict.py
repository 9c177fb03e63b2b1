"""The verdict is the cause, or what is nearest to it: no victim, no end that was ordered, no slow network."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def of(*texts: str, names: tuple[str, ...] = ()) -> tuple[str, list[Finding]]:
    """The verdict, and the findings that are not ok."""
    reader = job.Reader()
    for number, text in enumerate(texts):
        reader.source(names[number] if names else "a.log")
        reader.feed(text.encode())
    reader.end()
    found = judge.judge(reader.log)
    said = render(reader.log, split(reader.log), found, 4000)
    return said.partition("verdict: ")[2].partition("\n")[0], [one for one in found if not one.ok]


def test_what_is_no_text_has_no_failure() -> None:
    hole = "\0\0\n"
    assert of("RuntimeError: x\n" + 2 * hole)[0] == "this is not a text: 2 of 3 lines hold zero bytes"
    # A hole in a log is none.
    assert "RuntimeError: x" in of("RuntimeError: x\n" + hole)[0]
    assert "no text" not in of(DUPLICATE + 3 * hole)[0]


DUPLICATE = "n1:71:81 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10\n"
