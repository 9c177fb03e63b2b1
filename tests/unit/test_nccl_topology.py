# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's topology XML, dumped or handed out by a cloud, and where it differs from sysfs."""

from contextlib import suppress
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import RdmaDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import topology as nccl_topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.topology import NcclGpu, NcclNet
from hypothesis import given, settings
from hypothesis import strategies as st

A, B, C = "0000:1b:00.0", "0000:1d:00.0", "0000:9b:00.0"
DUMP = """<system version="1">
  <cpu host_hash="0x1" numaid="0" arch="x86_64">
    <pci busid="0000:19:00.0" class="0x060400" vendor="0x1000" device="0xc030">
      <pci busid="0000:1b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="fffffff:ff:ff.0" count="12" tclass="0x068000"/>
          <nvlink target="0000:07:00.0" count="6" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:1c:00.0" class="0x020000">
        <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic>
      </pci>
      <pci busid="0000:1a:00.0" class="0x060400">
        <pci busid="0000:1d:00.0" class="0x030200"><gpu dev="1" rank="1" gdr="0"/></pci>
      </pci>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000" gdr="0"/></nic>
  </cpu>
  <cpu host_hash="0x1" numaid="1" arch="x86_64">
    <pci busid="0000:9b:00.0" class="0x030200"><gpu dev="2" rank="2" gdr="1"/></pci>
    <pci busid="0000:9c:00.0" class="0x020700"><nic><net name="mlx5_1" dev="1" speed="400000" gdr="1"/></nic></pci>
  </cpu>
</system>
"""
CLOUD = """<system version="1">
  <cpu numaid="0">
    <pci busid="ffff:ff:01.0" class="0x060400">
      <pci busid="0001:00:00.0" class="0x030200" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_width="16"/>
    </pci>
  </cpu>
</system>
"""
NICS = {"mlx5_0": "0000:1c:00.0", "mlx5_1": "0000:9c:00.0"}


def device(address: str) -> PciDevice:
    return PciDevice(address, 0x030200, 0x10DE, 0x2330, 0, (), None, None, None, None, None, None, "/sys/devices")


def gpu(index: int, pci: str, nvlinks: "int | None") -> Gpu:
    return Gpu(pci, index, device(pci), "NVIDIA H100", None, True, nvlinks, nvlinks, None, None, ())


def nic(name: str, role: str = "compute") -> Nic:
    rdma = RdmaDevice(name, NICS[name], None, None, None, None, None, (), "/sys/class/infiniband/" + name)
    return Nic(NICS[name], device(NICS[name]), role, "PIX to GPU0", rdma, ())


TOPOLOGY = Topology(
    gpus=(gpu(0, A, 18), gpu(1, B, 0), gpu(2, C, None)),
    nics=(nic("mlx5_0"), nic("mlx5_1")),
    paths={
        (A, NICS["mlx5_0"]): "PIX",
        (B, NICS["mlx5_0"]): "PXB",
        (C, NICS["mlx5_0"]): "SYS",
        (A, NICS["mlx5_1"]): "SYS",
        (B, NICS["mlx5_1"]): "SYS",
        (C, NICS["mlx5_1"]): "NODE",
    },
    driver=None,
    routes=(),
    virtualization=Virtualization(False, "none", "/proc/cpuinfo"),
    software_rdma=(),
    problems=(),
)


def test_a_dump_gives_gpus_nets_and_paths() -> None:
    nccl = nccl_topology.parse(DUMP)
    assert nccl.gpus == (NcclGpu(A, 18), NcclGpu(B, 0), NcclGpu(C, 0))
    assert set(nccl.nets) == {
        NcclNet("mlx5_0", NICS["mlx5_0"]),
        NcclNet("mlx5_1", NICS["mlx5_1"]),
        NcclNet("eth0", None),
    }
    assert nccl.paths == {
        (A, "mlx5_0"): "PIX",
        (B, "mlx5_0"): "PXB",
        (C, "mlx5_0"): "SYS",
        (A, "mlx5_1"): "SYS",
        (B, "mlx5_1"): "SYS",
        (C, "mlx5_1"): "PHB",
        (A, "eth0"): "PHB",
        (B, "eth0"): "PHB",
        (C, "eth0"): "SYS",
    }


def test_a_cloud_file_gives_addresses_and_nothing_that_it_does_not_say() -> None:
    nccl = nccl_topology.parse(CLOUD)
    assert nccl.gpus == (NcclGpu("0001:00:00.0", None),)
    assert nccl.nets == (NcclNet(None, "0101:00:00.0"),)
    assert nccl.paths == {("0001:00:00.0", "0101:00:00.0"): "PIX"}


def test_two_switches_below_one_cpu_meet_at_the_host_bridge() -> None:
    text = CLOUD.replace(
        'width="16"/>\n      <pci busid="0101', 'width="16"/></pci><pci class="0x060400"><pci busid="0101'
    )
    assert nccl_topology.parse(text).paths == {("0001:00:00.0", "0101:00:00.0"): "PHB"}


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "not XML"),
        (DUMP[:300], "not XML"),
        ('<!DOCTYPE system [<!ENTITY a "b">]>' + DUMP, "<!ENTITY"),
        ("<graphs/>", "<graphs>, expected <system>"),
        ('<system version="1"/>', "0 machines"),
        (DUMP.replace('host_hash="0x1"', 'host_hash="0x2"', 1), "2 machines"),
        (DUMP.replace('busid="0000:1b:00.0"', ""), "PCI address"),
        (DUMP.replace('busid="0000:9c:00.0"', 'busid="somewhere"'), "'somewhere'"),
        (DUMP.replace('count="12"', 'count="all"'), '<nvlink count="all">, expected a number'),
        (DUMP.replace('count="12"', 'count=""'), "expected a number"),
        (DUMP.replace('name="eth0"', ""), "neither a name nor a PCI device"),
        ("<system><cpu>" + "<pci>" * 300 + "</pci>" * 300 + "</cpu></system>", "nested more than"),
    ],
)
def test_what_is_not_one_machine_is_refused(text: str, quoted: str) -> None:
    with pytest.raises(ParseError, match=quoted):
        nccl_topology.parse(text)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([DUMP, CLOUD]), st.data())
def test_any_text_and_any_damage_gives_a_picture_or_a_parse_error(good: str, data: st.DataObject) -> None:
    tokens = good.split('"')
    where = data.draw(st.integers(0, len(tokens) - 1))
    put_in = data.draw(st.text(max_size=20) | st.sampled_from(["-1", "0x03", "gpu", "0000:1b:00.0"]))
    cut = data.draw(st.integers(0, len(good)))
    for text in ('"'.join([*tokens[:where], put_in, *tokens[where + 1 :]]), good[:cut] + put_in, put_in):
        with suppress(ParseError):
            nccl_topology.disagreements(nccl_topology.parse(text), TOPOLOGY)


def said(text: str, topology: Topology = TOPOLOGY) -> "list[str]":
    return nccl_topology.disagreements(nccl_topology.parse(text), topology)


def test_a_picture_that_agrees_says_nothing_and_node_is_phb_to_nccl() -> None:
    assert said(DUMP) == []


def test_a_path_that_differs_names_the_pair_and_both_opinions() -> None:
    moved = replace(TOPOLOGY, paths={**TOPOLOGY.paths, (C, NICS["mlx5_1"]): "PIX"})
    assert said(DUMP, moved) == ["GPU2 0000:9b:00.0 - mlx5_1: NCCL reports PHB, sysfs reports PIX"]


def test_gpus_are_counted_and_those_that_sysfs_has_not_are_named() -> None:
    assert said(DUMP, replace(TOPOLOGY, gpus=TOPOLOGY.gpus[:2], paths={})) == [
        "NCCL lists 3 GPUs, sysfs has 2",
        "0000:9b:00.0: NCCL lists a GPU there, sysfs has none",
    ]


def test_nvlinks_are_held_against_those_that_are_up() -> None:
    fewer = replace(TOPOLOGY, gpus=(gpu(0, A, 17), *TOPOLOGY.gpus[1:]))
    assert said(DUMP, fewer) == ["GPU0 0000:1b:00.0: NCCL reports 18 NVLinks, nvidia-smi nvlink -s reports 17"]


def test_a_compute_nic_that_nccl_does_not_list_is_said() -> None:
    without = DUMP.replace('<nic><net name="mlx5_1" dev="1" speed="400000" gdr="1"/></nic>', "<nic/>")
    without = without.replace("0000:9c:00.0", "0000:99:00.0")
    sentence = "0000:9c:00.0 mlx5_1: is a compute NIC (PIX to GPU0) that NCCL does not list"
    assert said(without) == [sentence]
    assert said(without, replace(TOPOLOGY, nics=(nic("mlx5_0"), nic("mlx5_1", "storage")))) == []


def test_a_port_is_not_listed_because_its_neighbour_on_the_card_is() -> None:
    second = replace(nic("mlx5_1"), pci="0000:1c:00.1")
    without = DUMP.replace('name="mlx5_1"', 'name="mlx5_7"')
    assert len(said(without, replace(TOPOLOGY, nics=(nic("mlx5_0"), second)))) == 1


@pytest.mark.parametrize("name", ["mlx5_0+mlx5_1", "mlx5_0_dma"])
def test_fused_and_data_direct_names_are_listed_and_their_paths_left_alone(name: str) -> None:
    text = DUMP.replace('name="mlx5_0"', 'name="%s"' % name)
    elsewhere = {pair: "SYS" for pair in TOPOLOGY.paths if pair[1] == NICS["mlx5_0"]}
    assert said(text, replace(TOPOLOGY, paths=elsewhere)) == []


def test_cloud_files_are_matched_by_address_whatever_the_function() -> None:
    pci = "0101:00:00.1"
    topology = replace(
        TOPOLOGY,
        gpus=(gpu(0, "0001:00:00.0", 18),),
        nics=(replace(nic("mlx5_0"), pci=pci),),
        paths={("0001:00:00.0", pci): "SYS"},
    )
    # What the hypervisor hides is what such a file is for: the difference is real, and it is said.
    assert said(CLOUD, topology) == ["GPU0 0001:00:00.0 - 0101:00:00.0: NCCL reports PIX, sysfs reports SYS"]
