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
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

# NCCL's variables, and those of its plugins' libraries (variables).
NAME = r"(?:OFI_NCCL|NCCL|UCX|FI|SHARP_COLL)_[A-Z0-9_]+"
MENTION = re.compile(r"(?<![A-Za-z0-9_])%s" % NAME)
# A larger file is not one of settings; and each byte is parsed.
LONGEST = 256 * 1024

_RUN = re.compile(r"[^\s'\"\\$`#;&|()<>]+")
_SPECIAL = re.compile(r'["\\$`]')
_OPERATOR = re.compile(r"\|\||&&|;;|[;&|()\n]")
_REDIRECT = re.compile(r"[0-9]*(?:<<-?|<<<|>>|[<>]&?|>\|)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9*@#?$!-])")
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
    """A variable that shell text sets.

    value: None if it depends on running the text.   line: of the text, from 1.
    scope: "environment" of all programs that follow, "command" of one command alone, "argument" passed on by the
    program that is started, "shell" not exported and so seen by no program, "printed" to stdout, "unclear" if it
    depends on running the text.
    conditional: within if, case, a function or behind &&.
    """

    name: str
    value: Optional[str]
    line: int
    scope: str
    conditional: bool = False


class _Word(NamedTuple):
    """opaque: it holds what a shell would expand.   operator: it separates commands.   body: of a here-document."""

    text: str
    line: int
    opaque: bool = False
    operator: bool = False
    redirect: str = ""  # the operator before it
    body: bool = False


def parse(text: str) -> List[Assignment]:
    """Return what the text sets, in its order. Any text can be parsed."""
    found = _Reader()
    for words, conditional in _commands(text):
        found.command(words, conditional)
    return found.result()


def last_of_each(assignments: List[Assignment]) -> List[Assignment]:
    """The assignments of one text, in its order, without those that a later unconditional one overrides."""
    kept: List[Assignment] = []
    settled: Dict[str, bool] = {}
    for one in reversed(assignments):
        if not settled.get(one.name):
            kept.append(one)
        if one.scope == "environment" and not one.conditional:
            settled[one.name] = True
    return kept[::-1]


def commands(text: str) -> Iterator[Tuple[int, List[str]]]:
    """Return the line and the words of each simple command, as ``words_of`` gives them."""
    for words, _conditional in _commands(text):
        if words:
            yield words[0].line, [word.text for word in words if not word.redirect and not word.body]


def conf_files(text: str) -> Iterator[Tuple[int, str]]:
    """Return the line and the text of each nccl.conf that the commands write."""
    for words, _conditional in _commands(text):
        plain = [word.text for word in words if not word.redirect and not word.body]
        files = [word.text for word in words if ">" in word.redirect] + plain * ("tee" in plain[:2])
        if not any(file.endswith("nccl.conf") for file in files):
            continue
        bodies = [word for word in words if word.body]
        if bodies:
            yield bodies[0].line, "\n".join(word.text for word in bodies)
        elif plain[:1] in (["echo"], ["printf"]):
            for row in " ".join(word for word in plain[1:] if word[:1] != "-").replace("\\n", "\n").split("\n"):
                yield words[0].line, row


def words_of(text: str) -> List[str]:
    """The words of one line, quotes taken off; expansions and operators stay as they are written."""
    return [word.text for word in _words(text) if word.text != "\n"]


class _Reader:
    def __init__(self) -> None:
        self._found: List[Assignment] = []
        self._exported: Dict[str, bool] = {}
        self._unset: Dict[str, int] = {}  # what was found before that many is gone
        self._all_exported = False

    def result(self) -> List[Assignment]:
        """A variable that is exported anywhere in the text is exported: `A=1; export A` and the other way round."""
        return [
            replace(one, scope="environment") if one.scope == "shell" and one.name in self._exported else one
            for number, one in enumerate(self._found)
            if number >= self._unset.get(one.name, 0)
        ]

    def command(self, words: List[_Word], conditional: bool) -> None:
        for word in words:
            for name, value in _DEFAULTS.findall(word.text) if word.opaque else ():
                self._add(name, None if MENTION.search(value) or "$" in value else value, word, "shell", conditional)
        redirected = any(">" in word.redirect for word in words)
        bodies = [word for word in words if word.body]
        words = [word for word in words if not word.redirect and not word.body]
        prefix = []
        while words and _ASSIGNS.match(words[0].text):
            prefix.append(words.pop(0))
        for word in prefix:
            scope = "command" if words else "environment" if self._all_exported else "shell"
            self._assign(word, scope, conditional)
        if not words:
            return
        name = words[0].text.rpartition("/")[2]
        rest = words[1:]
        if name in ("export", "declare", "typeset", "readonly", "local"):
            self._declare(name, rest, conditional)
        elif name == "setenv" and len(rest) > 1 and MENTION.fullmatch(rest[0].text):
            self._add(rest[0].text, None if rest[1].opaque else rest[1].text, rest[0], "environment", conditional)
        elif name == "set":
            self._set([word.text for word in rest])
        elif name == "env":
            self._env(rest, conditional)
        elif name in ("echo", "printf", "print", "cat"):
            rest = [word for word in rest if not word.text.startswith("-")]
            if rest:
                opaque = any(word.opaque for word in rest)
                bodies.insert(0, rest[0]._replace(text=" ".join(word.text for word in rest), opaque=opaque))
            for word in bodies:
                self._print(word, redirected, conditional)
        elif name in ("unset", "unsetenv") and not conditional:
            self._unset.update((word.text, len(self._found)) for word in rest)
        elif name in ("alias", "eval", "for"):
            self._mention(rest, conditional)
        elif name not in _HARMLESS:
            self._arguments(rest, conditional)

    def _add(self, name: str, value: Optional[str], word: _Word, scope: str, conditional: bool) -> None:
        self._found.append(Assignment(name, value, word.line, scope, conditional))

    def _assign(self, word: _Word, scope: str, conditional: bool) -> bool:
        match = _ASSIGNS.match(word.text)
        if match is None or not MENTION.fullmatch(match.group(1)):
            return match is not None
        value: Optional[str] = match.group(3)
        if word.opaque or match.group(2):
            default = _DEFAULT.fullmatch(match.group(3))
            value = default.group(1) if default and not match.group(2) else None
        self._add(match.group(1), value, word, scope, conditional)
        return True

    def _declare(self, name: str, rest: List[_Word], conditional: bool) -> None:
        options = [word.text for word in rest if word.text.startswith("-")]
        if any("n" in option for option in options) and name == "export":
            return
        exports = name == "export" or any("x" in option for option in options)
        for word in rest:
            scope = "environment" if exports or self._all_exported else "shell"
            if not self._assign(word, scope, conditional) and exports:
                if MENTION.fullmatch(word.text):
                    self._exported[word.text] = True
                elif MENTION.search(_without_values(word.text)):
                    self._mention([word], conditional)

    def _set(self, options: List[str]) -> None:
        for number, option in enumerate(options):
            named = option[1:] == "o" and options[number + 1 : number + 2] == ["allexport"]
            if option[:1] in ("-", "+") and (named or "a" in option[1:]):
                self._all_exported = option[0] == "-"

    def _env(self, rest: List[_Word], conditional: bool) -> None:
        rest = [word for word in rest if not word.text.startswith("-")]
        while rest and self._assign(rest[0], "command", conditional):
            rest.pop(0)
        self._arguments(rest[1:], conditional)

    def _print(self, word: _Word, redirected: bool, conditional: bool) -> None:
        """Add `echo export NAME=VALUE`, as a task prolog sets one: a line with other words is a message."""
        lines = re.sub(r"\$\([^)]*\)", "$", word.text.replace("\\n", "\n")).split("\n")
        sets = [line for line in lines if line.split()[:1] == ["export"] or all(map(_ASSIGNS.match, line.split()))]
        for name, value in (pair for line in (lines if redirected else sets) for pair in _WITHIN.findall(line)):
            value = re.sub(r"\\n.*|[\"']$", "", value, flags=re.DOTALL).lstrip("\"'")
            scope = "unclear" if redirected else "printed"
            self._add(name, None if word.opaque and "$" in value else value, word, scope, conditional)

    def _arguments(self, rest: List[_Word], conditional: bool) -> None:
        """Take the arguments of an unknown program or function: a launcher passes them on, others may do anything."""
        for number, word in enumerate(rest):
            if number and rest[number - 1].text in ("-c", "-lc", "-ec") and " " in word.text:
                inner = parse(word.text)  # the script of another shell
                self._found += [replace(one, line=word.line + one.line - 1, conditional=conditional) for one in inner]
                continue
            whole = _WHOLE.fullmatch(word.text)
            listed = number and rest[number - 1].text in ("mca_base_env_list", "-v")
            pairs = [whole.groups()] if whole and not listed else _WITHIN.findall(word.text)
            for name, value in pairs:
                self._add(name, None if word.opaque and "$" in value else value, word, "argument", conditional)
            before = rest[number - 1].text if number else ""
            if not pairs and MENTION.fullmatch(word.text) and before in ("-genv", "-env", "--genv"):
                value = rest[number + 1] if number + 1 < len(rest) else None
                self._add(word.text, value.text if value and not value.opaque else None, word, "argument", conditional)
            elif not pairs and before not in ("-x", "-e", "--env") and "--export" not in word.text:
                self._mention([word], conditional)

    def _mention(self, words: List[_Word], conditional: bool) -> None:
        for word in words:
            for name in MENTION.findall(_without_values(word.text)):
                self._add(name, None, word, "unclear", conditional)


def _without_values(text: str) -> str:
    """Without $NAME and ${NAME...}: to read a variable sets nothing."""
    return re.sub(r"\$\{?[#!]?%s" % NAME, "", text)


def _commands(text: str) -> Iterator[Tuple[List[_Word], bool]]:
    """The words of each simple command, and whether it is run under a condition only."""
    words: List[_Word] = []
    blocks = parens = 0
    chained = False
    for word in _words(text):
        if not word.operator:
            if words or word.opaque or word.body or word.redirect:
                words.append(word)
            elif word.text in _OPENS:
                blocks += 1
                if word.text == "for":
                    words.append(word)
            elif word.text in _CLOSES:
                blocks = max(blocks - 1, 0)
            elif word.text not in _PASSED_OVER:
                words.append(word)
            continue
        if words:
            yield words, bool(blocks or parens or chained)
        # A line break right behind && goes on with the chain.
        goes_on = word.text == "\n" and not words
        words = []
        if word.text == "(":
            parens += 1
        elif word.text == ")":
            parens = max(parens - 1, 0)
        chained = word.text in ("&&", "||") or (chained and goes_on)
    if words:
        yield words, bool(blocks or parens or chained)


def _words(text: str) -> Iterator[_Word]:
    """Words, operators and here-documents. Quotes that do not end are taken to the end of the text."""
    at, line, end = 0, 1, len(text)
    parts: List[str] = []
    opaque = started = False
    begun = 1
    waiting: List[Tuple[str, bool]] = []  # here-documents whose bodies come after this line
    redirect = ""
    while at < end:
        char = text[at]
        run = _RUN.match(text, at)
        if run or char in "'\"\\$`":
            if not started:
                started, begun = True, line
            before = at
            if run:
                parts.append(run.group())
                at = run.end()
            elif text.startswith(("$'", '$"'), at):
                at += 1
            elif char == "'":
                stop = text.find("'", at + 1)
                opaque = opaque or stop < 0
                stop = end if stop < 0 else stop
                parts.append(text[at + 1 : stop])
                at = stop + 1
            elif char == '"':
                at, part, expands = _double_quoted(text, at + 1)
                parts.append(part)
                opaque = opaque or expands
            elif char == "\\":
                if text[at + 1 : at + 2] != "\n":
                    parts.append(text[at + 1 : at + 2])
                elif not parts:
                    started = False
                at += 2
            else:
                at, part = _expansion(text, at)
                parts.append(part)
                opaque = opaque or part != "$"
            line += text.count("\n", before, min(at, end))
            continue
        if char == "#" and started:
            parts.append(char)
            at += 1
            continue
        if started:
            word = "".join(parts)
            if redirect.startswith("<<") and redirect != "<<<":
                waiting.append((word, redirect == "<<-"))
            yield _Word(word, begun, opaque, redirect=redirect)
            parts, opaque, started, redirect = [], False, False, ""
        if char == "#":
            at = text.find("\n", at)
            at = end if at < 0 else at
            continue
        pointed = _REDIRECT.match(text, at)
        if pointed:
            redirect = pointed.group().lstrip("0123456789")
            at = pointed.end()
            continue
        operator = _OPERATOR.match(text, at)
        if not operator:
            at += 1
            continue
        at = operator.end()
        if operator.group() != "\n":
            yield _Word(operator.group(), line, operator=True)
            continue
        line += 1
        # The bodies belong to the command of the line above.
        for delimiter, tabs in waiting:
            lines = []
            while at < end:
                stop = text.find("\n", at)
                stop = end if stop < 0 else stop
                row = text[at:stop]
                at = stop + 1
                line += 1
                if (row.lstrip("\t") if tabs else row) == delimiter:
                    break
                lines.append(_Word(row, line - 1, "$" in row or "`" in row, body=True))
            yield from lines
        waiting = []
        yield _Word("\n", line, operator=True)
    if started:
        yield _Word("".join(parts), begun, opaque, redirect=redirect)


def _double_quoted(text: str, at: int) -> Tuple[int, str, bool]:
    """Return the end, the content, and whether a shell would expand part of it. at: after the quote."""
    parts: List[str] = []
    expands = False
    while at < len(text):
        char = text[at]
        if char == '"':
            return at + 1, "".join(parts), expands
        if char == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            parts.append(text[at + 1].replace("\n", ""))
            at += 2
        elif char in "$`":
            at, part = _expansion(text, at)
            parts.append(part)
            expands = expands or part != "$"
        else:
            stop = _SPECIAL.search(text, at + 1)
            stop_at = stop.start() if stop else len(text)
            parts.append(text[at:stop_at])
            at = stop_at
    return at, "".join(parts), True


def _expansion(text: str, at: int) -> Tuple[int, str]:
    """$NAME, ${...}, $(...) or `...` as it is written, and where it ends; a $ that is nothing of it stays one."""
    if text[at] == "`":
        stop = text.find("`", at + 1)
        stop = len(text) if stop < 0 else stop + 1
        return stop, text[at:stop]
    opening = text[at + 1 : at + 2]
    if opening in ("{", "("):
        closing = "}" if opening == "{" else ")"
        depth, stop = 1, at + 2
        while stop < len(text) and depth:
            depth += {opening: 1, closing: -1}.get(text[stop], 0)
            stop += 1
        return stop, text[at:stop]
    match = _VARIABLE.match(text, at)
    return (match.end(), match.group()) if match else (at + 1, "$")
