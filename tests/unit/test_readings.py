"""Every output of a tool that is kept beside what its parser makes of it; tests/readings.py says how to add one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readings


@pytest.mark.parametrize("output", readings.outputs(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_parser_reads_the_output_as_it_is_written_down(output: Path) -> None:
    assert output.with_suffix(".json").is_file(), f"python -m tests.readings {output.relative_to(Path.cwd())}"
    assert readings.read(output) == readings.expected(output)


def test_no_reading_is_without_its_output() -> None:
    assert {path.with_suffix(".txt") for path in readings.FOLDER.glob("*/*.json")} == set(readings.outputs())
