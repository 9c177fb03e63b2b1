from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from lab import store
from tests import series
from tests.site.conftest import ROOT, recap

Play = Callable[..., Any]


def test_a_fabric_that_is_asked_for_by_name_and_that_nobody_may_sweep_is_unknown(lab: Path, play: Play) -> None:
    hosts = ("-e", '{"busbar_fabric_hosts": ["node01"]}')
    run = play("-i", lab / "inventory", "--limit", "node02", "--tags", "ib_fabric", "--check", *hosts)
    assert "FABRIC: not swept: --limit leaves out node01" in run.out
    assert (run.rc, [row[1:5] for row in run.rows]) == (2, [["unknown", "ib_fabric.sweep", "on", "node02"]])


def write_inventory(folder: Path, hosts: dict[str, dict[str, object]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}))
    return folder


def test_nobody_to_work_on_is_an_error_with_a_sentence(untouched: Path, play: Play) -> None:
    run = play("-i", untouched / "inventory", "--limit", "")
    assert run.rc != 0
    assert "takes an empty limit for all hosts" in " ".join(run.out.split())
    assert "Traceback" not in run.out
    assert not (untouched / "node01/sys/etc/nccl.conf").exists()


def test_a_wrong_inventory_stops_before_any_host_is_touched(lab: Path, play: Play) -> None:
    hosts = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())["gpu_nodes"]["hosts"]
    hosts["node02"]["busbar_platform"] = "hgx-h10"
    write_inventory(lab / "inventory", hosts)
    run = play("-i", lab / "inventory", "--tags", "platform,nccl_conf")
    assert run.rc != 0
    assert "did you mean hgx-h100?" in " ".join(run.out.split())
    assert "Traceback" not in run.out
    assert not (lab / "node01/sys/etc/nccl.conf").exists()


BY_HAND = ["site.yml", "playbooks/drift.yml --check", "playbooks/verify.yml", "playbooks/benchmark.yml"]


@pytest.mark.parametrize("arguments", series.some(BY_HAND, 1))
def test_a_mistake_of_many_hosts_is_one_message(play: Play, tmp_path: Path, arguments: str) -> None:
    playbook, *more = arguments.split()
    hosts: dict[str, dict[str, object]] = {f"node{i:03}": {"busbar_fabric": "infiniband"} for i in range(1, 61)}
    hosts["node007"]["busbar_mtu"] = "9000"
    inventory = write_inventory(tmp_path / "inventory", hosts)
    (inventory / "group_vars").mkdir()
    wrong = {"busbar_platform": "hgx-h100", "busbar_max_disruptoin": "link", "ansible_connection": "local"}
    (inventory / "group_vars" / "gpu_nodes.yml").write_text(yaml.safe_dump(wrong))
    run = play("-i", inventory, *more, playbook=playbook)
    assert run.rc == 2
    said = [line for line in run.out.splitlines() if not line.startswith(("ok:", "node"))]
    assert len(said) < 60, run.out
    assert "node[001-060]: busbar_max_disruptoin is not a variable of this suite; did you mean" in run.out
    assert "node007: busbar_mtu is '9000' (str), expected int: write it in YAML" in run.out


@pytest.mark.parametrize(
    ("arguments", "check", "tried"),
    series.some(
        [
            (("--tags", "host_limits"), "node_lock", 0),
            ((), "platform", 0),
            # What is heard of it in one question is no task's, and so is not said twice.
            (("--tags", "host_limits", "-e", '{"busbar_audit_first": false}'), "node_lock", 1),
        ],
        1,
    ),
)
def test_an_unreachable_host_is_tried_once_and_counts_as_one_without_python_and_the_others_are_judged(
    lab: Path, play: Play, arguments: tuple[str, ...], check: str, tried: int
) -> None:
    hosts = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())["gpu_nodes"]["hosts"]
    # A port on loopback that nobody listens on.
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9, "busbar_platform": "hgx-h100"}
    hosts["node03"] = {**gone, "busbar_fabric": "infiniband"}
    hosts["node02"]["ansible_python_interpreter"] = "/no/such/python"
    write_inventory(lab / "inventory", hosts)
    run = play("-i", lab / "inventory", *arguments)
    assert run.rc != 0
    assert "VERDICT INCOMPLETE: 1 of 3 hosts ok" in run.verdict
    assert "failed:" in run.verdict
    assert f"run.{check}" in run.verdict
    assert "unreachable" in run.verdict
    assert run.out.count("UNREACHABLE!") == tried


@pytest.mark.long
def test_containers_get_their_files(lab: Path, play: Play) -> None:
    arguments = ("-i", lab / "inventory", "--tags", "nccl_conf")
    extra = ("-e", '{"nccl_conf_containers": ["enroot", "docker", "kubernetes"]}')
    assert play(*arguments, *extra).rc == 0
    system = lab / "node01/sys"
    fstab = (system / "etc/enroot/mounts.d/50-busbar-nccl-conf.fstab").read_text()
    assert "/etc/nccl.conf /etc/nccl.conf none x-create=file,bind,ro" in fstab
    assert "--volume=/etc/nccl.conf:/etc/nccl.conf:ro" in (system / "etc/busbar/containers/docker-run.args").read_text()
    pod = yaml.safe_load((system / "etc/busbar/containers/kubernetes-pod.yml").read_text())
    assert pod["spec"]["volumes"][0]["hostPath"] == {"path": "/etc/nccl.conf", "type": "File"}
    assert recap(play(*arguments, *extra).out, "node01")["changed"] == 0


@pytest.mark.parametrize("name", ["example-infiniband", "example-roce"])
def test_the_example_inventories_are_valid(name: str) -> None:
    found = InventoryManager(DataLoader(), [str(ROOT / "inventories" / name)])
    assert len(found.list_hosts("gpu_nodes")) >= 8


def test_a_node_that_does_not_come_back_stops_the_reboots(lab: Path, play: Play) -> None:
    for node in ("node01", "node02"):
        store.break_(lab, node, "iommu-translated")
    path = lab / "findings.json"
    settings = json.dumps({"busbar_findings_path": str(path), "busbar_max_disruption": "reboot"})

    def checks() -> dict[str, set[str]]:
        hosts = json.loads(path.read_text())["hosts"]
        return {
            name: {f["check"] for f in host["findings"] if f["check"].startswith("reboot.")}
            for name, host in hosts.items()
        }

    # Nothing is rebooted in check mode, nor without leave, and nothing is said twice.
    few = ("-i", lab / "inventory", "--tags", "iommu,reboot,drain")
    for arguments in (["-e", settings, "--check"], ["-e", settings.replace('"reboot"', '"driver"')]):
        assert play(*few, *arguments).rc == 2
        assert checks() == {"node01": set(), "node02": set()}
    # A node of the lab is the control node, which Ansible refuses to reboot: the first is lost, the second spared.
    run = play(*few, "-e", settings)
    assert run.rc == 2
    # Whose turn is first is Ansible's.
    assert sorted(map(list, checks().values())) == [["reboot.returned"], ["reboot.rollout"]], run.out
    assert "not rebooted: node01 did not come back as it should" in " ".join(run.verdict.split())


@pytest.mark.long
def test_a_role_in_ones_own_playbook_fails_where_it_finds_something(lab: Path, play: Play, tmp_path: Path) -> None:
    play("-i", lab / "inventory", "--tags", "mtu", "--limit", "node02")
    store.break_(lab, "node01", "nvlink-down")
    store.break_(lab, "node02", "mtu-1500")
    roles = [f"busbar.fabric.{name}" for name in ("platform", "mtu", "lldp", "drain")]
    (tmp_path / "own.yml").write_text(yaml.safe_dump([{"hosts": "gpu_nodes", "gather_facts": False, "roles": roles}]))
    own = ("-i", lab / "inventory")
    run = play(*own, "--check", playbook=str(tmp_path / "own.yml"))
    assert (run.rc, recap(run.out, "node01")["failed"], recap(run.out, "node02")["failed"]) == (2, 1, 1)
    assert "platform.nvlinks" in run.verdict
    run = play(*own, playbook=str(tmp_path / "own.yml"))
    # What a role repairs is no failure, and a host that fails costs no other one its roles.
    assert (run.rc, recap(run.out, "node01")["failed"], recap(run.out, "node02")["failed"]) == (2, 1, 0)
    run = play(*own, "-e", "busbar_role_verdict=false", playbook=str(tmp_path / "own.yml"))
    assert (run.rc, "VERDICT" in run.out) == (0, False)
