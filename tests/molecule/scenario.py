# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the tests of a scenario and the drift test share. Only for pytest as molecule starts it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import store

TOP = Path(__file__).resolve().parent
EPHEMERAL = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
LAB = EPHEMERAL / "lab"
[NODE] = store.nodes(LAB)
# Whose scenarios have this node: `molecule test` in a role's directory is about that role alone.
ROLES = (os.environ.get("BUSBAR_MOLECULE_ROLES") or Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]).name).split(",")
# Roles whose answer is about more than the node that gave it.
FOR_ALL = {"ib_fabric", "sharp"}


def checks(of_node: dict[str, Any]) -> list[str]:
    return sorted(finding["check"] for finding in of_node["findings"])


def play(roles: Sequence[str], *arguments: str, check: bool) -> dict[str, Any]:
    """Plays these roles again, as molecule has, and gives the node's part of what they have found together."""
    name = "drift-check" if check else "drift-run"
    findings = json.dumps({"molecule_findings": str(EPHEMERAL / f"{name}.json")})
    done = run_playbook(roles, "-e", findings, *(["--check"] if check else []), *arguments)
    assert done.returncode == 0, done.stdout
    return _verdict(name, roles, check)


def run_playbook(roles: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["ansible-playbook", "-i", str(EPHEMERAL / "inventory"), "-i", str(LAB / "inventory"), *arguments]
    argv += ["-e", json.dumps({"molecule_roles": roles}), str(TOP / "converge.yml")]
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def verdict(role: str, name: str) -> dict[str, Any]:
    """What a role has found: "check" on the fresh node, "run" in molecule's last real run."""
    return _verdict(f"{name}-{role}", [role], name == "check")


def _verdict(name: str, roles: Sequence[str], check_mode: bool) -> dict[str, Any]:
    data = json.loads((EPHEMERAL / f"{name}.json").read_text())
    # What was asked once for all nodes is judged in every verdict after it.
    others = {*data["expected"]} - {*roles}
    assert (len(data["expected"]), others <= FOR_ALL) == (len({*roles} | others), True)
    assert data["check_mode"] is check_mode
    host = dict(data["hosts"][NODE])
    passed = [one for one in host["passed_ids"] if one.partition(".")[0] not in others]
    return {**host, "passed": host["passed"] - (len(host["passed_ids"]) - len(passed)), "passed_ids": passed}


class Role:
    """The role whose scenario a test file belongs to, on the node that it may share with others."""

    def __init__(self, test_file: str) -> None:
        self.name = Path(test_file).parents[3].name

    def verdict(self, name: str) -> dict[str, Any]:
        return verdict(self.name, name)

    def play(self, *arguments: str, check: bool) -> dict[str, Any]:
        return play([self.name], *arguments, check=check)

    def run_playbook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_playbook([self.name], *arguments)
