# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A first verdict on simulated nodes that no inventory describes, by the command itself."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from busbar import cli
from lab import store, tree
from tests import series
from tests.lab.transcript import snapshot

PLATFORMS = {
    "node01": "hgx-h100",
    "node02": "hgx-h200",
    "node03": "hgx-b200",
    "board01": "hgx-b300",
    "tray01": "gb200-nvl72",
    "tray21": "gb300-nvl72",
    "vm01": "h200-vm",
    "azure01": "azure-nd-h100-v5",
    "oci01": "oci-bm-gpu-h100-8",
}
# Nothing gives these out of the box, and RDMA needs them.
FRESH = {"host_limits.login", "host_limits.service"}
LAB = {node: store.PLATFORMS[platform] for node, platform in PLATFORMS.items()}


def check(lab: Path, node: str, *options: str) -> tuple[int, dict[str, Any], list[str]]:
    """Return the exit code, what the JSON has of the node, and the screen."""
    file = lab.with_name("check.json")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = cli.main(["check", "--root", str(lab / node), "--json", str(file), *options])
    assert errors.getvalue() == ""
    return code, json.loads(file.read_text())["hosts"][node], out.getvalue().splitlines()


@pytest.mark.parametrize("node", PLATFORMS)
def test_a_healthy_node_is_recognised_has_no_fault_and_is_not_written_to(lab: Path, node: str) -> None:
    # What the stand-ins remember lies apart.
    before = snapshot(lab / node, "busbar-lab", times=True)
    code, said, lines = check(lab, node)
    assert snapshot(lab / node, "busbar-lab", times=True) == before
    assert said["recognised"]["platform"] == ("" if node == "vm01" else PLATFORMS[node])
    # A guest with any GPUs may have a part of a machine.
    assert bool(said["recognised"]["undecided"]) == (node == "vm01")
    assert {one["check"] for one in said["findings"] if one["severity"] != "minor"} == FRESH
    assert {one["state"] for one in said["findings"]} == {"drift"}
    assert (code, said["need_root"]) == (2, 0)
    assert len(lines) <= 24


@pytest.mark.parametrize(("node", "more"), series.first(("node01", ("--platform", "custom")), ("vm01", ())))
def test_the_next_command_of_a_draft_works(node: str, more: tuple[str, ...], lab: Path) -> None:
    new = lab.with_name(f"draft-{node}")
    assert check(lab, node, "--write", str(new), *more)[2][-1].endswith(f"busbar check -i {new}")
    file = lab.with_name("again.json")
    argv = [sys.executable, "-m", "busbar", "check", "-i", str(new), "--json", str(file)]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 2
    said = json.loads(file.read_text())["hosts"][node]
    assert not more or said["recognised"]["platform"] == "custom"
    assert (said["recognised"]["undecided"], {one["check"] for one in said["findings"]}) == ("", FRESH)


FAULTS = {
    "rail-missing": ("node02", "platform.rail_device", "platform"),
    "gpu-lost": ("node01", "platform.gpu_driver", "fact"),
    "firmware-old": ("node02", "platform.rail_firmware", "siblings"),
    "partition-limited": ("node01", "platform.rail_partition", "siblings"),
    "docker-memlock": ("node01", "host_limits.docker", "fact"),
    "cable-symbols": ("node01", "node_health.port_symbol_errors", "fact"),
    "cnp-dscp": ("node02", "roce_qos.cnp", "siblings"),
    "switch-dscp": ("node02", "lldp.dscp", "siblings"),
    "smi-hang": ("node01", "platform.gpu_tool", "fact"),
}


@pytest.mark.parametrize(
    ("name", "node", "wanted", "basis"), series.some([(name, *of) for name, of in FAULTS.items()], 4)
)
def test_a_fault_is_found_at_the_first_run_and_says_by_what(
    lab: Path, name: str, node: str, wanted: str, basis: str
) -> None:
    store.break_(lab, node, name)
    # No record of an earlier run: the counters are all that there is.
    (lab / node / "sys/var/lib/busbar/health/last.json").unlink(missing_ok=True)
    started = time.monotonic()
    code, said, _lines = check(lab, node)
    assert code == 2
    assert {one["basis"] for one in said["findings"] if one["check"] == wanted} == {basis}
    assert time.monotonic() - started < 120


LOST = [((0,),), ((1, 6),), ((0, 1, 2, 3),), ((0, 2, 4, 6),), ((3, 4, 5, 6, 7),), (tuple(range(8)),)]


@pytest.mark.parametrize("lost", series.some(LOST, 3))
def test_no_number_of_lost_nics_is_good(lab: Path, lost: tuple[int, ...]) -> None:
    machine = store.healthy(lab, "node02")
    for rail in lost:
        machine.unplug(machine.rail(rail).address)
    tree.write_hardware(machine, lab / "node02/hw")
    code, said, _lines = check(lab, "node02")
    tree.write_hardware(store.healthy(lab, "node02"), lab / "node02/hw")
    assert said["recognised"]["platform"] == "hgx-h200"
    rails = [one for one in said["findings"] if one["check"] == "platform.rail_device"]
    assert rails or said["recognised"]["undecided"]
    assert code == 2
