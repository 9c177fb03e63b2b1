# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel's command line, token by token: what is active, what the next boot will have, and what is wanted.

Whatever nobody asked for stays as it is, byte for byte. Three ways to keep arguments are known: a drop-in of our own
for GRUB's generator (Debian, Ubuntu), boot entries that grubby edits (EL), and /etc/kernel/cmdline (systemd-boot).
Sources: lib/cmdline.c and kernel/params.c (6.12); grub-mkconfig; host.md 3.4.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import grubby
from .core.check import Check
from .core.finding import Finding
from .core.host import Host, ParseError, ReadError
from .core.plan import Command, FileChange, Plan
from .driver.kernels import GRUB_CFG, GRUB_DEFAULT

ACTIVE = "/proc/cmdline"
# After 50-cloudimg-settings.cfg, which sets a variable of its own anew.
DROPIN = "/etc/default/grub.d/99-busbar.cfg"
BLS_ENTRIES = "/boot/loader/entries"
GRUBENV = "/boot/grub2/grubenv"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
_LINUX, _DEFAULT = "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"
# The shell of grub-mkconfig runs this after the other settings, so that it holds whatever they do to come to their
# values. It leans on nothing that they may have set (IFS, set -e, set -u), and starts no program.
_HEAD = """\
# Written by Busbar (role or module that manages kernel arguments). Your own arguments belong into another file.
# grub-mkconfig reads this after all files whose names sort before it. Whatever those make of GRUB_CMDLINE_LINUX and
# GRUB_CMDLINE_LINUX_DEFAULT: what is added below is there, what is removed is not, and all else stays.
busbar_split() {
    # As the kernel does it: a name, in which - is _, and =value without its double quotes.
    busbar_name=$1
    case $busbar_name in '"'*) busbar_name=${busbar_name#?}; busbar_name=${busbar_name%\\"} ;; esac
    busbar_value=${busbar_name#"${busbar_name%%=*}"}
    busbar_name=${busbar_name%%=*}
    case $busbar_value in '="'*) busbar_value=${busbar_value#??}; busbar_value="=${busbar_value%\\"}" ;; esac
    while :; do
        case $busbar_name in *-*) busbar_name=${busbar_name%%-*}_${busbar_name#*-} ;; *) break ;; esac
    done
}
busbar_word() {
    # One word, and the blanks before it: kept, put right, or left out. What follows -- is for init.
    busbar_split "$busbar_word"
    if [ "$busbar_word" = -- ]; then
        if [ -z "$busbar_init$busbar_there" ]; then
            busbar_line=$busbar_line$busbar_gap$busbar_token
            busbar_gap=' '
            busbar_there=yes
        fi
        busbar_init=yes
    elif [ -z "$busbar_init" ] && [ "$busbar_name" = "$busbar_wanted" ]; then
        case $busbar_mode in
        add) if [ "$busbar_value" = "$busbar_right" ]; then busbar_there=yes; fi ;;
        only)
            if [ -n "$busbar_there" ]; then return 0; fi
            busbar_word=$busbar_token
            busbar_there=yes
            ;;
        remove) if [ -z "$busbar_right" ] || [ "$busbar_value" = "$busbar_right" ]; then return 0; fi ;;
        esac
    fi
    busbar_line=$busbar_line$busbar_gap$busbar_word
}
busbar_words() {
    # Blanks within double quotes part no words.
    busbar_rest=$1 busbar_line='' busbar_gap='' busbar_word='' busbar_quote=''
    while [ -n "$busbar_rest" ]; do
        busbar_tail=${busbar_rest#?}
        busbar_char=${busbar_rest%"$busbar_tail"}
        busbar_rest=$busbar_tail
        case $busbar_quote$busbar_char in
        [[:space:]])
            if [ -n "$busbar_word" ]; then busbar_word; busbar_gap='' busbar_word=''; fi
            busbar_gap=$busbar_gap$busbar_char
            continue
            ;;
        '"') busbar_quote='"' ;;
        '""') busbar_quote='' ;;
        esac
        busbar_word=$busbar_word$busbar_char
    done
    if [ -n "$busbar_word" ]; then busbar_word; else busbar_line=$busbar_line$busbar_gap; fi
}
busbar_argument() {
    busbar_mode=$1 busbar_token=$2 busbar_there='' busbar_init=''
    busbar_split "$busbar_token"
    busbar_wanted=$busbar_name busbar_right=$busbar_value
    if [ "$busbar_mode" = remove ]; then busbar_there=yes; fi
    busbar_words "${GRUB_CMDLINE_LINUX-}"
    GRUB_CMDLINE_LINUX=$busbar_line
    busbar_words "${GRUB_CMDLINE_LINUX_DEFAULT-}"
    GRUB_CMDLINE_LINUX_DEFAULT=$busbar_line
    if [ -z "$busbar_there" ]; then
        GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX:+$GRUB_CMDLINE_LINUX }$busbar_token"
    fi
}
"""
_CALL = "busbar_argument "
# What an earlier Busbar wrote: it only appended.
_APPENDED = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX '
_SPACE = " \t\n\v\f\r"
ARGS = Check(
    "kernel_args.args",
    why="asked for by the site",
    fix="run the module again without --check",
)
"""Will the next boot have the kernel argument that a site asks for by the module `kernel_args` (persisted), has
this boot (live)"""


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
    """What one kernel gets at the next boot. name: of the entry or file, for people.

    kernel: its file, as a boot entry names it.
    """

    name: str
    line: str
    kernel: str = ""


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
        """What every kernel gets at the next boot, and what GRUB's generator would write the next time it runs.

        Settings that do more than to assign plainly are judged by what they were the last time: by grub.cfg alone.
        """
        line = self.settings if self.kind == "grub" else None
        return self.entries if line is None else self.entries + (Entry("GRUB's settings", line),)

    @property
    def settings(self) -> Optional[str]:
        """The arguments of a normal entry, as GRUB's settings have them; None where only a shell could tell."""
        files = [*self.elsewhere, *([(DROPIN, self.kept)] if self.kept is not None else [])]
        values: Dict[str, Optional[str]] = {_LINUX: "", _DEFAULT: ""}
        for path, text in sorted(files, key=lambda file: (file[0] != GRUB_DEFAULT, file[0])):
            if path == DROPIN:
                _apply(values, parse_dropin(text))
            elif not evaluate(text, values):
                return None
        first, second = values[_LINUX], values[_DEFAULT]
        return None if first is None or second is None else ("%s %s" % (first, second)).strip()


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
        names = ["%s/%s" % (folder, name) for name in host.listdir_system(folder) if _sourced(name)]
        others = [(path, host.read_system(path) or "") for path in [GRUB_DEFAULT, *names] if path != DROPIN]
        return Boot("grub", active, tuple(parse_grub_cfg(cfg)), host.read_system(DROPIN), tuple(others))
    kept = host.read_system(KERNEL_CMDLINE)
    if kept is not None and host.has("kernel-install"):
        return Boot("kernel-install", active, (Entry(KERNEL_CMDLINE, kept.rstrip("\n")),), kept, (), _kernels(host))
    return Boot("", active)


def _sourced(name: str) -> bool:
    # By the shell's *.cfg.
    return name.endswith(".cfg") and not name.startswith(".")


def parse_grub_cfg(text: str) -> List[Entry]:
    """Of the part that 10_linux wrote: entries of other systems and of memory tests are not ours. Raises ParseError.

    An entry for recovery leaves GRUB_CMDLINE_LINUX_DEFAULT out, and no node works by it.
    """
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
    return [entry for entry in found if not {"single", "recovery"} & set(entry.line.split())] or found


# -- GRUB's settings: shell, of which the plain part is understood -----------------------------------------------------


class _Command(Exception):
    """The text does more than to assign."""


def evaluate(text: str, values: Dict[str, Optional[str]]) -> bool:
    """Whether the text only assigns; then with its assignments in values, None for what only a shell could tell."""
    if _MARK.search(text):
        return False
    try:
        for words in _commands(text):
            export = words[0] == ("", "export", "")
            for name, value, splits in words[1:] if export else words:
                if name:
                    # dash parts an unquoted $X after export into words.
                    values[name] = None if export and splits else _substitute(value, values)
                elif not export or value is None or re.fullmatch(r"\w+", value) is None:
                    return False
    except _Command:
        return False
    return True


# (name that is assigned to or "", the word with its variables marked or None where it is not understood, "$" where one
# of them is not in quotes)
_Word = Tuple[str, Optional[str], str]
# Private to Unicode, in no command line: before and after a variable's name.
_MARK = re.compile("\ue000(\\w+)\ue001")


def _substitute(value: Optional[str], values: Dict[str, Optional[str]]) -> Optional[str]:
    if value is None or any(values.get(name) is None for name in _MARK.findall(value)):
        return None
    return _MARK.sub(lambda match: values[match.group(1)] or "", value)


def _commands(text: str) -> List[List[_Word]]:
    """The words of each simple command. Raises _Command at what makes a text more than a list of those."""
    found: List[List[_Word]] = []
    words: List[_Word] = []
    at = 0
    while at < len(text):
        if text.startswith("\\\n", at):
            at += 2
        elif text[at] in " \t":
            at += 1
        elif text[at] in "\n;":
            found.append(words)
            words = []
            at += 1
        elif text[at] == "#":
            at = (text + "\n").index("\n", at)
        else:
            word, at = _word(text, at)
            words.append(word)
    return [words for words in [*found, words] if words]


def _word(text: str, at: int) -> Tuple[_Word, int]:
    match = re.compile(r"([A-Za-z_]\w*)=", re.ASCII).match(text, at)
    name = match.group(1) if match else ""
    at = match.end() if match else at
    parts: List[str] = []
    known, splits, quoted = True, "", False
    while at < len(text) and (quoted or text[at] not in " \t\n;"):
        char = text[at]
        if char == '"':
            quoted = not quoted
            at += 1
        elif char == "'" and not quoted:
            end = text.find("'", at + 1)
            if end < 0:
                raise _Command
            parts.append(text[at + 1 : end])
            at = end + 1
        elif char == "\\":
            following = text[at + 1 : at + 2]
            if quoted and following not in tuple('$`"\\\n'):
                parts.append(char)
            parts.append("" if following == "\n" else following)
            at += 2
        elif char in "$`":
            expansion = re.compile(
                r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|\$\{[^{}'\"`\\]*\}|`[^`\\'\"]*`|\$\([^()'\"`\\]*\)", re.ASCII
            ).match(text, at)
            if expansion is None:
                raise _Command
            variable = expansion.group(1) or expansion.group(2)
            known = known and variable is not None
            splits = splits if quoted else "$"
            parts.append("\ue000%s\ue001" % variable)
            at = expansion.end()
        elif char in "&|()<>" and not quoted:
            raise _Command
        else:
            known = known and (quoted or char != "~")
            parts.append(char)
            at += 1
    if quoted:
        raise _Command
    return (name, "".join(parts) if known else None, splits), at


def _apply(values: Dict[str, Optional[str]], args: Sequence[Arg]) -> None:
    """What our drop-in does."""
    for arg in args:
        first, second = values[_LINUX], values[_DEFAULT]
        if first is None or second is None:
            return
        if not satisfied("%s %s" % (first, second), arg):
            if arg.exclusive or not arg.present:
                gone = Arg(arg.name, None if arg.exclusive else arg.value, present=False)
                first, second = edit(first, [gone]), edit(second, [gone])
            values[_LINUX], values[_DEFAULT] = edit(first, [arg]), second


def _bls_entries(host: Host) -> List[Entry]:
    variables = parse_grubenv(host.read_system(GRUBENV) or "")
    found = []
    for name in host.listdir_system(BLS_ENTRIES):
        if name.endswith(".conf"):
            text = host.read_system("%s/%s" % (BLS_ENTRIES, name)) or ""
            kernel = (_values(text, "linux") or [""])[0]
            found.append(Entry(name, expand(parse_bls(text, name), variables), kernel))
    return found


def parse_bls(text: str, name: str) -> str:
    """The options of a boot entry. Raises ParseError."""
    found = _values(text, "options")
    if not found:
        raise ParseError("%s/%s: has no line 'options'" % (BLS_ENTRIES, name))
    # Several lines are one list (systemd's boot loader specification).
    return " ".join(found)


def _values(text: str, key: str) -> List[str]:
    """Of a key of a boot entry."""
    lines = [line.split(None, 1) for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [words[1].strip() for words in lines if len(words) == 2 and words[0] == key]


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


def render_dropin(args: Sequence[Arg]) -> str:
    modes = ["only" if arg.exclusive else "add" if arg.present else "remove" for arg in args]
    calls = ["%s%s %s\n" % (_CALL, mode, shlex.quote(arg.token)) for mode, arg in zip(modes, args)]
    return _HEAD + "".join(calls)


def parse_dropin(text: str) -> Tuple[Arg, ...]:
    """What our drop-in sees to. Raises ParseError where somebody wrote something else into it."""
    if text.startswith(_HEAD):
        lines = text[len(_HEAD) :].splitlines()
        try:
            args = tuple(_called(shlex.split(line)) for line in lines)
        except ValueError:
            args = ()
        if render_dropin(args) == text:
            return args
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return ()
    values: Dict[str, Optional[str]] = {_LINUX: ""}
    if len(lines) == 1 and lines[0].startswith(_APPENDED) and evaluate(lines[0], values) and values[_LINUX]:
        return tuple(_arg(token) for _gap, token in split(values[_LINUX] or "") if token)
    raise ParseError(
        "%s was edited by hand, and Busbar cannot read it: move your own lines into another file there, and remove it"
        % DROPIN
    )


def _called(words: List[str]) -> Arg:
    if len(words) != 3 or words[0] != _CALL.strip() or words[1] not in ("add", "only", "remove"):
        raise ValueError(words)
    return _arg(words[2], words[1])


def _arg(token: str, mode: str = "add") -> Arg:
    name = token.strip('"').partition("=")[0]
    return Arg(name, parse(token)[1], mode != "remove", mode == "only")


# -- plan ------------------------------------------------------------------------------------------------------------


def plan(boot: Boot, args: Sequence[Arg], check: Check, others: Mapping[Arg, Check] = MappingProxyType({})) -> Plan:
    """Two findings for each argument: as the next boot will have it, and as this one has it.

    check: ARGS, or that of a role which asks for arguments of its own and says what they are for.
    others: of some arguments another one.
    """
    changes, commands = _mend(boot, args)
    findings: List[Finding] = []
    reboot: List[str] = []
    for arg in args:
        asked = others.get(arg, check)
        persisted = _persisted(boot, arg, asked, bool(changes or commands))
        active = satisfied(boot.active, arg)
        findings += [persisted, _live(boot, arg, asked, persisted, active)]
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
    if _beyond_grubby(boot, wrong):
        return (), ()
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
    return changes, (*grubby.commands(_asked_of_grubby(boot, wrong)), _sync(BLS_ENTRIES))


def _mend_grub(boot: Boot, wrong: Sequence[Arg]) -> Tuple[Tuple[FileChange, ...], Tuple[Command, ...]]:
    kept = boot.kept
    for arg in wrong:
        if not _promised(boot, kept, arg):
            kept = _with_arg(boot, kept, arg)
    changes: Tuple[FileChange, ...] = ()
    if kept != boot.kept:
        changes = (FileChange(DROPIN, boot.kept, kept),)
    elif all(_culprits(boot, arg) for arg in wrong):
        # Running the generator again would not help.
        return (), ()
    return changes, (Command(("update-grub",), "write %s anew" % GRUB_CFG), _sync(GRUB_CFG.rpartition("/")[0]))


def _promised(boot: Boot, kept: Optional[str], arg: Arg) -> bool:
    line = replace(boot, kept=kept).settings
    return line is not None and satisfied(line, arg)


def _with_arg(boot: Boot, kept: Optional[str], arg: Arg) -> Optional[str]:
    """Our drop-in with the argument asked for; None where nothing is left in it."""
    have = list(parse_dropin(kept)) if kept is not None else []
    if arg not in have:
        have = [other for other in have if not _contradicts(other, arg)]
        text = render_dropin(have) if have else None
        if not arg.present and _promised(boot, text, arg):
            return text
        have.append(arg)
    return render_dropin(have)


def _contradicts(old: Arg, new: Arg) -> bool:
    if old.name.replace("-", "_") != new.name.replace("-", "_"):
        return False
    if old.value == new.value or old.exclusive or new.exclusive:
        return old.present or new.present
    return (old.present and not new.present and new.value is None) or (
        new.present and not old.present and old.value is None
    )


def _sync(folder: str) -> Command:
    # Of this file system alone: one that hangs elsewhere must not hold us up.
    return Command(
        ("sync", "--file-system", folder), "GRUB reads no journal: a power cut now would bring the old state"
    )


def _culprits(boot: Boot, arg: Arg) -> List[str]:
    """GRUB's settings that are read after ours and spoil the argument."""
    later = sorted(file for file in boot.elsewhere if file[0] > DROPIN and _LINUX in file[1])
    values: Dict[str, Optional[str]] = {_LINUX: "", _DEFAULT: ""}
    if later:
        _apply(values, parse_dropin(_with_arg(boot, boot.kept, arg) or ""))
    for path, text in later:
        known = evaluate(text, values)
        first, second = values[_LINUX], values[_DEFAULT]
        if not known or first is None or second is None or not satisfied("%s %s" % (first, second), arg):
            return [path]
    return []


def _asked_of_grubby(boot: Boot, args: Sequence[Arg]) -> List[grubby.Change]:
    names = {arg.name.replace("-", "_") for arg in args}

    def of_names(line: str) -> Tuple[str, ...]:
        return tuple(token for _gap, token in split(line) if token and parse(token)[0] in names)

    return [
        grubby.Change(
            entry.kernel,
            tuple(token for _gap, token in split(entry.line)),
            of_names(entry.line),
            of_names(edit(entry.line, args)),
        )
        for entry in boot.entries
    ]


def _beyond_grubby(boot: Boot, args: Sequence[Arg]) -> str:
    """What it would spoil, "" where nothing or where it is not used."""
    asked = _asked_of_grubby(boot, args) if boot.kind == "bls" else []
    return next(filter(None, map(grubby.spoils, asked)), "")


def _persisted(boot: Boot, arg: Arg, check: Check, mended: bool) -> Finding:
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
            fix = "correct %s, which is read after Busbar's %s, and run update-grub" % (", ".join(culprits), DROPIN)
        else:
            fix = check.fix if mended else "look at what the tool printed; run it by hand"
            spoilt = _beyond_grubby(boot, [arg])
            if spoilt:
                fix = "grubby would spoil %s: edit the lines 'options' in %s by hand" % (spoilt, BLS_ENTRIES)
    return check.judge(str(arg), state, str(arg), have, source, fix, aspect="persisted")


def _live(boot: Boot, arg: Arg, check: Check, persisted: Finding, active: bool) -> Finding:
    pending = not active and persisted.ok
    return check.judge(
        str(arg),
        "ok" if active else "drift",
        want=str(arg),
        have=str(arg) if active else "pending: the next boot will have it" if pending else "not on the command line",
        source=ACTIVE,
        fix="%s, or reboot the node" % check.fix,
        disruption="reboot",
        because=persisted,
    )
