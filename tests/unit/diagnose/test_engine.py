# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tables of events, patterns and relations; which root they give is seen in logs/roots.txt and its golden."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import (
    engine,
    events,
    facts,
    nccl_events,
    outside_events,
    program_events,
    table,
)
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import _table, formats

from tests import goldens
from tests.unit.test_nccl_formats import CONVERSION


def test_relations_and_patterns_name_known_events() -> None:
    named = {name.split(" ")[0] for relation in engine.RELATIONS for name in (relation.effect, relation.cause)}
    named |= {name for _marks, name, _pattern in (*program_events.SPECIFIC, *program_events.GENERAL)}
    named |= {name for name, _pattern in (*nccl_events.PATTERNS, *nccl_events.OTHERS)}
    assert named <= events.BY_ID.keys() | outside_events.OUTSIDE_NCCL.keys()
    conditions = {relation.condition for relation in engine.RELATIONS}
    assert conditions == {"any", "before", "lost", "other", "own", "peer"}


def message(text: str) -> str:
    """Return a message of a format, with a number or a name in the place of each conversion."""
    values = {"s": "eth0", "m": "Invalid argument", "p": "0x7f00aa", "f": "2.5", "g": "2.5", "%": "%", "c": "x"}
    return CONVERSION.sub(lambda match: values.get(match.group(1), "7"), text.partition("\\n")[0])


@pytest.mark.golden
def test_each_format_of_nccl_is_an_event_or_a_fact() -> None:
    found: Counter[str] = Counter()
    for row in formats():
        if row.level == "WARN":
            event, fields = nccl_events.classify(message(row.text))
            found[f"{event.id} {fields.get('code', '')}".rstrip()] += 1
        else:
            fact = facts.read(message(row.text))
            found[f"fact {fact.name}" if fact is not None else "not read"] += 1
    goldens.check("diagnose", "formats of NCCL", sorted(found.items()))


def test_warnings_are_known_on_a_node_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible sends no data files: there is no table of formats."""
    monkeypatch.setattr("pkgutil.get_data", lambda _package, _name: None)
    _table.cache_clear()
    found = [nccl_events.classify(text)[0].id for text in ("No transport found for rank 0", "something new")]
    assert found == ["no_transport", "warning"]


@pytest.mark.parametrize("line", Path(__file__).with_name("reports.txt").read_text().splitlines())
def test_a_report_of_others_is_an_event_or_none(line: str) -> None:
    event, fields = program_events.classify(line[30:]) or (None, {})
    # Exceptions have their text as code.
    code = f" {fields['code']}" if event is not None and fields["code"] and event.id != "exception" else ""
    assert (f"{event.id}{code}" if event is not None else "") == line[:30].rstrip()


@pytest.mark.parametrize(
    "text", ["init.cc:9 -> 2 [Async thread]", "init.cc:9 (ncclCommInitRankFunc) -> 2 [Async thread]"]
)
def test_a_call_that_returned_an_error_is_read_in_the_forms_of_all_releases(text: str) -> None:
    fact = facts.read(text)
    assert fact is not None
    assert (fact.name, fact.fields["place"], fact.fields["result"]) == ("returned", "init.cc:9", 2)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("1024 256 float sum -1 10.00 0.10 0.19 0 20.00 0.05 0.10 0", (1024, 0.19, 0.10, 10.0, 0)),
        ("1024 256 float sum -1 10.00 0.10 0.19 0", (1024, 0.19, None, 10.0, 0)),
        ("1024 256 float sum 10.00 0.10 0.19 0 20.00 0.05 0.10 3", (1024, 0.19, 0.10, 10.0, 3)),
        ("1024 256 float none 2 10.00 0.10 0.00 N/A 20.00 0.05 0.00 N/A", (1024, 0.0, 0.0, 10.0, None)),
        ("0 0 float sum -1 0.00 0.00 0.00 0 0.00 0.00 0.00 0", (0, 0.0, 0.0, 0.0, 0)),
        ("1024 256 float sum -1 10.00 0.10", None),
        ("1024 256 float sum -1 1.0.0 0.10 0.19 0", None),
        ("1024 tokens float by", None),
    ],
)
def test_a_row_of_nccl_tests(line: str, row: tuple[float, ...] | None) -> None:
    assert table.read_row(line) == (table.Row(*row) if row is not None else None)  # type: ignore[arg-type]
