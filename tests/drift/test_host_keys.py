# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A server whose key nobody has seen is refused by each subcommand that connects, unless the user's configuration says
otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drift.conftest import hosts_of, write_inventory
from tests.sshd import sshd

Busbar = Callable[..., Any]


@pytest.fixture
def known_hosts(lab: Path, tmp_path: Path) -> Iterator[Path]:
    """The lab's first node, behind ssh."""
    (top := tmp_path / "ssh").mkdir()
    with sshd(top) as reached:
        # Without a master connection, whose socket has no room below the folder of a test that is one of many at once.
        reached = {**reached, "ansible_ssh_args": "-C"}
        write_inventory(lab / "inventory", {"node01": {**hosts_of(lab)["node01"], **reached}})
        yield top / "known_hosts"


def refused(host: dict[str, Any]) -> bool:
    have = next(one["have"] for one in host["findings"] if not one["because"])
    # On a busy machine ssh has ended before Ansible has sent its data, and Ansible tells that instead.
    return "Host key verification failed" in have or "Data could not be sent" in have


def test_no_subcommand_takes_an_unknown_host_key(lab: Path, known_hosts: Path, busbar: Busbar, tmp_path: Path) -> None:
    night = busbar("drift", "-i", lab / "inventory", "--json", tmp_path / "json")
    assert night.rc == 3
    host = json.loads((tmp_path / "json").read_text())["hosts"]["node01"]
    assert host["class"] == "unreachable"
    assert refused(host)

    first = busbar("check", "-i", lab / "inventory", "--json", tmp_path / "first")
    assert first.rc == 3
    assert refused(json.loads((tmp_path / "first").read_text())["hosts"]["node01"])
    assert known_hosts.read_text() == ""


def test_the_users_own_configuration_decides(lab: Path, known_hosts: Path, busbar: Busbar, tmp_path: Path) -> None:
    (tmp_path / "own.cfg").write_text("[defaults]\nhost_key_checking = False\n")
    own = {"ANSIBLE_CONFIG": "own.cfg"}
    assert busbar("drift", "-i", lab / "inventory", "--json", tmp_path / "json", **own).rc == 2
    assert json.loads((tmp_path / "json").read_text())["hosts"]["node01"]["class"] == "drift"
    first = busbar("check", "-i", lab / "inventory", "--write", "new", **own)
    assert (tmp_path / "new/hosts.yml").exists(), first.err
