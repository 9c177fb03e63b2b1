# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find NCCL's variables that shell text sets, as far as is possible without running it.

Lines are split into words as a shell does (sh, bash; csh's setenv). Forms whose effect is certain are taken; any other
mention of a variable is ``unclear``, never "not set". Source: POSIX.1-2017, Shell Command Language; bash(1).
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .grammar import MENTION, NAME, Assignment

# A larger file is not one of settings; and each byte is parsed.
LONGEST = 256 * 1024
_MOST_ROWS = 400  # of one command
_MOST_MENTIONS = 200  # in one command

_WORD = r"""(?:\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}\n]{0,400}\}|`[^`\n]*`"""
_WORD += r"""|[^\s'"\\;&|()<>]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+"""
_OPEN = ("'", '"', "\\")  # as a token: a quote that does not end, or a line that goes on
_TOKEN = re.compile(r"""\#[^\n]*|%s|[;&|()\n]+|[<>]+[&|]?|['"\\]""" % _WORD, re.DOTALL)
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ASSIGNS = re.compile(r"(?:(?:SINGULARITY|APPTAINER)ENV_)?([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
# The value of a variable that is not set before; and an expansion that sets one.
_DEFAULT = re.compile(r"\$\{\w+:?[-=]([^${}`]*)\}")
_SETS_DEFAULT = re.compile(r"\$\{(%s):?=" % NAME)
# -x NAME=VALUE, --env=NAME=VALUE, --export=ALL,NAME=VALUE, --mca mca_base_env_list "NAME=VALUE;NAME=VALUE"
_WITHIN = re.compile(r"(?:^|[,;=\s]|(?:SINGULARITY|APPTAINER)ENV_)(%s)=([^,;\s]*)" % NAME)
# The whole of a word, so that a list of devices keeps its commas.
_WHOLE = re.compile(r"(?:--env=|-[ex])?(%s)=(.*)" % NAME, re.DOTALL)
_OPENS, _CLOSES = ("if", "while", "until", "for", "case", "select", "{"), ("fi", "done", "esac", "}")
_SKIPPED = (*_OPENS, *_CLOSES, "then", "else", "elif", "do", "!", "time", "exec", "command", "nohup", "builtin")
# They read variables or words, or print them, and set nothing that lasts.
_HARMLESS = (
    *(".", "source", "[", "[[", "test", "grep", "egrep", "logger", ":", "case", "set", "info", "error", "fail"),
    *("unset", "unsetenv", "printenv", "sed", "awk", "perl", "fgrep", "rg", "jq", "git", "curl", "log", "die", "warn"),
)
_UNREAD = "\n"  # the program of what is not certain to be a command
# Slurm and PBS end a value at a comma.
_CUT = re.compile(r"(%s)=[^,=]*,[a-z]+[0-9_]*[0-9](?:,|$)" % NAME)
# What follows these is a value or a list; what follows another option may be a script.
_LISTS = ("-x", "-e", "-v", "-E", "--env", "--export", "-env", "-genv", "mca_base_env_list")
_LINE = re.compile(r"\s*(?:export\s+)?(%s)=(.*)" % NAME)
Found = Iterator[Tuple[str, Optional[str], str]]  # name, value, scope


class Command(NamedTuple):
    """A simple command: its words without their quotes, and the files that its output goes to.

    first, rows: the lines that it is part of, with its here-document, whose lines are ``body``.
    conditional: within if, case, a function or behind &&.
    """

    words: List[str]
    files: List[str]
    first: int
    rows: Sequence[str]
    body: Sequence[str] = ()
    conditional: bool = False

    def line_of(self, name: str) -> int:
        rows = enumerate(self.rows, self.first)
        return next((number for number, row in rows if re.search(r"%s\b" % name, row)), self.first)


def parse(text: str, first: int = 1, exported: bool = False, level: int = 0) -> List[Assignment]:
    """Return what the text sets, in its order. Any text can be parsed.

    first: number of its first line.   exported: as behind `set -a`.   level: how many texts it is within, as a word.
    """
    found: List[Assignment] = []
    names: Set[str] = set()
    for command in commands(text, first):
        if command.words[:1] == ["set"]:
            options = [word for word in command.words[1:] if re.fullmatch("[-+]([a-z]*a[a-z]*|allexport)", word)]
            options += [word for word in command.words[1:2] if command.words[2:3] == ["allexport"]]
            exported = options[-1][0] == "-" if options else exported
        for name, value, scope in _settings(command, level):
            if scope == "exported":  # `A=1; export A`, and the other way round
                names.add(name)
                continue
            scope = "environment" if exported and scope == "shell" else scope
            found.append(Assignment(name, value, command.line_of(name), scope, command.conditional))
    return [one._replace(scope="environment") if one.scope == "shell" and one.name in names else one for one in found]


def _within(text: str, level: int, exported: bool = False) -> Found:
    """Yield what a text within another sets: nothing that lasts in the outer one."""
    for one in parse(text, exported=exported, level=level):
        yield one.name, one.value, "argument" if one.scope == "environment" else one.scope


def _settings(command: Command, level: int) -> Found:
    words = command.words
    for name in _SETS_DEFAULT.findall(" ".join(words)):
        yield name, None, "unclear"
    prefix = list(takewhile(_ASSIGNS.match, words))
    program, rest = "".join(words[len(prefix) : len(prefix) + 1]).rpartition("/")[2], words[len(prefix) + 1 :]
    name, after, *_ = [*rest, "", ""] if program == "export" else [program, *rest, ""]
    if MENTION.fullmatch(name.rstrip("=")) and re.match("=" if name[-1:] != "=" else "[a-z0-9^][^=]*$", after):
        yield name.rstrip("="), None, "cut"
    for word in prefix:
        yield from _pair(word, "argument" if program else "shell")
    if program in ("export", "declare", "typeset", "readonly", "local"):
        exports = program == "export" or any("x" in word for word in rest if word[:1] == "-")
        for word in rest:
            yield from _pair(word, "environment" if exports else "shell")
            if exports and MENTION.fullmatch(word):
                yield word, None, "exported"
    elif program in ("setenv", "pushenv") and MENTION.fullmatch("".join(rest[:1])):
        yield from _pair("=".join(rest[:2]), "environment")
    elif program in ("echo", "printf", "print", "cat"):
        # `echo export NAME=VALUE`, as a task prolog sets one; a line with other words is a message.
        printed = " ".join(word for word in rest if word[:1] != "-").replace("\\n", "\n").split("\n")
        stored = any(not re.search(r"^[0-9-]$|^/dev/|log", file, re.IGNORECASE) for file in command.files)
        for line in [*command.body, *printed]:
            whole = _LINE.fullmatch(line)
            if whole and (stored or (not command.files and line.split()[0] == "export")):
                value = _certain(whole.group(2).strip(" \t\r\"'"))
                yield whole.group(1), value, "unclear" if command.files else "printed"
            elif command.files:
                yield from ((name, None, "unclear") for name, _value in _WITHIN.findall(line))
    elif program in ("alias", "eval", "for", _UNREAD):
        scope = "unread" if program == _UNREAD else "unclear"
        yield from ((name, None, scope) for name, _value, _scope in _mentions(" ".join(rest)))
    elif program not in _HARMLESS:
        # Only a list of options has no program.
        yield from _arguments(program, words[len(prefix) :] if program[:1] == "-" else rest, level)
        if not level and not program.startswith("python"):
            yield from _within("\n".join(command.body), 1, exported="tee" in words)


def _arguments(program: str, rest: Sequence[str], level: int) -> Found:
    """Take the arguments of an unknown program or function: a launcher passes them on, others may do anything.

    A word with blanks may be the script of another shell, or a message; in those an argument counts behind an option.
    """
    for before, word, after in zip([program, *rest], rest, [*rest[1:], ""]):
        if level < 2 and re.search(r"\s", word) and before not in _LISTS and (word[0] != "-" or word[:7] == "--wrap="):
            yield from list(_within(word[7:] if word[:7] == "--wrap=" else word, level + 1)) or _mentions(word)
            continue
        if before.lstrip("-") in ("genv", "env") and before[:1] == "-" and MENTION.fullmatch(word):
            yield word, _certain(after), "argument"
            continue
        if "--export" in before + word or before == "-v":
            yield from ((name, None, "cut") for name in _CUT.findall(word))
        parts = re.split(r",(?=[A-Za-z_]\w*=)", word) if "--env" in (before, word[:5]) else [word]
        wholes = [None if before in ("mca_base_env_list", "-v") else _WHOLE.fullmatch(part) for part in parts]
        pairs = [whole.groups() for whole in wholes if whole] or _WITHIN.findall(word)
        pairs = [] if level and "-" not in (before[:1], word[:1]) and program != "env" else pairs
        for name, value in pairs:
            yield name, _certain(value), "argument"
        if not pairs and before not in ("-x", "-e", "--env") and "--export" not in word:
            yield from _mentions(word)


def _pair(word: str, scope: str) -> Found:
    match = _ASSIGNS.match(word)
    if match is None:
        yield from _mentions("" if MENTION.fullmatch(word) else word)
    elif MENTION.fullmatch(match.group(1)):
        yield match.group(1), None if match.group(2) else _certain(match.group(3)), scope
    elif MENTION.search(match.group(3)) and "\n" not in match.group(3):
        # Arguments for a launcher: OPTIONS="-x NAME=VALUE", EXPORT=ALL,NAME=VALUE.
        found = _arguments("", [match.group(3)], 0)
        yield from ((name, value, "argument") for name, value, scope in found if scope != "unclear")


def _certain(value: str) -> Optional[str]:
    """Return a value that does not depend on running the text."""
    default = _DEFAULT.fullmatch(value)
    return default.group(1).strip("\"'") if default else None if "$" in value or "`" in value else value


def _mentions(text: str) -> Found:
    # To read a variable ($NAME, ${NAME...}) sets nothing.
    names = MENTION.findall(re.sub(r"\$\{?[#!]?%s" % NAME, "", text))
    return ((name, None, "unclear") for name in list(dict.fromkeys(names))[:_MOST_MENTIONS])


def commands(text: str, first: int) -> Iterator[Command]:
    """Return the simple commands. What is not certain to be one is _UNREAD, with the rest of the text."""
    rows = text.split("\n")
    at = blocks = parens = 0
    chained = False
    while at < len(rows):
        start = at
        tokens, at = _of_rows(rows, at)
        if (tokens and tokens[-1] in _OPEN) or sum(token.count("`") for token in tokens) % 2:
            yield Command([_UNREAD, "\n".join(rows[start:])], [], first + start, rows[start:], conditional=True)
            return
        body: Sequence[str] = ()
        here = False
        for delimiter in [after.lstrip("-") for token, after in zip(tokens, tokens[1:]) if token == "<<"]:
            word = _plain(delimiter)
            end = next((number for number in range(at, len(rows)) if rows[number].lstrip("\t") == word), len(rows))
            body, at = rows[at:end], end + 1
        lines = rows[start:at]
        words: List[str] = []
        files: List[str] = []
        for number, (before, token) in enumerate(zip(["", *tokens], [*tokens, "\n"])):
            here = here or token == "<<"
            if token[0] in ";&|()\n":
                if token == "|":
                    piped = list(takewhile(lambda word: word[0] not in ";&|()\n", tokens[number + 1 :]))
                    files += [_plain(word) for word in piped[piped.index("tee") + 1 :]] if "tee" in piped else []
                if words or files:
                    given = body if here else ()
                    yield Command(words, files, first + start, lines, given, bool(blocks or parens or chained))
                here = here and token == "|"
                # A line break right behind && goes on with the chain.
                chained = "&&" in token or "||" in token or (chained and token == "\n" and not words)
                parens = max(parens + token.count("(") - token.count(")"), 0)
                words, files = [], []
            elif before[:1] in ("<", ">"):
                files += [_plain(token)] * (">" in before)
            elif token == "{" and words[:1] == ["function"]:
                blocks, words = blocks + 1, []
            elif token[0] not in "<>":
                blocks = max(blocks + (not words) * ((token in _OPENS) - (token in _CLOSES)), 0)
                if words or token == "for" or token not in _SKIPPED:
                    words.append(_plain(token))


def _of_rows(rows: Sequence[str], start: int) -> Tuple[List[str], int]:
    """Return the tokens of a row, and of those after it until nothing is open; and the number of the next row."""
    tokens, at = [_OPEN[-1]], start
    while tokens and tokens[-1] in _OPEN and at < min(start + _MOST_ROWS, len(rows)):
        at += 1
        # Only a row with one of these ends what is open.
        if tokens[-1] == "\\" or any(mark in rows[at - 1] for mark in (tokens[-1], ")", "`")):
            tokens = _tokens("\n".join(rows[start:at]))
    return tokens, at


def _tokens(text: str) -> List[str]:
    """Return words and operators; the last is a quote or backslash if the text ends within a word."""
    tokens = [token for token in _TOKEN.findall(text) if token[0] != "#" and token != "\\\n"]
    opened = [number for number, token in enumerate(tokens) if token in _OPEN]
    return tokens[: opened[0] + 1] if opened else tokens


def _plain(word: str) -> str:
    """Take the quotes off a word."""

    def content(match: re.Match[str]) -> str:
        if match.group(2) is not None:
            return re.sub(r'\\([$`"\\\n])', lambda escaped: escaped.group(1).strip("\n"), match.group(2))
        return match.group(1) or (match.group(3) or "").strip("\n")

    return _QUOTED.sub(content, word)
