# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A kernel module's file, as modinfo describes it, and the checksums of the symbols that modules share.

Sources: modinfo(8); modprobe(8); depmod.d(5); the kernel's Documentation/kbuild/modules.rst.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, attempt


class ModuleFile(NamedTuple):
    """A module that modprobe would load for one kernel.   srcversion: "" if modinfo prints none.

    license: distinguishes NVIDIA's open module from the closed.   depends: names, with _ for -; None if not printed.
    """

    path: str
    srcversion: str = ""
    license: str = ""
    depends: Optional[Tuple[str, ...]] = None

    @property
    def inbox(self) -> bool:
        """Return whether it came with the kernel: added modules lie in updates/, extra/ or weak-updates/."""
        return self.path == "(builtin)" or re.match(r"(/usr)?/lib/modules/[^/]+/kernel/", self.path) is not None


def plain(name: str) -> str:
    """Return a module's name as the kernel has it, which does not distinguish - and _."""
    return name.strip().replace("-", "_")


def parse(text: str) -> ModuleFile:
    """Parse the output of ``modinfo``: the first value of each field counts. Raises ParseError."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    if not found.get("filename"):
        raise ParseError("prints no filename")
    depends = tuple(plain(name) for name in found["depends"].split(",") if name.strip()) if "depends" in found else None
    return ModuleFile(found["filename"], found.get("srcversion", ""), found.get("license", ""), depends)


def parse_each(text: str) -> Dict[str, ModuleFile]:
    """Parse what ``modinfo`` prints of several modules, by their names. Raises ParseError."""
    found: Dict[str, ModuleFile] = {}
    blocks = re.split(r"^(?=(?:name:.*\n)?filename:)", text, flags=re.MULTILINE)
    for block in filter(str.strip, blocks):
        module = parse(block)
        # A module that is built in has no file; modinfo prints its name instead.
        name = re.match(r"name: *(\S+)", block) if module.path == "(builtin)" else None
        found[plain(name.group(1) if name else module.path.rpartition("/")[2].partition(".ko")[0])] = module
    return found


def parse_symbols(text: str) -> Dict[str, str]:
    """Symbol -> checksum, of a Module.symvers and of modprobe --dump-modversions alike. Raises ParseError."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if len(words) < 2 or re.fullmatch(r"0x[0-9a-f]{8}", words[0]) is None:
            raise ParseError("%r, expected a checksum and a symbol" % line[:80])
        found[words[1]] = words[0]
    return found


def read_each(
    host: Host, kernel: Optional[str], modules: Sequence[str], problems: List[Problem]
) -> Dict[str, ModuleFile]:
    """Return the modules that modprobe would load, of those that there are. kernel: None for the one that runs."""
    argv = ("modinfo", *(("-k", kernel) if kernel else ()), *modules)

    def get() -> Dict[str, ModuleFile]:
        output = host.run(argv)
        return parse_each(output.stdout if output.rc != 0 and "not found" in output.stderr else output.answer())

    return attempt(get, " ".join(argv), problems) or {}
