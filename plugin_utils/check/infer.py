# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Infer the values of a machine's audit from its hardware. Pure.

Only the platform is assumed, from the shipped profiles. Values of rails are those that most rails have: they
accuse a rail that differs and clear none. Values that the inventory sets are intent.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import recognise
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import NEAR
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.plugin_utils import profile_files

from . import question
from .question import Data, Values

# A rail that differs is accused if this many more rails of the node agree than differ.
MAJORITY = 3
_FABRIC = {layer: name for name, layer in profile.FABRICS.items()}
_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "mtu": "MTU {}".format,
    "trust": "trust {}".format,
    "pfc": lambda on: f"PFC {', '.join(map(str, on)) or 'off'}",
    "switch_pfc": lambda on: f"switch ports with PFC {', '.join(map(str, on)) or 'off'}",
}
_TOGETHER = (("busbar_roce", "roce_qos_"), ("multirail_",), ("host_limits_",))
_NO_GPU = {"description": "no GPU", "gpus": {"count": 0, "models": ["none"]}, "rails": []}
# Keys of a result; its evidence would fill the control node's memory.
_USED = ("failed", "msg", "findings", "passed", "rail_info", "facts")
_FACTS = ("nvswitches", "architecture", "guest", "cloud", "product", "fabric")


@dataclass(frozen=True)
class Assumed:
    """The values that a host is audited by.

    facts: as platform_facts.read returns them.   platform: a profile's name; "" for none, and then ``profile`` is of
    the machine itself and proves nothing about its parts.   reason: the facts that decide.
    undecided: why the number of parts is not known; "" where it is.   given: names that the inventory sets.
    draft: profile of the machine as it is, and the doubts about it, where a draft is wanted.
    """

    facts: Data
    platform: str
    reason: str
    undecided: str
    profile: Data
    values: Data = field(default_factory=dict)
    given: Sequence[str] = ()
    draft: Data | None = None
    doubts: Sequence[str] = ()

    @property
    def inferred(self) -> Values:
        """Return the values that are not the inventory's, which may hold secrets, and those that a draft repeats."""
        repeated = ("busbar_platform", "busbar_fabric", "busbar_hardware_root", "busbar_system_root")
        return {name: value for name, value in self.values.items() if name in repeated or name not in self.given}

    def steps(self) -> list[Values]:
        """Return the module calls of the audit. Raises ParseError for values of the inventory that are wrong."""
        name = self.values["busbar_platform"]
        try:
            return question.steps(self.values, self.profile, name)
        except ParseError:
            # Values of the rails may be invalid in the suite.
            least = {
                key: self.values[key] for key in (*self.given, "busbar_platform", "busbar_fabric") if key in self.values
            }
            return question.steps(least, self.profile, name)


def query(ask: Callable[[list[Values]], list[Values]], given: Data, folder: Path, draft: bool) -> Values:
    """Return the inputs of a host's judgement, as plain data. Raises ParseError where it gives no result.

    ask: calls modules there.   given: values of the inventory; an empty platform is not set.   folder: of the site's
    profiles.
    """
    given = {name: value for name, value in given.items() if name != "busbar_platform" or value}
    roots = {key: given[name] for key in ("hardware_root", "system_root") if (name := f"busbar_{key}") in given}
    [facts] = ask([question.recognition(roots, draft)])
    if "recognition" not in facts:
        raise ParseError(str(facts.get("msg", "no result")))
    platform = None
    if "busbar_platform" in given:
        platform = profile_files.load(given["busbar_platform"], [folder, profile_files.BUILT_IN])[1]
    assumed = assume(facts, given, platform)
    steps = assumed.steps()
    results = [{key: one[key] for key in _USED if key in one} for one in ask(steps)]
    plain = {**asdict(assumed), "values": assumed.inferred}
    return {"assumed": plain, "roles": [step["role"] for step in steps], "results": results}


def assume(read: Data, given: Data, platform: Data | None = None) -> Assumed:
    """Infer the values that the inventory does not set. read: of the host.   given: values of the inventory.

    platform: the profile that it names. Raises ParseError where the profile is wrong.
    """
    facts = read["recognition"]
    shipped = profile_files.shipped()
    gpus = {gpu["pci"]: (gpu["model"], gpu["device"]) for gpu in facts["gpus"]}
    nics = [recognise.Nic(**nic) for nic in facts["nics"]]
    shows = recognise.Facts(gpus, nics, **{name: facts[name] for name in _FACTS})
    name, reason, undecided, planes = recognise.recognise(shows, _parsed())
    data = own = facts["draft"] or _NO_GPU
    if platform is not None:
        name, data, reason, undecided = given["busbar_platform"], platform, "set by the inventory", ""
        planes = 1
    elif name:
        data = {**shipped[name], "rails": own["rails"]} if undecided else shipped[name]
    several = {"busbar_planes": planes} if planes > 1 and not undecided else {}
    # The machine's own rails are functions already.
    data = data if undecided else profile_files.with_planes(data, {**several, **given}.get("busbar_planes"))
    # Values that belong together are the inventory's, or inferred, as a whole.
    taken = tuple(prefix for group in _TOGETHER if any(one.startswith(group) for one in given) for prefix in group)
    values = {key: value for key, value in _inferred(facts, nics, data).items() if not key.startswith(taken)}
    values.update({**several, **given, "busbar_platform": name or "unknown"})
    return Assumed(
        facts, name, reason, undecided, data, values, sorted(given), read.get("draft"), read.get("doubts", ())
    )


@functools.cache
def _parsed() -> dict[str, profile.Profile]:
    return {name: profile.parse(data, name) for name, data in profile_files.shipped().items()}


def usual(values: Sequence[Any]) -> Any:
    """Return the value that MAJORITY more have than differ; None where none is."""
    texts = [json.dumps(value, sort_keys=True) for value in values]
    text, number = (Counter(texts).most_common(1) or [("null", 0)])[0]
    return json.loads(text) if 2 * number - len(texts) >= MAJORITY else None


def describe_rails(rails: Sequence[Data]) -> str:
    """Return a text on the settings of the Ethernet rails, for a person to decide whether they are right."""
    parts = []
    for name in _SHOWN:
        counts = Counter(_SHOWN[name](rail[name]) for rail in rails if name in rail).most_common()
        if counts:
            parts.append(" or ".join(text if len(counts) == 1 else f"{text} on {number}" for text, number in counts))
    return f"{len(rails)} RoCE rails have {', '.join(parts)}: is that intended?" if parts else ""


def _inferred(facts: Data, nics: Sequence[recognise.Nic], data: Data) -> Values:
    """Return the fabric, the majority's rail values, and the container runtimes with limits."""
    runtimes = [name for name, is_set in facts["runtimes"].items() if is_set]
    values: Values = {"host_limits_container_runtimes": runtimes}
    if facts["resources"] != []:
        runtimes.append("kubelet")
        values["host_limits_kubernetes_rdma_resources"] = facts["resources"] or ["rdma/any"]
    if not data["rails"]:
        return values
    layers = Counter(nic.link_layer for nic in nics if nic.path in NEAR and nic.link_layer)
    layers = layers or Counter(nic.link_layer for nic in nics)
    possible = {**data.get("rail_defaults", {}), **data["rails"][0]}["link_layers"]
    layer = max(possible, key=lambda one: (layers[one], one))
    values["busbar_fabric"] = _FABRIC[layer]
    names = {name for rail in facts["rails"] for name in rail}
    most = {name: usual([rail[name] for rail in facts["rails"] if name in rail]) for name in names}
    most = {name: value for name, value in most.items() if value is not None}
    values.update(_of_cards(facts["rails"], most), **(_of_ports(most) if layer == "Ethernet" else {}))
    return values


def _of_cards(rails: Sequence[Data], most: Data) -> Values:
    """Return the partitions, and the firmware of the usual card, that most rails have."""
    psid = most.get("psid")
    firmware = usual([rail["firmware"] for rail in rails if "firmware" in rail and rail.get("psid") == psid])
    found: Values = {"busbar_firmware": {psid: firmware}} if psid and firmware else {}
    return {**found, "busbar_fabric_partitions": [f"0x{key:04x}" for key in most.get("partitions", ())]}


def _of_ports(most: Data) -> Values:
    """Return the site values of Ethernet ports that most rails agree with."""
    found: Values = {"busbar_mtu": most["mtu"]} if "mtu" in most else {}
    settings = {name: most[name] for name in multirail.KEYS if name in most}
    if settings:
        found.update(multirail_policy="custom", multirail_values=settings)
        found["multirail_source_routing"] = bool(most.get("routed"))
    if most.get("owner") == "firmware":
        return {**found, "roce_qos_dcbx": "firmware"}
    if not most.get("pfc") and most.get("switch_pfc"):
        # The rails are not configured, but the switches are: each switch port is compared with most of them.
        most = {"pfc": most["switch_pfc"], "dscp2prio": most.get("switch_dscp", {}), "cnp": most.get("cnp", (-1, -1))}
    found.update({f"roce_qos_{name}": most[name] for name in ("trust", "pfc", "ecn", "traffic_class") if name in most})
    pfc, ways = most.get("pfc") or [], {int(dscp): to for dscp, to in most.get("dscp2prio", {}).items()}
    codes = [dscp for dscp, to in sorted(ways.items()) if pfc == [to]]
    if codes:
        # The chain of the one lossless priority: a DSCP that leads there, the one in use where that is known.
        used = [code for code in (most.get("tos", -1) >> 2, 26) if code in codes]
        roce = {"dscp": (used or codes)[0], "priority": pfc[0]}
        cnp = most.get("cnp", (-1, -1))
        roce.update({"cnp_dscp": cnp[0], "cnp_priority": cnp[1]} if ways.get(cnp[0]) == cnp[1] else {})
        found.update(busbar_roce=roce, roce_qos_dscp2prio=dict.fromkeys(map(str, codes), pfc[0]))
    if most.get("family") == "ipv6":
        found["busbar_roce"] = {**found.get("busbar_roce", {}), "address_family": "ipv6"}
    return found
