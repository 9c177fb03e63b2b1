"""What is written from declarations says what they say; the declarations themselves can be written down."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_values import PARTS, VALUES, Value, of_role

from tests import documents

ROLES = sorted(path.name for path in (documents.ROOT / "roles").iterdir() if path.is_dir())


def test_nothing_is_stale() -> None:
    assert [str(path.relative_to(documents.ROOT)) for path in documents.stale()] == [], "run make docs"


@pytest.mark.parametrize("name", VALUES)
def test_every_value_says_what_it_means_and_its_default_is_right(name: str) -> None:
    value = VALUES[name]
    assert value.says.endswith(".")
    assert "|" not in value.says, "would end a cell of a table"
    assert "](" not in value.says
    assert "{{" not in value.says, "Ansible evaluates argument specs"
    assert value.type in intent._TYPES
    if value.required:
        assert value.default is None
    elif value.default not in (None, ""):
        assert intent._errors(name, value.default, value) == []


def test_every_value_is_declared_once_and_has_a_part_that_a_reader_knows() -> None:
    assert sum(map(len, PARTS.values())) == len(VALUES)
    assert set(PARTS) - set(ROLES) <= set(documents.HEADINGS)
    for name in VALUES:
        assert [part for part in ROLES if name.startswith(f"{part}_") and name not in PARTS[part]] == []


@pytest.mark.parametrize("role", ROLES)
def test_ansible_reads_the_declared_defaults_and_options(role: str) -> None:
    values = of_role(role)
    folder = documents.ROOT / "roles" / role
    defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text())
    assert defaults == {name: value.default for name, value in values.items()}
    specs = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
    assert list(specs) == ["short_description", "description", "options"]
    assert {name: option["default"] for name, option in specs["options"].items()} == defaults
    for name, option in specs["options"].items():
        assert (option["type"], tuple(option.get("choices", ()))) == (values[name].type, values[name].choices)
        assert option.get("elements") == (values[name].elements if values[name].type == "list" else None)
        assert isinstance(option["description"], str)


@pytest.mark.parametrize(
    "value", ["", "off", "yes", "02:00", "10%", "3.2.1", "3.2", "a: b", "null", "x" * 200, -1, 0.9, True, None, [], {}]
)
def test_a_value_is_one_line_of_yaml_that_reads_as_itself(value: object) -> None:
    for each in (value, [value, value]):
        text = documents.flow(each)
        assert yaml.safe_load(f"name: {text}") == {"name": each}
        assert "\n" not in text


def test_what_is_written_by_hand_around_a_table_stays_and_a_missing_mark_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = documents.BEGIN.format("x"), documents.END.format("x")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert documents._between(page, "x", ["new"]) == f"before\n{begin}\nnew\n{end}\nafter\n"
    page.write_text(f"{end}\n{begin}\n")
    with pytest.raises(ValueError, match=r"page\.md: needs the lines .* once each"):
        documents._between(page, "x", ["new"])


def test_options_take_the_place_of_options_and_of_nothing_else(tmp_path: Path) -> None:
    specs = tmp_path / "argument_specs.yml"
    head, tail = "---\nargument_specs:\n  main:\n", "  other:\n    options: {}\n"
    specs.write_text(f"{head}    options:\n      old:\n        type: str\n{tail}")
    lines = documents.options({"new": Value("list", [], elements="int", says="Said.")})
    text = documents._with_options(specs, lines)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert yaml.safe_load(text)["argument_specs"]["main"]["options"] == {
        "new": {"description": "Said.", "type": "list", "elements": "int", "default": []}
    }
    specs.write_text("---\n")
    with pytest.raises(ValueError, match="has no line"):
        documents._with_options(specs, lines)
