# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs over shards and over slices, merged, against one run over all: equal but for times."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import store
from tests.drift.conftest import ROOT, Busbar, argv, environment, hosts_of, write_inventory

PLAYBOOK = [str(Path(sys.executable).parent / "ansible-playbook"), "playbooks/drift.yml", "--check"]


def without_times(file: Path, *more: str) -> dict[str, Any]:
    """The report without moments, growth, and what a part of one host cannot compare."""
    data: dict[str, Any] = json.loads(file.read_text())
    for name in ("started", "ended", *more):
        data["run"].pop(name)
    data["history"][-1].pop("started")
    for of_group in data["groups"]:
        of_group["first"].pop("started")
    for of_host in data["hosts"].values():
        for finding in of_host["findings"]:
            finding.pop("first")
        values = of_host.get("evidence", {})
        for name in [name for name in values if name.startswith(("consistency.", "node_health."))]:
            del values[name]
        of_host.pop("passed", None)
    data["counts"].pop("passed", None)
    return data


@pytest.mark.long
def test_shards_and_slices_merge_to_what_one_run_says(lab: Path, busbar: Busbar, tmp_path: Path) -> None:
    store.break_(lab, "node02", "nvlink-down")
    inventory = lab / "inventory"
    slices = {node: lab / f"slice-{node}" for node in hosts_of(lab)}
    for node, folder in slices.items():
        write_inventory(shutil.copytree(inventory, folder), {node: hosts_of(lab)[node]})
    names = [*slices]
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    wanted = [
        argv("drift", "-i", inventory, "--limit", names[0], "--findings", first, "--history", tmp_path / "1.sqlite"),
        argv("drift", "-i", inventory, "--limit", names[1], "--findings", second, "--history", tmp_path / "2.sqlite"),
        *([*PLAYBOOK, "-i", str(slices[n]), "-e", f"busbar_findings_path={tmp_path}/{n}"] for n in names),
    ]
    config = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    for pair in (wanted[:2], wanted[2:]):
        runs = [
            subprocess.Popen(words, cwd=ROOT, env=environment(tmp_path, **config), stdout=subprocess.DEVNULL)
            for words in pair
        ]
        assert [run.wait(600) for run in runs] == [2, 2]
    assert busbar("drift", "-i", inventory, "--findings", whole, "--json", tmp_path / "one.json").rc == 2

    one = without_times(tmp_path / "one.json")
    assert one["counts"]["total"] == len(names) == 2
    merged = tmp_path / "merged.json"
    for files in ([first, second], [second, first], [whole]):
        assert busbar("report", "--merge", *files, "--json", merged).rc == 2
        assert without_times(merged) == one
    # As AWX cuts an inventory: no slice knows of the other one, nor the state of the whole.
    alone = [tmp_path / name for name in names]
    refused = busbar("report", "--merge", *alone)
    assert (refused.rc, "name the whole of it with -i" in refused.err) == (1, True)
    assert busbar("report", "--merge", *alone, "-i", inventory, "--json", merged).rc == 2
    assert without_times(merged, "commit") == without_times(tmp_path / "one.json", "commit")

    gap = busbar("report", "--merge", first)
    assert (gap.rc, f"hosts in none of the files: {names[1]}" in gap.err) == (1, True)
    # Somebody decides something else before the second half is asked.
    hosts = hosts_of(lab)
    hosts[names[1]]["busbar_mtu"] = 4200
    write_inventory(inventory, hosts)
    late = busbar("report", "--merge", first, second, "-i", inventory)
    assert (late.rc, "is of another state of the inventory than -i has now" in late.err) == (1, True)
