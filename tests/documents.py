# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is written from declarations: ``make docs``. ``tests/unit/test_documents.py`` fails where a file is stale.

Site values (``plugin_utils/site_values.py``): each role's defaults, the options of its argument specs and the table of
its README.md, and the tables of docs/variables.md. The rest of these files is written by hand, and stays.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "collections") not in sys.path:
    sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.busbar.fabric.plugins.plugin_utils import site_values  # noqa: E402
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_values import Value  # noqa: E402

WIDTH = 120
SOURCE = "plugin_utils/site_values.py"
# Between these lines of a Markdown page stands what is generated. {}: its name, where a page has several.
BEGIN, END = "<!-- {}: written by make docs -->", "<!-- end of {} -->"
# Headings of docs/variables.md; every other part is a role's.
HEADINGS = {
    "site": "Every run",
    "perftest": "Between nodes: `playbooks/verify.yml`",
    "drift_timer": "The control node: role `drift_timer`, which is no part of a node's intent",
}
TYPES = {
    "str": "text",
    "path": "path",
    "int": "number",
    "float": "number",
    "bool": "`true`, `false`",
    "dict": "mapping",
    "list": "list",
}
_PAGE = re.compile(r"`docs/([a-z-]+\.md)(#[a-z-]+)?`")


def documents() -> dict[Path, str]:
    """Every file that is generated, at least in part, as it has to be: path -> text. Raises ValueError that names a
    file in which the place for what is generated cannot be found."""
    found: dict[Path, str] = {}
    for role in sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir()):
        values = site_values.of_role(role.name)
        found[role / "defaults" / "main.yml"] = defaults(values)
        specs = role / "meta" / "argument_specs.yml"
        found[specs] = _with_options(specs, options(values))
        of_readme = site_values.PARTS.get(role.name, {})
        if of_readme:
            readme = role / "README.md"
            found[readme] = _between(readme, "variables", table(of_readme, _to_role))
    page = ROOT / "docs" / "variables.md"
    found[page] = _between(page, "decisions", decisions(site_values.VALUES))
    found[page] = _between(page, "variables", parts(site_values.PARTS), found[page])
    return found


def stale() -> list[Path]:
    """Files that are not what the declarations say, or not there."""
    return [path for path, text in documents().items() if not path.is_file() or path.read_text() != text]


def main() -> None:
    wanted = documents()
    for path in stale():
        path.write_text(wanted[path])
        print(f"written: {path.relative_to(ROOT)}")


# ---------------------------------------------------------------------------------------------------------------- YAML


def defaults(values: Mapping[str, Value]) -> str:
    """defaults/main.yml: each value below what it means."""
    if not values:
        return _text(["---", f"# Written by make docs: {SOURCE} declares no value of this role's own.", "{}"])
    lines = ["---", f"# Written by make docs: {SOURCE} declares these values.", ""]
    for name, value in values.items():
        lines += _wrapped(value.says.replace("`", ""), "# ", "# ")
        lines.append(f"{name}: {flow(value.default)}")
    return _text(lines)


def options(values: Mapping[str, Value]) -> list[str]:
    """Lines of argument_specs.yml: the options of the entry point main."""
    if not values:
        return [f"    options: {{}} # written by make docs: {SOURCE}"]
    lines = [f"    options: # written by make docs: {SOURCE}"]
    for name, value in values.items():
        said = re.sub(r"`([^`]*)`", r"C(\1)", value.says)
        lines += [f"      {name}:", *_described(said, 8), f"        type: {value.type}"]
        if value.type == "list":
            lines.append(f"        elements: {value.elements}")
        if value.choices:
            lines.append(f"        choices: {flow(value.choices)}")
        lines.append(f"        default: {flow(value.default)}")
    return lines


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


def _with_options(path: Path, lines: Sequence[str]) -> str:
    """The file's text with these options; whatever stands around them is kept. Raises ValueError."""
    before, after = [], list(path.read_text().splitlines())
    while after and not after[0].startswith("    options:"):
        before.append(after.pop(0))
    if not after:
        raise ValueError(f"{path}: has no line '    options:' below argument_specs and main")
    after.pop(0)
    while after and (after[0].startswith("     ") or not after[0].strip()):
        after.pop(0)
    return _text([*before, *lines, *after])


# ------------------------------------------------------------------------------------------------------------ Markdown


def table(values: Mapping[str, Value], link: Callable[[str], str]) -> list[str]:
    """One row a value. link: makes links of the pages that a text names."""
    rows = [(f"`{name}`", _kind(value), _default(value), link(value.says)) for name, value in values.items()]
    return _table(("variable", "type or values", "default", "what it says"), rows)


def parts(of: Mapping[str, Mapping[str, Value]]) -> list[str]:
    """docs/variables.md: a heading and a table for each part."""
    lines: list[str] = []
    for part, values in of.items():
        lines += ["", f"## {HEADINGS.get(part, f'Role `{part}`')}", "", *table(values, _to_page)]
    return lines[1:]


def decisions(values: Mapping[str, Value]) -> list[str]:
    """What a site has to decide; values of one decision are one row."""
    of: dict[site_values.Decision, list[str]] = {}
    for name, value in values.items():
        if value.decision is not None:
            of.setdefault(value.decision, []).append(f"`{name}`")
    rows = [(", ".join(names), said.because, said.without) for said, names in of.items()]
    return _table(("decide", "because", "without it"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _kind(value: Value) -> str:
    choices = ", ".join(f"`{flow(choice)}`" for choice in value.choices if choice != "")
    if value.type == "list":
        words = {"int": "list of numbers"}.get(value.elements, "list")
        return f"list of {choices}" if choices else words
    return choices or TYPES[value.type]


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
    """A page with these lines between its two marks of that name. text: the page's, where it is not the file's.

    Raises ValueError where the marks are not there, once each and in order.
    """
    page = (path.read_text() if text is None else text).splitlines()
    begin, end = BEGIN.format(name), END.format(name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"{path}: needs the lines '{begin}' and, below it, '{end}', once each")
    return _text([*page[: page.index(begin) + 1], *lines, *page[page.index(end) :]])


def _wrapped(text: str, first: str, more: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
