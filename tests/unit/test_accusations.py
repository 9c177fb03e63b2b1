# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import accusations

INVENTORY = {"node01", "node02"}


def finding(check: str = "netdev_mtu.live", state: str = "drift", **more: Any) -> Finding:
    given = {"subject": "0000:1b:00.0 ens1", "severity": "major", "want": "9000", "have": "1500", "source": "/sys"}
    return Finding(check=check, state=state, why="why", fix="do", **{**given, **more})


def write(path: Path, hosts: Any, ended: str = "2026-11-21T02:00:07Z") -> Path:
    path.write_text(json.dumps({"run": {"ended": ended}, "hosts": hosts}))
    return path


def host(*found: Finding, **more: Any) -> dict[str, Any]:
    return {"findings": [one.to_dict() for one in found], **more}


def test_of_two_files_the_later_word_counts_and_what_is_ok_accuses_nobody(tmp_path: Path) -> None:
    boot = "5d4f1c9e-0000-4000-8000-000000000001"
    new = write(tmp_path / "new", {"node01": host(finding(have="1400"), boot_id=boot)}, "2026-11-22T02:00:00Z")
    old = write(tmp_path / "old", {"node01": host(finding(), finding("nccl_conf.file")), "node02": host()})
    found = accusations.read([new, old], INVENTORY)
    said = [(one.finding.check, one.finding.have) for one in found.accusations]
    assert said == [("netdev_mtu.live", "1400"), ("nccl_conf.file", "1500")]
    assert (found.hosts, found.accusations[0].boot_id, found.accusations[0].at) == (("node01",), boot, 1795312800.0)


@pytest.mark.parametrize("name", ["../../etc/passwd", "all", "node0*", "{{ lookup('pipe', 'id') }}", "a\x1b[31m", ""])
def test_a_name_that_the_inventory_does_not_have_is_no_host_pattern_or_path(tmp_path: Path, name: str) -> None:
    found = accusations.read([write(tmp_path / "f", {name: host(finding()), "node01": host(finding())})], INVENTORY)
    assert (found.hosts, found.strangers) == (("node01",), (name,))


@pytest.mark.parametrize(
    "said",
    [
        12,
        {"findings": "many"},
        {"findings": [{"check": "x"}]},
        {"findings": [{**finding().to_dict(), "id": "other"}]},
        {"findings": [{**finding().to_dict(), "severity": 3}]},
        {"findings": [finding().to_dict()], "boot_id": ["x"]},
        {"findings": [finding().to_dict()] * 2001},
    ],
)
def test_what_is_invalid_costs_that_host_and_no_other(tmp_path: Path, said: Any) -> None:
    found = accusations.read([write(tmp_path / "f", {"node01": said, "node02": host(finding())})], INVENTORY)
    assert ([one.host for one in found.accusations], list(found.wrong)) == (["node02"], ["node01"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[]", "not a dictionary"),
        ('{"hosts": 3}', "has no hosts"),
        ('{"hosts": {"a": {}, "a": {}}}', "a key twice"),
        ('{"hosts": {"a": NaN}}', "not a number"),
        ("[" * 100_000, "nested"),
        ('{"findings": [], "jobs": []}', "busbar drift"),
        ('{"tests": [], "nodes": 1}', "has no hosts"),
        ("\udcff", "utf-8"),
    ],
)
def test_what_is_no_file_of_findings_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ParseError, match=said) as error:
        accusations.read([path], INVENTORY)
    assert str(path) in str(error.value)


def test_a_huge_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(accusations.LIMIT + 1)
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("huge", "larger than 256 MiB"), ("pipe", "not a regular file")):
        with pytest.raises(ParseError, match=said):
            accusations.read([tmp_path / name], INVENTORY)
