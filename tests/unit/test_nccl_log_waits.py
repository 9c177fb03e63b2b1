"""Waits that PyTorch gave up: what comes after them is not their cause, and what they tell is not lost."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import signals

HEAD = "[rank{0}]:[E101 {1} ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            HEAD
            + "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            signals.DEATH,
        ),
        (HEAD + "Exception thrown when waiting for future Flight recorder dump in x: Broken promise", signals.WARNING),
        (HEAD + "Observed flight recorder dump signal from another rank via TCPStore.", signals.WAITS),
        ("[rank0]:[W1] Warning: An unbatched P2P op (send/recv) was called on this ProcessGroup", signals.WARNING),
    ],
)
def test_classes_of_lines_around_a_dump(line: str, kind: str) -> None:
    said = signals.classify(line)
    assert said is not None
    assert said.kind == kind
    assert "which holds the last collectives" not in said.about
