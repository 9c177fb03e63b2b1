# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every fault's finding advises is done, literally, and then it is looked at again.

Of roles that change nothing test_faults.py does it, which has the node broken anyhow.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

from lab import faults, store
from lab.machines import hgx_b200
from tests import series
from tests.lab.conftest import MODULES
from tests.lab.test_faults import ALONE, SEEING

# Tag -> the module of its role.
MODULE = {role.name: role.module for role in suite.SUITE}
Answer = Callable[..., dict[str, Any]]
# Each module is run where a fault is its, and once.
LAB = {**store.STANDARD, "node03": hgx_b200}


def run(on_node: Answer, module: str, node: str, most: str, check_mode: bool = False) -> dict[str, Any]:
    # What changes something that may disturb a node takes the leave for it.
    leave = {"max_disruption": most} if "max_disruption" in MODULES[module].SPEC else {}
    return on_node(module, node, check_mode=check_mode, **leave)


def converge(lab: Path, on_node: Answer, module: str, node: str) -> None:
    done = lab / f"{node}-{module}"
    if not done.exists():
        assert run(on_node, module, node, "link")["findings"] == []
        if module == "roce_qos":
            # The unit of rail 0 has run, as at a boot.
            subprocess.run([lab / node / "sys/usr/local/sbin/busbar-lab-roce", "add", "enp26s0np0"], check=True)
        done.touch()


ADVISED = [one for one in ALONE if faults.FAULTS[one[1]].check.partition(".")[0] not in SEEING]


@pytest.mark.parametrize(("node", "name"), series.some(ADVISED, 22))
def test_what_a_finding_advises_changes_it(lab: Path, on_node: Answer, node: str, name: str) -> None:
    fault = faults.FAULTS[name]
    noun = fault.check.split(".")[0]
    module = MODULE.get(noun, noun)

    def look() -> list[dict[str, Any]]:
        # As on a site that allows nothing of itself.
        found = run(on_node, module, node, "none", check_mode=True)["findings"]
        return [finding for finding in found if finding["check"] == fault.check]

    converge(lab, on_node, module, node)
    store.break_(lab, node, name)
    finding = next(found for found in look() if found["because"] is None)
    command = fix_command.parse(finding["fix"])
    # Anything else that names it would be a command that nobody can copy.
    assert ("site.yml" in finding["fix"]) == (command is not None), finding["fix"]
    if command is None or not command.mends:
        # A person's work, after which the same question has another answer.
        store.repair(lab, node, name)
    tags = command.tags if command else ()
    done = [run(on_node, MODULE[tag], node, command.disruption) for tag in tags if command and tag != "reboot"]
    if "reboot" in tags:
        store.reboot(lab, node)
    if command is None or not command.mends:
        assert look() == []
        return
    if "reboot" in tags:
        assert (command.disruption, any(one["reboot_required"] for one in done)) == ("reboot", True)
    if fault.stays:
        # The tool that fails is named, and with that the advice is another one.
        assert done[0].get("failed") or finding not in done[0]["findings"], done
        return
    assert finding["id"] not in {found["id"] for found in look()}
