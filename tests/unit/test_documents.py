"""What is written from declarations says what they say; the declarations themselves can be written down."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_values import PARTS, VALUES, of_role

from busbar import cli
from lab.faults import FAULTS
from tests import documents

CHECKS = {each.check.id: each for each in documents.declared()}
ROOT = documents.ROOT
FOLDERS = ("module_utils", "plugin_utils", "library", "action_plugins")
CODE = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def test_nothing_is_stale() -> None:
    assert [str(path.relative_to(ROOT)) for path in documents.stale()] == [], "run make docs"


@pytest.mark.parametrize("name", VALUES)
def test_every_value_says_what_it_means_and_its_default_is_right(name: str) -> None:
    value = VALUES[name]
    assert documents.MEANINGS[name].endswith(".")
    assert not [mark for mark in ("|", "](", "{{") if mark in documents.MEANINGS[name]], "a cell, a link, a template"
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
    folder = ROOT / "roles" / role
    defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text())
    assert defaults == {name: value.default for name, value in values.items()}
    specs = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
    assert list(specs) == ["short_description", "description", "options"]
    assert {name: option["default"] for name, option in specs["options"].items()} == defaults
    for name, option in specs["options"].items():
        assert (option["type"], tuple(option.get("choices", ()))) == (values[name].type, values[name].choices)
        assert option.get("elements") == (values[name].elements if values[name].type == "list" else None)
        assert isinstance(option["description"], str)


def test_the_id_of_a_check_is_written_out_in_its_declaration_and_nowhere_else() -> None:
    # A table of what buyers ask: tests/unit/test_certify.py compares its ids with the declared ones.
    code = [path for path in CODE if path.parts[-2:] != ("certify", "criteria.py")]
    nodes = [node for path in code for node in ast.walk(ast.parse(path.read_text()))]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert {check: strings.count(check) for check in CHECKS if strings.count(check) != 1} == {}


def test_every_fault_of_the_lab_names_checks_that_are_declared() -> None:
    spoken = {check for fault in FAULTS.values() for check in (fault.check, *fault.consequences)}
    assert spoken <= set(CHECKS)


PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("roles/*/README.md")]
TEXTS = [ROOT / "CONTRIBUTING.md", *ROOT.glob("inventories/**/*.yml"), *ROOT.glob("profiles/*")]


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _missing(page: Path, anchor: str) -> bool:
    return not page.exists() or (bool(anchor) and anchor not in _anchors(page))


def test_every_link_and_every_page_that_a_text_names_is_there() -> None:
    wrong = []
    for page in PAGES:
        for name, _, at in (link.partition("#") for link in re.findall(r"\]\(([^)\s:]+)\)", page.read_text())):
            wrong += [f"{page}: {name}#{at}"] if _missing(page.parent / name if name else page, at) else []
    for path in [*PAGES, *TEXTS, *CODE, *(ROOT / "busbar").rglob("*.py")]:
        for name, at in re.findall(r"docs/([a-z0-9-]+\.md)(?:#([a-z0-9-]+))?", path.read_text()):
            wrong += [f"{path}: {name}#{at}"] if _missing(ROOT / "docs" / name, at) else []
    assert wrong == []


def test_the_index_has_every_page_and_the_readme_is_one_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"^\| \[.*?\]\(([a-z-]+\.md)\)", index, re.MULTILINE))
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_inventory_of_the_readme_is_valid() -> None:
    [text] = re.findall(r"```yaml\n(.*?gpu_nodes.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    given = yaml.safe_load(text)["gpu_nodes"]["vars"]
    assert given.pop("ansible_become") is not None
    assert [error for name, value in given.items() for error in intent._errors(name, value, VALUES[name])] == []


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_the_commands_of_a_page_parse(page: str) -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text())
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```|^((?:    .*\n)+)", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for part in block for line in part.splitlines()]
    commands = [found[1] for line in lines if (found := re.match(r"\s*(?:\$ |sudo )?busbar ([a-z].*)", line))]
    for command in commands:
        words = shlex.split(re.split(r"\s{3,}|\s# | -- | \|\| ", command)[0].replace("[", "").replace("]", ""))
        cli._parser().parse_args(words)
