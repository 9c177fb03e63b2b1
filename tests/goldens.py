# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Goldens: recorded results in tests/golden, whose diff is reviewed like code.

NAME.json has rows for each case and no prose; text/NAME.txt is what a person reads. Tests that compare with them have
the mark ``golden``. ``make golden`` records them anew: each case is written below BUSBAR_GOLDEN, and
``python -m tests.goldens DIRECTORY`` makes the files of them. A case that is not recorded fails.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "golden"


def check(name: str, case: str, rows: list[Any]) -> None:
    """Compare the rows of a case with the recorded ones; record them where BUSBAR_GOLDEN names a directory."""
    rows = json.loads(json.dumps(rows))
    if directory := os.environ.get("BUSBAR_GOLDEN"):
        file = Path(directory, name, hashlib.sha256(case.encode()).hexdigest()[:16])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({case: rows}))
        return
    recorded = _read(name)
    assert case in recorded, f"{case} has no row in tests/golden/{name}.json: make golden"
    assert rows == recorded[case]


def text(name: str, written: str) -> None:
    """Compare what a renderer has written with tests/golden/text/NAME.txt; record it where BUSBAR_GOLDEN is set."""
    if directory := os.environ.get("BUSBAR_GOLDEN"):
        file = Path(directory, "text", f"{name}.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(written)
        return
    assert written == (FOLDER / "text" / f"{name}.txt").read_text()


@functools.cache
def _read(name: str) -> dict[str, list[Any]]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


def _text(cases: dict[str, list[Any]]) -> str:
    """Return one line for each row, so that a difference is one, too."""
    parts = []
    for case in sorted(cases):
        rows = ",\n".join(f"  {json.dumps(row)}" for row in cases[case])
        parts.append(f" {json.dumps(case)}: [\n{rows}\n ]" if rows else f" {json.dumps(case)}: []")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(directory: Path) -> None:
    """Write the files whose cases were recorded; a case that was not run is gone.

    captured_*.json stay where none of theirs was: their captures are not beside each checkout.
    """
    recorded = {folder.name for folder in directory.iterdir()}
    for file in FOLDER.glob("*.json"):
        if file.stem in recorded or not file.stem.startswith("captured_"):
            file.unlink()
    shutil.rmtree(FOLDER / "text", ignore_errors=True)
    for folder in directory.iterdir():
        if folder.name == "text":
            shutil.copytree(folder, FOLDER / "text")
            continue
        cases: dict[str, list[Any]] = {}
        for file in folder.iterdir():
            cases.update(json.loads(file.read_text()))
        (FOLDER / f"{folder.name}.json").write_text(_text(cases))
        print(f"tests/golden/{folder.name}.json: {len(cases)} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
