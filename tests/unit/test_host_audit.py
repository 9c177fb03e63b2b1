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
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.busbar.fabric.plugins.action import host_audit, intent

SITE = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "inventory_hostname": "node01"}


def texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, (dict, list)):
        for item in data.values() if isinstance(data, dict) else data:
            yield from texts(item)


def steps(role: str, **variables: Any) -> list[dict[str, Any]]:
    given = {**SITE, **variables}
    action = object.__new__(host_audit.ActionModule)
    action._templar = Templar(loader=DataLoader(), variables=given)
    given["busbar_intent"] = intent.of_host(given, action._templar)
    found: list[dict[str, Any]] = action._steps([role], given)
    return found


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("role", host_audit._ASKED)
def test_every_variable_of_a_question_decides_who_shares_it(role: str) -> None:
    asked = host_audit._ASKED[role]
    environment = jinja2.Environment()
    environment.filters = dict.fromkeys(("default", "flatten", "length"), str)
    for text in texts([asked.arguments, asked.variables, asked.loop]):
        assert jinja2.meta.find_undeclared_variables(environment.parse(text)) <= asked.words


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


def test_a_value_that_comes_from_another_variable_is_not_shared_by_its_text() -> None:
    text = trust_as_template("{{ of_site }}")
    asked = [steps("host_limits", host_limits_nofile=text, of_site=number)[0] for number in (7, 8)]
    assert [step["arguments"]["nofile"] for step in asked] == [7, 8]


def test_what_is_asked_can_be_sent() -> None:
    for role in host_audit._ASKED:
        given = steps(role)
        assert json.loads(json.dumps(given)) == given
