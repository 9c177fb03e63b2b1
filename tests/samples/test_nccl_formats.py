"""Releases that real logs name by the form of their messages alone."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import release_range

RECORD = re.compile(r"^.*?(?: (\S+:\d+(?: \(\w+\))?))? NCCL (?:INFO|WARN) (.*)", re.MULTILINE)


def records(log: Path) -> list[tuple[str, str]]:
    found = RECORD.findall(log.read_text("utf-8", "replace"))
    return [(place, text) for place, text in found if "NCCL version" not in text]


def test_real_logs_name_a_range_that_holds_their_release(samples: Path) -> None:
    judged = 0
    for log in sorted([*samples.rglob("*.txt"), *samples.parent.glob("cases/diagnose/real-*")]):
        versions = set(re.findall(r"NCCL version (2\.\d+\.\d+)", log.read_text("utf-8", "replace")))
        messages = records(log)
        if len(versions) != 1 or len(messages) < 50:
            continue
        found = release_range(messages)
        assert found.holds(versions.pop()), log
        assert found.recognised > 10, log
        assert len(found.releases) < 4, log
        judged += 1
    assert judged > 12
