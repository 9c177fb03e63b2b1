# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A machine is recognised by what outlives a fault, and never by how much of it is there."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import ARM, AZURE, OCI
from ansible_collections.busbar.fabric.plugins.module_utils.recognise import MODELS, TABLE, Facts, Nic, recognise
from ansible_collections.busbar.fabric.plugins.plugin_utils import profile_files

PROFILES = {name: profile.parse(data, name) for name, data in profile_files.shipped().items()}
H100, H200, B200, B300 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "NVIDIA B300 SXM6 AC"
A100, GB200, GB300 = "NVIDIA A100-SXM4-80GB", "NVIDIA GB200", "NVIDIA GB300"
DELL = "PowerEdge XE9680"


def gpus(number: int, model: str, device: int = 0) -> Mapping[str, tuple[str, int]]:
    return {f"0000:{index + 16:02x}:00.0": (model, device) for index in range(number)}


def nics(number: int, path: str = "PIX", rate: float | None = 400.0) -> Sequence[Nic]:
    return [Nic(f"0000:{index + 160:02x}:00.0", path, "Ethernet", rate) for index in range(number)]


def places(name: str, gpu: int = 8, rails: int = 99) -> dict[str, Any]:
    """The facts of a machine that has parts where the profile has them."""
    of = PROFILES[name]
    found = [Nic(rail.pci or "", "NODE", "Ethernet") for rail in of.rails[:rails]]
    return {"gpus": dict.fromkeys(of.gpus.pci[:gpu], (of.gpus.models[0], 0)), "nics": found}


SLOW = Nic("0006:03:00.0", "NODE", "Ethernet", 200.0)
OTHERS_OF_EIGHT = (
    *("NVIDIA H100 PCIe", "NVIDIA A100 80GB PCIe", "NVIDIA L40S", "NVIDIA GeForce RTX 4090", "NVIDIA H20"),
    "NVIDIA H800",
)


def planes(number: int, path: str, rate: float, functions: int = 2) -> Sequence[Nic]:
    """Cards with several functions."""
    cards = nics(number, path, rate)
    return [card._replace(pci=f"{card.pci[:-1]}{function}") for card in cards for function in range(functions)]


ALONE = [Nic(f"0000:{index + 160:02x}:00.1", "PXB") for index in range(8)]
# Facts of machines in public outputs and reports of users, of simulated ones, and what each of them is; and whether the
# number of its rails is known.
MACHINES: list[tuple[Facts, str, bool]] = [
    (Facts(gpus(8, H200), nics(8), 4, product=DELL), "hgx-h200", True),
    (Facts(gpus(8, H100), nics(8), 4, product="SYS-821GE-TNHR"), "hgx-h100", True),
    # Healthy boards with four NICs, with one, with two ports a NIC, and with a ninth port.
    (Facts(gpus(8, H100), nics(4), 4), "hgx-h100", False),
    # NICs of half the rate; a few of them are a fault.
    (Facts(gpus(8, H100), nics(8, rate=200.0), 4), "hgx-h100", False),
    (Facts(gpus(8, H100), nics(8, rate=200.0), 4, product="DGXH100"), "hgx-h100", True),
    (Facts(gpus(8, H100), [*nics(7), Nic("0000:a7:00.0", "PIX", "Ethernet", 200.0)], 4), "hgx-h100", True),
    (Facts(gpus(8, H100), nics(8, rate=None), 4), "hgx-h100", True),
    (Facts(gpus(8, H100), nics(1), 4), "hgx-h100", False),
    (Facts(gpus(8, H100), nics(16), 4), "hgx-h100", False),
    (Facts(gpus(8, H100), nics(9), 4), "hgx-h100", False),
    (Facts(gpus(8, H100), nics(9), 4, product="DGXH100"), "hgx-h100", True),
    # A board that trains alone has none.
    (Facts(gpus(8, H200), nics(0), 4, product=DELL), "hgx-h200", False),
    # Boards with four GPUs of the same model have no NVSwitch.
    (Facts(gpus(4, H100), nics(4), product="PowerEdge XE8640"), "", False),
    (Facts(gpus(4, A100), nics(4), product="PowerEdge XE8545"), "", False),
    (Facts(gpus(8, A100), nics(8, "PXB", 200.0), 6), "hgx-a100", True),
    (Facts(gpus(8, A100), nics(10, "PXB", 200.0), 6, product="DGXA100 920-23687-2530-000"), "hgx-a100", True),
    (Facts(gpus(8, B200), nics(8), 0, product="DGXB200"), "hgx-b200", True),
    (Facts(gpus(8, B200), nics(8), 2, product="AS-8126GS-TNMR"), "hgx-b200", True),
    (Facts(gpus(8, B300), nics(8, "PXB", 800.0)), "hgx-b300", True),
    # A ConnectX-8 with two planes, of which one is lost; and with two that it joins itself.
    (Facts(gpus(8, B300), planes(8, "PXB", 400.0)), "hgx-b300", True),
    (Facts(gpus(8, B300), planes(8, "PXB", 400.0)[:-1]), "hgx-b300", True),
    (Facts(gpus(8, B300), [*nics(8, "PXB", 800.0), *ALONE]), "hgx-b300", True),
    (Facts(gpus(8, B300), planes(8, "PXB", 200.0, 4), product="DGXB300"), "hgx-b300", True),
    (Facts(gpus(8, B300), nics(8, "PXB", 400.0)), "hgx-b300", False),
    (Facts(gpus(4, GB300), planes(4, "NODE", 400.0), architecture=ARM, fabric=True), "gb300-nvl72", True),
    (Facts(gpus(4, GB200), nics(4, "NODE"), architecture=ARM, fabric=True), "gb200-nvl72", True),
    (Facts(gpus(4, GB300), nics(4, "NODE", 800.0), architecture=ARM, fabric=True), "gb300-nvl72", True),
    # A GB200 NVL4 has no switches between its GPUs and those of others.
    (Facts(gpus(4, GB200), nics(4, "NODE"), architecture=ARM), "", False),
    (Facts(gpus(4, GB200), [*nics(4, "NODE"), SLOW], architecture=ARM, fabric=True), "gb200-nvl72", True),
    # Names are compared as a whole.
    *((Facts(gpus(1, f"NVIDIA GH200 {size}GB"), nics(1), 0, ARM), "", False) for size in (480, 120)),
    *((Facts(gpus(8, model), nics(1), 0), "", False) for model in OTHERS_OF_EIGHT),
    (Facts(gpus(4, "NVIDIA H100 NVL"), nics(1), 0), "", False),
    (Facts(gpus(2, "NVIDIA H200 NVL"), nics(1), 0), "", False),
    (Facts(gpus(4, "Tesla V100-SXM2-32GB"), nics(1), 0), "", False),
    (Facts(gpus(8, "NVIDIA H20"), nics(8), 4), "", False),
    # Guests have a part of a machine, but where the whole of it is a product of a cloud.
    (Facts(gpus(1, H200), guest=True), "", False),
    (Facts(gpus(8, H200), guest=True), "", False),
    (Facts(gpus(4, H100), nics(4), 4, guest=True, product="KVM"), "", False),
    (Facts(**places("azure-nd-h100-v5"), nvswitches=4, guest=True, cloud=AZURE), "azure-nd-h100-v5", True),
    (Facts(**places("azure-nd-h100-v5", 5, 6), guest=True, cloud=AZURE), "azure-nd-h100-v5", True),
    (Facts(gpus(8, A100), nics(8), 6, guest=True, cloud=AZURE), "", False),
    (Facts(gpus(2, H100), guest=True, cloud=AZURE), "", False),
    (Facts(**places("oci-bm-gpu-h100-8"), nvswitches=4, cloud=OCI), "oci-bm-gpu-h100-8", True),
    (Facts(**places("oci-bm-gpu-h100-8", 1, 9), nvswitches=4, cloud=OCI), "oci-bm-gpu-h100-8", True),
    (Facts(gpus(8, H100), nics(16), 4, cloud=OCI), "hgx-h100", False),
    (Facts(gpus(8, H200), nics(8), 4, cloud=OCI), "hgx-h200", True),
    # No driver: the PCI id is what is left.
    *[
        (Facts(gpus(8, "", device), nics(8, "PXB", None), 4, product=DELL), name, True)
        for device, name in ((0x2335, "hgx-h200"), (0x2330, "hgx-h100"), (0x2901, "hgx-b200"), (0x20B2, "hgx-a100"))
    ],
    (Facts(gpus(8, "", 0x3182), nics(8, "PXB", None)), "hgx-b300", True),
    (Facts(gpus(8, "", 0x2331), nics(8), 4), "", False),
    # A GPU that was exchanged for another one is a fault, and no other platform; half of them say nothing.
    (Facts({**gpus(8, H200), "0000:10:00.0": (H100, 0)}, nics(8), 4), "hgx-h200", True),
    (Facts({**gpus(8, H200), **gpus(4, H100)}, nics(8), 4), "", False),
    # Nothing is left but the switches; of a product with one build the GPUs are known.
    (Facts({}, nics(8), 4, product=DELL), "", False),
    (Facts({}, nics(8), 4, product="DGXH200"), "hgx-h200", True),
    (Facts(), "", False),
    (Facts(product="21CB"), "", False),
]


@pytest.mark.parametrize(("facts", "platform", "rails"), MACHINES)
def test_a_machine_is_what_it_is(facts: Facts, platform: str, rails: bool) -> None:
    found = recognise(facts, PROFILES)
    assert (found.platform, not found.undecided) == (platform, rails)
    assert found.reason
    cards = {nic.pci[:-2] for nic in facts.nics}
    several = platform in ("hgx-b300", "gb300-nvl72") and any(
        nic.pci[-1] != "0" and nic.link_layer for nic in facts.nics
    )
    assert found.planes == (round(len(facts.nics) / len(cards) + 0.1) if several else 1)


def test_whatever_is_lost_names_no_other_platform_and_leaves_no_smaller_one() -> None:
    every = nics(8)
    for lost in range(9):
        subsets = list(combinations(every, 8 - lost))
        for left in random.Random(lost).sample(subsets, min(20, len(subsets))):
            found = recognise(Facts(gpus(8, H200), left, 4, product=DELL), PROFILES)
            assert found.platform == "hgx-h200"
            # With half of them gone it is not known, and never good.
            assert (not found.undecided) == (lost < 4)
    for number in range(1, 8):
        found = recognise(Facts(gpus(number, H200), nics(number), 4, product=DELL), PROFILES)
        assert found.platform == "hgx-h200"


def test_every_row_has_a_profile_and_every_model_is_of_one() -> None:
    assert {row.profile for row in TABLE} == set(PROFILES)
    assert {*MODELS.values()} == {model for of in PROFILES.values() for model in of.gpus.models}
