# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the tools for a NIC's firmware print, as their sources and releases have it, and anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError, ToolMissing
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import tools
from ansible_collections.busbar.fabric.plugins.module_utils.firmware.nv_settings import Value

from tests import readings
from tests.trees import tool

FOLDER = readings.FOLDER / "firmware.nv_settings.parse_text"
NEW, OLD = ((FOLDER / f"synthetic-{which}-release.txt").read_text() for which in ("new", "old"))
ETH = Value("ETH(2)", 2, "ETH")


def test_nvidias_name_of_the_tool_will_do(tmp_path: Path) -> None:
    tool(tmp_path, "/usr/bin/mlxconfig", f"cat <<'END'\n{OLD}\nEND")
    host = Host(str(tmp_path), str(tmp_path))
    answer = tools.query(host, "0000:3b:00.0", ["LINK_TYPE_P1"])
    assert answer.settings["LINK_TYPE_P1"].current == ETH
    assert answer.source == "mlxconfig -d 0000:3b:00.0 -e query LINK_TYPE_P1"
    with pytest.raises(ToolMissing, match="mstflint: is not installed, nor is flint"):
        tools.flash(host, "0000:3b:00.0")


@pytest.mark.parametrize(
    "said", ["-E- The Device doesn't support LINK_TYPE_P1 parameter", "-E- Unknown Parameter: LINK_TYPE_P1"]
)
def test_a_setting_that_a_card_does_not_have_is_absent(tmp_path: Path, said: str) -> None:
    tool(tmp_path, "/usr/bin/mstconfig", f'echo "{said}"; exit 3')
    answer = tools.query(Host(str(tmp_path), str(tmp_path)), "0000:3b:00.0", ["LINK_TYPE_P1"])
    assert answer.settings == {}


@pytest.mark.parametrize(("script", "name", "message"), readings.cases("firmware_no_answer"))
def test_what_is_no_answer_is_an_error(tmp_path: Path, script: str, name: str, message: str) -> None:
    tool(tmp_path, "/usr/bin/mstconfig", script)
    with pytest.raises(ReadError, match=message):
        tools.query(Host(str(tmp_path), str(tmp_path)), "0000:3b:00.0", [name])
