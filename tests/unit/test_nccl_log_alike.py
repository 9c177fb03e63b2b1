# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of lines that are alike who says what; and verdicts that name a cause where lines tell it."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import words


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("memory of device 4. RC: -22", "device 4"),
        ("memory of device 4. RC: -12", "device 4 RC: -12"),
        ("memory of device 3. RC: -22", ""),
        ("memory of another device 4. RC: -22", ""),
    ],
)
def test_words_of_its_own(other: str, own: str) -> None:
    assert words.own_words("memory of device 3. RC: -22", other) == own
    assert words.own_words("a 1 b 2 c 3 d 4", "a 5 b 6 c 7 d 8") == ""
