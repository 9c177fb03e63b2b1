"""How many processes a log has, and which GPU is whose."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import lines


def test_labels_that_stick_to_a_host_are_no_part_of_it() -> None:
    for label in ("0|", "user@", "pods/", "\x1b[36m(W pid=7)\x1b[0m", "stdout>"):
        assert lines.head(f"{label}n1:7:8 [2]").host == "n1", label
    assert lines.head("<host>:7:8 [2]").host == "<host>"
