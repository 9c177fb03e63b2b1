# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse GRUB's script language, as far as it decides the kernel's line: words, quotes, variables, conditions.

Tests compare it with the real grub-emu and grub-script-check.
Sources: grub-core/script/yylex.l and parser.y, grub-core/script/argv.c, grub-core/lib/cmdline.c (GRUB 2.06 and 2.12).
"""

from __future__ import annotations

import itertools
import re
from typing import Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..core.host import ParseError

# Variable -> every value that it may have. A condition that only GRUB can decide leaves several.
Scope = Mapping[str, Tuple[str, ...]]
_NAME = r"[A-Za-z_]\w*"
_OPENING, _CLOSING = ("if", "while", "until", "for"), ("fi", "done", "}")
_BETWEEN = ("then", "else", "elif", "do", "{")
_MOST_LINES = 16


class Language:
    """Words of a shell: GRUB's, or that of the settings of its generator.

    variable: pattern of an expansion. special: characters that are no part of a word. escaped: those that a backslash
    takes their meaning from within double quotes.
    """

    def __init__(self, variable: str, special: str, escaped: str) -> None:
        flags = re.ASCII | re.DOTALL
        word = r"""(?:[^%s$; \t\n'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\$%s]|%s)*"|%s)+"""
        self.word = re.compile(word % (special, "`" * ("`" in special), variable, variable), flags)
        self._token = re.compile(r"(?:[ \t]+|\\\n|#[^\n]*)|(?P<end>;(?!;)|\n)|(?P<word>%s)" % self.word.pattern, flags)
        self._double = re.compile(r"\\(?P<escaped>[%s])|(?P<variable>%s)" % (escaped, variable), flags)
        parts = r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|\\(?P<escaped>.)|(?P<variable>%s)|."""
        self._part = re.compile(parts % variable, flags)
        self.variable = re.compile(variable, flags)

    def commands(self, text: str) -> Iterator[List[str]]:
        """Yield the words of each command. An operator or an open quote is one character."""
        at, words = 0, []
        while at < len(text):
            match = self._token.match(text, at)
            if match is None or match.group("word"):
                words.append(match.group() if match else text[at])
            elif match.group("end"):
                yield words
                words = []
            at = match.end() if match else at + 1
        yield words

    def parts(self, word: str, value: Callable[[str], str]) -> Iterator[Tuple[str, bool]]:
        """Yield each part of a word without its quotes, and whether it is the value of a variable outside of quotes."""
        for part in self._part.finditer(word):
            single, double, escaped = part.group("single"), part.group("double"), part.group("escaped")
            if part.group("variable"):
                yield value(part.group()), True
            elif double is not None:
                yield self._double.sub(lambda m: (m.group("escaped") or value(m.group())).strip("\n"), double), False
            else:
                yield escaped.strip("\n") if escaped else part.group() if single is None else single, False

    def cut(self, line: str) -> str:
        """Return the first word of arguments that is not passed on whole; "" where there is none."""
        at, line = 0, line.rstrip()
        while at < len(line):
            match = self._token.match(line, at)
            if match is None or match.group()[0] in ";#":
                return line[line.rfind(" ", 0, at) + 1 :].split()[0] if at < len(line) - 1 or match is None else ""
            at = match.end()
        return ""


GRUB = Language(r"\$(?:\{(?:%s|\d+|[?#*@])\}|%s|\d+|[?#*@])" % (_NAME, _NAME), "{}|&<>", r'$"\\\n')


def quote(name: str, value: str) -> str:
    """Return ``name=value`` such that GRUB passes it on whole. Raises ParseError where GRUB can not."""
    if re.search(r"['\"\\]", value):
        raise ParseError("kernel argument %s: GRUB cannot pass on quotes and backslashes, as in %r" % (name, value))
    if re.search(r"[{}|&$;<>\s*?\[\]#~`!()]", value) is None:
        return "%s=%s" % (name, value)
    return '%s="%s"' % (name, value.replace("$", "\\$"))


def unquote(token: str) -> str:
    """Return a word of GRUB's language as the kernel gets it; variables stay as they are."""
    return _passed_on("".join(text for text, _splits in GRUB.parts(token, str)))


def passed(line: str, scope: Scope) -> List[str]:
    """Return the lines that the kernel may get for these arguments of ``linux``. Raises ParseError."""
    first, *rest = GRUB.commands("linux - " + line)
    if not all(map(GRUB.word.fullmatch, itertools.chain(*rest))):
        raise ParseError("GRUB cannot read what follows ; in %r" % line[:200])
    return _lines(first, scope)


def read(text: str, scope: Scope) -> Tuple[List[Tuple[str, str]], Scope]:
    """Return (kernel, its line) of each ``linux`` command, and the variables at the end.

    An entry that may get several lines is there several times. Raises ParseError for one that GRUB cannot read.
    """
    variables, found, blocks = dict(scope), [], []
    for words in GRUB.commands(text):
        for word in list(words):
            if word in _OPENING:
                blocks.append(word)
            elif word in _CLOSING and blocks:
                blocks.pop()
            elif word not in _BETWEEN:
                break
            words = words[1:]
        while "{" in words:
            blocks.append(words[0])
            words = words[words.index("{") + 1 :]
        if len(words) > 1 and words[0] in ("linux", "linux16", "linuxefi"):
            found += [(words[1], line) for line in _lines(words, variables)]
        elif "set" in words[:-1] or len(words) == 1:
            sure = {"menuentry", "submenu"}.issuperset(blocks) and all(map(GRUB.word.fullmatch, words))
            _assign(words[words.index("set") + 1 if "set" in words[:-1] else 0], variables, sure)
    return found, variables


def _assign(word: str, scope: Dict[str, Tuple[str, ...]], sure: bool) -> None:
    name, equals, _value = word.partition("=")
    if equals and re.fullmatch(_NAME, name):
        values = ["".join(_expand([word], given)[:1]).partition("=")[2] for given in _environments([word], scope)]
        scope[name] = tuple(dict.fromkeys(values if sure else (*scope.get(name, ("",)), *values)))


def _lines(words: Sequence[str], scope: Scope) -> List[str]:
    if not all(map(GRUB.word.fullmatch, words)):
        raise ParseError("GRUB cannot read %r: quote what it has of { } | & < > $" % " ".join(words)[:200])
    lines = (" ".join(map(_passed_on, _expand(words[2:], given))) for given in _environments(words[2:], scope))
    return list(dict.fromkeys(lines))


def _environments(words: Sequence[str], scope: Scope) -> List[Dict[str, str]]:
    names = sorted({name.strip("${}") for word in words for name in GRUB.variable.findall(word)})
    choices = list(itertools.islice(itertools.product(*(scope.get(name, ("",)) for name in names)), _MOST_LINES + 1))
    if len(choices) > _MOST_LINES:
        raise ParseError("GRUB may pass on more than %d different lines for %r" % (_MOST_LINES, " ".join(words)[:200]))
    return [dict(zip(names, choice)) for choice in choices]


def _expand(words: Sequence[str], given: Mapping[str, str]) -> List[str]:
    found: List[str] = []
    for word in words:
        pieces = [""]
        for text, splits in GRUB.parts(word, lambda variable: given.get(variable.strip("${}"), "")):
            # A value that is not in double quotes is several words.
            first, *more = re.split(r"\s+", text.rstrip()) if splits else [text]
            pieces[-1] += first
            pieces += more
        found += filter(None, pieces)
    return found


def _passed_on(word: str) -> str:
    """Return a word as GRUB writes it into the line: what has a blank gets quotes, quotes and backslashes one more."""
    escaped = re.sub(r"(\\x[0-9a-fA-F]{2})|([\\'\"])", lambda match: match.group(1) or "\\" + match.group(2), word)
    return '"%s"' % escaped if " " in word else escaped
