# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the NVIDIA driver that a platform asks for: in effect, and for the next load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.driver import nvidia_options
from ansible_collections.busbar.fabric.plugins.module_utils.driver.nvidia_options import (
    FILE,
    PARAMS,
    OptionsState,
    plan,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import DriverOption

from tests.trees import put_all

IMEX = DriverOption("CreateImexChannel0", "1")
GRDMA = DriverOption("GrdmaPciTopoCheckOverride", "1", before=595)
BOTH = {"CreateImexChannel0": "1", "GrdmaPciTopoCheckOverride": "1"}
OTHERS = "/etc/modprobe.d/nvidia.conf"


def states(have: OptionsState, *asked: DriverOption) -> dict[str, str]:
    return {f"{one.subject} {one.aspect}": one.state for one in plan(have, asked).findings}


def text(have: OptionsState, *asked: DriverOption) -> str | None:
    (change,) = plan(have, asked).changes
    return change.after


def test_what_is_asked_for_is_written_and_waits_for_a_reboot() -> None:
    have = OptionsState(580, {**BOTH, "CreateImexChannel0": "0"})
    found = plan(have, [IMEX, GRDMA])
    assert states(have, IMEX, GRDMA) == {
        "NVreg_CreateImexChannel0 persisted": "drift",
        "NVreg_CreateImexChannel0 live": "drift",
        "NVreg_GrdmaPciTopoCheckOverride persisted": "drift",
        "NVreg_GrdmaPciTopoCheckOverride live": "ok",
    }
    assert found.reboot == ("NVreg_CreateImexChannel0 of the NVIDIA driver is in effect after a reboot",)
    assert [one.disruption for one in found.findings if not one.ok] == ["none", "reboot", "none"]
    written = text(have, IMEX, GRDMA)
    assert written is not None
    assert nvidia_options.parse_options(written) == BOTH
    again = replace(have, own=written, files={FILE: written})
    assert plan(again, [IMEX, GRDMA]).changes == ()
    assert states(again, IMEX, GRDMA)["NVreg_CreateImexChannel0 persisted"] == "ok"
    assert set(states(replace(again, params=BOTH), IMEX, GRDMA).values()) == {"ok"}


def test_an_option_that_a_newer_driver_has_no_more_is_not_asked_for() -> None:
    have = OptionsState(595, {"CreateImexChannel0": "1"})
    assert set(states(have, IMEX, GRDMA)) == {"NVreg_CreateImexChannel0 persisted", "NVreg_CreateImexChannel0 live"}
    assert "Grdma" not in str(text(have, IMEX, GRDMA))
    assert "Grdma" in str(text(replace(have, branch=594), IMEX, GRDMA))
    # Nobody knows which driver it is: the option does no harm to one that has it no more.
    assert "Grdma" in str(text(replace(have, branch=None), IMEX, GRDMA))


@pytest.mark.parametrize(
    ("theirs", "state"),
    [
        ("options nvidia NVreg_CreateImexChannel0=1\n", "ok"),
        ("  options  nvidia NVreg_A=2 NVreg_CreateImexChannel0=1\n", "ok"),
        ("options nvidia NVreg_CreateImexChannel0=0\n", "not_owned"),
        ("options nvidia NVreg_CreateImexChannel0=1\noptions nvidia NVreg_CreateImexChannel0=0\n", "not_owned"),
    ],
)
def test_what_another_file_sets_is_not_set_twice(theirs: str, state: str) -> None:
    have = OptionsState(580, BOTH, {OTHERS: theirs})
    found = plan(have, [IMEX])
    assert [(one.state, one.source) for one in found.findings if one.aspect == "persisted"] == [(state, OTHERS)]
    assert found.changes == ()


def test_a_comment_or_another_module_sets_nothing() -> None:
    have = OptionsState(
        580, BOTH, {OTHERS: "# options nvidia NVreg_CreateImexChannel0=1\noptions nvidia_uvm NVreg_X=1\n"}
    )
    assert states(have, IMEX)["NVreg_CreateImexChannel0 persisted"] == "drift"


@pytest.mark.parametrize(
    ("values", "key", "state"),
    [
        ({"params": None}, "live", "unknown"),
        ({"params": {"Other": "1"}}, "live", "unsupported"),
        ({"problems": (Problem(OTHERS, "is odd"),)}, "persisted", "unknown"),
    ],
)
def test_what_cannot_be_read_is_never_ok(values: dict[str, Any], key: str, state: str) -> None:
    have = replace(OptionsState(580, BOTH), **values)
    assert states(have, IMEX)[f"NVreg_CreateImexChannel0 {key}"] == state


def test_what_nobody_asks_for_any_more_goes() -> None:
    own = "# old\noptions nvidia NVreg_CreateImexChannel0=1\n"
    assert text(OptionsState(580, BOTH, {FILE: own}, own)) is None
    assert plan(OptionsState(580, BOTH), []).changes == ()


def test_reads_of_a_tree(tmp_path: Path) -> None:
    put_all(tmp_path, {PARAMS: "EnableMSI: 1\nCreateImexChannel0: 1\n", OTHERS: "options nvidia NVreg_A=1\n"})
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
    put_all(tmp_path, {"/proc/driver/nvidia/version": version, FILE: "x\n"})
    have = nvidia_options.read(Host(str(tmp_path), str(tmp_path)))
    assert (have.branch, have.own, sorted(have.files)) == (580, "x\n", [FILE, OTHERS])
    assert have.params == {"EnableMSI": "1", "CreateImexChannel0": "1"}
    with pytest.raises(ParseError, match="no line like"):
        nvidia_options.parse_params("nothing")
