# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the audit asks: hosts that are alike share it, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import pytest
import yaml
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.plugin_utils import gate_files, intent, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import rendered
from ansible_collections.busbar.fabric.plugins.plugin_utils.site_values import OF_RUN, VALUES

SITE = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "inventory_hostname": "node01"}
TEMPLAR = Templar(loader=DataLoader(), variables=SITE)


def texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from texts(item)


def calls(folder: Path, module: str) -> Iterator[tuple[dict[str, Any], list[Any], Path]]:
    """Each call of the module in a role's tasks, with the module_defaults around it, and its file.

    An included file has the defaults of what includes it; all such files of the suite are included within one block.
    """

    def inside(tasks: list[dict[str, Any]], around: list[Any], path: Path) -> Iterator[tuple[Any, list[Any], Path]]:
        for task in tasks:
            defaults = [*around, *([task["module_defaults"]] if "module_defaults" in task else [])]
            if module in task:
                yield task, defaults, path
            for part in ("block", "rescue", "always"):
                yield from inside(task.get(part, []), defaults, path)
            for name in ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks"):
                included = task.get(name, "")
                # What is included with tags of its own is for what the audit does not ask.
                if isinstance(included, str) and included and "/" not in included:
                    yield from inside(yaml.safe_load((folder / included).read_text()), defaults, folder / included)

    found = list(inside(yaml.safe_load((folder / "main.yml").read_text()), [], folder / "main.yml"))
    assert found, folder
    return iter(found)


def steps(role: str, **variables: Any) -> list[dict[str, Any]]:
    given = {**SITE, **variables}
    templar = Templar(loader=DataLoader(), variables=given)
    # The first is that of the lock.
    return host_audit.question_of([role], given, templar).steps[1:]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("role", host_audit._ASKED)
def test_every_variable_of_a_question_decides_who_shares_it(role: str) -> None:
    asked = host_audit._ASKED[role]
    defined = {"busbar_intent", *asked.defaults, *asked.variables, suite.AUDITED[role].each}
    environment = jinja2.Environment()
    environment.filters = dict.fromkeys(("default", "flatten", "length"), str)
    for text in texts(asked.variables):
        assert jinja2.meta.find_undeclared_variables(environment.parse(text)) <= asked.words & defined | {"omit"}


# Of the benchmark between nodes a campaign calls the module.
@pytest.mark.parametrize("role", [role for role in host_audit._ASKED if role != suite.CLUSTER])
def test_the_role_has_its_arguments_where_the_audit_has_them_and_nowhere_else(role: str) -> None:
    module = f"busbar.fabric.{suite.AUDITED[role].module}"
    given = {module: f"{{{{ __{role}_arguments }}}}"}
    for task, defaults, path in calls(host_audit.TOP / "roles" / (suite.AUDITED[role].home or role) / "tasks", module):
        assert (defaults, set(task) & {"args", "delegate_to", "vars"}) == ([given], set()), path
        assert not task[module], path
        assert "when" not in task, path
        each = f"{{{{ __{role}_each }}}}" if suite.AUDITED[role].each else None
        assert (task.get("loop"), task.get("loop_control", {}).get("loop_var", "")) == (each, suite.AUDITED[role].each)


def another(name: str) -> Any:
    value = VALUES[name]
    if name == "busbar_accepted":
        return [{"check": "run.host", "reason": "r", "owner": "o", "until": "2099-01-01"}]
    other = {"bool": not value.default, "int": 77, "float": 0.5, "list": [7], "str": "x", "path": "/x"}[value.type]
    return next((choice for choice in value.choices if choice != value.default), other)


def test_a_variable_of_the_run_reaches_no_file_and_no_digest() -> None:
    assert {"busbar_findings_path", "busbar_max_disruption", "nccl_benchmark_results_path"} <= OF_RUN
    site = {**SITE, "gate_stages": ["health"], "busbar_drain": "slurm"}
    asked = []
    for given in (site, {**site, **{name: another(name) for name in OF_RUN}}):
        question = host_audit.question_of([*suite.AUDITED], given, Templar(loader=DataLoader(), variables=given))
        # What a run may cost a node decides what is blocked, where there is something to mend; the lock is the run's.
        of_run = ("max_disruption", "backup")
        kept = [{k: v for k, v in step["arguments"].items() if k not in of_run} for step in question.steps[1:]]
        asked.append((kept, intent.digest(question.wanted)))
    assert asked[0] == asked[1]


def test_hosts_that_are_alike_share_their_question(kept: Path) -> None:
    first = steps("host_limits", host_limits_nofile=7)
    assert first[0]["arguments"]["nofile"] == 7
    count = len(list(kept.glob("*.json")))
    assert steps("host_limits", host_limits_nofile=7, inventory_hostname="node02", ansible_host="10.0.0.2") == first
    assert len(list(kept.glob("*.json"))) == count


@pytest.mark.parametrize(
    ("role", "argument", "one", "other"),
    [
        ("host_limits", "nofile", {"host_limits_nofile": 7}, {"host_limits_nofile": 8}),
        ("host_limits", "max_disruption", {}, {"busbar_max_disruption": "link"}),
        ("mofed", "version", {"mofed_version": "3.2.1"}, {"mofed_version": "3.1.0"}),
        ("mofed", "third_party", {}, {"mofed_third_party": ["lustre"]}),
    ],
)
def test_hosts_that_differ_do_not(role: str, argument: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    asked = [steps(role, **given)[0]["arguments"][argument] for given in (one, other)]
    assert asked[0] != asked[1]


def test_the_gate_is_held_to_what_other_roles_ask_and_hosts_that_are_alike_share_it() -> None:
    asked = {"gate_stages": ["health"]}
    assert "sums" not in steps("gate")[0]["arguments"]
    first = steps("gate", **asked)[0]["arguments"]["sums"]
    assert steps("gate", **asked, inventory_hostname="node02", ansible_host="10.0.0.2")[0]["arguments"]["sums"] == first
    other = steps("gate", **asked, mofed_version="3.2.1")[0]["arguments"]["sums"]
    assert {path for path in first if first[path] != other[path]} == {gate.INTENT}
    given = {**SITE, **asked, "busbar_intent": host_audit.question_of(["gate"], SITE, TEMPLAR).wanted}
    arguments = steps("gate", **asked)[0]["arguments"]
    texts = host_audit.gate_texts(given, TEMPLAR, arguments)
    assert gate_files.sums(texts) == first
    assert json.loads(texts[gate.INTENT])["node"] == "node01"


def test_a_value_that_comes_from_another_variable_is_not_shared_by_its_text() -> None:
    text = trust_as_template("{{ of_site }}")
    asked = [steps("host_limits", host_limits_nofile=text, of_site=number)[0] for number in (7, 8)]
    assert [step["arguments"]["nofile"] for step in asked] == [7, 8]


OTHER_MARKS = "#jinja2: variable_start_string:'[%', variable_end_string:'%]'\n[% other %]"
IN_A_LIST = {"a": ["{% if 1 %}{{ other }}{% endif %}"]}
TEMPLATES = ["{{ other }}", ["{{ other }}"], IN_A_LIST, OTHER_MARKS, [{"a": OTHER_MARKS}]]
PLAIN = [{"a": {"b": [1, "x"], "c": None}}, {"{{ other }}": 1}, "a{b", "a", "", 0, 1.5, None]


@pytest.mark.parametrize("value", [*TEMPLATES, *PLAIN])
def test_what_holds_no_template_is_taken_as_it_is_and_nothing_else(value: Any) -> None:
    def trusted(data: Any) -> Any:
        if isinstance(data, dict):
            return {name: trusted(item) for name, item in data.items()}
        if isinstance(data, list):
            return [trusted(item) for item in data]
        return trust_as_template(data) if data and isinstance(data, str) else data

    value = trusted(value)
    templar = Templar(loader=DataLoader(), variables={"other": trust_as_template("{{ third }}"), "third": 3})
    assert rendered(value, templar) == templar.template(value)
