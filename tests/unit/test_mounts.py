# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import mounts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.mounts import Mount
from hypothesis import given, settings
from hypothesis import strategies as st


def test_a_line_is_source_folder_kind_and_options() -> None:
    text = "server:/a /a\\040b nfs4 rw,proto=rdma 0 0\n/dev/sda1 / ext4 rw 0 0"
    assert mounts.parse(text) == [
        Mount("server:/a", "/a\\040b", "nfs4", ("rw", "proto=rdma")),
        Mount("/dev/sda1", "/", "ext4", ("rw",)),
    ]


@given(st.text(max_size=60))
@settings(max_examples=100)
def test_any_text_is_mounts_or_refused(text: str) -> None:
    try:
        found = mounts.parse(text)
    except ParseError as error:
        assert str(error).endswith("is not a line of /proc/mounts")
    else:
        assert len(found) == len(text.splitlines())


def test_a_short_line_is_refused() -> None:
    with pytest.raises(ParseError):
        mounts.parse("/dev/sda1 / ext4")
