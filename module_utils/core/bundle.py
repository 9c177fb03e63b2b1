# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pack modules into one script for ``python3 -I -S``: the single query of the audit to a host.

They keep their names and imports; on the node they live in packages that exist only in memory.
"""

from __future__ import annotations

import base64
import bz2
import importlib.util
import json
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

from .host import ReadError

PACKAGE = "ansible_collections.busbar.fabric.plugins.module_utils"
LIBRARY = "ansible_collections.busbar.fabric.plugins.modules"

_QUOTES = re.compile(r'"{3}|\'{3}')
# A docstring, documentation of a module or, where no bracket can be open, the text that describes a declaration.
_TEXT = re.compile(r' *r?"{3}|(?:DOCUMENTATION|EXAMPLES|RETURN) = |"')
_IMPORT = re.compile(r"^from (\.*)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)

# Program of ``python3 -I -S -c``: it runs what ``compressed`` has made of a script, from its standard input.
RUN = "import bz2, sys; exec(bz2.decompress(sys.stdin.buffer.read()))"

# Head of a script that stays on a node.
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

    An indented import is left out: within a function only a change, or the control node, needs it.

    source_of: full name -> text, "" for a package; it raises for a name that does not exist.
    """
    sources: Dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in sources:
            lines = list(_code_lines(source_of(name)))
            sources[name] = _joined(lines)
            plain = "\n".join(line.partition("#")[0].rstrip() for line, is_quoted in lines if not is_quoted)
            for dots, module, imported in _IMPORT.findall(plain):
                waiting += _module_utils_imports(dots, module, imported, name, source_of)
    return sources


def strip_source(source: str) -> str:
    """Return the code without docstrings, documentation, blank lines and lines of comments.

    A fixed point, whatever Python's version: what a node stores can be compared. For sources that are formatted as
    these are: a statement begins its line.
    """
    return _joined(_code_lines(source))


def _joined(lines: Iterable[Tuple[str, bool]]) -> str:
    return "\n".join([*(line for line, _is_quoted in lines), ""])


def _code_lines(source: str) -> Iterator[Tuple[str, bool]]:
    """Yield each line of the code, and whether a text is open where it begins."""
    mark = before = ""
    text_indent = None
    for line in source.split("\n"):
        bare, is_quoted = line.lstrip(), bool(mark)
        is_text = text_indent is not None if is_quoted else _TEXT.match(line) is not None
        mark = _open_quotes(line, mark)
        if is_text:
            text_indent = len(line) - len(bare) if not is_quoted else text_indent
            continue
        if is_quoted or (bare and not bare.startswith("#")):
            if text_indent and before.endswith(":") and len(line) - len(bare) < text_indent:
                # A block needs a statement.
                yield " " * text_indent + "pass", False
            text_indent, before = None, line
            yield line, is_quoted


def _open_quotes(line: str, mark: str) -> str:
    """Return the quotes of the text that is open after the line; mark: before it, "" outside of a text."""
    for found in _QUOTES.findall(line):
        mark = "" if found == mark else mark or found
    return mark


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


def _module_utils_imports(
    dots: str, module: str, names: str, importer: str, source_of: Callable[[str], str]
) -> List[str]:
    """Return what an import statement of the module ``importer`` needs.

    What is imported from a package is a module, what is imported from a module is not.
    """
    package = importer.rsplit(".", len(dots))[:1] if dots else []
    full_name = ".".join([*package, *([module] if module else [])])
    if not (full_name + ".").startswith(PACKAGE + "."):
        return []
    if source_of(full_name):
        return [full_name]
    return ["%s.%s" % (full_name, name.split()[0]) for name in names.strip("()").split(",") if name.strip()]


def script(sources: Dict[str, str], main: str) -> str:
    """Return one script that holds ``sources``. main: code to run after them, which imports from PACKAGE."""
    return "SOURCES = %r\n" % dict(sorted(sources.items())) + _LOADER + main


def compressed(text: str) -> bytes:
    """Return the script for RUN, or a part of it: parts may be joined."""
    return bz2.compress(text.encode())


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
