# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find NCCL's variables that shell text sets, as far as is possible without running it.

``parse`` splits text into words as a shell does (sh, bash; csh's setenv), and takes from them the forms whose effect
is certain. Any other mention of a variable is reported as ``unclear``, never as "not set".
Source: POSIX.1-2017, Shell Command Language; bash(1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

# NCCL's variables, and those of its plugins' libraries (variables).
NAME = r"(?:OFI_NCCL|NCCL|UCX|FI|SHARP_COLL)_[A-Z0-9_]+"
MENTION = re.compile(r"(?<![A-Za-z0-9_])%s" % NAME)
# A larger file is not one of settings; and each byte is parsed.
LONGEST = 256 * 1024

# Parts of a word. A quote that does not end is taken to the end of the text.
_PART = r"""\$?'[^']*(?:'|\Z)|\$?"(?:[^"\\`]|\\.|`[^`]*(?:`|\Z))*(?:"|\\?\Z)"""
_PART += r"""|\\(?:.|\Z)|\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]{0,400}\}"""
_PART += r"""|`[^`]*(?:`|\Z)|[^\s'"\\`$;&|()<>]+|\$"""
_PARTS = re.compile(_PART, re.DOTALL)
_TOKEN = re.compile(
    r"(?P<blank>(?:[^\S\n]|\\\n)+|\#[^\n]*)|(?P<redirect>[0-9]*(?:<<<|<<-?|>>|>\||[<>]&?))"
    r"|(?P<operator>\|\||&&|;;|[;&|()\n])|(?P<word>(?:%s)+)" % _PART,
    re.DOTALL,
)
_ASSIGNS = re.compile(r"(?:(?:SINGULARITY|APPTAINER)ENV_)?([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
# The value of a variable that is not set before.
_DEFAULT = re.compile(r"\$\{\w+:?-[\"']?([^${}`\"']*)[\"']?\}")
# -x NAME=VALUE, --env=NAME=VALUE, --export=ALL,NAME=VALUE, --mca mca_base_env_list "NAME=VALUE;NAME=VALUE"
_WITHIN = re.compile(r"(?:^|[,;=\s]|(?:SINGULARITY|APPTAINER)ENV_)(%s)=([^,;\s]*)" % NAME)
# The whole of a word, so that a list of devices keeps its commas.
_WHOLE = re.compile(r"(?:--env=|-[ex])?(%s)=(.*)" % NAME, re.DOTALL)
_DEFAULTS = re.compile(r"\$\{(%s):?=([^}]*)\}" % NAME)
_OPENS = ("if", "while", "until", "for", "case", "select", "{")
_CLOSES = ("fi", "done", "esac", "}")
_PASSED_OVER = ("then", "else", "elif", "do", "!", "time", "exec", "command", "nohup", "builtin")
# They read variables or words, and set nothing.
_HARMLESS = (
    *(".", "source", "[", "[[", "test", "grep", "egrep", "logger", ":", "case", "if", "while"),
    *("unset", "unsetenv", "printenv", "sed", "awk", "perl", "fgrep", "rg"),
)


@dataclass(frozen=True)
class Assignment:
    """A variable that a text sets.

    value: None if it depends on running the text.   line: of the text, from 1.
    scope: "environment" of all programs that follow, "command" of one command alone, "argument" passed on by the
    program that is started, "shell" not exported and so seen by no program, "printed" to stdout, "unclear" if it
    depends on running the text.
    conditional: within if, case, a function or behind &&.
    """

    name: str
    value: Optional[str]
    line: int
    scope: str = "environment"
    conditional: bool = False


class _Word(NamedTuple):
    """opaque: it holds what a shell would expand.   operator: it separates commands.   body: of a here-document."""

    text: str
    line: int
    opaque: bool = False
    operator: bool = False
    redirect: str = ""  # the operator before it
    body: bool = False


class _Command(NamedTuple):
    """A simple command. redirected: words behind an operator such as ``>``, and here-documents."""

    words: List[_Word]
    redirected: List[_Word]
    conditional: bool

    @property
    def bodies(self) -> List[_Word]:
        return [word for word in self.redirected if word.body]


def parse(text: str, first: int = 1, exported: bool = False) -> List[Assignment]:
    """Return what the text sets, in its order. Any text can be parsed.

    first: number of its first line.   exported: as behind `set -a`.
    """
    reader = _Reader(exported)
    for command in _commands(text, first):
        reader.read(command)
    return [
        replace(item, scope="environment") if item.scope == "shell" and item.name in reader.exported else item
        for number, item in enumerate(reader.found)
        if number >= reader.unset.get(item.name, 0)
    ]


def last_of_each(assignments: List[Assignment]) -> List[Assignment]:
    """The assignments of one text, in its order, without those that a later unconditional one overrides."""
    lasting: List[Assignment] = []
    settled: Set[str] = set()
    for item in reversed(assignments):
        if item.name not in settled:
            lasting.append(item)
        if item.scope == "environment" and not item.conditional:
            settled.add(item.name)
    return lasting[::-1]


def commands(text: str, first: int) -> Iterator[Tuple[int, List[str]]]:
    """Return the line and the words of each simple command, quotes taken off."""
    for command in _commands(text, first):
        yield (command.words or command.redirected)[0].line, [word.text for word in command.words]


def conf_files(text: str, first: int) -> Iterator[Tuple[int, str]]:
    """Return the line and the text of each nccl.conf that the commands write."""
    for command in _commands(text, first):
        plain = [word.text for word in command.words]
        files = [word.text for word in command.redirected if ">" in word.redirect] + plain * ("tee" in plain[:2])
        if not any(file.endswith("nccl.conf") for file in files):
            continue
        if command.bodies:
            yield command.bodies[0].line, "\n".join(word.text for word in command.bodies)
        elif plain[:1] in (["echo"], ["printf"]):
            for row in " ".join(word for word in plain[1:] if word[:1] != "-").replace("\\n", "\n").split("\n"):
                yield command.words[0].line, row


class _Reader:
    """found: what the commands set.   exported: names that are exported anywhere in the text, `A=1; export A` and the
    other way round.   unset: name -> number of items of ``found`` that it removes."""

    def __init__(self, exports: bool) -> None:
        self.found: List[Assignment] = []
        self.exported: Set[str] = set()
        self.unset: Dict[str, int] = {}
        self._exports = exports
        self._conditional = False

    def read(self, command: _Command) -> None:
        self._conditional = command.conditional
        for word in command.words:
            for default, value in _DEFAULTS.findall(word.text) if word.opaque else ():
                self._add(default, None if "$" in value else value, word, "shell")
        words = list(command.words)
        prefix = []
        while words and _ASSIGNS.match(words[0].text):
            prefix.append(words.pop(0))
        for word in prefix:
            self._assign(word, "command" if words else "environment" if self._exports else "shell")
        name, rest = (words[0].text.rpartition("/")[2], words[1:]) if words else ("", [])
        texts = [word.text for word in rest]
        if name in ("export", "declare", "typeset", "readonly", "local"):
            self._declare(rest, name == "export" or any("x" in text for text in texts if text[:1] == "-"))
        elif name == "setenv" and len(rest) > 1 and MENTION.fullmatch(texts[0]):
            self._add(texts[0], None if rest[1].opaque else texts[1], rest[0], "environment")
        elif name == "set":
            options = [text for text in texts if re.fullmatch("[-+][a-z]*a[a-z]*", text)]
            options += [sign + "o" for sign in "-+" if [sign + "o", "allexport"] == texts[:2]]
            self._exports = options[-1][0] == "-" if options else self._exports
        elif name in ("echo", "printf", "print", "cat"):
            plain = [word for word in rest if not word.text.startswith("-")]
            text = " ".join(word.text for word in plain)
            line = [plain[0]._replace(text=text, opaque=any(word.opaque for word in plain))] if plain else []
            self._print([*line, *command.bodies], any(">" in word.redirect for word in command.redirected))
        elif name in ("unset", "unsetenv") and not command.conditional:
            self.unset.update((text, len(self.found)) for text in texts)
        elif name in ("alias", "eval", "for"):
            self._mention(rest)
        elif name not in _HARMLESS:
            self._arguments(rest)

    def _add(self, name: str, value: Optional[str], word: _Word, scope: str) -> None:
        self.found.append(Assignment(name, value, word.line, scope, self._conditional))

    def _assign(self, word: _Word, scope: str) -> bool:
        """Add NAME=VALUE. Return whether the word is an assignment, of any variable."""
        match = _ASSIGNS.match(word.text)
        if match is None or not MENTION.fullmatch(match.group(1)):
            return match is not None
        value: Optional[str] = match.group(3)
        if word.opaque or match.group(2):
            default = _DEFAULT.fullmatch(match.group(3))
            value = default.group(1) if default and not match.group(2) else None
        self._add(match.group(1), value, word, scope)
        return True

    def _declare(self, rest: List[_Word], exports: bool) -> None:
        for word in rest:
            if not self._assign(word, "environment" if exports or self._exports else "shell") and exports:
                if MENTION.fullmatch(word.text):
                    self.exported.add(word.text)
                else:
                    self._mention([word])

    def _print(self, words: List[_Word], redirected: bool) -> None:
        """Add `echo export NAME=VALUE`, as a task prolog sets one: a line with other words is a message."""
        for word in words:
            lines = re.sub(r"\$\([^)]*\)", "$", word.text.replace("\\n", "\n")).split("\n")
            sets = [line for line in lines if line.split()[:1] == ["export"] or all(map(_ASSIGNS.match, line.split()))]
            for name, value in (pair for line in (lines if redirected else sets) for pair in _WITHIN.findall(line)):
                value = re.sub(r"\\n.*|[\"']$", "", value, flags=re.DOTALL).lstrip("\"'")
                unclear = redirected or (word.opaque and "$" in value)
                self._add(name, None if unclear else value, word, "unclear" if redirected else "printed")

    def _arguments(self, rest: List[_Word]) -> None:
        """Take the arguments of an unknown program or function: a launcher passes them on, others may do anything."""
        for before, word in zip(["", *(word.text for word in rest)], rest):
            if before in ("-c", "-lc", "-ec") and " " in word.text:
                inner = parse(word.text, word.line)  # the script of another shell
                self.found += [replace(item, conditional=self._conditional) for item in inner]
                continue
            whole = None if before in ("mca_base_env_list", "-v") else _WHOLE.fullmatch(word.text)
            pairs = [whole.groups()] if whole else _WITHIN.findall(word.text)
            for name, value in pairs:
                self._add(name, None if word.opaque and "$" in value else value, word, "argument")
            if not pairs and before not in ("-x", "-e", "--env") and "--export" not in word.text:
                self._mention([word])

    def _mention(self, words: List[_Word]) -> None:
        for word in words:
            # To read a variable ($NAME, ${NAME...}) sets nothing.
            for name in MENTION.findall(re.sub(r"\$\{?[#!]?%s" % NAME, "", word.text)):
                self._add(name, None, word, "unclear")


def _commands(text: str, first: int) -> Iterator[_Command]:
    """The simple commands; conditional: not run in any case."""
    words: List[_Word] = []
    blocks = parens = 0
    chained = False
    for word in _words(text, first):
        if not word.operator:
            begins = not words and not (word.opaque or word.body or word.redirect)
            blocks += begins and word.text in _OPENS
            blocks = max(blocks - (begins and word.text in _CLOSES), 0)
            if not begins or word.text == "for" or word.text not in (*_OPENS, *_CLOSES, *_PASSED_OVER):
                words.append(word)
            continue
        if words:
            redirected = [word for word in words if word.redirect or word.body]
            plain = [word for word in words if not word.redirect and not word.body]
            yield _Command(plain, redirected, bool(blocks or parens or chained))
        # A line break right behind && goes on with the chain.
        chained = word.text in ("&&", "||") or (chained and word.text == "\n" and not words)
        words = []
        parens = max(parens + {"(": 1, ")": -1}.get(word.text, 0), 0)


def _words(text: str, line: int) -> Iterator[_Word]:
    """Words, operators and here-documents. line: number of the first."""
    at, redirect = 0, ""
    waiting: List[Tuple[str, bool]] = []  # here-documents whose bodies come after this line
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:  # a character that is none of a shell's
            at += 1
            continue
        at, token = match.end(), match.group()
        if match.lastgroup == "redirect":
            redirect = token.lstrip("0123456789")
        elif match.lastgroup == "word":
            word = _plain(token, line)._replace(redirect=redirect)
            if redirect in ("<<", "<<-"):
                waiting.append((word.text, redirect == "<<-"))
            redirect = ""
            yield word
        if token == "\n":
            # The bodies belong to the command of the line above.
            for delimiter, tabs in waiting:
                end = re.compile(r"^%s%s$" % ("\t*" * tabs, re.escape(delimiter)), re.MULTILINE).search(text, at)
                rows = text[at : end.start() if end else len(text)].split("\n")
                at = end.end() + 1 if end else len(text)
                for number, row in enumerate(rows[: -1 if end else None], line + 1):
                    yield _Word(row, number, "$" in row or "`" in row, body=True)
                line += len(rows)
            waiting = []
        if match.lastgroup == "operator":
            yield _Word(token, line, operator=True)
        line += token.count("\n")
    yield _Word("\n", line, operator=True)


def _plain(token: str, line: int) -> _Word:
    """Take the quotes off a word."""
    texts, opaque = [], False
    for part in _PARTS.findall(token):
        if part[0] == "'":
            texts.append(part[1:].replace("'", ""))
            opaque = opaque or part[-1] != "'" or len(part) == 1
            continue
        bare = re.sub(r"\\.", "", part, flags=re.DOTALL)
        opaque = opaque or "$" in bare or "`" in bare or (part[0] == '"' and (bare[-1] != '"' or len(bare) == 1))
        if part[0] == '"':
            body = part[1:-1] if bare[-1] == '"' and len(bare) > 1 else part[1:]
            texts.append(re.sub(r'\\([$`"\\\n])', lambda match: match.group(1).strip("\n"), body))
        else:
            texts.append(part[1:].strip("\n") if part[0] == "\\" else part)
    return _Word("".join(texts), line, opaque)
