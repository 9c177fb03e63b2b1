# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packs modules into one script that ``python3 -I -S -`` runs: the audit's single question to a host.

They keep their names and imports; on the node they live in packages that exist only in memory.
"""

from __future__ import annotations

import ast
import base64
import json
import zlib
from typing import Any, Callable, Dict, List, Sequence

PACKAGE = "ansible_collections.busbar.fabric.plugins.module_utils"
LIBRARY = "ansible_collections.busbar.fabric.plugins.modules"

_LOADER = """\
import base64, importlib.abc, importlib.machinery, json, sys, zlib
SOURCES = json.loads(zlib.decompress(base64.b64decode(%(payload)r)).decode())
PACKAGES = {name.rsplit(".", n)[0] for name in SOURCES for n in range(1, name.count(".") + 1)}
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in SOURCES or name in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in PACKAGES)
        return None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source = SOURCES.get(module.__name__)
        if source is not None:
            exec(compile(source, "<busbar>/%%s.py" %% module.__name__.rpartition(".")[2], "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
"""


def closure(names: Sequence[str], source_of: Callable[[str], str]) -> Dict[str, str]:
    """Sources of the named modules and of all that they import from module_utils. Names are full: ``PACKAGE.host``.

    source_of: full name -> text; it raises for a name that does not exist.
    """
    sources: Dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        sources[name] = source_of(name)
        for node in ast.walk(ast.parse(sources[name])):
            if isinstance(node, ast.ImportFrom):
                waiting += _of_ours(node)
    return sources


def _of_ours(node: ast.ImportFrom) -> List[str]:
    """``from . import a, b``, ``from .a import c``, ``from PACKAGE import a``, ``from PACKAGE.a import c``."""
    module = node.module or ""
    if node.level == 0:
        if module != PACKAGE and not module.startswith(PACKAGE + "."):
            return []
        module = module[len(PACKAGE) + 1 :]
    return ["%s.%s" % (PACKAGE, name) for name in ([module] if module else [alias.name for alias in node.names])]


class _Bare(ast.NodeTransformer):
    """Without docstrings and a module's documentation: half of the bytes, and nobody reads them there."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        return node


def _is_text(line: ast.stmt) -> bool:
    if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
        return line.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def bare(source: str) -> str:
    """The same code for the node, without what is for readers. On the control node: it needs Python 3.9."""
    return ast.unparse(_Bare().visit(ast.parse(source)))


def script(sources: Dict[str, str], main: str) -> str:
    """One script holding ``sources``. ``main``: the code to run after them; it imports from PACKAGE."""
    packed = base64.b64encode(zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)).decode()
    return _LOADER % {"payload": packed} + main
