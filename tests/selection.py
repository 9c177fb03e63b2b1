# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which unit tests have to do with a file; ``python -m tests.selection``: with all that differs from the last commit.

It runs them with the options of pytest that it is given. Where nothing has changed, the last commit is what has.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("module_utils", "plugin_utils", "library", "action_plugins", "busbar")
# Files of tests for one file, and as many of goldens.
FILES = 12
# What holds for all files, whatever is changed.
ALWAYS = ("tests/unit/test_structure.py", "tests/unit/test_documents.py")


@functools.cache
def _texts(pattern: str) -> dict[Path, str]:
    return {file.relative_to(ROOT): file.read_text() for file in ROOT.glob(pattern)}


def selected(path: Path, steps: int = 3) -> tuple[list[str], list[str]]:
    """Return the files of tests of the module's noun and those that name it most often, else those of its users.

    Second, files of goldens.
    """
    words = [path.stem] if path.parent.name in PRODUCT else [path.parent.name, path.stem]
    counts, goldens = {}, {}
    for file, text in _texts("tests/unit/**/test_*.py").items():
        if file.stem.startswith(f"test_{words[0]}"):
            counts[str(file)] = len(text)
        elif all(re.search(rf"\b{word}\b", text) for word in words):
            counts[str(file)] = len(re.findall(rf"\b{words[-1]}\b", text))
        if "mark.golden" in text and re.search(rf"\b{words[0]}\b", text):
            goldens[str(file)] = len(re.findall(rf"\b{words[0]}\b", text))
    if not counts and steps:
        user = re.compile(rf"^ *(from|import) .*\b{path.stem}\b", re.MULTILINE)
        users = [file for top in PRODUCT for file, text in _texts(f"{top}/**/*.py").items() if user.search(text)]
        found = [selected(file, steps - 1) for file in users]
        counts = {name: 1 for files, _goldens in found for name in files}
        goldens.update({name: 1 for _files, more in found for name in more})
    return _most(counts), _most(goldens)


def _most(counts: dict[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:FILES]


def changed() -> list[Path]:
    """Return the files that differ from the last commit, new ones too, else those of the last commit."""

    def names(*argv: str) -> list[Path]:
        out = subprocess.run(["git", *argv, "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [Path(name) for name in out.split("\0") if name]

    found = names("diff", "--name-only", "HEAD") + names("ls-files", "--others", "--exclude-standard")
    return found or names("diff", "--name-only", "HEAD~1")


def of(paths: Iterable[Path]) -> list[str]:
    """Return the files of tests/unit and tests/samples that the paths have to do with."""
    found = {*ALWAYS}
    for path in paths:
        if path.parts[0] in PRODUCT and path.suffix == ".py":
            found |= {name for names in selected(path) for name in names}
        elif path.name.startswith("test_") and path.parts[1] in ("unit", "samples"):
            found.add(str(path))
        elif path.parts[0] == "roles" or path.parts[:2] in (("tests", "golden"), ("tests", "unit")):
            # A role, a golden or a folder of cases: whoever names it.
            word = re.compile(rf"\b{re.escape(path.parts[1] if path.parts[0] == 'roles' else path.stem)}\b")
            texts = {**_texts("tests/unit/**/test_*.py"), **_texts("tests/samples/test_*.py")}
            found |= {*_most({str(file): len(word.findall(text)) for file, text in texts.items() if word.search(text)})}
    return sorted(name for name in found if (ROOT / name).is_file())


if __name__ == "__main__":
    files = of(changed())
    print(f"{len(files)} files of tests for what has changed; make unit runs all")
    sys.exit(pytest.main([*sys.argv[1:], *files]))
