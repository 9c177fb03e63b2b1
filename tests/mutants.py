# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many small faults in the product the unit tests find: ``python -m tests.mutants [NUMBER] [SEED]``.

Each mutant changes one expression in a copy of the checkout: a comparison, a number, a not. It is killed where a test
fails of the files in tests/unit that are of its noun or name its module, else that name one that imports it; or a
golden of a file there that names its folder; or a row of tests/unit/readings of its module. Files with a test that
fails without a mutant are left out. The rest are printed, to be looked at.
"""

from __future__ import annotations

import ast
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.selection import PRODUCT, ROOT, selected

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}
OPPOSITE |= {value: key for key, value in OPPOSITE.items()}
# Seconds for the tests of one mutant.
LIMIT = 600
PYTEST = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]


class Mutant(NamedTuple):
    """path: of the file, below the checkout.   start, end: of the expression, in characters.   new: in its place."""

    path: Path
    line: int
    start: int
    end: int
    new: str


def changed(node: ast.expr) -> ast.expr | None:
    """Return the expression with a small fault; None for one that gets none."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE:
        return ast.Compare(node.left, [OPPOSITE[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
    return None


# Annotations decide nothing, and whether a dataclass is frozen shows in no behaviour.
UNSEEN = ("annotation", "returns", "decorator_list")


def expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what is no part of an f-string, whose positions are not those of the file, nor of an annotation."""
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr) or name in UNSEEN:
                continue
            if isinstance(node, ast.expr):
                yield node
            yield from expressions(node)


def mutants(path: Path) -> list[Mutant]:
    text = (ROOT / path).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    found = []
    for node in expressions(ast.parse(text)):
        new = changed(node)
        if new is not None and node.end_lineno is not None and node.end_col_offset is not None:
            ends = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            found.append(Mutant(path, node.lineno, *ends, f"({ast.unparse(ast.fix_missing_locations(new))})"))
    return found


def failing(files: list[str], copy: Path) -> set[str]:
    """Return the files with a test that fails without a mutant."""
    argv = [*PYTEST, "--tb=no", "-rfE", *files]
    answer = subprocess.run(argv, cwd=copy, capture_output=True, text=True, check=False)
    return set(re.findall(r"^(?:FAILED|ERROR) ([^:\s]+)", answer.stdout, re.MULTILINE))


def is_killed(mutant: Mutant, files: list[str], goldens: list[str], copy: Path) -> bool:
    target = copy / mutant.path
    before = target.read_bytes()
    target.write_bytes(before[: mutant.start] + mutant.new.encode() + before[mutant.end :])
    try:
        # What a golden costs is little, what is beside it in its file may cost much.
        runs = [[*PYTEST, "-x", *only, *names] for only, names in (((), files), (("-m", "golden"), goldens)) if names]
        name = ".".join(mutant.path.with_suffix("").parts[1:])
        if any(copy.glob(f"tests/unit/readings/{name}.*")):
            runs.append([*PYTEST, "-x", "-k", name, "tests/unit/test_readings.py"])
        return any(
            subprocess.run(argv, cwd=copy, capture_output=True, timeout=LIMIT, check=False).returncode != 0
            for argv in runs
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_bytes(before)


def main(number: int, seed: int) -> None:
    paths = [
        file.relative_to(ROOT)
        for top in PRODUCT
        for file in sorted((ROOT / top).rglob("*.py"))
        if not file.is_symlink()
    ]
    every = [one for path in paths if "lab" not in path.parts for one in mutants(path)]
    chosen = random.Random(seed).sample(every, number)
    jobs = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns(".venv", ".cache", ".git", "__pycache__")
        copies = [Path(folder, str(job)) for job in range(jobs)]
        for copy in copies:
            shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)

        files = {one.path: selected(one.path) for one in chosen}
        used = sorted({name for both in files.values() for names in both for name in names})

        def work(job: int) -> list[Mutant]:
            found = []
            for one in chosen[job::jobs]:
                whole, goldens = ([name for name in names if name not in broken] for names in files[one.path])
                if not is_killed(one, whole, goldens, copies[job]):
                    found.append(one)
                    print(f"survived: {one.path}:{one.line}: {one.new[:100]}", flush=True)
            return found

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            broken = set().union(*pool.map(lambda job: failing(used[job::jobs], copies[job]), range(jobs)))
            print(f"left out, a test fails without a mutant: {', '.join(sorted(broken)) or 'none'}", flush=True)
            survivors = [one for left in pool.map(work, range(jobs)) for one in left]
    print(f"killed {number - len(survivors)} of {number} mutants (seed {seed}, of {len(every)})")


if __name__ == "__main__":
    main(int((*sys.argv[1:], "200")[0]), int((*sys.argv[2:], "1")[0]))
