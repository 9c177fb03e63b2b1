# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring NICs to the wanted settings: options and work of the module ``nic_firmware``."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Mapping

from ..change import apply, module
from ..core import locks
from ..core.finding import Finding
from ..core.host import Host
from ..core.plan import Plan
from ..machine import pci, profile, rails, topology
from ..roce import chain
from . import plan as nic_firmware
from . import wanted

PATIENCE = 120.0
SPEC = {
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
    expected = profile.from_options(given)
    usual = None
    if given["recommended"]:
        roce = chain.resolve(given["roce"], {}) if given["fabric"] == "ethernet" else chain.Chain()
        usual = wanted.Usual(roce.cnp_dscp, roce.cnp_priority)
    settings, firmware = wanted.parse(given["settings"]), wanted.versions(given["firmware"])
    asked = nic_firmware.SettingsWanted(settings, usual, devices, wanted.profile_settings(expected), firmware)
    if not asked.settings and not asked.of_profile and usual is None:
        # Nothing is wanted: nothing is looked at.
        return dict(apply.converge(host, True, Plan), diff=[], notes=[])
    # Tools that a killed run has left running on a card must end before the card is judged.
    with contextlib.nullcontext() if check_mode else locks.hold(host, "nic_firmware.lock", PATIENCE):
        return bring_to(host, given, expected, asked, check_mode)


def bring_to(
    host: Host,
    given: Mapping[str, Any],
    expected: profile.Profile,
    asked: nic_firmware.SettingsWanted,
    check_mode: bool,
) -> Dict[str, Any]:
    """Bring the cards to what is wanted of them, and return the module's result."""
    machine = topology.read(host, ask_nvidia_smi=False)
    matched = rails.match(machine, expected)
    cards, _absent = nic_firmware.cards(machine, expected, matched, asked)
    functions = [address for card in cards for address in card.functions]
    permit = apply.Permission(host, functions, given["max_disruption"])
    hands = nic_firmware.Hands()
    seen: List[nic_firmware.NicsState] = []

    plans: List[Plan] = []

    def look() -> Plan:
        seen.append(nic_firmware.read(host, machine, expected, matched, asked, hands.failed))
        plans.append(permit(nic_firmware.plan(seen[-1])))
        return plans[-1]

    def mends(finding: Finding) -> bool:
        return finding.id in nic_firmware.mended(plans[0])

    found = apply.converge(host, check_mode, look, hands, mends)
    if not check_mode:
        nic_firmware.remember(host, seen[-1])
        found["changed"] = nic_firmware.changed(plans[0], seen[0], seen[-1])
    return dict(found, diff=nic_firmware.diff(seen[0]), notes=nic_firmware.notes(seen[0]))
