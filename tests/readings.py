# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Outputs of tools beside what a parser makes of them: ``tests/unit/readings/PARSER/NAME.txt`` and ``NAME.json``.

PARSER is the function's name below module_utils (``machine.vpd.parse``). NAME says where an output is from, such as
the machine and the tool's version; what was made by hand or by the lab begins with ``synthetic-``.

    python -m tests.readings FILE.txt...     writes each NAME.json anew: read it before you commit it

``tests/unit/readings/FUNCTION.json`` is a table of short inputs: a row has the arguments and what the function returns,
or ``{"error": PATTERN}`` for a ParseError. FUNCTION is named as PARSER is; a method or property has its object as first
argument. An argument ``{"new": CLASS, ...}`` is an object of that class.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "unit" / "readings"
PACKAGE = "ansible_collections.busbar.fabric.plugins.module_utils"


def outputs() -> list[Path]:
    return sorted(FOLDER.glob("*/*.txt"))


def rows() -> list[tuple[str, list[Any], Any]]:
    """Return function, arguments and expected result of each row of the tables."""
    tables = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
    return [(name, arguments, result) for name, table in tables.items() for *arguments, result in table]


def cases(name: str) -> list[Any]:
    """Return rows of ``tests/unit/cases/NAME.json``, what a test is given and what it expects; a text is a comment."""
    table = json.loads((FOLDER.parent / "cases" / f"{name}.json").read_text(encoding="utf-8"))
    return [_made(row) for row in table if not isinstance(row, str)]


def function(name: str) -> Callable[..., Any]:
    """Return the function, or the method of an object, with this name below module_utils."""
    module, attributes = name, []
    while not (FOLDER.parents[2] / "module_utils" / f"{module.replace('.', '/')}.py").exists():
        module, _dot, attribute = module.rpartition(".")
        attributes.append(attribute)
        assert module, f"{name} is in no module: remove its file"
    found: Any = importlib.import_module(f"{PACKAGE}.{module}")
    for attribute in reversed(attributes):
        found = getattr(found, attribute)
    return found  # type: ignore[no-any-return]


def parsers() -> dict[str, list[str]]:
    """Return inputs of each function that takes one text."""
    inputs = {folder.name: [path.read_text() for path in folder.glob("*.txt")] for folder in FOLDER.glob("*/")}
    for name, arguments, _result in rows():
        if [type(argument) for argument in arguments] == [str]:
            inputs.setdefault(name, []).append(arguments[0])
    return {name: texts for name, texts in inputs.items() if len(inspect.signature(function(name)).parameters) == 1}


def read(output: Path) -> Any:
    """What the parser makes of an output. Raises what the parser raises."""
    return function(output.parent.name)(output.read_text(encoding="utf-8"))


def agrees(name: str, arguments: list[Any], expected: Any) -> bool:
    """Return whether a row of a table is right; an error has to match its pattern."""
    call = function(name)
    if isinstance(call, property):
        call = call.fget
    try:
        found = call(*map(_made, arguments))
    except function("core.host.ParseError") as error:  # type: ignore[misc]
        return isinstance(expected, dict) and re.search(expected.get("error", "$^"), str(error)) is not None
    return same(found, expected)


def _made(value: Any, within: bool = False) -> Any:
    """Return the objects that a value describes. within: of an object, whose lists are tuples."""
    if isinstance(value, list):
        items = [_made(item, within) for item in value]
        return tuple(items) if within else items
    if isinstance(value, dict) and isinstance(value.get("new"), str):
        return function(value["new"])(**{key: _made(item, True) for key, item in value.items() if key != "new"})
    if isinstance(value, dict):
        return {key: _made(item, within) for key, item in value.items()}
    return value


def expected(output: Path) -> Any:
    return json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """As JSON gives it back; a key that is not a text is written as Python writes it."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def same(value: Any, expected: Any) -> bool:
    """Return whether a value is what JSON says; a named tuple is written there by its names, or by its places."""
    if isinstance(value, tuple) and hasattr(value, "_asdict") and isinstance(expected, dict):
        value = value._asdict()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        named = {key if isinstance(key, str) else repr(key): item for key, item in value.items()}
        known = isinstance(expected, dict) and named.keys() == expected.keys()
        return known and all(same(item, expected[key]) for key, item in named.items())
    if isinstance(value, list | tuple):
        whole = isinstance(expected, list) and len(value) == len(expected)
        return whole and all(map(same, value, expected))
    return bool(plain(value) == expected)


def main() -> None:
    sys.path.insert(0, str(FOLDER.parents[2] / "collections"))
    for name in sys.argv[1:]:
        output = Path(name).resolve()
        text = json.dumps(plain(read(output)), indent=1, ensure_ascii=False)
        output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
