# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How the audit's question travels, and what the verdict takes from its answer."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import become_loader
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.plugin_utils import verdict as judging

OK = {"findings": [], "passed": ["a.b[live]@c"]}
WANTED = {"profile_name": "hgx-h100", "benchmark_runs": []}


def action(become: Any = None, has_pipelining: bool = True) -> Any:
    plugin = object.__new__(host_audit.ActionModule)
    plugin._connection = SimpleNamespace(become=become, has_pipelining=has_pipelining)
    plugin._templar = Templar(loader=DataLoader())
    return plugin


@pytest.mark.parametrize(
    ("name", "pipes"),
    [("sudo", True), ("su", False), ("community.general.doas", True), ("community.general.machinectl", False)],
)
def test_the_script_is_piped_only_where_become_hands_it_on(name: str, pipes: bool) -> None:
    """Of Ansible's own methods it says the same; without one the connection decides."""
    assert action(SimpleNamespace(name=name))._can_pipe() is pipes
    assert "." in name or become_loader.get(name).pipelining is pipes
    assert action()._can_pipe()
    assert not action(has_pipelining=False)._can_pipe()


def test_the_inventory_names_the_python(monkeypatch: pytest.MonkeyPatch) -> None:
    templar = Templar(loader=DataLoader())
    given = {"ansible_python_interpreter": "/opt/py/bin/python3"}
    assert host_audit.python_of(given, templar) == "/opt/py/bin/python3"
    monkeypatch.setattr(constants.config, "get_config_value", lambda name, **_more: "/usr/bin/python3.9")
    assert host_audit.python_of({}, templar) == "/usr/bin/python3.9"


@pytest.mark.parametrize(
    ("names", "says"), [(["no-such", "echo", "printf"], "found -I"), (["no-such"], "/usr/bin/python3 found -I")]
)
def test_else_the_first_that_is_there_of_ansibles_own_list(names: list[str], says: str) -> None:
    given = {"ansible_python_interpreter": "auto_silent", "ansible_interpreter_python_fallback": names}
    command = host_audit.python_of(given, Templar(loader=DataLoader()))
    said = subprocess.run(["sh", "-c", f"echo {command} found -I"], capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith(says)
    assert ("echo found" in said) == ("echo" in names)


def test_tags_leave_roles_out() -> None:
    def asked(**tags: list[str]) -> list[str]:
        given = {f"ansible_{name}_tags": value for name, value in tags.items()}
        return [role for role in ("mofed", "nccl_conf") if judging.played(role, given)]

    assert asked() == asked(run=["all"], skip=[]) == ["mofed", "nccl_conf"]
    assert asked(run=["nccl_conf", "x"]) == asked(skip=["mofed"]) == ["nccl_conf"]
    assert asked(run=["tagged"], skip=["mofed", "nccl_conf"]) == []


def answer(*steps: tuple[str, dict[str, Any]], roles: tuple[str, ...]) -> dict[str, Any]:
    asked = [{"role": role} for role, _result in steps]
    return dict(host_audit._by_role([*roles], asked, [result for _role, result in steps], WANTED))


def test_each_role_has_its_own_answer() -> None:
    failed = {"failed": True, "msg": "did not respond"}
    found = answer(("node_lock", OK), ("platform", OK), ("mofed", failed), roles=("platform", "mofed"))
    assert found == {"node_lock": OK, "platform": OK, "mofed": failed}


def test_the_benchmark_is_judged_where_it_was_asked_for() -> None:
    assert "nccl_benchmark" not in answer(("platform", OK), roles=("platform",))
    found = answer(("platform", OK), roles=("platform", "nccl_benchmark"))["nccl_benchmark"]
    assert (found["findings"], found["passed"], found["runs"]) == ([], [], [])
    failed = {"failed": True, "msg": "no such option"}
    assert answer(("nccl_benchmark", failed), roles=("nccl_benchmark",))["nccl_benchmark"] == failed
