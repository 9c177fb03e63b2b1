# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remove from a source what only its readers need, before it is packed for a node: more than half of the bytes."""

from __future__ import annotations

import ast
import re
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

# Fields of a statement that hold statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers")
# A comment behind code: a string would have to end behind it.
_COMMENT = re.compile("  #[^'\"]*$")
# Text over several lines, which stays as it is.
_AS_WRITTEN = re.compile("\"\"\"|'''|\\\\$", re.MULTILINE)
_Lines = List[Optional[str]]


def strip_source(source: str, tree: ast.Module) -> str:
    """Return the code without comments, annotations and docstrings: a line per statement, a space per level.

    tree: the source, parsed. The result does not depend on Python's version, and is a fixed point: what a node stores
    can be compared.
    """
    lines = source.split("\n")
    kept: _Lines = [None if not line.strip() or line.lstrip().startswith("#") else line for line in lines]
    for node in statements(tree):
        # Every line of a string counts.
        if None in kept[slice(*_header_rows(node))]:
            for text in _texts(node):
                first, last = _rows(text)
                kept[first:last] = lines[first:last]
    for node in statements(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            texts = [one for one in node.body if _is_text(one) and not lines[one.lineno - 1][: one.col_offset].strip()]
            for one in texts:
                first, last = _rows(one)
                kept[first:last] = [None] * (last - first)
            if texts and len(texts) == len(node.body):
                kept[_rows(texts[0])[0]] = " " * texts[0].col_offset + "pass"
    # The last first: a cut moves what is behind it.
    for (row, start), (last, end), instead in sorted(_annotations(tree, lines), reverse=True):
        kept[row] = (kept[row] or "")[:start] + instead + (kept[last] or "")[end:]
        kept[row + 1 : last + 1] = [None] * (last - row)
    return _without_types("\n".join([*_dense(kept, _further_rows(tree)), ""]))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk the tree as ast.walk does, without the expressions: a tenth of the time."""
    waiting: List[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BLOCKS:
            waiting += getattr(node, name, [])


def _rows(node: ast.AST) -> Tuple[int, int]:
    """Return the rows of a node as a slice."""
    return getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", 0)


def _header_rows(statement: ast.AST) -> Tuple[int, int]:
    """Return the rows of a statement that belong to no other statement: of a compound one, up to its block."""
    first, last = _rows(statement)
    decorators = getattr(statement, "decorator_list", [])
    body = getattr(statement, "body", [])
    return (decorators[0].lineno - 1 if decorators else first), (body[0].lineno if body else last)


def _texts(statement: ast.AST) -> Iterator[ast.AST]:
    waiting: List[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            yield node
        waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, (ast.stmt, ast.ExceptHandler))]


def _is_text(line: ast.stmt) -> bool:
    if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
        return line.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


# -- annotations -----------------------------------------------------------------------------------------------------

_Cut = Tuple[Tuple[int, int], Tuple[int, int], str]


def _annotations(tree: ast.Module, lines: Sequence[str]) -> Iterator[_Cut]:
    """Return row and column of both ends of each annotation, with its colon or arrow, and its replacement."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef):
            of = node.args
            for arg in [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]:
                if arg is not None and arg.annotation is not None:
                    yield from _cut(lines, ":", arg.annotation, "")
            if node.returns is not None:
                yield from _cut(lines, "->", node.returns, "")
        elif isinstance(node, ast.AnnAssign):
            # Without a value it makes the name a field of its class, or a variable of its function.
            in_class = lines[node.lineno - 1][:1] == " " and isinstance(node.target, ast.Name)
            yield from _cut(lines, ":", node.annotation, ":0" if node.value is None or in_class else "")


def _cut(lines: Sequence[str], sign: str, annotation: ast.expr, instead: str) -> Iterator[_Cut]:
    row, last = annotation.lineno - 1, (annotation.end_lineno or annotation.lineno) - 1
    before = _column(lines[row], annotation.col_offset)
    head = lines[row][:before].rstrip()
    # In separate brackets, or on a separate line, it stays.
    if head.endswith(sign):
        start = len(head[: -len(sign)].rstrip())
        yield (row, start), (last, _column(lines[last], annotation.end_col_offset or 0)), instead


def _column(line: str, offset: int) -> int:
    """Return the column in characters. offset: in bytes, as the parser counts."""
    return offset if line.isascii() else len(line.encode()[:offset].decode())


def _without_types(text: str) -> str:
    """Remove imports from typing that are unused; a word in a string keeps one, which does no harm."""

    def used(line: re.Match[str]) -> str:
        names = [name for name in line.group(1).split(", ") if " as " in name or _count(name, text) > 1]
        return "from typing import %s\n" % ", ".join(names) if names else ""

    return re.sub(r"^from typing import \(?([\w, ]+\w),?\)?\n", used, text, flags=re.MULTILINE)


def _count(word: str, text: str) -> int:
    return len(re.findall(r"\b%s\b" % word, text))


# -- lines -----------------------------------------------------------------------------------------------------------


def _further_rows(tree: ast.Module) -> Dict[int, int]:
    """Return row -> first row of its statement, of all rows but first ones."""
    found: Dict[int, int] = {}
    for node in statements(tree):
        first, last = _rows(node)
        body = getattr(node, "body", [])
        if isinstance(node, ast.Module):
            continue
        if body:
            last = _header_rows(body[0])[0]
        for begin, end in [(first, last), *map(_rows, getattr(node, "decorator_list", []))]:
            found.update((row, begin) for row in range(begin + 1, end))
    return found


def _dense(kept: _Lines, further: Dict[int, int]) -> Iterator[str]:
    """Yield one line per statement, unless it is broken within a string."""
    groups: List[List[str]] = []
    of_row: Dict[int, List[str]] = {}
    for row, line in enumerate(kept):
        if line is not None:
            begin = further.get(row, row)
            if begin not in of_row:
                of_row[begin] = []
                groups.append(of_row[begin])
            of_row[begin].append(line)
    levels: List[int] = []
    for group in groups:
        width = len(group[0]) - len(group[0].lstrip())
        levels = [level for level in levels if level < width]
        indent = " " * len(levels)
        levels.append(width)
        first, *others = _as_one([group[0][width:], *group[1:]])
        yield indent + first
        # Within a string, or in brackets.
        yield from others


def _as_one(lines: Sequence[str]) -> Sequence[str]:
    if _AS_WRITTEN.search("\n".join(lines)):
        return lines
    parts = [part for part in (_COMMENT.sub("", line).strip() for line in lines) if part]
    if len(parts) == 1 or any("#" in part for part in parts):
        return parts
    joined = parts[0]
    for part in parts[1:]:
        joined += part if joined[-1] in "([{" or part[0] in ")]}" else " " + part
    return [joined]
