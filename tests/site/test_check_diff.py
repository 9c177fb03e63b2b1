# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What site.yml would change on four fresh nodes, of which one has a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab import store
from lab.machines import azure_nd_h100_v5, hgx_b200
from tests import goldens
from tests.site.conftest import ROOT, Play

NODES = {**store.STANDARD, "node03": hgx_b200, "node04": azure_nd_h100_v5}


@pytest.mark.golden
def test_check_mode_and_its_diff(tmp_path: Path, play: Play) -> None:
    lab = tmp_path / "lab"
    store.create(lab, NODES)
    store.break_(lab, "node02", "rail-missing")
    run = play("-i", lab / "inventory", "--check", "--diff", "--forks", "1")
    out = run.out.replace(str(lab), "LAB").replace(str(ROOT), "CHECKOUT")
    rows: dict[str, list[str]] = {node: [] for node in NODES}
    task, changed, is_program = "", list[str](), False
    for line in out.partition("VERDICT")[0].splitlines():
        if name := re.match(r"TASK \[(.*)\]", line):
            task, changed = name[1], []
        elif host := re.match(r"changed: \[(\w+)\]", line):
            rows[host[1]] += [f"{task}: {text}" for text in changed or ["changed"]]
            changed = []
        elif line.startswith(("--- ", "+++ ")):
            is_program = "/usr/local/" in line
            changed.append(line)
        elif re.match(r"[+-]", line) and not is_program and line[1:].strip() and line[1:].strip()[0] not in "#;":
            changed.append(line)
    for node, lines in rows.items():
        goldens.check("site_check", node, [f"exit {run.rc}", *lines])
