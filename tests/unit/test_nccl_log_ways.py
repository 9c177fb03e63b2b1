# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose lines are whose where heads are cut or glued, and what is told of connections, rings and trees."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import lines
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.lines import Head


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("web2:41 [3]", Head("web2", 41, None, 3)),
        ("[1,0]<stdout>:web2:41 [3]", Head("web2", 41, None, 3, rank=0)),
        ("41:97 [3]", Head("", 41, 97, 3)),
        ("97 [3]", Head("", None, None, 3)),
        ("web2:41:97 misc/socket.cc:50", Head("web2", 41, 97, None, "misc/socket.cc:50")),
        ("\u2026b2:41:97 [1]", Head("b2", 41, 97, 1)),
    ],
)
def test_heads_of_which_something_is_left_out(before: str, wanted: Head) -> None:
    assert lines.head(before) == wanted
