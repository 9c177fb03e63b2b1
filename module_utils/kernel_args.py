# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's command line, token by token: what is active, what the next boot will have, and what is wanted.

Whatever nobody asked for stays as it is, byte for byte. Three ways to keep arguments are known: a drop-in of our own
for GRUB's generator (Debian, Ubuntu), boot entries that grubby edits (EL), and /etc/kernel/cmdline (systemd-boot).
Sources: lib/cmdline.c and kernel/params.c (6.12); grub-mkconfig; host.md 3.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from .finding import Finding
from .host import Host, ParseError, ReadError
from .plan import Command, FileChange, Plan

ACTIVE = "/proc/cmdline"
GRUB_DEFAULT = "/etc/default/grub"
# After 50-cloudimg-settings.cfg, which sets a variable of its own anew.
DROPIN = "/etc/default/grub.d/99-busbar.cfg"
GRUB_CFG = "/boot/grub/grub.cfg"
BLS_ENTRIES = "/boot/loader/entries"
GRUBENV = "/boot/grub2/grubenv"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
_HEAD = """\
# Written by Busbar (role or module that manages kernel arguments). Your own arguments belong into another file.
"""
_ASSIGNMENT = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX '
_SPECIAL = '\\"$`'
_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Arg:
    """One thing asked of the command line.

    value: None is a flag (``quiet``), or with present False any value.
    exclusive: no other token of this name may be there; without it a name may be repeated (``console=``).
    """

    name: str
    value: Optional[str] = None
    present: bool = True
    exclusive: bool = False

    def __post_init__(self) -> None:
        if re.fullmatch(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_]", self.name) is None:
            raise ParseError("kernel argument %r: a name has letters, digits and _ . : -" % self.name)
        if self.value is not None and ('"' in self.value or not self.value.isprintable()):
            raise ParseError("kernel argument %s: the kernel cannot take %r" % (self.name, self.value))
        if self.exclusive and not self.present:
            raise ParseError("kernel argument %s: exclusive says nothing about an absent one" % self.name)

    @property
    def token(self) -> str:
        if self.value is None:
            return self.name
        return '%s="%s"' % (self.name, self.value) if " " in self.value else "%s=%s" % (self.name, self.value)

    def __str__(self) -> str:
        return self.token if self.present else "no %s" % self.token


# -- tokens ----------------------------------------------------------------------------------------------------------


def split(line: str) -> List[Tuple[str, str]]:
    """(blanks before it, token) of each token; double quotes hold blanks together, as in the kernel's next_arg."""
    found = []
    at = 0
    while at < len(line):
        start = at
        while at < len(line) and line[at] in _SPACE:
            at += 1
        gap, begin, quoted = line[start:at], at, False
        while at < len(line) and (quoted or line[at] not in _SPACE):
            quoted ^= line[at] == '"'
            at += 1
        found.append((gap, line[begin:at]))
    return found


def parse(token: str) -> Tuple[str, Optional[str]]:
    """Name, with dashes as underscores (the kernel sees no difference), and value without its quotes."""
    if token.startswith('"'):
        token = token[1:-1] if token.endswith('"') and len(token) > 1 else token[1:]
    name, equals, value = token.partition("=")
    if value.startswith('"'):
        value = value[1:-1] if value.endswith('"') and len(value) > 1 else value[1:]
    return name.replace("-", "_"), value if equals else None


def edit(line: str, args: Sequence[Arg]) -> str:
    """The line as it has to be; the same line where it is right already."""
    tokens = split(line)
    for arg in args:
        tokens = _edit(tokens, arg)
    return "".join(gap + token for gap, token in tokens)


def _edit(tokens: List[Tuple[str, str]], arg: Arg) -> List[Tuple[str, str]]:
    # What follows two dashes is for init, and none of the kernel's business.
    end = next((n for n, (_gap, token) in enumerate(tokens) if token == "--"), len(tokens))
    name = arg.name.replace("-", "_")
    same = [n for n, (_gap, token) in enumerate(tokens[:end]) if token and parse(token)[0] == name]
    right = [n for n in same if parse(tokens[n][1])[1] == arg.value]
    if not arg.present:
        return _without(tokens, same if arg.value is None else right)
    if not arg.exclusive:
        return tokens if right else _with(tokens, end, arg.token)
    if right:
        return _without(tokens, [n for n in same if n != right[-1]])
    if not same:
        return _with(tokens, end, arg.token)
    tokens = list(tokens)
    tokens[same[-1]] = (tokens[same[-1]][0], arg.token)
    return _without(tokens, same[:-1])


def _with(tokens: List[Tuple[str, str]], end: int, token: str) -> List[Tuple[str, str]]:
    # Blanks at the end are a token of nothing; they stay behind what is added.
    if end and not tokens[end - 1][1]:
        end -= 1
    before, after = tokens[:end], tokens[end:]
    if before or not after or not after[0][1]:
        return before + [(" " if before else "", token)] + after
    return [(after[0][0], token), (" ", after[0][1])] + after[1:]


def _without(tokens: List[Tuple[str, str]], gone: Sequence[int]) -> List[Tuple[str, str]]:
    kept = [item for n, item in enumerate(tokens) if n not in gone]
    if kept and 0 in gone and kept[0][1]:
        # The line began with a token, and still does.
        kept[0] = (tokens[0][0], kept[0][1])
    return kept


def satisfied(line: str, arg: Arg) -> bool:
    return edit(line, [arg]) == line


# -- boot loaders ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """What one kernel gets at the next boot. name: of the entry or file, for people."""

    name: str
    line: str


@dataclass(frozen=True)
class Boot:
    """How a node keeps its kernel arguments.

    kind: "grub", "bls", "kernel-install", or "" where no boot loader keeps any (a node that boots from the network).
    entries: every kernel's line. kept: text of our drop-in, or of /etc/kernel/cmdline; None where there is no file.
    elsewhere: other files of GRUB's settings, path -> text. kernels: (release, path) for kernel-install.
    """

    kind: str
    active: str
    entries: Tuple[Entry, ...] = ()
    kept: Optional[str] = None
    elsewhere: Tuple[Tuple[str, str], ...] = ()
    kernels: Tuple[Tuple[str, str], ...] = ()

    @property
    def future(self) -> Tuple[Entry, ...]:
        """What every kernel gets at the next boot, and what GRUB's generator would write the next time it runs."""
        if self.kind != "grub":
            return self.entries
        return self.entries + (Entry("GRUB's settings", self.settings),)

    @property
    def settings(self) -> str:
        files = [*self.elsewhere, *([(DROPIN, self.kept)] if self.kept is not None else [])]
        return evaluate(text for _path, text in sorted(files, key=lambda file: (file[0] != GRUB_DEFAULT, file[0])))


def read(host: Host) -> Boot:
    """Raises ReadError and ParseError."""
    active = host.read(ACTIVE)
    if active is None:
        raise ReadError(ACTIVE, "is not there")
    if host.has("grubby") and any(name.endswith(".conf") for name in host.listdir_system(BLS_ENTRIES)):
        entries = _bls_entries(host)
        kept = host.read_system(KERNEL_CMDLINE)
        if kept is not None:
            entries.append(Entry("%s, for kernels to come" % KERNEL_CMDLINE, kept.rstrip("\n")))
        return Boot("bls", active, tuple(entries), kept)
    if host.has("update-grub") and host.read_system(GRUB_DEFAULT) is not None:
        cfg = host.read_system(GRUB_CFG)
        if cfg is None:
            raise ReadError(GRUB_CFG, "is not there, though GRUB is installed; run update-grub")
        folder = DROPIN.rpartition("/")[0]
        names = ["%s/%s" % (folder, name) for name in host.listdir_system(folder) if name.endswith(".cfg")]
        others = [(path, host.read_system(path) or "") for path in [GRUB_DEFAULT, *names] if path != DROPIN]
        return Boot("grub", active, tuple(parse_grub_cfg(cfg)), host.read_system(DROPIN), tuple(others))
    kept = host.read_system(KERNEL_CMDLINE)
    if kept is not None and host.has("kernel-install"):
        return Boot("kernel-install", active, (Entry(KERNEL_CMDLINE, kept.rstrip("\n")),), kept, (), _kernels(host))
    return Boot("", active)


def parse_grub_cfg(text: str) -> List[Entry]:
    """Of the part that 10_linux wrote: entries of other systems and of memory tests are not ours. Raises ParseError."""
    lines = text.splitlines()
    begin = [n for n, line in enumerate(lines) if re.match(r"### BEGIN \S*/10_linux ", line)]
    end = [n for n, line in enumerate(lines) if re.match(r"### END \S*/10_linux ", line)]
    if len(begin) == len(end) == 1:
        lines = lines[begin[0] : end[0]]
    found = []
    for line in lines:
        words = line.strip().split(None, 2)
        if len(words) >= 2 and words[0] in ("linux", "linux16", "linuxefi"):
            found.append(Entry(words[1].rpartition("/")[2], words[2] if len(words) > 2 else ""))
    if not found:
        raise ParseError("%s: no line 'linux KERNEL ARGUMENTS' in it; run update-grub" % GRUB_CFG)
    return found


def evaluate(texts: Iterable[str]) -> str:
    """The arguments that GRUB's settings come to, as far as they are plain assignments; a later one wins."""
    values = {"GRUB_CMDLINE_LINUX": "", "GRUB_CMDLINE_LINUX_DEFAULT": ""}
    for text in texts:
        for line in text.splitlines():
            match = re.match(r"\s*(GRUB_CMDLINE_LINUX(?:_DEFAULT)?)(\+?=)(.*)", line)
            if match:
                name, operator, value = match.groups()
                value = _shell_value(value.strip(), values)
                values[name] = values[name] + value if operator == "+=" else value
    return " ".join(value for value in values.values() if value)


def _shell_value(text: str, values: Dict[str, str]) -> str:
    if text[:1] == "'":
        return text[1:].partition("'")[0]
    inner = text[1:-1] if text[:1] == '"' and text[-1:] == '"' and len(text) > 1 else text
    found, at = [], 0
    while at < len(inner):
        variable = re.compile(r"\$(?:\{(\w+)\}|(\w+))").match(inner, at)
        if variable:
            found.append(values.get(variable.group(1) or variable.group(2), ""))
            at = variable.end()
            continue
        at += inner[at] == "\\"
        found.append(inner[at : at + 1])
        at += 1
    return "".join(found)


def _bls_entries(host: Host) -> List[Entry]:
    variables = parse_grubenv(host.read_system(GRUBENV) or "")
    found = []
    for name in host.listdir_system(BLS_ENTRIES):
        if name.endswith(".conf"):
            text = host.read_system("%s/%s" % (BLS_ENTRIES, name)) or ""
            found.append(Entry(name, expand(parse_bls(text, name), variables)))
    return found


def parse_bls(text: str, name: str) -> str:
    """The options of a boot entry. Raises ParseError."""
    lines = [line.split(None, 1) for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = [words[1].strip() for words in lines if len(words) == 2 and words[0] == "options"]
    if not found:
        raise ParseError("%s/%s: has no line 'options'" % (BLS_ENTRIES, name))
    # Several lines are one list (systemd's boot loader specification).
    return " ".join(found)


def parse_grubenv(text: str) -> Dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    return {name: value for name, equals, value in lines if equals}


def expand(options: str, variables: Dict[str, str]) -> str:
    """GRUB's variables in a boot entry: EL 8 keeps everything in $kernelopts, tuned its part in $tuned_params."""
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: variables.get(m.group(1) or m.group(2), ""), options).strip()


def _kernels(host: Host) -> Tuple[Tuple[str, str], ...]:
    found = []
    for release in host.listdir_system("/usr/lib/modules") or host.listdir_system("/lib/modules"):
        for path in ("/usr/lib/modules/%s/vmlinuz" % release, "/boot/vmlinuz-%s" % release):
            if host.mode_system(path) is not None:
                found.append((release, path))
                break
    return tuple(found)


# -- our drop-in -----------------------------------------------------------------------------------------------------


def render_dropin(line: str) -> str:
    escaped = "".join("\\" + char if char in _SPECIAL else char for char in line)
    return '%s%s%s"\n' % (_HEAD, _ASSIGNMENT, escaped)


def parse_dropin(text: str) -> str:
    """The arguments in our drop-in. Raises ParseError where somebody wrote something else into it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return ""
    if len(lines) != 1 or not lines[0].startswith(_ASSIGNMENT) or not lines[0].endswith('"'):
        raise ParseError(
            '%s was edited by hand: Busbar expects one line %s..." in it; move your own lines into another file there'
            % (DROPIN, _ASSIGNMENT)
        )
    return "".join(_unescape(lines[0][len(_ASSIGNMENT) : -1]))


def _unescape(text: str) -> Iterator[str]:
    characters = iter(text)
    for char in characters:
        yield next(characters, "") if char == "\\" else char


# -- plan ------------------------------------------------------------------------------------------------------------


def plan(boot: Boot, args: Sequence[Arg], noun: str, why: str) -> Plan:
    """Two findings for each argument: as the next boot will have it, and as this one has it.

    noun: the check's first word. why: what the arguments are for.
    """
    changes, commands = _mend(boot, args)
    findings: List[Finding] = []
    reboot: List[str] = []
    for arg in args:
        persisted = _persisted(boot, arg, noun, why, bool(changes or commands))
        active = satisfied(boot.active, arg)
        findings += [persisted, _live(boot, arg, noun, why, persisted, active)]
        if not active and (persisted.ok or persisted.state == "drift"):
            reboot.append("kernel argument %s is not active before a reboot" % arg)
    return Plan(tuple(findings), changes, commands, tuple(reboot))


def _mend(boot: Boot, args: Sequence[Arg]) -> Tuple[Tuple[FileChange, ...], Tuple[Command, ...]]:
    wrong = [arg for arg in args if not all(satisfied(entry.line, arg) for entry in boot.future)]
    if not wrong or not boot.kind:
        return (), ()
    if boot.kind == "grub":
        return _mend_grub(boot, wrong)
    changes: Tuple[FileChange, ...] = ()
    if boot.kept is not None:
        end = "\n" if boot.kept.endswith("\n") else ""
        text = edit(boot.kept.rstrip("\n"), wrong) + end
        if text != boot.kept:
            changes = (FileChange(KERNEL_CMDLINE, boot.kept, text),)
    if boot.kind == "kernel-install":
        return changes, tuple(
            Command(("kernel-install", "add", release, path), "write the boot entry of kernel %s" % release)
            for release, path in boot.kernels
        )
    return changes, (_grubby(boot, wrong), _sync(BLS_ENTRIES))


def _mend_grub(boot: Boot, wrong: Sequence[Arg]) -> Tuple[Tuple[FileChange, ...], Tuple[Command, ...]]:
    have = parse_dropin(boot.kept) if boot.kept is not None else ""
    # A drop-in only adds: what another file says is not ours to take back.
    line = edit(have, [arg for arg in wrong if not satisfied(boot.settings, arg)]).strip()
    changes: Tuple[FileChange, ...] = ()
    if line != have.strip():
        changes = (FileChange(DROPIN, boot.kept, render_dropin(line) if line else None),)
    elif all(_culprits(boot, arg) for arg in wrong):
        # Running the generator again would not help.
        return (), ()
    return changes, (Command(("update-grub",), "write %s anew" % GRUB_CFG), _sync(GRUB_CFG.rpartition("/")[0]))


def _sync(folder: str) -> Command:
    # Of this file system alone: one that hangs elsewhere must not hold us up.
    return Command(
        ("sync", "--file-system", folder), "GRUB reads no journal: a power cut now would bring the old state"
    )


def _culprits(boot: Boot, arg: Arg) -> List[str]:
    """GRUB's settings, not ours, that spoil the argument: they hold what must not be there, or drop what is in ours."""
    return [path for path, text in boot.elsewhere if any(_spoils(path, line, arg) for line in text.splitlines())]


def _spoils(path: str, line: str, arg: Arg) -> bool:
    variable, _equals, value = line.strip().partition("=")
    if not variable.startswith("GRUB_CMDLINE_LINUX"):
        return False
    if arg.present and variable == "GRUB_CMDLINE_LINUX" and path > DROPIN and "$" not in value:
        return True
    name = arg.name.replace("-", "_")
    values = [parse(token)[1] for _gap, token in split(value.strip("\"' ")) if token and parse(token)[0] == name]
    if arg.present:
        return arg.exclusive and any(other != arg.value for other in values)
    return bool(values) if arg.value is None else arg.value in values


def _grubby(boot: Boot, wrong: Sequence[Arg]) -> Command:
    """One call: removals first, as grubby does them."""
    removed = [arg.token for arg in wrong if not arg.present]
    for arg in wrong:
        if arg.exclusive:
            removed += _others(boot, arg)
    argv = ["grubby", "--update-kernel=ALL"]
    if removed:
        argv.append("--remove-args=%s" % " ".join(dict.fromkeys(removed)))
    added = [arg.token for arg in wrong if arg.present]
    if added:
        argv.append("--args=%s" % " ".join(added))
    return Command(tuple(argv), "change the boot entries of all kernels")


def _others(boot: Boot, arg: Arg) -> List[str]:
    tokens = (token for entry in boot.entries for _gap, token in split(entry.line) if token)
    name = arg.name.replace("-", "_")
    return [token for token in tokens if parse(token)[0] == name and parse(token)[1] != arg.value]


def _persisted(boot: Boot, arg: Arg, noun: str, why: str, mended: bool) -> Finding:
    bad = [entry for entry in boot.future if not satisfied(entry.line, arg)]
    source = {"grub": GRUB_CFG, "bls": BLS_ENTRIES, "kernel-install": KERNEL_CMDLINE}.get(boot.kind, ACTIVE)
    state, have, fix = "ok", str(arg), ""
    if not boot.kind:
        state, have = "not_owned", "no boot loader that Busbar knows keeps arguments on this node"
        fix = "set %s where the node boots from: the image, or the network boot server's configuration" % arg
    elif bad:
        state, have = "drift", "not in %s%s" % (bad[0].name, " and %d more" % (len(bad) - 1) if bad[1:] else "")
        if not arg.present:
            have = "still in" + have[len("not in") :]
        culprits = _culprits(boot, arg)
        if culprits:
            state = "not_owned"
            fix = "correct %s, which is not Busbar's, and run update-grub" % ", ".join(culprits)
        else:
            fix = "run the role again without --check" if mended else "look at what the tool printed; run it by hand"
    return Finding(
        check="%s.args" % noun,
        subject=str(arg),
        state=state,
        severity="major",
        want=str(arg),
        have=have,
        source=source,
        why=why,
        fix=fix,
        aspect="persisted",
    )


def _live(boot: Boot, arg: Arg, noun: str, why: str, persisted: Finding, active: bool) -> Finding:
    pending = not active and persisted.ok
    return Finding(
        check="%s.args" % noun,
        subject=str(arg),
        state="ok" if active else "drift",
        severity="major",
        want=str(arg),
        have=str(arg) if active else "pending: the next boot will have it" if pending else "not on the command line",
        source=ACTIVE,
        why=why,
        fix="" if active else "reboot the node",
        disruption="reboot",
        because=None if active or persisted.ok else persisted.id,
    )
