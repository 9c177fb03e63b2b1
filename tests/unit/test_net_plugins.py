# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's network plugins: what names them, which variables have no effect under them, what GPU-initiated jobs need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import jobs_network, net_plugins
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.environment import (
    _UNITS,
    EVERYBODY,
    Environment,
    Setting,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.library import Library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint import lint
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_plugin
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Job

from tests.trees import put_all

from .conftest import Edit, built_in, machine

HPCX = "/opt/hpcx-v2.25/nccl_spectrum-x_plugin/lib/libnccl-net-spcx.so"
GIB = "/usr/local/gib/lib64/libnccl-net.so"
ROCE, IB = machine("Ethernet"), machine("InfiniBand")
NEW = Library("/usr/lib/libnccl.so.2", (2, 28, 7), frozenset())
OLD = Library("/venv/libnccl.so.2", (2, 27, 7), frozenset())


LIBRARIES = {
    "spcx": "spcx",
    "libnccl-net-ofi.so": "ofi",
    HPCX: "spcx",
    GIB: "gib",
    "/opt/microsoft/mrc/mrc-nccl-plugin/libnccl-net-mrc.so": "mrc",
    "/opt/amazon/ofi-nccl/lib/libnccl-net.so": "ofi",
    "libnccl-net.so": None,
    "site": None,
}
NETWORKS = {"IB": None, "Socket": None, "IBext_v11": "ibext", "AWS Libfabric": "ofi", "SPCX": "spcx", "gIB": "gib"}


def test_what_names_a_plugin() -> None:
    for find, names in ((net_plugins.of_library, LIBRARIES), (net_plugins.of_network, NETWORKS)):
        found = {text: find(text) for text in names}
        assert {text: plugin and plugin.name for text, plugin in found.items()} == names


@pytest.fixture
def host(tmp_path: Path) -> Host:
    put_all(tmp_path, {HPCX: "", GIB: ""})
    (tmp_path / "opt/hpcx").symlink_to("hpcx-v2.25")
    return Host(str(tmp_path), str(tmp_path))


def test_plugins_in_the_usual_places(host: Host) -> None:
    files = net_plugins.find(host, [])
    assert len(files) == 2
    names = ("spcx", "libnccl-net-spcx.so", "gib", "ofi")
    assert [net_plugins.among(entry, files) is not None for entry in names] == [True, True, True, False]


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("NCCL_NET_PLUGIN=ofi\nNCCL_IB_TC=106\n", None, ["plugin_variable"]),
        ("NCCL_NET_PLUGIN=ibext\nNCCL_IB_TC=106\nNCCL_IB_DISABLE=1\n", None, ["plugin_variable"]),
        ("NCCL_NET=AWS Libfabric\nNCCL_IB_TC=106\n", None, ["plugin_variable"]),
        ("NCCL_NET_PLUGIN=ofi\nNCCL_NET=IB\nNCCL_IB_TC=106\n", None, []),
        ("NCCL_NET_PLUGIN=spcx\nNCCL_IB_TC=106\n", (HPCX,), []),
        ("NCCL_NET_PLUGIN=spcx\n", (GIB,), ["plugin_library"]),
        ("NCCL_NET_PLUGIN=/opt/site/libnccl-net.so\n", (), []),
    ],
)
def test_lines_that_a_plugin_does_not_read(text: str, files: Sequence[str] | None, expected: list[str]) -> None:
    found = lint(text, Use(version=(2, 27, 7), plugin_files=files), "nccl.conf")
    assert [one.check.rpartition(".")[2] for one in found] == expected


@pytest.mark.parametrize(
    ("declared", "of_node", "expected"),
    [
        ("spcx", True, ["ok"]),
        (HPCX, False, ["ok"]),
        ("ofi", True, ["unknown"]),
        ("ofi", False, []),
        (HPCX.replace("2.25", "2.26"), True, ["drift"]),
        ("none", True, []),
    ],
)
def test_the_library_of_the_declared_plugin(host: Host, declared: str, of_node: bool, expected: list[str]) -> None:
    found = jobs_network.judge_plugin(host, declared, net_plugins.find(host, []), of_node)
    assert [one.state for one in found] == expected


# What slurmd.service sets reaches its prologs, and no job.
SLURMD = _UNITS["slurmd.service"]


def everywhere(name: str, value: str | None, reach: str = EVERYBODY, conditional: bool = False) -> Setting:
    return Setting(name, value, "/etc/environment", 1, reach, conditional)


def initiated(
    kinds: Sequence[str],
    *settings: Setting,
    libraries: Sequence[Library] = (NEW,),
    topology: Topology = ROCE,
    dscp: int | None = 26,
    expected: dict[str, str] | None = None,
) -> list[Finding]:
    rails = match(topology, built_in("hgx-h100", "ethernet" if topology is ROCE else "infiniband"))
    environment = Environment(settings=settings)
    return jobs_network.judge_initiated(kinds, libraries, None, expected or {}, environment, rails, dscp)


def bad(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(one.check.partition(".")[2], one.state) for one in found if not one.ok]


def twins() -> Topology:
    """The second rail is the second function of the first one's NIC."""
    moved, twin = ROCE.nics[1].pci, ROCE.nics[0].pci[:-1] + "1"
    paths = {(gpu, twin if pci == moved else pci): path for (gpu, pci), path in ROCE.paths.items()}
    return replace(Edit.nic(ROCE, 1, pci=twin), paths=paths)


def test_what_gin_needs() -> None:
    assert initiated([]) == []
    assert bad(initiated(["gin"])) == []
    assert bad(initiated(["gin"], libraries=(NEW, OLD))) == [("gin", "drift")]
    for name in ("NCCL_CROSS_NIC", "NCCL_CUMEM_ENABLE"):
        assert bad(initiated(["gin"], everywhere(name, "0"))) == bad(initiated(["gin"], expected={name: "0"}))
        assert bad(initiated(["gin"], everywhere(name, "0"))) == [("gin", "drift")]
    assert bad(initiated(["gin"], everywhere("NCCL_CROSS_NIC", "2"))) == []
    # What only running the file would show.
    assert bad(initiated(["gin"], everywhere("NCCL_CROSS_NIC", None))) == [("gin", "unknown")]
    assert bad(initiated(["gin"], everywhere("NCCL_IB_MERGE_NICS", None))) == []
    assert bad(initiated(["gin"], everywhere("NCCL_IB_MERGE_NICS", None), topology=twins())) == [("gin", "drift")]
    assert bad(initiated(["gin"], topology=twins())) == [("gin", "drift")]
    assert bad(initiated(["gin"], topology=twins(), expected={"NCCL_IB_MERGE_NICS": "0"})) == []


def test_the_traffic_class_of_nvshmem() -> None:
    name = jobs_network.CLASS
    for kind in ("nvshmem", "deepep"):
        assert bad(initiated([kind])) == [("traffic_class", "unknown")]
        assert bad(initiated([kind], everywhere(name, "104"))) == bad(initiated([kind], everywhere(name, "0x6a"))) == []
        assert bad(initiated([kind], everywhere(name, "96"))) == [("traffic_class", "drift")]
        unclear = [everywhere(name, "104"), everywhere(name, None)]
        assert bad(initiated([kind], *unclear)) == [("traffic_class", "unknown")]
        assert bad(initiated([kind], everywhere(name, "104", "jobs of ann"))) == [("traffic_class", "unknown")]
        assert bad(initiated([kind], everywhere(name, "104", conditional=True))) == [("traffic_class", "unknown")]
        assert bad(initiated([kind], everywhere(name, "104", SLURMD))) == [("traffic_class", "unknown")]
        assert bad(initiated([kind], everywhere(name, "104")._replace(raw=True))) == [("traffic_class", "unknown")]
        assert initiated([kind], topology=IB, dscp=None) == []


HOSTS = ("n1", "n2")
JOB = Job(
    name="a job", scope="pair", hosts=HOSTS, collective="all_reduce", kind="", names=HOSTS, addresses=HOSTS, per_node=8
)


@pytest.mark.parametrize(
    ("declared", "networks", "state"),
    [
        ("spcx", ["SPCX"], "ok"),
        ("spcx", ["IB"], "drift"),
        ("spcx,ibext", ["IBext_v11"], "ok"),
        ("site", ["Site"], "ok"),
        ("site", ["IB"], "drift"),
        ("none", ["IB"], "ok"),
        ("none", ["Libfabric"], "drift"),
        ("spcx", [], "unknown"),
    ],
)
def test_a_benchmark_by_another_plugin_than_the_jobs(declared: str, networks: list[str], state: str) -> None:
    transport = {"proven": bool(networks), "networks": networks}
    assert [one.state for one in cluster_plugin.judge(JOB, transport, declared, None)] == [state]
    assert [*cluster_plugin.judge(JOB, transport, "", None)] == []
    assert [*cluster_plugin.judge(JOB, {"proven": True, "networks": ["NVLink"]}, declared, None)] == []
