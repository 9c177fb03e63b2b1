# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Outputs of tools beside what a parser makes of them: ``tests/unit/readings/PARSER/NAME.txt`` and ``NAME.json``.

PARSER is the function's name below module_utils (``machine.gpu.parse_xml``). NAME says where an output is from, such as
the machine and the tool's version; what was made by hand or by the lab begins with ``synthetic-``.

    python -m tests.readings FILE.txt...     writes each NAME.json anew: read it before you commit it
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "unit" / "readings"
PACKAGE = "ansible_collections.busbar.fabric.plugins.module_utils"


def outputs() -> list[Path]:
    return sorted(FOLDER.glob("*/*.txt"))


def read(output: Path) -> Any:
    """What the parser makes of an output, as plain data. Raises what the parser raises."""
    module, _dot, function = output.parent.name.rpartition(".")
    parser = getattr(importlib.import_module(f"{PACKAGE}.{module}"), function)
    return plain(parser(output.read_text(encoding="utf-8")))


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


def main() -> None:
    sys.path.insert(0, str(FOLDER.parents[2] / "collections"))
    for name in sys.argv[1:]:
        output = Path(name).resolve()
        text = json.dumps(read(output), indent=1, ensure_ascii=False)
        output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
