"""Simulated nodes, and the suite's own modules run on them."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.core import child
from ansible_collections.busbar.fabric.plugins.plugin_utils import profile_files, result_schema, suite

from lab import store
from lab.machine import Machine
from tests.lab import tools

Builder = Callable[[str], Machine]
ROOT = Path(__file__).resolve().parent.parent.parent
# Module -> the role whose it is.
ROLE_OF = {role.module: role.name for role in suite.AUDITED.values()}
MODULES = {
    name: importlib.import_module(f"ansible_collections.busbar.fabric.plugins.modules.{name}") for name in ROLE_OF
}


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """The Python tools of nodes run without an interpreter of their own; Host.run treats them as processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": tools.popen}))
        yield


def few_slots(builders: Mapping[str, Builder]) -> dict[str, Builder]:
    """The same machines with few free GID slots: they are half of a node's files."""

    def few(builder: Builder) -> Builder:
        def build(name: str) -> Machine:
            machine = builder(name)
            for rdma in machine.rdma:
                rdma.gid_slots = min(rdma.gid_slots, 16)
            return machine

        return build

    return {name: few(builder) for name, builder in builders.items()}


@pytest.fixture(scope="session")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab")
    store.create(directory, few_slots(store.STANDARD))
    return directory


@pytest.fixture(scope="module")
def own_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one file: the nodes that its LAB names, name -> builder."""
    directory = tmp_path_factory.mktemp("lab") / "lab"
    store.create(directory, few_slots(request.module.LAB))
    return directory


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Two healthy nodes: node01 hgx-h100 on InfiniBand, node02 hgx-h200 on RoCE. Repaired after each test.

    In a file with a LAB, those nodes, of which the ones with a fault are repaired.
    """
    own = hasattr(request.module, "LAB")
    directory: Path = request.getfixturevalue("own_lab" if own else "_lab")
    yield directory
    if own:
        store.repair_broken(directory)
        return
    for node in store.nodes(directory):
        store.repair(directory, node)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a module's real main() and gives back what it returned."""
    # This machine's log is no place for simulated nodes, and since Python 3.12 it refuses a null character by itself.
    monkeypatch.setattr(AnsibleModule, "log", lambda *_, **__: None)

    def run(name: str, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
        arguments |= {"_ansible_check_mode": check_mode, "_ansible_remote_tmp": str(tmp_path)}
        capsys.readouterr()
        with patch_module_args(arguments), pytest.raises(SystemExit):
            MODULES[name].main()
        answered = dict(json.loads(capsys.readouterr().out))
        # Whatever is wrong with a node: what our own modules say of it is a valid answer.
        result_schema.check(name, answered)
        return answered

    return run


# Each run of a module asks for the same three files; nobody changes what they hold.
read_yaml = cache(yaml.safe_load)


def site_values(lab: Path, node: str) -> dict[str, Any]:
    """What the lab's inventory says of a node."""
    inventory = read_yaml((lab / "inventory" / "hosts.yml").read_text())
    group = read_yaml((lab / "inventory" / "group_vars" / "gpu_nodes.yml").read_text())
    return {**group, **inventory["gpu_nodes"]["hosts"][node]}


@pytest.fixture
def on_node(lab: Path, run_module: Run) -> Callable[..., dict[str, Any]]:
    """Runs a module on a node of the lab with the arguments that its role would give it."""

    def run(name: str, node: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
        values = site_values(lab, node)
        profile = read_yaml((ROOT / "profiles" / f"{values['busbar_platform']}.yml").read_text())
        profile = profile_files.with_planes(profile, values.get("busbar_planes"))
        known = {
            "hardware_root": values["busbar_hardware_root"],
            "system_root": values["busbar_system_root"],
            "profile": profile,
            "profile_name": values["busbar_platform"],
            "fabric": values["busbar_fabric"],
            "max_disruption": values.get("busbar_max_disruption", "none"),
            "address_family": values.get("busbar_roce", {}).get("address_family", "ipv4"),
        }
        # What a variable of the role's own says is the option of that name.
        known |= {key.removeprefix(f"{ROLE_OF[name]}_"): value for key, value in values.items()}
        arguments = {key: value for key, value in known.items() if key in MODULES[name].SPEC}
        # A tool that never answers is not waited for; any other is, however much the machine has to do.
        patience = 0.5 if "smi-hang" in store.status(lab)[node] else 20.0
        if name == "topology_info":
            site = {key: value for key, value in values.items() if key.startswith("busbar_")}
            arguments |= {"cross_checks": ["nvidia_smi_topo"], "tool_timeout": patience, "site": site}
        elif name == "node_health":
            # A record is of one moment, and so would be what the note says of its age.
            arguments |= {"tool_timeout": patience, "record": False}
        elif name == "ofed":
            arguments["repository_top"] = values.get("mofed_repository_url", "file:/nowhere")
        elif name == "netdev_mtu":
            arguments["mtu"] = values.get("busbar_mtu")
        elif name == "multirail":
            arguments["mtu_judged"] = "busbar_mtu" in values
        elif name == "lldp":
            arguments |= {"asked": values.get("busbar_lldp", "auto"), "mtu": values.get("busbar_mtu")}
            arguments["roce"] = values.get("busbar_roce", {})
        elif name == "roce_qos":
            arguments["roce"] = values.get("busbar_roce")
        elif name == "nccl_conf":
            arguments |= {
                "nccl_version": values.get("busbar_nccl_version", ""),
                "dscp": values.get("busbar_roce", {}).get("dscp"),
                "net_plugin": values.get("busbar_nccl_net_plugin"),
            }
        if name in ("nccl_conf", "gpudirect") and "busbar_gpu_initiated" in values:
            arguments["gpu_initiated"] = values["busbar_gpu_initiated"]
        return run_module(name, check_mode, **(arguments | more))

    return run
