# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is written from declarations: ``make docs``. ``tests/unit/test_documents.py`` fails where a file is stale.

Site values (``plugin_utils/site_values.py``): each role's defaults, the options of its argument specs and the table of
its README.md, and the tables of docs/variables.md. The first two paragraphs of a role's README.md: what argument specs
and Galaxy say of it, and what its task is called in ``playbooks/tasks/roles.yml``, which has the roles of the suite's
table in their order. Tasks of a role that is one module. Checks (``NAME = Check("noun.id", ...)`` in module_utils and
plugin_utils, and the text below it): the tables of docs/findings.md. Commands and exit codes: docs/commands.md. Roles:
the table of README.md. The nodes of the lab (``lab``): ``inventories/lab``. The rest stays as it is.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "collections") not in sys.path:
    sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command  # noqa: E402
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check  # noqa: E402
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code, intent, site_values, suite  # noqa: E402
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_value import Decision, Value  # noqa: E402

from busbar import cli  # noqa: E402
from lab import containers, store  # noqa: E402

WIDTH = 120
SOURCE = "plugin_utils/site_values.py"
# {}: what the role does.
GALAXY = """\
---
# Written by make docs: README.md says what the role does.
galaxy_info:
  author: Busbar contributors
  description: {}
  license: GPL-3.0-or-later
  min_ansible_version: "2.19"
  platforms:
    - name: EL
      versions: ["9", "10"]
    - name: Debian
      versions: [bookworm, trixie]
    - name: Ubuntu
      versions: [jammy, noble]
dependencies: []
"""
# main.yml and configure.yml of a role that is one module. site.yml plays configure.yml alone: it has read the intent,
# which checks the values, and gives one verdict. A task that is skipped costs a process for each host.
ALONE = """\
---
# Written by make docs: the role by itself. site.yml plays configure.yml alone.
- name: Preflight
  ansible.builtin.include_tasks: ../../../playbooks/tasks/intent.yml
  when: busbar_intent is not defined

- name: Configure
  ansible.builtin.import_tasks: configure.yml

- name: Verdict
  busbar.fabric.verdict:
"""
ONE_MODULE = """\
---
# Written by make docs: this role is one module. vars/main.yml has its options.
- name: Configure | {name}
  busbar.fabric.{module}:
  module_defaults:
    busbar.fabric.{module}: "{{{{ __{role}_arguments }}}}"
  register: {role}_result
"""
PLAYED = """
- name: {name}
  ansible.builtin.include_role:
    name: busbar.fabric.{role}
    tasks_from: configure
    apply:
      tags: {role}
  when: "'{role}' | busbar.fabric.is_due(hostvars, inventory_hostname)"
  tags: {role}
"""
LOCK = """
- name: Keep other runs off the host
  ansible.builtin.import_tasks: lock.yml
  tags: always
"""
# Between these lines of a Markdown page stands what is generated. {}: its name, where a page has several.
BEGIN, END = "<!-- {}: written by make docs -->", "<!-- end of {} -->"
# Headings of docs/variables.md; every other part is a role's.
HEADINGS = {
    "site": "Every run",
    "perftest": "Between nodes: `playbooks/verify.yml`",
    "remediate": "Repair: `playbooks/remediate.yml`, and so `busbar remediate`",
    "ib_fabric": "The InfiniBand fabric: `playbooks/fabric.yml`, and role `ib_fabric`",
    "drift_timer": "The control node: role `drift_timer`, which is not a part of a node's intent",
}
# Nouns that no role checks on a node -> what checks them.
ELSEWHERE = {
    "lock": "every run, before it writes",
    "run": "every run",
    "consistency": "every run over two or more hosts (`docs/verify.md#comparison`)",
    "nccl_hang": "`playbooks/hang.yml`, also by `busbar hang` (`docs/diagnose.md#a-job-hangs`)",
    "drift_timer": "role `drift_timer`, on the control node",
    "preflight": "`busbar preflight`, inside a job (`docs/gate.md#preflight`)",
    "remediate": "`playbooks/remediate.yml`, also by `busbar remediate` (`docs/repair.md#remediate`)",
    "nccl_log": "`busbar diagnose`, in the NCCL_DEBUG output of a job (`docs/diagnose.md`)",
    "inspector": "`busbar diagnose --inspector`, in records of NCCL's Inspector (`docs/diagnose.md#inspector-records`)",
    "recorder": "`busbar diagnose --recorder`, in PyTorch's dumps (`docs/diagnose.md#flight-recorder-dumps`)",
}
TYPES = {"str": "text", "int": "number", "float": "number", "bool": "`true`, `false`", "dict": "mapping"}
_PAGE = re.compile(r"`docs/([a-z-]+\.md)(#[a-z-]+)?`")


def documents() -> dict[Path, str]:
    """Every file that is generated, at least in part, as it has to be: path -> text."""
    found: dict[Path, str] = {}
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        values = site_values.of_role(role.name)
        short, long = said(role / "README.md")
        found[role / "defaults" / "main.yml"] = defaults(values)
        found[role / "meta" / "argument_specs.yml"] = argument_specs(role.name, short, long, values)
        found[role / "meta" / "main.yml"] = galaxy(short)
        module = next((one.module for one in suite.SUITE if one.name == role.name), None)
        tasks = {path.name for path in (role / "tasks").glob("*.yml")}
        if module and (tasks == {"main.yml"} or "configure.yml" in tasks):
            found[role / "tasks" / "main.yml"] = ALONE
        if module and tasks <= {"main.yml", "configure.yml"}:
            text = ONE_MODULE.format(name=_task(short), module=module, role=role.name)
            found[role / "tasks" / "configure.yml"] = text
        scenario = role / "molecule" / "default" / "molecule.yml"
        found[scenario] = scenario.read_text() if scenario.is_file() else "---\n{}\n"
        of_readme = site_values.PARTS.get(role.name, {})
        if of_readme:
            readme = role / "README.md"
            found[readme] = _between(readme, "variables", table(of_readme, _to_role))
    found[ROOT / "playbooks" / "tasks" / "roles.yml"] = played()
    page = ROOT / "README.md"
    found[page] = _between(page, "roles", roles())
    page = ROOT / "docs" / "variables.md"
    found[page] = _between(page, "decisions", decisions(site_values.VALUES))
    found[page] = _between(page, "variables", parts(site_values.PARTS), found[page])
    page = ROOT / "docs" / "findings.md"
    found[page] = _between(page, "checks", nouns(declared()))
    page = ROOT / "docs" / "commands.md"
    commands = [
        [f"`{name}`", purpose, f"`busbar {example}`"] for name, (purpose, example, _fill) in cli.COMMANDS.items()
    ]
    found[page] = _between(page, "commands", _table(["command", "purpose", "example"], commands))
    codes = [[str(code), meaning] for code, meaning in exit_code.MEANINGS.items()]
    found[page] = _between(page, "codes", _table(["code", "meaning"], codes), found[page])
    # As `python3 -m lab up` writes it, for the lab of this checkout.
    key, ssh_config = "inventory_dir ~ '/../../.lab/GPG-KEY.asc'", "{{ inventory_dir }}/../../.lab/ssh_config"
    for name, text in containers.inventory(store.built(), ssh_config, key).items():
        found[ROOT / "inventories" / "lab" / name] = text
    return found


def played() -> str:
    """The roles of site.yml's first part, in their order. Whoever has been reached once is then locked."""
    tasks = [
        PLAYED.format(name=_task(said(ROOT / "roles" / role.name / "README.md")[0]), role=role.name)
        for role in suite.SUITE
        if role.play == "provision"
    ]
    return "".join(
        ["---\n# Written by make docs: the roles of plugin_utils/suite.py, in its order.\n", tasks[0], LOCK, *tasks[1:]]
    )


def roles() -> list[str]:
    """Return the rows of README.md: the roles of the suite in its order, then the role of the control node."""
    names = [role.name for role in suite.SUITE if (ROOT / "roles" / role.name).is_dir()] + ["drift_timer"]
    purposes = {name: said(ROOT / "roles" / name / "README.md")[0] for name in names}
    return _table(("role", "purpose"), [(f"[`{name}`](roles/{name})", text) for name, text in purposes.items()])


def _task(short: str) -> str:
    """The name of a task that does what a role does: the first half of its sentence."""
    return short.partition(",")[0]


def stale() -> list[Path]:
    """Files that are not what the declarations say, or not there."""
    return [path for path, text in documents().items() if not path.is_file() or path.read_text() != text]


def main() -> None:
    wanted = documents()
    for path in stale():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
        print(f"written: {path.relative_to(ROOT)}")


# -------------------------------------------------------------------------------------------------------------- checks


@dataclass(frozen=True)
class Declared:
    """A check as it stands in the code. asks: the text below it."""

    check: Check
    asks: str
    path: Path

    @property
    def noun(self) -> str:
        return self.check.id.partition(".")[0]


def declared() -> list[Declared]:
    """All checks, the noun's own file first, in the order in which they are declared."""
    found: dict[str, Declared] = {}
    for path in sorted([*(ROOT / "module_utils").rglob("*.py"), *(ROOT / "plugin_utils").rglob("*.py")]):
        for constant, asks in _declarations(path):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            check = getattr(importlib.import_module(f"ansible_collections.busbar.fabric.plugins.{name}"), constant)
            assert check.id not in found, f"{path}: {check.id} is declared a second time"
            found[check.id] = Declared(check, asks, path)
    return sorted(found.values(), key=lambda each: (each.noun, each.path.stem != each.noun))


def _declarations(path: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each check that a file declares: ``NAME = Check(ID, ...)``, and the text below it."""
    tree = ast.parse(path.read_text())
    calls = {node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Check"}
    for statement, below in zip(tree.body, [*tree.body[1:], None], strict=False):
        if isinstance(statement, ast.Assign) and statement.value in calls:
            calls.discard(statement.value)
            name, asks = statement.targets[0], _written(below.value if isinstance(below, ast.Expr) else None)
            assert isinstance(name, ast.Name), f"{path}:{statement.lineno}: a check has a name"
            assert asks, f"{path}:{statement.lineno}: below a check stands what it asks"
            yield name.id, asks
    assert not calls, f"{path}: a check is a value of the module"


def _written(node: ast.expr | None) -> str:
    """The words of a text that is written out in the code; empty where it is none."""
    return " ".join(node.value.split()) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


MEANINGS = site_values.meanings()


# ---------------------------------------------------------------------------------------------------------------- YAML


def defaults(values: Mapping[str, Value]) -> str:
    """defaults/main.yml: each value below what it means."""
    if not values:
        return _text(["---", f"# Written by make docs: {SOURCE} declares no value of this role's own.", "{}"])
    lines = ["---", f"# Written by make docs: {SOURCE} declares these values.", ""]
    for name, value in values.items():
        lines += _wrapped(MEANINGS[name].replace("`", ""), "# ", "# ")
        lines.append(f"{name}: {flow(value.default)}")
    return _text(lines)


def argument_specs(role: str, short: str, long: str, values: Mapping[str, Value]) -> str:
    """meta/argument_specs.yml, with the one entry point main. short, long: what the role does."""
    lines = [
        "---",
        f"# Written by make docs: README.md says what the role does, {SOURCE} declares its values.",
        "argument_specs:",
        "  main:",
        f"    short_description: {_scalar(short)}",
        "    description:",
        "      - >-",
        *_wrapped(_marked(long), " " * 8, " " * 8),
        f"      - The result is in C({role}_result).",
        "    options:" if values else "    options: {}",
    ]
    for name, value in values.items():
        lines += [f"      {name}:", *_described(_marked(MEANINGS[name]), 8), f"        type: {value.type}"]
        if value.type == "list":
            lines.append(f"        elements: {value.elements}")
        if value.choices:
            lines.append(f"        choices: {flow(value.choices)}")
        lines.append(f"        default: {flow(value.default)}")
    return _text(lines)


def galaxy(short: str) -> str:
    """meta/main.yml of a role."""
    return GALAXY.format(_scalar(short))


def said(readme: Path) -> tuple[str, str]:
    """What a role does, in a sentence without markup and its full stop, and in a paragraph of Markdown."""
    heading, short, long, *_rest = readme.read_text().split("\n\n")
    assert heading.startswith("# busbar.fabric."), f"{readme}: begins with its heading"
    assert re.fullmatch(r"[^`\n]+\.", short), f"{readme}: a sentence on one line is first"
    assert long[:1].isalnum(), f"{readme}: a paragraph says more"
    return short.removesuffix("."), " ".join(long.split())


def flow(value: Any) -> str:
    """A value as YAML on one line; text in double quotes where it would not be text without."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str):
        plain = yaml.safe_dump(value, width=10**6, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
        return plain if plain == value else json.dumps(value)
    return "{}" if value == {} else json.dumps(value)


def _described(text: str, indent: int) -> list[str]:
    """``description:`` of an option, as plain as YAML and the width let it be."""
    space = " " * indent
    line = f"{space}description: {text}"
    if len(line) <= WIDTH and _is_plain(text):
        return [line]
    return [f"{space}description: >-", *_wrapped(text, space + "  ", space + "  ")]


def _is_plain(text: str) -> bool:
    try:
        return bool(yaml.safe_load(f"description: {text}") == {"description": text})
    except yaml.YAMLError:
        return False


def _scalar(text: str) -> str:
    return text if _is_plain(text) else json.dumps(text)


def _marked(text: str) -> str:
    """Markdown in the markup of Ansible's documentation."""
    return re.sub(r"\*(\w[^*]*)\*", r"I(\1)", re.sub(r"`([^`]*)`", r"C(\1)", text))


# ------------------------------------------------------------------------------------------------------------ Markdown


def table(values: Mapping[str, Value], link: Callable[[str], str]) -> list[str]:
    """One row a value. link: makes links of the pages that a text names."""
    rows = [(f"`{name}`", _kind(value), _default(value), link(MEANINGS[name])) for name, value in values.items()]
    return _table(("variable", "type or values", "default", "meaning"), rows)


def parts(of: Mapping[str, Mapping[str, Value]]) -> list[str]:
    """docs/variables.md: a heading and a table for each part."""
    prefixes = ", ".join(f"`{prefix}`" for prefix in intent.ROLE_PREFIXES)
    lines = ["", "## Reserved names", ""]
    lines += [f"`{intent.RESERVED}` and `__` are the suite's: an unknown name is an error. A site's own variables may"]
    lines += ["begin with the name of a role, unless the rest is close to a variable of that role: `roce_qos_owner` is"]
    lines += [f"accepted, `roce_qos_pcf` is an error. These names count: {prefixes}."]
    for part, values in of.items():
        lines += ["", f"## {HEADINGS.get(part, f'Role `{part}`')}", "", *table(values, _to_page)]
    return lines[1:]


def decisions(values: Mapping[str, Value]) -> list[str]:
    """What a site has to decide; values of one decision are one row."""
    of: dict[Decision, list[str]] = {}
    for name, value in values.items():
        if value.decision is not None:
            of.setdefault(value.decision, []).append(f"`{name}`")
    rows = [(", ".join(names), said.because, said.without) for said, names in of.items()]
    return _table(("decide", "because", "without it"), rows)


def nouns(checks: Sequence[Declared]) -> list[str]:
    """docs/findings.md: a heading and a table for each noun."""
    rows: dict[str, list[Sequence[str]]] = {}
    for each in checks:
        row = (
            f"`{each.check.id}`",
            each.check.severity,
            _mended(each.check),
            _to_page(each.asks[0].upper() + each.asks[1:]),
        )
        rows.setdefault(each.noun, []).append(row)
    askers = {noun: _asker(role) for role in suite.SUITE for noun in role.nouns} | ELSEWHERE
    assert set(rows) == set(askers), "a noun without a role of plugin_utils/suite.py, or without a check"
    lines: list[str] = []
    for noun, who in askers.items():
        heads = ("check", "severity", "repaired by", "checks")
        lines += ["", f"### {noun}", "", f"Checked by {_to_page(who)}.", "", *_table(heads, rows[noun])]
    return lines[1:]


def _asker(role: suite.Role) -> str:
    if role.joined:
        return f"`playbooks/{role.play}.yml`, also by `site.yml` and `busbar drift` if the inventory requests it"
    if role.on_demand:
        play = "site.yml" if role.play == role.name else f"playbooks/{role.play}.yml"
        return f"`playbooks/{role.name}.yml`, also by `{play}` if the inventory requests it"
    return f"role `{role.name}`" if (ROOT / "roles" / role.name).is_dir() else f"`playbooks/{role.play}.yml`"


def _mended(check: Check) -> str:
    """Who mends what is not ok, and what that costs a running node, where the declaration says it for every case."""
    run = fix_command.parse(check.fix)
    if run is None or not run.mends or not run.tags:
        return "a person" if check.fix else "see `fix`"
    return f"role `{run.tags[0]}`" + ("" if check.disruption == "none" else f" ({check.disruption})")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _kind(value: Value) -> str:
    choices = ", ".join(f"`{flow(choice)}`" for choice in value.choices if choice != "")
    if value.type == "list":
        words = {"int": "list of numbers"}.get(value.elements, "list")
        return f"list of {choices}" if choices else words
    return choices or TYPES.get(value.type, value.type)


def _default(value: Value) -> str:
    if value.required:
        return "required"
    if value.default is None:
        return "unset"
    if value.default in ("", [], {}):
        return "empty"
    if len(value.choices) > 3 and value.default == list(value.choices):
        return "all"
    return f"`{flow(value.default)}`"


def _to_page(text: str) -> str:
    return _PAGE.sub(lambda found: f"[{found[1]}]({found[1]}{found[2] or ''})", text)


def _to_role(text: str) -> str:
    return _PAGE.sub(lambda found: f"[{found[1]}](../../docs/{found[1]}{found[2] or ''})", text)


def _between(path: Path, name: str, lines: Sequence[str], text: str | None = None) -> str:
    """A page with these lines between its two marks of that name. text: the page's, where it is not the file's."""
    page = (path.read_text() if text is None else text).splitlines()
    begin, end = BEGIN.format(name), END.format(name)
    assert page.count(begin) == page.count(end) == 1, f"{path}: needs the lines '{begin}' and '{end}', once each"
    return _text([*page[: page.index(begin) + 1], *lines, *page[page.index(end) :]])


def _wrapped(text: str, first: str, more: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
