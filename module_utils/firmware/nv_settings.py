# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse mstconfig (mlxconfig): default, current and next-boot values of the settings that a NIC stores.

In the table of ``-e query`` a value is a number (``8``), a word with its number (``ETH(2)``), a run of bytes
(``0x00ff...``) or, of an array, its indices (``Array[0..7]``).
Sources: mstflint mlxconfig/mlxcfg_ui.cpp, mlxcfg_parser.cpp, mlxconfig_dbs/mlxconfig_host.db; Debian's mstflint 4.21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, NamedTuple, Optional, Union

from ..core.host import ParseError

# A setting's name; with the index of an array's element.
NAME = re.compile(r"[A-Z][A-Z0-9_]{0,79}(?:\[[0-9]{1,4}\])?")
# A value that may be requested: a number, or one of the tool's words.
WORD = re.compile(r"[A-Za-z0-9_]{1,64}")
NOTHING = ("", "N/A")
_NAMED = re.compile(r"(.*)\(([0-9]{1,10})\)")
_NUMBER = re.compile(r"[0-9]{1,10}|0x[0-9a-fA-F]{1,8}")
# "*" marks a next value that differs, RO a read-only one; older releases print no column for RO.
_ROW = re.compile(r"[* ] *(?:(RO) +)?([A-Z][A-Z0-9_]*(?:\[[0-9.]+\])?) +(\S.*)")
_HEADER = re.compile(r"Configurations: +(\S.*)")
_COLUMNS = ("Default", "Current", "Next Boot")
WantedValue = Union[int, str]


@dataclass(frozen=True)
class Value:
    """text: as the tool prints it, ``ETH(2)``.   number: 2; None of what is not a number.   word: ``ETH``."""

    text: str
    number: Optional[int]
    word: str

    def __str__(self) -> str:
        return self.text

    def matches(self, want: WantedValue) -> bool:
        """Compare with a wanted value: a number by its number, a word by its word, ignoring case."""
        number = want if isinstance(want, int) else parse_number(want)
        if number is not None:
            return self.number == number
        return self.word.casefold() == str(want).casefold()


class Setting(NamedTuple):
    """One setting of a NIC. None: the firmware does not report it, or the line is not understood."""

    current: Optional[Value]
    following: Optional[Value]  # of the next boot
    read_only: bool = False


def parse_number(text: str) -> Optional[int]:
    """Return ``8`` and ``0xff`` as numbers; None for anything else."""
    if _NUMBER.fullmatch(text) is None:
        return None
    return int(text, 16) if text.startswith("0x") else int(text)


def parse_value(text: str) -> Optional[Value]:
    """Parse a value; None for ``N/A``."""
    text = text.strip()
    if text in NOTHING:
        return None
    named = _NAMED.fullmatch(text)
    if named is not None:
        return Value(text, int(named.group(2)), named.group(1))
    return Value(text, parse_number(text), text)


def parse_text(text: str) -> Dict[str, Setting]:
    """Return name -> setting of the table that ``-e query`` of one device prints. Raises ParseError.

    A value that the firmware cannot report has no column. An ambiguous row is a setting without values.
    """
    found: Dict[str, Setting] = {}
    columns: List[str] = []
    for line in text.splitlines():
        header = _HEADER.fullmatch(line.rstrip())
        if header is not None:
            if columns:
                raise ParseError("two tables, expected that of one device")
            columns = re.split(r" {2,}", header.group(1).strip().replace("Next Boot", "Next Boot  ").strip())
            if not columns or columns[-1] != "Next Boot" or set(columns) - set(_COLUMNS):
                raise ParseError("%.80r, expected columns Default, Current and Next Boot" % line)
            continue
        row = _ROW.fullmatch(line.rstrip()) if columns else None
        if row is None:
            continue
        values = row.group(3).split()
        told: Mapping[str, str] = dict(zip(columns, values)) if len(values) == len(columns) else {}
        current, following = (parse_value(told.get(column, "")) for column in ("Current", "Next Boot"))
        found[row.group(2)] = Setting(current, following, row.group(1) == "RO")
    if not columns:
        raise ParseError("%.80r, expected a table that begins with Configurations:" % text)
    return found
