# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The nightly question where it cannot be asked as usual. That it finds what site.yml finds is in test_demo.py."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import store
from tests.site.conftest import ROOT

Play = Callable[..., Any]
# Only a run that may reboot nodes has something to say of these.
OF_A_RUN = ("reboot.", "drain.")


def found(path: Path) -> dict[str, Any]:
    """The findings file, without what only a run that changes something has to say."""
    data: dict[str, Any] = json.loads(path.read_text())
    del data["run"]["started"], data["run"]["ended"]
    for key in ("expected", "checked"):
        data[key] = [role for role in data[key] if role not in ("reboot", "drain")]
    data["off"].pop("drain", None)
    for host in data["hosts"].values():
        host["passed_ids"] = [name for name in host["passed_ids"] if not name.startswith(OF_A_RUN)]
        # What was ok has a value and a source. Some of them differ from moment to moment.
        assert {*host["passed_ids"]} <= {*host["evidence"]}
        assert all(all(pair) for pair in host.pop("evidence").values())
        timeless(host)
    return data


def timeless(host: dict[str, Any]) -> None:
    """Takes away what depends on how long ago the counters of the node were kept: within a minute nothing is judged."""
    del host["passed"]
    host["passed_ids"] = [name for name in host["passed_ids"] if not name.startswith("node_health.port_")]
    host["evidence"] = {
        name: [re.sub(r" in [0-9.]+ h\b", "", text) for text in texts]
        for name, texts in host.pop("evidence", {}).items()
        if not name.startswith("node_health.port_")
    }
    of_counters = ("of this boot are stored yet", "were reset since the previous run")
    host["notes"] = [note for note in host["notes"] if not any(said in note for said in of_counters)]
    host["health"] = [{**one, "seconds": None} for one in host["health"]]


# As su does with what comes before the command.
TAKES_OUR_INPUT = '''
import shlex
from ansible.plugins.become import BecomeBase
DOCUMENTATION = """
name: taker
short_description: Hands no input on
description: For a test.
author: nobody
options: {}
"""
class BecomeModule(BecomeBase):
    name = "taker"
    pipelining = False
    def build_become_command(self, cmd, shell):
        super().build_become_command(cmd, shell)
        return "/bin/sh -c %s </dev/null" % shlex.quote(self._build_success_command(cmd, shell)) if cmd else cmd
'''


@pytest.mark.long
def test_where_become_takes_our_input_the_question_is_asked_all_the_same(lab: Path, play: Play, tmp_path: Path) -> None:
    (tmp_path / "taker.py").write_text(TAKES_OUR_INPUT)
    settings = {"defaults": {"become_plugins": str(tmp_path), "collections_path": str(ROOT / "collections")}}
    settings["privilege_escalation"] = {"become_allow_same_user": "true"}
    config = configparser.ConfigParser()
    config.read_dict(settings)
    with (tmp_path / "ansible.cfg").open("w") as stream:
        config.write(stream)
    arguments = ("-i", lab / "inventory", "--limit", "node01", "--check", "--tags", "nccl_conf", "-v")
    become = ("-e", "ansible_become=true", "-e", "ansible_become_method=taker")
    run = play(*arguments, *become, playbook="playbooks/drift.yml", cwd=tmp_path)
    assert "a run would repair on node01: nccl_conf.file" in run.verdict, run.out
    left_out = "left out by tags: platform, node_health, mofed, nic_firmware, iommu, pcie_path"
    assert left_out in " ".join(run.verdict.split())
    assert "\nchecked: nccl_conf\n" in run.verdict


# As a release of ansible-core whose TaskExecutor nobody has seen.
UNKNOWN_RELEASE = """
from ansible.executor.task_executor import TaskExecutor
from ansible.plugins.callback import CallbackBase
made = TaskExecutor.__init__
def otherwise(self, *everything, **more):
    made(self, *everything, **more)
TaskExecutor.__init__ = otherwise
class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "unknown_release"
"""


@pytest.mark.long
def test_a_release_that_is_not_known_asks_each_host_by_a_task_and_finds_the_same(
    lab: Path, play: Play, tmp_path: Path
) -> None:
    store.break_(lab, "node02", "mtu-1500")
    (tmp_path / "unknown_release.py").write_text(UNKNOWN_RELEASE)
    config = "[defaults]\ncallback_plugins = {}\ncollections_path = {}\n"
    (tmp_path / "ansible.cfg").write_text(config.format(tmp_path, ROOT / "collections"))
    (tmp_path / "gone.yml").write_text(
        "gpu_nodes: {hosts: {gone: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1,"
        " ansible_pipelining: false, busbar_platform: hgx-h100, busbar_fabric: infiniband}}}\n"
    )
    arguments = ("-i", lab / "inventory", "-i", tmp_path / "gone.yml", "--check", "--tags", "mtu,nccl_conf")
    finds = []
    for cwd in (ROOT, tmp_path):
        path = tmp_path / f"{cwd.name}.json"
        run = play(*arguments, "-e", f"busbar_findings_path={path}", playbook="playbooks/drift.yml", cwd=cwd)
        assert (run.rc, "0 of 3 hosts ok" in run.verdict) == (2, True), run.out
        assert ("every host is audited by a separate task" in " ".join(run.out.split())) == (cwd == tmp_path)
        finds.append(found(path))
        for finding in finds[-1]["hosts"]["gone"]["findings"]:
            # Whether ssh has ended before Ansible writes to it is chance, and decides what Ansible prints.
            del finding["have"]
    assert finds[0] == finds[1]
    assert finds[0]["hosts"]["gone"]["end"] == "unreachable"
