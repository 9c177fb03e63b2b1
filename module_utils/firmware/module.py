# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring NICs to the wanted settings: options and work of the module ``nic_firmware``."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Mapping

from ..change import apply as changes
from ..change import module
from ..core import locks
from ..core.host import Host
from ..core.plan import Plan
from ..machine import pci, rails, topology
from ..machine.profile import Profile, from_options
from ..machine.topology import Topology
from ..roce_qos import chain
from . import apply, plan, wanted
from .read import NicsState, SettingsWanted, cards, read

PATIENCE = 120.0
SPEC: module.Spec = {
    "settings": {"type": "dict", "default": {}},
    "recommended": {"type": "bool", "default": False},
    "devices": {"type": "list", "elements": "str", "default": []},
    "roce": {"type": "dict", "default": {}},
    "firmware": {"type": "dict", "default": {}},
    **module.PROFILE,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    devices = tuple(pci.parse_address(address) for address in given["devices"])
    expected = from_options(given)
    usual = None
    if given["recommended"]:
        roce = chain.resolve(given["roce"], {}) if given["fabric"] == "ethernet" else chain.Chain()
        usual = wanted.Usual(roce.cnp_dscp, roce.cnp_priority)
    settings, firmware = wanted.parse(given["settings"]), wanted.versions(given["firmware"])
    asked = SettingsWanted(settings, usual, devices, wanted.profile_settings(expected), firmware)
    if not asked.settings and not asked.of_profile and usual is None:
        # Nothing is wanted: nothing is looked at.
        return dict(changes.converge(host, True, Plan), diff=[], notes=[])
    # Tools that a killed run has left running on a card must end before the card is judged.
    with contextlib.nullcontext() if check_mode else locks.hold(host, "nic_firmware.lock", PATIENCE):
        machine = topology.read(host, ask_nvidia_smi=False)
        return bring_to(host, machine, expected, asked, given["max_disruption"], check_mode)


def bring_to(
    host: Host, machine: Topology, expected: Profile, asked: SettingsWanted, most: str, check_mode: bool
) -> Dict[str, Any]:
    """Bring the cards to what is wanted of them, and return the module's result. most: the allowed disruption."""
    matched = rails.match(machine, expected)
    functions = [address for card in cards(machine, expected, matched, asked) for address in card.functions]
    permit = changes.Permission(host, functions, most)
    hands = apply.Hands()
    seen: List[NicsState] = []
    plans: List[Plan] = []

    def look() -> Plan:
        seen.append(read(host, machine, expected, matched, asked, hands.failed))
        plans.append(permit(plan.plan(seen[-1])))
        return plans[-1]

    found = changes.converge(host, check_mode, look, hands, lambda finding: finding.id in plan.mended(plans[0]))
    if not check_mode:
        apply.remember(host, seen[-1])
        found["changed"] = apply.changed(plans[0], seen[0], seen[-1])
    return dict(found, diff=apply.diff(seen[0]), notes=plan.notes(seen[0]))
