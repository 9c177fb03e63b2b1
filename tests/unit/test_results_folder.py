"""On a full disk a new result is written whole or not at all."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.action import verify_report
from ansible_collections.busbar.fabric.plugins.plugin_utils import kept, localise_record, rma_record

from .test_localise_record import RECORD
from .test_verify import results

WRITERS: dict[str, Callable[[Path], object]] = {
    "localise_record": lambda folder: localise_record.write(folder, RECORD),
    "verify_report": lambda folder: verify_report.write(folder, results()),
    "rma_record": lambda folder: rma_record.write(folder, {"host": "n1", "at": 0.0, "reason": "x" * 1000}),
    "kept": lambda folder: kept.kept_between_runs(folder, "basis", lambda: "x" * 1000),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_part_of_a_result_stays_on_a_full_disk(name: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with contextlib.suppress(OSError):
            WRITERS[name](tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
