# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pack modules into one script for ``python3 -I -S -``: the single query of the audit to a host.

They keep their names and imports; on the node they live in packages that exist only in memory.
"""

from __future__ import annotations

import ast
import base64
import bz2
import importlib.util
import json
from typing import Any, Callable, Dict, Iterator, List, Sequence, Set

from .host import ReadError

PACKAGE = "ansible_collections.busbar.fabric.plugins.module_utils"
LIBRARY = "ansible_collections.busbar.fabric.plugins.modules"

# Head of a packed script, head of a plain one, and the rest of both.
_PACKED = """\
import base64, bz2, json
def unpacked(text):
    return bz2.decompress(base64.b64decode(text)).decode()
SOURCES = dict(source.split("\\n", 1) for source in unpacked(%r).split("\\0"))
"""
_PLAIN = """\
import json
SOURCES = {name: "\\n".join(lines) for name, lines in %s.items()}
"""
_LOADER = """\
import importlib.abc, importlib.machinery, sys
PACKAGES = {name.rsplit(".", n)[0] for name in SOURCES for n in range(1, name.count(".") + 1)}
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in SOURCES or name in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in PACKAGES)
        return None
    def create_module(self, spec):
        return None
    def get_source(self, name):
        return SOURCES.get(name)
    def exec_module(self, module):
        source = SOURCES.get(module.__name__)
        if source is not None:
            exec(compile(source, "<busbar>/%s.py" % module.__name__.rpartition(".")[2], "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
"""


def closure(names: Sequence[str], source_of: Callable[[str], str]) -> Dict[str, str]:
    """Return stripped sources of the named modules and of all that they import from module_utils, by full name.

    An import within a function is left out: only a change, or the control node, needs it.

    source_of: full name -> text, "" for a package; it raises for a name that does not exist.
    """
    sources: Dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in sources:
            source = source_of(name)
            tree = ast.parse(source)
            sources[name] = strip_source(source, tree)
            for node in _imports(tree):
                waiting += _module_utils_imports(node, name, source_of)
    return sources


def strip_source(source: str, tree: ast.Module) -> str:
    """Return the code without docstrings, documentation, blank lines and lines of comments. tree: the source, parsed.

    A fixed point, whatever Python's version: what a node stores can be compared.
    """
    quoted: Set[int] = set()
    texts: Set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and len(_rows(node)) > 1:
            quoted.update(_rows(node))
        body = getattr(node, "body", None)
        if isinstance(body, list):
            found = [one for one in body if _is_text(one)]
            # A block needs a statement.
            texts.update(row for one in found[len(found) == len(body) :] for row in _rows(one))
    code = [
        line
        for row, line in enumerate(source.split("\n"), 1)
        if row not in texts and (row in quoted or (line.strip() and not line.lstrip().startswith("#")))
    ]
    return "\n".join([*code, ""])


def _rows(node: ast.AST) -> range:
    return range(getattr(node, "lineno", 1), (getattr(node, "end_lineno", None) or 0) + 1)


def _is_text(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id in ("DOCUMENTATION", "EXAMPLES", "RETURN")
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def source_of(name: str) -> str:
    """Return a module's source as Python finds it (Ansible's archive, the audit's script, a file); "" for a package.

    Raises ReadError if there is none.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return ""
    loader: Any = spec.loader if spec is not None else None
    source = loader.get_source(name) if hasattr(loader, "get_source") else None
    if isinstance(source, bytes):
        # The loader that Ansible has for collections.
        source = source.decode("utf-8")
    if not isinstance(source, str):
        raise ReadError(name, "has no source")
    return source


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Return the imports at a module's top level, in whatever block; none within a function."""
    waiting: List[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            yield node
        if not isinstance(node, ast.FunctionDef):
            for name in ("body", "orelse", "finalbody", "handlers"):
                waiting += getattr(node, name, [])


def _module_utils_imports(node: ast.ImportFrom, importer: str, source_of: Callable[[str], str]) -> List[str]:
    """Return full names of the modules of module_utils that an import statement of the module ``importer`` needs.

    What is imported from a package is a module, what is imported from a module is not.
    """
    package = importer.rsplit(".", node.level)[:1] if node.level else []
    module = ".".join([*package, *([node.module] if node.module else [])])
    if not (module + ".").startswith(PACKAGE + "."):
        return []
    return [module] if source_of(module) else ["%s.%s" % (module, alias.name) for alias in node.names]


def script(sources: Dict[str, str], main: str) -> str:
    """Return one script that holds ``sources``. main: code to run after them.

    It imports from PACKAGE, and has json, and the function unpacked for the output of ``pack``.
    """
    return _PACKED % pack("\0".join("%s\n%s" % item for item in sorted(sources.items()))) + _LOADER + main


def pack(text: str) -> str:
    """Compress to a third of the bytes, all of them ASCII."""
    return base64.b64encode(bz2.compress(text.encode())).decode()


def unpack(text: str) -> str:
    """Return the text of ``pack``."""
    return bz2.decompress(base64.b64decode(text)).decode()


def plain_script(sources: Dict[str, str], main: str) -> str:
    """Return the same script as readable text that does not depend on a library's version: for a file that stays."""
    lines = {name: text.split("\n") for name, text in sources.items()}
    return _PLAIN % json.dumps(lines, sort_keys=True, indent=1, ensure_ascii=False) + _LOADER + main
