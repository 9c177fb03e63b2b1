# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernels that a node could boot, and which driver modules are built for each of them.

A kernel update whose modules could not be built boots with the inbox drivers, or with none, and says nothing.
Sources: dkms(8), 2.x and 3.x; modinfo(8); depmod.d(5); host.md 3.4, 6.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .core.host import Host, ParseError, Problem, ReadError, ToolMissing, attempt
from .kernel_args import GRUB_CFG, GRUB_DEFAULT
from .machine.pci import parse_text, read_value

RELEASE = "/proc/sys/kernel/osrelease"
MODULES = "/lib/modules"
STATUS = ("dkms", "status")
# 3.x: name/version, kernel, arch: state. 2.x: name, version, kernel, arch: state. Not built for any: without kernel.
_LINE = re.compile(
    r"(?P<name>[^\s,/:]+)(?:/|, )(?P<version>[^\s,/]+?)"
    r"(?:, (?P<kernel>[^\s,]+), (?P<arch>[^\s,:]+)(?: \([^)]*\))?)?: (?P<state>[a-z]+)(?P<rest>.*)"
)
_STATES = ("added", "built", "installed", "broken")


@dataclass(frozen=True)
class Build:
    """One line of dkms status.   kernel: "" for a module that is only added.   state: one of _STATES."""

    name: str
    version: str
    kernel: str
    state: str


@dataclass(frozen=True)
class ModuleFile:
    """A module as modinfo finds it for one kernel: what modprobe would load there.   srcversion: "" where it has none.

    license: of the NVIDIA module tells open from closed.
    """

    path: str
    srcversion: str = ""
    version: str = ""
    license: str = ""

    @property
    def inbox(self) -> bool:
        """It came with the kernel: what is added later lies in updates/, extra/ or weak-updates/."""
        return self.path == "(builtin)" or re.match(r"(/usr)?/lib/modules/[^/]+/kernel/", self.path) is not None


@dataclass(frozen=True)
class Kernels:
    """installed: releases that could be booted.   default: the one that boots next, None where not known.

    headers: those that a module can be built for.
    """

    running: Optional[str] = None
    installed: Tuple[str, ...] = ()
    default: Optional[str] = None
    headers: Tuple[str, ...] = ()


def parse_status(text: str) -> Tuple[Build, ...]:
    """Raises ParseError at a line that it does not know."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None or match["state"] not in _STATES:
            raise ParseError(
                "%r, expected a line such as 'nvidia/580.82.07, 6.8.0-60-generic, x86_64: installed'" % line
            )
        found.append(Build(match["name"], match["version"], match["kernel"] or "", match["state"]))
    return tuple(found)


def modinfo(text: str) -> Dict[str, str]:
    """Field -> its first value, of what modinfo prints. Raises ParseError."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, value.strip())
    if not found.get("filename"):
        raise ParseError("says no filename")
    return found


def parse_modinfo(text: str) -> ModuleFile:
    """Raises ParseError."""
    found = modinfo(text)
    return ModuleFile(
        found["filename"], found.get("srcversion", ""), found.get("version", ""), found.get("license", "")
    )


def parse_symbols(text: str) -> Dict[str, str]:
    """Symbol -> checksum, of a Module.symvers and of modprobe --dump-modversions alike. Raises ParseError."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if len(words) < 2 or re.fullmatch(r"0x[0-9a-f]{8}", words[0]) is None:
            raise ParseError("%r, expected a checksum and a symbol" % line[:80])
        found[words[1]] = words[0]
    return found


def boot_default(default_grub: str, grub_cfg: str) -> Optional[str]:
    """The kernel of GRUB's first entry; None where another one may be booted."""
    values = re.findall(r"^\s*GRUB_DEFAULT=(.*)$", default_grub, re.MULTILINE)
    if values and values[-1].strip().strip("\"'") != "0":
        return None
    match = re.search(r"^\s*linux(?:efi|16)?\s+\S*/vmlinuz-(\S+)", grub_cfg, re.MULTILINE)
    return match.group(1) if match else None


def read_kernels(host: Host, problems: List[Problem]) -> Kernels:
    running = read_value(host, RELEASE, parse_text, problems)
    if running is None and not problems:
        problems.append(Problem(RELEASE, "is not there"))
    installed, headers = [], []
    try:
        for release in host.listdir_system(MODULES):
            folder = "%s/%s" % (MODULES, release)
            # A removed kernel leaves what DKMS has built for it.
            images = ("/boot/vmlinuz-%s" % release, "%s/vmlinuz" % folder)
            if release == running or any(host.mode_system(path) is not None for path in images):
                installed.append(release)
                headers += [release] if host.listdir_system(folder + "/build") else []
    except ReadError as error:
        problems.append(error.problem)
    return Kernels(running, tuple(installed), _default(host, installed, problems), tuple(headers))


def _default(host: Host, installed: Sequence[str], problems: List[Problem]) -> Optional[str]:
    try:
        output = host.run(("grubby", "--default-kernel"))
        found: Optional[str] = output.stdout.strip().rpartition("vmlinuz-")[2]
    except ToolMissing:
        try:
            found = boot_default(host.read_system(GRUB_DEFAULT) or "", host.read_system(GRUB_CFG) or "")
        except ReadError as error:
            problems.append(error.problem)
            return None
    except ReadError as error:
        problems.append(error.problem)
        return None
    return found if found in installed else None


def read_builds(host: Host, problems: List[Problem]) -> Optional[Tuple[Build, ...]]:
    """() without DKMS; None where it could not be understood."""
    if not host.has(STATUS[0]):
        return ()
    return attempt(lambda: parse_status(host.ask(STATUS, timeout=60.0)), " ".join(STATUS), problems)


def read_module(host: Host, kernel: str, module: str, problems: List[Problem]) -> Optional[ModuleFile]:
    """What modprobe would load for this kernel; None where there is no such module, and plus a Problem if not known."""
    argv = ("modinfo", "-k", kernel, module)

    def ask() -> Optional[ModuleFile]:
        output = host.run(argv)
        absent = output.rc != 0 and "not found" in output.stderr
        return None if absent else parse_modinfo(output.answer())

    return attempt(ask, " ".join(argv), problems)
