# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import dkms
from hypothesis import given, settings
from hypothesis import strategies as st


def test_an_unknown_line_is_no_state() -> None:
    with pytest.raises(ParseError, match="expected a line such as"):
        dkms.parse_status("nvidia/580, 6.8, x86_64: half\n")


@settings(max_examples=100)
@given(st.text(max_size=200))
def test_whatever_dkms_prints_it_is_builds_or_a_clear_error(text: str) -> None:
    try:
        builds = dkms.parse_status(text)
    except ParseError:
        return
    assert all(build.name and build.version for build in builds)
