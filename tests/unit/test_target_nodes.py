from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from ansible import context
from ansible.errors import AnsibleFilterError
from ansible.utils.context_objects import CLIArgs
from ansible_collections.busbar.fabric.plugins.filter.target_nodes import target_nodes
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core

from busbar import ROOT
from busbar.drift.inventory import InventoryError, require_protected

GROUPS = {"all": ["a", "b", "s"], "gpu_nodes": ["a", "b"], "storage": ["s"]}


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text("---\n")
    return str(path)


@pytest.mark.parametrize("limit", [None, "a", "all:!s", "gpu_nodes"])
def test_the_group_is_targeted(inventory: str, limit: str | None) -> None:
    assert target_nodes(GROUPS, ["a"], limit, [inventory]) == "gpu_nodes"


@pytest.mark.parametrize(
    ("playbook", "tags", "meant"),
    [
        ("site.yml", ("roce_qoss",), "roce_qos"),
        ("playbooks/drift.yml", ("all", "mtuu"), "mtu"),
        ("busbar.fabric.site", ("gpus",), "known: "),
        ("site.yml", ("mtu", "always"), ""),
        ("/srv/own.yml", ("roce_qoss",), ""),
    ],
)
@pytest.mark.parametrize("option", ["tags", "skip_tags"])
def test_a_tag_that_no_role_has_is_refused_in_our_playbooks(
    inventory: str, playbook: str, tags: tuple[str, ...], meant: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"args": (playbook,), option: tags}))
    with pytest.raises(AnsibleFilterError, match=meant) if meant else contextlib.nullcontext():
        target_nodes(GROUPS, ["a"], None, [inventory])


def test_a_host_list_is_an_inventory_too() -> None:
    assert target_nodes(GROUPS, ["a"], None, ["a,b,"]) == "gpu_nodes"


def test_a_missing_inventory_is_named() -> None:
    with pytest.raises(AnsibleFilterError, match=r"inventory /no/such does not exist"):
        target_nodes({"all": []}, [], None, ["/no/such"])


@pytest.mark.parametrize(
    ("groups", "message"), [({"all": ["a"]}, "has no group gpu_nodes"), ({"gpu_nodes": []}, "gpu_nodes .* is empty")]
)
def test_nobody_to_target_is_an_error(inventory: str, groups: dict[str, list[str]], message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        target_nodes(groups, [], None, [inventory])


@pytest.mark.parametrize("limit", ["", " ", ":", ","])
def test_an_empty_limit_never_means_all(inventory: str, limit: str) -> None:
    with pytest.raises(AnsibleFilterError, match="takes an empty limit for all hosts"):
        target_nodes(GROUPS, ["a", "b", "s"], limit, [inventory])


def test_a_limit_file_is_read(inventory: str, tmp_path: Path) -> None:
    retry = tmp_path / "site.retry"
    retry.write_text("a\n")
    assert target_nodes(GROUPS, ["a"], f"@{retry}", [inventory]) == "gpu_nodes"
    retry.write_text("\n# nobody failed\n")
    with pytest.raises(AnsibleFilterError, match="is empty"):
        target_nodes(GROUPS, ["a", "b", "s"], f"@{retry}", [inventory])
    with pytest.raises(AnsibleFilterError, match="cannot be read"):
        target_nodes(GROUPS, ["a"], f"@{tmp_path}/none", [inventory])


def test_a_limit_outside_the_group_is_an_error(inventory: str) -> None:
    with pytest.raises(AnsibleFilterError, match="'s' leaves no host of the group gpu_nodes"):
        target_nodes(GROUPS, ["s"], "s", [inventory])


@pytest.mark.parametrize("version", ["2.18.19", "2.23.0"])
def test_another_ansible_core_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(ansible_core.unsupported, "__defaults__", (version,))
    with pytest.raises(AnsibleFilterError, match=f"ansible-core {version} is not supported: .* nothing was done"):
        target_nodes({}, [], None, ["/no/such"])


@pytest.mark.parametrize("syntax", [True, False])
def test_a_syntax_check_needs_no_inventory_and_a_run_does(monkeypatch: pytest.MonkeyPatch, syntax: bool) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"syntax": syntax}))
    if syntax:
        assert target_nodes({"all": []}, [], "", ["/no/such"]) == "gpu_nodes"
    else:
        with pytest.raises(AnsibleFilterError, match="does not exist"):
            target_nodes({"all": []}, [], "", ["/no/such"])


@pytest.mark.parametrize(
    ("given", "modes", "refused"),
    [
        ("site", {"site": 0o755}, False),
        ("site", {"site": 0o775}, False),
        ("site", {"site": 0o777}, True),
        ("site", {"site": 0o1777}, True),
        ("site/hosts.yml", {"site": 0o1777}, True),
        ("site/hosts.yml", {"site": 0o755, "site/hosts.yml": 0o666}, True),
        ("site", {".": 0o1777, "site": 0o755}, False),
        ("site", {".": 0o777, "site": 0o755}, True),
        ("link", {"site": 0o777}, True),
        ("absent", {}, True),
    ],
)
def test_an_inventory_that_everybody_can_write_is_refused(
    tmp_path: Path, given: str, modes: dict[str, int], refused: bool
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/hosts.yml").write_text("gpu_nodes:\n")
    (tmp_path / "link").symlink_to("site")
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    with pytest.raises(InventoryError) if refused else contextlib.nullcontext():
        require_protected([tmp_path / given])
