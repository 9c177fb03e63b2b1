# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packs readers and planners into one script that ``python3 -I -S -`` runs: the audit's single question to a host.

The modules keep their relative imports; on the node they live in a package that exists only in memory.
"""

from __future__ import annotations

import ast
import base64
import json
import zlib
from typing import Callable, Dict, List

PACKAGE = "busbar_bundle"

_LOADER = """\
import base64, importlib.abc, importlib.machinery, json, sys, zlib
SOURCES = json.loads(zlib.decompress(base64.b64decode(%(payload)r)).decode())
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name == %(package)r:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        head, _, tail = name.partition(".")
        if head == %(package)r and tail in SOURCES:
            return importlib.machinery.ModuleSpec(name, self)
        return None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source = SOURCES.get(module.__name__.partition(".")[2])
        if source is not None:
            exec(compile(source, "<busbar>/%%s.py" %% module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
"""


def closure(names: List[str], source_of: Callable[[str], str]) -> Dict[str, str]:
    """Sources of the named modules of module_utils and of all that they import from there.

    source_of: module name -> text; it raises for a name that does not exist.
    """
    sources: Dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        sources[name] = source_of(name)
        for node in ast.walk(ast.parse(sources[name])):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                waiting += [node.module] if node.module else [alias.name for alias in node.names]
    return sources


def script(sources: Dict[str, str], main: str) -> str:
    """One script holding ``sources``. ``main``: the code to run after them; it imports from PACKAGE."""
    packed = base64.b64encode(zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)).decode()
    return _LOADER % {"payload": packed, "package": PACKAGE} + main
