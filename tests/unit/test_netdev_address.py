# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""IP addresses of interfaces, as ip prints them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import netdev_address

from tests.trees import tool


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Object \"address\" is unknown' >&2; exit 255", 'exited with 255: Object "address" is unknown'),
        ("echo 1: lo", "is not what ip -j address show prints"),
    ],
)
def test_a_tool_that_does_not_answer_is_named(tmp_path: Path, script: str, says: str) -> None:
    tool(tmp_path, "usr/sbin/ip", script)
    with pytest.raises((ReadError, ParseError), match="ip -j address show") as caught:
        netdev_address.read(Host(str(tmp_path), str(tmp_path)))
    assert says in str(caught.value)
