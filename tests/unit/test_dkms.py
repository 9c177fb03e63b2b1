# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.driver import dkms
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "nvidia/580.82.07, 6.8.0-60-generic, x86_64: installed",
            ("nvidia", "580.82.07", "6.8.0-60-generic", "installed"),
        ),
        (
            "nvidia, 535.104.05, 5.15.0-88-generic, x86_64: built",
            ("nvidia", "535.104.05", "5.15.0-88-generic", "built"),
        ),
        (
            "mlnx-ofed-kernel/25.10.OFED.25.10.1.7.1.1: added",
            ("mlnx-ofed-kernel", "25.10.OFED.25.10.1.7.1.1", "", "added"),
        ),
        ("iser, 24.10: added", ("iser", "24.10", "", "added")),
        (
            "mlnx-ofed-kernel/25.10, 5.14.0-503.el9.x86_64, x86_64: installed-weak from 5.14.0-427.el9.x86_64",
            ("mlnx-ofed-kernel", "25.10", "5.14.0-503.el9.x86_64", "installed"),
        ),
        (
            "iser/25.10, 6.8.0-60-generic, x86_64: installed (WARNING! Diff between built and installed module!)",
            ("iser", "25.10", "6.8.0-60-generic", "installed"),
        ),
        ("knem/1.1.4, 6.1.0-1-amd64, x86_64: broken", ("knem", "1.1.4", "6.1.0-1-amd64", "broken")),
    ],
)
def test_each_form_of_a_line_is_understood(line: str, expected: tuple[str, ...]) -> None:
    (build,) = dkms.parse_status(line + "\n")
    assert (build.name, build.version, build.kernel, build.state) == expected


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
