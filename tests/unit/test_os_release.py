# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import os_release
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.sampled_from("abz09 .-_:/()\"'#\\"), max_size=12)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_quoted_as_the_manual_says_is_read_back(values: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return "".join("\\" + char if char in '"\\' else char for char in value)

    text = "".join(f'{name}="{quoted(value)}"\n' for name, value in values.items())
    assert os_release.parse(text) == values


def test_the_administrators_file_comes_before_the_vendors(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    with pytest.raises(ReadError, match="/etc/os-release: is not there"):
        os_release.read(host)
    for folder, name in (("usr/lib", "debian"), ("etc", "ubuntu")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "os-release").write_text(f"ID={name}\n")
        assert os_release.read(host) == (f"/{folder}/os-release", {"ID": name})
