# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the kernel's arguments on a node: what is active, and what the next boot will have.

Two ways to store arguments are known: our drop-in for GRUB's generator (Debian, Ubuntu), and boot entries that grubby
edits (EL), with /etc/kernel/cmdline for future kernels. What others add to the line, such as tuned, is read and named.
Sources: grub-mkconfig; grub-core/commands/blscfg.c of EL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..core import tuned
from ..core.host import Host, ParseError, ReadError
from ..core.systemd_files import by_name
from ..driver.kernels import GRUB_CFG, GRUB_DEFAULT
from . import grub, grub_settings
from .grub_settings import DROPIN

ACTIVE = "/proc/cmdline"
BLS_ENTRIES = "/boot/loader/entries"
# Variables that GRUB reads at boot: Debian's, EL's.
GRUBENV = {"grub": "/boot/grub/grubenv", "bls": "/boot/grub2/grubenv"}
KERNEL_CMDLINE = "/etc/kernel/cmdline"


class Entry(NamedTuple):
    """Arguments of one kernel at the next boot.

    name: of the entry or file, for people. line: as the kernel gets it. kernel: its file, as a boot entry names it.
    raw: the line as the file has it, before GRUB reads it; None if it is the same.
    foreign: the default entry of GRUB, written by others.
    """

    name: str
    line: str
    kernel: str = ""
    raw: Optional[str] = None
    foreign: bool = False

    @property
    def stored(self) -> str:
        return self.line if self.raw is None else self.raw


@dataclass(frozen=True)
class Boot:
    """Kernel arguments as a node stores them.

    kind: "grub", "bls", or "" where no boot loader stores any (a node that boots from the network).
    entries: every kernel's line. stored: text of our drop-in, or of /etc/kernel/cmdline; None where there is no file.
    elsewhere: other files of GRUB's settings, path -> text.
    scope: GRUB's variables. tuned: (file, arguments) of tuned's active profile.
    """

    kind: str
    active: str
    entries: Tuple[Entry, ...] = ()
    stored: Optional[str] = None
    elsewhere: Tuple[Tuple[str, str], ...] = ()
    scope: grub.Scope = field(default_factory=dict)
    tuned: Tuple[Tuple[str, str], ...] = ()

    @property
    def future(self) -> Tuple[Entry, ...]:
        """Return every kernel's arguments at the next boot, and after GRUB's generator and tuned have run.

        Settings that are not plain assignments are judged by their last result, grub.cfg.
        """
        found = list(self.entries)
        line = self.settings
        if line is not None:
            found += [Entry("GRUB's settings", future) for future in self.passed(line)]
        return (*found, *(Entry(path, "%s %s" % (found[0].line, words)) for path, words in self.tuned))

    def passed(self, line: str) -> List[str]:
        """Return the lines that kernels get of GRUB's settings."""
        try:
            return grub.passed(line, self.scope)
        except ParseError:
            # GRUB's generator refuses such a line.
            return [""]

    @property
    def settings(self) -> Optional[str]:
        """Return the arguments of a normal entry, as GRUB's settings have them; None where that takes a shell."""
        files = [*self.elsewhere, *([(DROPIN, self.stored)] if self.stored is not None else [])]
        return grub_settings.arguments(files) if self.kind == "grub" else None


def read(host: Host) -> Boot:
    """Raises ReadError and ParseError."""
    active = host.require(ACTIVE)
    stored = host.read_system(KERNEL_CMDLINE)
    if host.has("grubby") and any(name.endswith(".conf") for name in host.listdir_system(BLS_ENTRIES)):
        entries, scope = _bls_entries(host)
        if stored is not None:
            entries += _passed_entries("%s, for future kernels" % KERNEL_CMDLINE, stored.rstrip("\n"), scope)
        return Boot("bls", active, tuple(entries), stored, scope=scope, tuned=tuned.kernel_arguments(host))
    if host.has("update-grub") and host.read_system(GRUB_DEFAULT) is not None:
        cfg = host.read_system(GRUB_CFG)
        if cfg is None:
            raise ReadError(GRUB_CFG, "is not there, though GRUB is installed; run update-grub")
        # By the shell's *.cfg.
        names = [path for _name, path in by_name(host, [DROPIN.rpartition("/")[0]], ".cfg") if path != DROPIN]
        others = [(path, host.read_system(path) or "") for path in [GRUB_DEFAULT, *names]]
        entries, scope = parse_grub_cfg(cfg, parse_grubenv(host.read_system(GRUBENV["grub"]) or ""))
        arguments = tuned.kernel_arguments(host)
        return Boot("grub", active, tuple(entries), host.read_system(DROPIN), tuple(others), scope, arguments)
    return Boot("", active)


def next_boot(host: Host) -> str:
    """Return what all kernels get at the next boot; "" where that cannot be read, a finding of role iommu."""
    try:
        return " ".join(entry.line for entry in read(host).future)
    except (ReadError, ParseError):
        return ""


def parse_grub_cfg(text: str, scope: grub.Scope = MappingProxyType({})) -> Tuple[List[Entry], grub.Scope]:
    """Return the entries that 10_linux wrote, that of others which is the default, and variables. Raises ParseError.

    Else entries of other systems and of memory tests are not ours. One for recovery leaves
    GRUB_CMDLINE_LINUX_DEFAULT out, and no node works by it.
    """
    others = ""
    begin = list(re.finditer(r"^### BEGIN \S*/10_linux ", text, re.MULTILINE))
    end = list(re.finditer(r"^### END \S*/10_linux ", text, re.MULTILINE))
    if len(begin) == len(end) == 1:
        _commands, scope = grub.read(text[: begin[0].start()], scope)
        others = text[end[0].end() :]
        text = text[begin[0].start() : end[0].start()]
    found, scope = grub.read(text, scope)
    chosen = {value.rpartition(">")[2] for value in scope.get("default", ())} - {""}
    entries = [Entry(kernel.rpartition("/")[2], line) for kernel, line in found]
    for head, body in re.findall(r"^\s*menuentry ([^{\n]*)\{(.*?)^\s*\}", others, re.MULTILINE | re.DOTALL):
        names = chosen.intersection(word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", head))
        found = grub.read(body, scope)[0]
        entries += [Entry("the default entry " + name, line, foreign=True) for name in names for _kernel, line in found]
    if not entries:
        raise ParseError("%s: no line 'linux KERNEL ARGUMENTS' in it; run update-grub" % GRUB_CFG)
    return [entry for entry in entries if not {"single", "recovery"} & set(entry.line.split())] or entries, scope


def _bls_entries(host: Host) -> Tuple[List[Entry], grub.Scope]:
    scope = parse_grubenv(host.read_system(GRUBENV["bls"]) or "")
    found: List[Entry] = []
    for name in host.listdir_system(BLS_ENTRIES):
        if name.endswith(".conf"):
            text = host.read_system("%s/%s" % (BLS_ENTRIES, name)) or ""
            kernel = (_values(text, "linux") or [""])[0]
            found += _passed_entries(name, parse_bls(text, name), scope, kernel)
    return found, scope


def _passed_entries(name: str, options: str, scope: grub.Scope, kernel: str = "") -> List[Entry]:
    raw = expand(options, scope)
    return [Entry(name, line, kernel, raw) for line in grub.passed(raw, scope)]


def parse_bls(text: str, name: str) -> str:
    """The options of a boot entry. Raises ParseError."""
    found = _values(text, "options")
    if not found:
        raise ParseError("%s/%s: has no line 'options'" % (BLS_ENTRIES, name))
    # Several lines are one list (systemd's boot loader specification).
    return " ".join(found)


def _values(text: str, key: str) -> List[str]:
    """Return the values of a key of a boot entry."""
    lines = [line.split(None, 1) for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [words[1].strip() for words in lines if len(words) == 2 and words[0] == key]


def parse_grubenv(text: str) -> Dict[str, Tuple[str, ...]]:
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    return {name: (value,) for name, equals, value in lines if equals}


def expand(options: str, scope: grub.Scope) -> str:
    """Return the options of a boot entry with GRUB's variables, as blscfg does it before GRUB reads the line.

    EL 8 stores everything in $kernelopts, tuned its part in $tuned_params.
    """

    def value(match: re.Match[str]) -> str:
        return "%s " % scope[match.group(1)][0] if match.group(1) in scope else ""

    return re.sub(r"(?<!\\)\$(\w+) ?", value, options).strip()
