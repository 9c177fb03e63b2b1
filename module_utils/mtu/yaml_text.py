# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""YAML as netplan reads it: block and flow style, quotes, anchors, tags. Scalars stay text.

Sources: YAML 1.1; netplan generate 0.106, which merges two keys of one name and refuses ``<<``.
"""

from __future__ import annotations

import re
from typing import Dict, List, Match, Optional, Union

from ..core.host import ParseError

Node = Union[str, List["Node"], Dict[str, "Node"]]
_END = r"[ \t]*(?::(?=[ \t\n]|\Z)|[ \t]#|\n|\Z)"
_PLAIN = re.compile(r"(?![-?][ \t\n])[^\s,\[\]{}#&*!|>'\"%%@`][^\n]*?(?=%s)" % _END)
_FLOW_PLAIN = re.compile(
    r"[^\s,\[\]{}#&*!|>'\"%@`][^,\[\]{}]*?(?=[ \t\n]*[,\[\]{}]|[ \t]*:(?:[ \t\n]|\Z)|[ \t\n]#|\s*\Z)"
)
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE = re.compile(r"'((?:[^']|'')*)'")
_PROPERTY = re.compile(r"([&!*])([^\s,\[\]{}]*)")
_LITERAL = re.compile(r"[|>][+-]?[ \t]*(?:[ \t]#[^\n]*)?\n")
_BLANKS = re.compile(r"(?:[ \t\n]+|(?:(?<=[ \t\n])|\A)#[^\n]*)*")
_FOLD = re.compile(r"[ \t]*\n\s*")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|\n[ \t]*|.)|[ \t]*\n\s*", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "a": "\a", "b": "\b", "v": "\v", "f": "\f"}


def parse(text: str) -> Node:
    """Return the first document; "" where it is empty. Raises ParseError that names the line."""
    reader = _Reader(text.lstrip("\ufeff").replace("\r\n", "\n"))
    try:
        return reader.document()
    except RecursionError as error:
        raise reader.wrong("is nested too deeply") from error


def merge(old: Node, new: Node, depth: int = 4) -> Node:
    """Join two values of one key: mappings by their keys, lists one after the other; else the later one counts."""
    if depth and isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merge(old.get(key, value), value, depth - 1) for key, value in new.items()}}
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) and old is not new else new


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.anchors: Dict[str, Node] = {}

    def document(self) -> Node:
        self.skip()
        while self.char == "%" and not self.column:
            self.take(re.compile(r"[^\n]*"))
            self.skip()
        self.at += 3 if self.text.startswith("---", self.at) and not self.column else 0
        found = self.block(0)
        self.skip()
        if not self.ended():
            raise self.wrong("its indent fits nothing above it")
        return found

    @property
    def char(self) -> str:
        return self.text[self.at : self.at + 1]

    @property
    def column(self) -> int:
        return self.at - self.text.rfind("\n", 0, self.at) - 1

    def wrong(self, what: str) -> ParseError:
        rest = self.text[self.at : self.at + 40].partition("\n")[0]
        return ParseError("line %d: %r: %s" % (self.text.count("\n", 0, self.at) + 1, rest, what))

    def ended(self) -> bool:
        mark = self.text[self.at : self.at + 3] in ("---", "...") and not self.text[self.at + 3 : self.at + 4].strip()
        return not self.char or (mark and not self.column)

    def take(self, pattern: re.Pattern[str]) -> Match[str]:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.wrong("is not understood")
        self.at = match.end()
        return match

    def skip(self) -> str:
        """Go to the next token. Returns the blanks and comments before it."""
        passed = self.take(_BLANKS).group()
        if "\t" in passed.rpartition("\n")[2] and "\n" in passed:
            raise self.wrong("its indent has a tab in it")
        return passed

    def starts(self, mark: str) -> bool:
        return self.char == mark and not self.text[self.at + 1 : self.at + 2].strip()

    def block(self, least: int, inline: bool = False) -> Node:
        """Read a node whose lines are indented by ``least``. inline: on its key's line only a value may stand."""
        inline = "\n" not in self.skip() and inline
        # The list of a key may have the key's own indent.
        if self.ended() or self.column < least - (not inline and least > 0 and self.starts("-")):
            return ""
        if self.char in "&!*":
            return self.with_property(least)
        if not inline and (self.starts("-") or self.starts("?")):
            return self.sequence(self.column) if self.char == "-" else self.mapping(self.column, None)
        if self.char in "|>":
            return self.literal(least)
        column, start = self.column, self.at
        found = self.flow(_PLAIN)
        end = self.at
        if "\n" not in self.skip() and self.starts(":"):
            if inline or not isinstance(found, str) or "\n" in self.text[start:end]:
                raise self.wrong("is not a place for a key")
            return self.mapping(column, found)
        self.at = end
        while isinstance(found, str) and self.text[start] not in "\"'":
            passed = self.skip()  # text goes on in the next line, but not after a comment
            if "\n" not in passed or "#" in passed or self.ended() or self.column < least:
                self.at = end
                break
            found, end = "%s %s" % (found, self.take(_PLAIN).group()), self.at
        return found

    def with_property(self, least: Optional[int]) -> Node:
        """Read an anchor, a tag or an alias.   least: as of block; None in flow style."""
        kind, name = self.take(_PROPERTY).groups()
        if kind == "*":
            if name not in self.anchors:
                raise self.wrong("there is no such anchor")
            return self.anchors[name]
        found = self.flow_value() if least is None else self.block(least, True)
        if kind == "&":
            self.anchors[name] = found
        return found

    def sequence(self, column: int) -> Node:
        found: List[Node] = []
        while not self.ended() and self.column == column and self.starts("-"):
            self.at += 1
            found.append(self.block(column + 1))
            self.skip()
        return found

    def mapping(self, column: int, key: Optional[Node]) -> Node:
        """Read a mapping.   key: the first one, whose colon follows; None before a question mark."""
        found: Dict[str, Node] = {}
        while True:
            marked = key is None and self.starts("?")
            if key is None:
                self.at += marked
                key = self.block(column + 1) if marked else self.flow(_PLAIN)
                self.skip()
            if not isinstance(key, str) or key == "<<" or not self.starts(":"):
                raise self.wrong("expected KEY: VALUE")
            self.at += 1
            value = self.block(column + 1, not marked)
            found[key] = merge(found[key], value) if key in found else value
            key = None
            self.skip()
            if self.ended() or self.column < column or (self.column == column and self.starts("-")):
                return found
            if self.column > column:
                raise self.wrong("its indent fits nothing above it")

    def literal(self, least: int) -> str:
        self.take(_LITERAL)
        lines = re.compile(r"(?: {%d,}[^\n]*(?:\n|\Z)|[ \t]*\n)*" % max(least, 1))
        return " ".join(self.take(lines).group().split())

    def flow(self, plain: re.Pattern[str] = _FLOW_PLAIN) -> Node:
        """Read what needs no indent: brackets, braces, quoted text; else plain text."""
        char = self.char
        if char == '"':
            return _ESCAPE.sub(_unescape, self.take(_DOUBLE).group(1))
        if char == "'":
            return _FOLD.sub(_fold, self.take(_SINGLE).group(1)).replace("''", "'")
        if char not in ("[", "{"):
            return self.with_property(None) if char in tuple("&!*") else _FOLD.sub(_fold, self.take(plain).group())
        self.at += 1
        items: List[Node] = []
        pairs: Dict[str, Node] = {}
        while True:
            self.skip()
            if self.char == ("]" if char == "[" else "}"):
                self.at += 1
                return items if char == "[" else pairs
            if self.char in ("", "]", "}"):
                raise self.wrong("a bracket does not end")
            self.at += self.starts("?")
            key = self.flow_value()
            self.skip()
            if self.char == ":" or char == "{":
                if not isinstance(key, str) or key == "<<":
                    raise self.wrong("expected KEY: VALUE")
                self.at += self.char == ":"
                pairs[key] = self.flow_value()
                key = {key: pairs[key]}
                self.skip()
            items.append(key)
            if self.char not in (",", "]", "}") or (self.char, char) in (("]", "{"), ("}", "[")):
                raise self.wrong("a comma or bracket is missing")
            self.at += self.char == ","

    def flow_value(self) -> Node:
        self.skip()
        return "" if self.char in (",", "]", "}") else self.flow()


def _fold(match: Match[str]) -> str:
    return "\n" * (match.group().count("\n") - 1) or " "


def _unescape(match: Match[str]) -> str:
    code = match.group(1)
    if code is None:
        return _fold(match)
    if code[0] == "\n":
        return ""
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
