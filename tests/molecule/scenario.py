# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What verify and the drift test of every scenario share. Only for pytest as molecule starts it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from busbar.lab import store

SCENARIO = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
EPHEMERAL = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
ROLE = SCENARIO.parent.parent.name
LAB = EPHEMERAL / "lab"
[NODE] = store.nodes(LAB)


def verdict(name: str) -> dict[str, Any]:
    """The node's part of a findings file: ``check`` of the fresh node, ``run`` of the last real run."""
    data = json.loads((EPHEMERAL / f"{name}.json").read_text())
    assert data["checked"] == [ROLE]
    assert data["check_mode"] is (name != "run")
    return dict(data["hosts"][NODE])


def checks(of_node: dict[str, Any]) -> list[str]:
    return sorted(finding["check"] for finding in of_node["findings"])


def play(*arguments: str, check: bool) -> dict[str, Any]:
    """Plays converge.yml again, as molecule does, and gives the node's part of its findings file."""
    name = "drift-check" if check else "run"
    findings = f"busbar_findings_path={EPHEMERAL / name}.json"
    done = run_playbook("-e", findings, *(["--check"] if check else []), *arguments)
    assert done.returncode == 0, done.stdout
    return verdict(name)


def run_playbook(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["ansible-playbook", "-i", str(EPHEMERAL / "inventory"), "-i", str(LAB / "inventory"), *arguments]
    return subprocess.run(
        [*argv, SCENARIO / "converge.yml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
