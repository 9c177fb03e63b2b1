# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""YAML as netplan's files have it: block and flow style, quotes. Scalars stay text.

Anchors, tags, directives, literal blocks, texts over several lines and keys after a question mark are refused.
Sources: YAML 1.1; netplan generate 0.106, which refuses ``<<``; two keys of one name are refused, too.
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Match, Union

from ..core.host import ParseError

Node = Union[str, List["Node"], Dict[str, "Node"]]
_PLAIN = re.compile(r"(?![-?][ \t\n])[^\s,\[\]{}#&*!|>'\"%@`][^\n]*?(?=[ \t]*(?::(?=[ \t\n]|\Z)|[ \t]#|\n|\Z))")
_FLOW_PLAIN = re.compile(r"[^\s,\[\]{}#&*!|>'\"%@`][^,\[\]{}\n]*?(?=[ \t]*(?:[,\[\]{}\n]|:[ \t\n]|:?\Z|[ \t]#))")
_DOUBLE = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"')
_SINGLE = re.compile(r"'((?:[^'\n]|'')*)'")
_BLANKS = re.compile(r"(?:[ \t\n]+|(?:(?<=[ \t\n])|\A)#[^\n]*)*")


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
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) else new


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> Node:
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
        column = self.column
        if not inline and self.starts("-"):
            return self.sequence(column)
        found = self.flow(_PLAIN)
        end = self.at
        if "\n" not in self.skip() and self.starts(":"):
            if inline:
                raise self.wrong("is not a place for a key")
            return self.mapping(column, found)
        self.at = end
        return found

    def sequence(self, column: int) -> Node:
        found: List[Node] = []
        while not self.ended() and self.column == column and self.starts("-"):
            self.at += 1
            found.append(self.block(column + 1))
            self.skip()
        return found

    def mapping(self, column: int, key: Node) -> Node:
        """Read a mapping.   key: the first one, whose colon follows."""
        found: Dict[str, Node] = {}
        while True:
            if not isinstance(key, str) or key == "<<" or key in found or not self.starts(":"):
                raise self.wrong("expected KEY: VALUE, each key once")
            self.at += 1
            found[key] = self.block(column + 1, True)
            self.skip()
            if self.ended() or self.column < column or (self.column == column and self.starts("-")):
                return found
            if self.column > column:
                raise self.wrong("its indent fits nothing above it")
            key = self.flow(_PLAIN)
            self.skip()

    def flow(self, plain: re.Pattern[str] = _FLOW_PLAIN) -> Node:
        """Read what needs no indent: brackets, braces, quoted text; else plain text."""
        char = self.char
        if char == '"':
            try:
                return str(json.loads(self.take(_DOUBLE).group()))
            except ValueError as error:
                raise self.wrong("is not understood") from error
        if char == "'":
            return self.take(_SINGLE).group(1).replace("''", "'")
        if char not in ("[", "{"):
            return self.take(plain).group()
        self.at += 1
        items: List[Node] = []
        pairs: Dict[str, Node] = {}
        while True:
            self.skip()
            if self.char == ("]" if char == "[" else "}"):
                self.at += 1
                return items if char == "[" else pairs
            key = self.flow_value()
            passed, is_key = self.skip(), self.char == ":"
            if is_key or char == "{":
                if not isinstance(key, str) or key == "<<" or (is_key and "\n" in passed):
                    raise self.wrong("expected KEY: VALUE")
                self.at += is_key
                pairs[key] = self.flow_value() if is_key else ""
                key = {key: pairs[key]}
                self.skip()
            items.append(key)
            if self.char not in (",", "]" if char == "[" else "}"):
                raise self.wrong("a comma or bracket is missing")
            self.at += self.char == ","

    def flow_value(self) -> Node:
        self.skip()
        return "" if self.char in (",", "]", "}") else self.flow()
