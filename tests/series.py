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
