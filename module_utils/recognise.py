# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Recognise the shipped platform that a machine is, by facts that outlive a fault. Pure.

The GPU model (also by PCI id), the NVSwitches on the bus, the processor and the chassis decide. Numbers of GPUs and
NICs never do: a machine that lost parts is still what it was. Names are compared as a whole: a GH200 is not an H200.
Sources: the PCI ID repository (pci.ids), vendor 10de; models as ``nvidia-smi -L`` prints them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from .machine.pci import NEAR
from .machine.profile import PLANES, Profile, by_plane
from .machine.virtualization import ARM, AZURE, OCI, X86

# PCI device id -> model: all that is known of a GPU whose driver is not loaded.
MODELS = {
    0x20B0: "NVIDIA A100-SXM4-40GB",
    0x20B2: "NVIDIA A100-SXM4-80GB",
    0x2330: "NVIDIA H100 80GB HBM3",
    0x2335: "NVIDIA H200",
    0x2901: "NVIDIA B200",
    0x2941: "NVIDIA GB200",
    0x3182: "NVIDIA B300 SXM6 AC",
    0x31C2: "NVIDIA GB300",
}


class Row(NamedTuple):
    """A shipped profile, and what a machine of it shows. The profile has the models and the addresses.

    nvswitches: at least so many on the bus; boards with four GPUs of the same model have none.
    cloud: owner of such machines, whose PCI addresses are all alike: more than half must agree.
    product: first word of the DMI product name of a machine with one build, whose NICs are known.
    fabric: its GPUs report a NVLink fabric; a GB200 NVL4 has GPUs of the same model, and none.
    planes: its NICs may have several.
    """

    profile: str
    nvswitches: int = 0
    product: str = ""
    cloud: str = ""
    guest: bool = False
    architecture: str = X86
    fabric: bool = False
    planes: bool = False


TABLE = (
    Row("azure-nd-h100-v5", cloud=AZURE, guest=True),
    Row("oci-bm-gpu-h100-8", 1, cloud=OCI),
    Row("hgx-a100", 1, "DGXA100"),
    Row("hgx-h100", 1, "DGXH100"),
    Row("hgx-h200", 1, "DGXH200"),
    # Their two NVSwitches are not always PCI devices of the host, and there is no board with fewer GPUs.
    Row("hgx-b200", 0, "DGXB200"),
    Row("hgx-b300", 0, "DGXB300", planes=True),
    Row("gb200-nvl72", architecture=ARM, fabric=True),
    Row("gb300-nvl72", architecture=ARM, fabric=True, planes=True),
)


class Nic(NamedTuple):
    """A NIC that may be a rail. path: to its nearest GPU.   link_layer: "" without an RDMA device.

    rate_gbps: None of a port that is down or not known.
    """

    pci: str
    path: str
    link_layer: str = ""
    rate_gbps: Optional[float] = None


@dataclass(frozen=True)
class Facts:
    """gpus: PCI address -> (model as the driver prints it, "" without a driver; PCI device id)."""

    gpus: Mapping[str, Tuple[str, int]] = field(default_factory=dict)
    nics: Sequence[Nic] = ()
    nvswitches: int = 0
    architecture: str = X86
    guest: bool = False
    cloud: str = ""
    product: str = ""
    fabric: bool = False

    def is_product(self, row: Row) -> bool:
        """Tell whether the machine is the row's product."""
        return bool(row.product) and row.product == self.product.partition(" ")[0]


class Recognised(NamedTuple):
    """platform: a profile's name; "" for none.   reason: the facts that decide.   undecided: why the number of parts is
    not known; "" where it is.   planes: of each NIC."""

    platform: str
    reason: str
    undecided: str = ""
    planes: int = 1


def recognise(facts: Facts, profiles: Mapping[str, Profile]) -> Recognised:
    """Return the platform among the profiles, which are the shipped ones by name. Two that fit are none."""
    models = Counter(model or MODELS.get(device, "") for model, device in facts.gpus.values()).most_common(2)
    if len(models) > 1 and models[0][1] == models[1][1]:
        text = "half of the GPUs are %s, half %s: which of them is right?" % (models[0][0], models[1][0])
        return Recognised("", text, text)
    model = models[0][0] if models else ""
    rows = [row for row in TABLE if row.profile in profiles and _fits(row, facts, model, profiles[row.profile])]
    # A cloud's machine is the more exact row: its addresses agree.
    rows = [row for row in rows if row.cloud] or rows
    if len(rows) != 1:
        text = "it may be %s" % " or ".join(row.profile for row in rows) if rows else _why_not(facts, model)
        return Recognised("", text, text)
    row = rows[0]
    said = [model, "%d NVSwitches" % facts.nvswitches if row.nvswitches else "", row.cloud and "its PCI addresses"]
    said += [facts.product if facts.is_product(row) else ""]
    reason = ", ".join(filter(None, said))
    profile, planes = profiles[row.profile], _planes(facts) if row.planes else 0
    if planes:
        # Without an RDMA device a port beside the first is the NIC's own plane, which the hardware shares.
        facts = replace(facts, nics=[nic for nic in facts.nics if int(nic.pci[-1]) < planes])
        profile = replace(profile, rails=by_plane(profile.rails, planes))
    return Recognised(row.profile, reason, _rails_doubt(row, facts, profile), planes or 1)


def _planes(facts: Facts) -> int:
    """Return how many functions with an RDMA device most NICs have: near GPUs, if any is."""
    nics = [nic for nic in facts.nics if nic.link_layer]
    cards = Counter(nic.pci[:-2] for nic in [nic for nic in nics if nic.path in NEAR] or nics)
    usual = Counter(cards.values()).most_common(1)
    return usual[0][0] if usual and usual[0][0] in PLANES else 1


def _fits(row: Row, facts: Facts, model: str, profile: Profile) -> bool:
    if (row.guest, row.architecture) != (facts.guest, facts.architecture):
        return False
    if row.cloud:
        known = {*profile.gpus.pci, *(rail.pci for rail in profile.rails)}
        here = {*facts.gpus, *(nic.pci for nic in facts.nics)}
        if row.cloud != facts.cloud or 2 * len(here & known) <= len(here):
            return False
    if not facts.gpus:
        # All are lost. Only a product with one build says which they were.
        return facts.is_product(row)
    if row.fabric and not facts.fabric:
        return False
    return model in profile.gpus.models and (facts.nvswitches >= row.nvswitches or facts.is_product(row))


def _rails_doubt(row: Row, facts: Facts, profile: Profile) -> str:
    """Return why the profile's rails are not expected; "" where they are."""
    if row.cloud or facts.is_product(row):
        return ""
    wanted, nics = len(profile.rails), [nic for nic in facts.nics if nic.path in NEAR]
    usual = {rail.rate_gbps for rail in profile.rails}
    if not any(path in NEAR for rail in profile.rails for path in rail.paths.values()):
        # With NICs beside no GPU, only its rate tells a storage NIC from a rail.
        nics = [nic for nic in facts.nics if nic.rate_gbps is None or nic.rate_gbps in usual]
    if not wanted / 2 < len(nics) <= wanted:
        text = "%d NICs are near %d GPUs; %s has %d, and healthy machines with other numbers of NICs exist"
        return text % (len(nics), len(facts.gpus), row.profile, wanted)
    # NICs of another model are slower on all rails. A few slow ones are a fault.
    rates = Counter(nic.rate_gbps for nic in nics if nic.rate_gbps)
    if 2 * sum(rates.values()) > wanted and not usual & {*rates}:
        text = "%d NICs run at %s Gbit/s; %s has %s, and healthy machines with slower NICs exist"
        texts = [" or ".join("%g" % rate for rate in sorted(some)) for some in (rates, usual)]
        return text % (sum(rates.values()), texts[0], row.profile, texts[1])
    return ""


def _why_not(facts: Facts, model: str) -> str:
    if not facts.gpus:
        more = ", but %d NVSwitches: all GPUs are missing" % facts.nvswitches if facts.nvswitches else ""
        return "no NVIDIA GPU on the PCI bus" + more
    what = model or "GPU with PCI id %04x" % next(device for _model, device in facts.gpus.values())
    if facts.guest:
        return "a virtual machine with %d x %s may have a part of a machine" % (len(facts.gpus), what)
    fabric = "" if facts.architecture == X86 else "%s NVLink fabric" % ("a" if facts.fabric else "no")
    parts = [what, "%d NVSwitches" % facts.nvswitches, facts.architecture, fabric, facts.cloud]
    where = ", ".join(filter(None, parts))
    return "no shipped profile fits %s" % where
