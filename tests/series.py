# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Series of cases of which make test runs some, and make test-all all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], number: int) -> list[Any]:
    """Return the cases for parametrize, ``number`` of them spread evenly and the others with the mark ``long``."""
    every = list(cases)
    chosen = {round(index * (len(every) - 1) / max(number - 1, 1)) for index in range(number)}
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if index in chosen else pytest.mark.long)
        for index, case in enumerate(every)
    ]


def first(*rows: Any, brief: int = 1) -> list[Any]:
    """Return rows for parametrize, which have the mark ``long`` but for the first ones.   brief: how many those are."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=[pytest.mark.long] if number >= brief else [])
        for number, row in enumerate(rows)
    ]
