# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring NICs to the wanted settings: options and work of the module ``nic_firmware``."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Mapping

from ..change import apply as changes
from ..change import module
from ..core import locks
from ..core.host import Host, Problem, ReadError
from ..core.plan import Plan
from ..machine import rails, topology
from ..machine.profile import Profile, from_options
from ..machine.topology import Topology
from ..roce_qos import chain
from . import plan, wanted
from .pending import Record
from .read import NicsState, SettingsWanted, read

PATIENCE = 120.0
SPEC: module.Spec = {
    "settings": {"type": "dict", "default": {}},
    "recommended": {"type": "bool", "default": False},
    "roce": {"type": "dict", "default": {}},
    "firmware": {"type": "dict", "default": {}},
    **module.PROFILE,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    expected = from_options(given)
    usual = chain.resolve(given["roce"] if given["fabric"] == "ethernet" else {}, {}) if given["recommended"] else None
    declared = wanted.profile_settings(expected), wanted.parse(given["settings"])
    asked = SettingsWanted(declared, usual, wanted.versions(given["firmware"]))
    if not any(declared) and usual is None:
        # Nothing is wanted: nothing is looked at.
        return dict(changes.converge(host, True, Plan), notes=[])
    # Tools that a killed run has left running on a card must end before the card is judged.
    with contextlib.nullcontext() if check_mode else locks.hold(host, "nic_firmware.lock", PATIENCE):
        machine = topology.read(host, ask_nvidia_smi=False)
        return bring_to(host, machine, expected, asked, given["max_disruption"], check_mode)


def bring_to(
    host: Host, machine: Topology, expected: Profile, asked: SettingsWanted, most: str, check_mode: bool
) -> Dict[str, Any]:
    """Bring the cards to what is wanted of them, and return the module's result. most: the allowed disruption."""
    matched = rails.match(machine, expected)
    failed: Dict[str, str] = {}
    states: List[NicsState] = []

    def look() -> Plan:
        states.append(read(host, machine, expected, matched, asked, failed))
        return plan.plan(states[-1]).limit(most)

    def write(_host: Host, planned: Plan) -> List[str]:
        """Write each card. One that fails does not affect the others."""
        for command in planned.commands:
            try:
                changes.run(host, command)
            except ReadError as error:
                failed[command.address if isinstance(command, plan.Write) else ""] = str(error)
        return []

    found = changes.converge(host, check_mode, look, write, plan.mends)
    if not check_mode:
        remember(host, states[-1])
        found["changed"] = [card.answer for card in states[0].cards] != [card.answer for card in states[-1].cards]
    notes = [] if states[0].cards else ["no rail's card has any of the wanted settings"]
    return dict(found, notes=notes)


def remember(host: Host, have: NicsState) -> None:
    """Store which cards wait in this boot, and forget those that do not. Raises ReadError."""
    if not isinstance(have.record, Record):
        return
    cards = dict(have.record.cards)
    for card in have.cards:
        if isinstance(card.answer, Problem) or card.answer is None:
            continue
        if not card.waits:
            cards.pop(card.address, None)
        elif have.record.boot_of(card.address, card.key) is None and not card.to_write:
            cards[card.address] = (have.boot, card.key)
    change = have.record.change(cards)
    if change is not None:
        changes.write(host, change)
