"""What is written from declarations says what they say; the declarations themselves can be written down."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_value import Value
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


@pytest.mark.parametrize(
    "text",
    ["", "# busbar.fabric.x\n", "# busbar.fabric.x\n\nNo stop\n\nMore.\n", "# busbar.fabric.x\n\nOne.\n\n```yaml\n"],
)
def test_a_role_that_does_not_say_what_it_does_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ValueError, match=r"README\.md: begins with"):
        documents.said(tmp_path / "README.md")


def test_what_a_role_does_is_text_for_people_and_for_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(documents.MEANINGS, "x_a", "Said.")
    (tmp_path / "README.md").write_text("# busbar.fabric.x\n\nDo it: now.\n\nFor *every* `a: b`\nthere is.\n\nMore.\n")
    short, long = documents.said(tmp_path / "README.md")
    specs = yaml.safe_load(documents.argument_specs("x", short, long, {"x_a": Value("list", [])}))
    assert specs["argument_specs"]["main"] == {
        "short_description": "Do it: now",
        "description": ["For I(every) C(a: b) there is.", "The result is in C(x_result)."],
        "options": {"x_a": {"description": "Said.", "type": "list", "elements": "str", "default": []}},
    }
    assert yaml.safe_load(documents.galaxy(short))["galaxy_info"]["description"] == "Do it: now"


def _declaring(folder: Path, text: str) -> list[str]:
    """Ids that a module of a checkout with this one file declares."""
    path = folder / "module_utils/kernel_args/iommu.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return [each.check.id for each in documents.declared(folder)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('DOMAINS = Check("iommu.domains", why="w")\n', r"iommu\.py:1: below iommu\.domains stands no text"),
        ('DOMAINS = Check("iommu.domains", why="w")\nOTHER = 1\n"Is it"\n', "below iommu.domains stands no text"),
        ('DOMAINS = Check("iommu.domains", why="w")\n" "\n', "below iommu.domains stands no text"),
        ('N = "iommu"\nDOMAINS = Check(N + ".domains", why="w")\n"Is it"\n', r"iommu\.py:2: .* its id written out"),
        ('DOMAINS = [Check("iommu.domains", why="w")]\n"Is it"\n', "a value of the module"),
        ('def plan():\n    return Check("iommu.domains", why="w")\n', r"iommu\.py:2: .* a value of the module"),
        ('DOMAINS = Check("iommu.domains", why="w")\n"Is it"\n' * 2, "iommu.domains is declared a second time"),
    ],
)
def test_a_check_that_cannot_be_written_down_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _declaring(tmp_path, text)


def test_a_check_is_its_declaration_and_the_text_below_it(tmp_path: Path) -> None:
    text = 'DOMAINS = Check(\n    "iommu.domains",\n    why="w",\n)\n"""Is it\nso"""\n'
    assert _declaring(tmp_path, text) == ["iommu.domains"]
    assert [each.asks for each in documents.declared(tmp_path)] == ["Is it so"]


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
