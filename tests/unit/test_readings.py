"""Every output of a tool that is kept beside what its parser makes of it; tests/readings.py says how to add one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from hypothesis import given
from hypothesis import strategies as st

from tests import readings

PARSERS = readings.parsers()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("output", readings.outputs(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_parser_reads_the_output_as_it_is_written_down(output: Path) -> None:
    assert output.with_suffix(".json").is_file(), f"python -m tests.readings {output.relative_to(Path.cwd())}"
    assert readings.same(readings.read(output), readings.expected(output))


def test_no_reading_is_without_its_output() -> None:
    assert {path.with_suffix(".txt") for path in readings.FOLDER.glob("*/*.json")} == set(readings.outputs())


@pytest.mark.parametrize(("name", "arguments", "expected"), readings.rows())
def test_a_row_of_a_table(name: str, arguments: list[Any], expected: Any) -> None:
    assert readings.agrees(name, arguments, expected)


@pytest.mark.parametrize("name", PARSERS)
@given(st.data())
def test_any_text_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Text, JSON, and lines of its own outputs, in any order and cut off."""
    lines = [line for text in PARSERS[name] for line in text.splitlines()] or [""]
    own = st.lists(st.sampled_from(lines) | st.sampled_from(lines).map(lambda line: line[: len(line) // 2]), max_size=9)
    text = data.draw(st.text() | JSON.map(json.dumps) | own.map("\n".join))
    for each in (text, "[" * 5000):
        try:
            readings.function(name)(each)
        except ParseError as error:
            assert str(error)
