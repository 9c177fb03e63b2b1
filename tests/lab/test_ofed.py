# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module ofed on simulated nodes that are not as they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import store
from lab.machine import Machine
from lab.machines import h200_vm, hgx_h100

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., dict[str, Any]]


def without_nics(hostname: str) -> Machine:
    machine = hgx_h100(hostname)
    for address in [machine.rail(number).address for number in range(8)]:
        machine.unplug(address)
    return machine


def ask(run_module: Run, lab: Path, platform: str, **more: Any) -> dict[str, Any]:
    """In check mode, with the arguments of a site that wants OFED 3.2.1."""
    arguments = {
        "profile": yaml.safe_load((ROOT / "profiles" / f"{platform}.yml").read_text()),
        "profile_name": platform,
        "fabric": "infiniband",
        "version": "3.2.1",
        "repository_key": store.NO_KEY,
        "hardware_root": str(lab / "node/hw"),
        "system_root": str(lab / "node/sys"),
    }
    return run_module("ofed", check_mode=True, **(arguments | more))


@pytest.mark.parametrize(("platform", "machine"), [("h200-vm", h200_vm), ("hgx-h100", without_nics)])
def test_a_host_without_any_of_its_nics_is_left_alone(
    run_module: Run, tmp_path: Path, platform: str, machine: Callable[[str], Machine]
) -> None:
    store.create(tmp_path / "lab", {"node": machine})
    if platform == "h200-vm":
        profile = {"description": "a VM", "gpus": {"count": 8, "models": ["NVIDIA H200"]}, "rails": []}
        result = ask(run_module, tmp_path / "lab", "hgx-h100", profile=profile, fabric="")
        assert result["notes"] == []
    else:
        result = ask(run_module, tmp_path / "lab", platform)
        assert result["notes"] == ["OFED was not requested: none of the NICs of profile hgx-h100 is there"]
    assert (result["changed"], result["findings"], result["passed"], result["commands"]) == (False, [], [], [])


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    store.create(tmp_path / "lab", {"node": hgx_h100})
    return tmp_path / "lab"


def states(result: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in result["findings"] if finding["because"] is None}


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("usr/sbin/dkms", "#!/bin/sh\necho 'nvidia: what is this'\n"),
        ("usr/sbin/dkms", "#!/bin/sh\nexit 3\n"),
        ("usr/bin/dpkg-query", "#!/bin/sh\nhead -c 300 /dev/urandom\n"),
        ("usr/bin/ofed_info", "#!/bin/sh\necho OFED-of-mine\n"),
        ("usr/local/sbin/modinfo", "#!/bin/sh\necho garbage\n"),
    ],
)
def test_a_tool_that_talks_nonsense_is_unknown_and_no_traceback(
    run_module: Run, lab: Path, tool: str, text: str
) -> None:
    (lab / "node/sys" / tool).write_text(text)
    result = ask(run_module, lab, "hgx-h100")
    assert states(result)["ofed.readable"] == "unknown"
    assert all(finding["fix"] for finding in result["findings"])
