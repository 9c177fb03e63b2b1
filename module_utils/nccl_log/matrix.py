# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's matrix of functions, protocols and algorithms: what it may choose (``Enabled NCCL Func/Proto/Algo Matrix``).

The columns differ between releases, so that their heading is read with each. 0 is off, 1 on; 2 is the default of
LL128, which is on where NCCL holds the hardware to be fit for it.
"""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

# Lines behind its begin in which its rows are, other ranks' lines among them; tables and functions that are kept.
LINES, _TABLES, _FUNCTIONS = 40, 16, 16
_HEADING = re.compile(r"\s{0,20}Function \|((?: {1,20}\w{2,20}){1,8}) {0,8}\|((?: {1,20}\w{2,20}){1,16})\s{0,8}$")
_ROW = re.compile(r"\s{0,20}([A-Z][A-Za-z]{3,15}) \|((?: {1,20}[0-2]){1,8}) {0,8}\|((?: {1,20}[0-2]){1,16})\s{0,8}$")
# What is on, and what is off, of the protocols and of the algorithms.
Choice = Tuple[Tuple[str, ...], Tuple[str, ...], Tuple[str, ...], Tuple[str, ...]]


class Matrix:
    """``line`` for each line without a head behind the begin; ``told`` has what all ranks' tables say."""

    def __init__(self) -> None:
        self._columns: Tuple[List[str], List[str]] = ([], [])
        self._choices: Dict[Choice, List[str]] = {}

    def line(self, line: bytes) -> bool:
        """Whether a line is one of the matrix."""
        if b" |" not in line[:40] or len(line) > 1000:
            return False
        text = line.decode("utf-8", "replace")
        heading = _HEADING.match(text)
        if heading is not None:
            self._columns = heading.group(1).split(), heading.group(2).split()
            return True
        row = _ROW.match(text)
        if row is None:
            return False
        protocols, algorithms = (list(zip(*pair)) for pair in zip(self._columns, (row[2].split(), row[3].split())))
        choice = (*_apart(protocols), *_apart(algorithms))
        functions = self._choices.setdefault(choice, []) if len(self._choices) < _TABLES else []
        if row[1] not in functions and len(functions) < _FUNCTIONS:
            functions.append(row[1])
        return True

    def told(self) -> List[str]:
        said = []
        for (on, off, able, unable), functions in self._choices.items():
            if on or able:
                text = "protocols %s; algorithms %s" % (_listed(on, off), _listed(able, unable))
                said.append("%s: %s" % (", ".join(functions), text))
        return ["what NCCL may choose (its matrix; 0 is not a fault): %s" % " | ".join(said[:4])] if said else []


def _apart(pairs: List[Tuple[str, str]]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """The names that are on and those that are off."""
    on = tuple(name + (" (where the hardware is fit)" if flag == "2" else "") for name, flag in pairs if flag != "0")
    return on, tuple(name for name, flag in pairs if flag == "0")


def _listed(on: Tuple[str, ...], off: Tuple[str, ...]) -> str:
    return (", ".join(on) or "none") + (" (off: %s)" % ", ".join(off) if off else "")
