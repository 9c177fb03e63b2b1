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


EMPTY_LIMIT = "takes an empty limit for all hosts"


@pytest.mark.parametrize(
    ("groups", "hosts", "limit", "path", "message"),
    [
        *((GROUPS, "a", limit, "{inventory}", "") for limit in (None, "a", "all:!s", "gpu_nodes", "@{retry}")),
        # A list of hosts is an inventory, too.
        (GROUPS, "a", None, "a,b,", ""),
        ({"all": []}, "", None, "/no/such", "inventory /no/such does not exist"),
        ({"all": ["a"]}, "", None, "{inventory}", "has no group gpu_nodes"),
        ({"all": []}, "", None, "", "none: name one with -i"),
        ({"gpu_nodes": []}, "", None, "{inventory}", "gpu_nodes .* is empty"),
        *((GROUPS, "abs", limit, "{inventory}", EMPTY_LIMIT) for limit in ("", " ", ":", ",")),
        (GROUPS, "abs", "@{failed}", "{inventory}", "is empty"),
        (GROUPS, "a", "@{inventory}/none", "{inventory}", "cannot be read"),
        (GROUPS, "s", "s", "{inventory}", "'s' leaves no host of the group gpu_nodes"),
    ],
)
def test_the_group_is_targeted_or_there_is_an_error(
    inventory: str, tmp_path: Path, groups: dict[str, list[str]], hosts: str, limit: str | None, path: str, message: str
) -> None:
    names = {"inventory": inventory, "retry": tmp_path / "retry", "failed": tmp_path / "failed"}
    (tmp_path / "retry").write_text("a\n")
    (tmp_path / "failed").write_text("\n# nobody failed\n")
    with pytest.raises(AnsibleFilterError, match=message) if message else contextlib.nullcontext():
        found = target_nodes(groups, [*hosts], limit and limit.format(**names), [path.format(**names)] if path else [])
        assert (found, message) == ("gpu_nodes", "")


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


@pytest.mark.parametrize("version", ["2.18.19", "2.23.0"])
def test_another_ansible_core_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(ansible_core.unsupported, "__defaults__", (version,))
    with pytest.raises(AnsibleFilterError, match=f"ansible-core {version} is not supported: .* nothing was done"):
        target_nodes({}, [], None, ["/no/such"])


def test_a_syntax_check_needs_no_inventory_and_a_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"syntax": True}))
    assert target_nodes({"all": []}, [], "", ["/no/such"]) == "gpu_nodes"
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"syntax": False}))
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
