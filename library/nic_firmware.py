#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_firmware
short_description: Write the configured settings into the flash of NICs, and have the NICs load them
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Compares the active settings of the rails' NICs, and those after their next reset, with the configured ones, by
    C(mstconfig) or C(mlxconfig).
  - Writes what differs, and has the card load it by the lowest reset level that it offers, if O(max_disruption)
    allows it and the node is idle. Each level is tried once per boot; then one reboot is requested, and no second one.
  - A card none of whose ports is a rail or is named in O(devices) is neither queried nor written. Firmware is never
    burned.
  - In a virtual machine nothing is written. Without O(settings), O(recommended) and C(nic_firmware) of O(profile) no
    tool is run.
options:
  settings:
    description:
      - Name of a setting, as C(mstconfig) prints it, to a number or one of its words. A setting per port is named
        without C(_P1) for all declared ports, or with it for one.
    type: dict
    default: {}
  recommended:
    description:
      - Also require what is right for any training node on bare metal, if the card has the setting. These are
        C(LINK_TYPE) of the profile, C(PCI_WR_ORDERING) and C(ATS_ENABLED) 0, and on Ethernet C(ROCE_CC_PRIO_MASK) 255
        and C(CNP_DSCP) and C(CNP_802P_PRIO) of O(roce).
    type: bool
    default: false
  devices:
    description: PCI addresses of ports besides the rails whose cards get the same settings.
    type: list
    elements: str
    default: []
  roce:
    description: The site's C(busbar_roce), of which O(recommended) uses C(cnp_dscp) and C(cnp_priority).
    type: dict
    default: {}
  firmware:
    description: The site's C(busbar_firmware), PSID to version. A reset may load it where it was burned.
    type: dict
    default: {}
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.changes
  - busbar.fabric.node.disruption
"""

EXAMPLES = r"""
- name: Have the rails come up as Ethernet, with their settings loaded by a reset of each card
  busbar.fabric.nic_firmware:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    settings: {LINK_TYPE: ETH, ROCE_CC_PRIO_MASK: 255}
    max_disruption: driver
  register: nic_firmware_result
"""

RETURN = r"""
findings:
  description: What is not ok after this run, as in C(docs/findings.md); in check mode, what is not ok now.
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
repaired:
  description: Ids of the findings that this run repaired, or would repair in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: The commands that were run, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: Sentences for the verdict.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Reasons, one for each card that loads its settings by a reboot only.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair is blocked by O(max_disruption), or because the node is in use.
  type: list
  elements: str
  returned: success
backup_files:
  description: Empty; RV(findings) of check mode has the old values.
  type: list
  elements: str
  returned: success
"""

import contextlib
from typing import Any, Dict, List, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import plan as nic_firmware
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import wanted
from ansible_collections.busbar.fabric.plugins.module_utils.machine import pci, profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.roce import chain

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


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    devices = tuple(pci.parse_address(address) for address in given["devices"])
    expected = profile.from_options(given)
    usual = None
    if given["recommended"]:
        roce = chain.resolve(given["roce"], {}) if given["fabric"] == "ethernet" else chain.Chain()
        usual = wanted.Usual(roce.cnp_dscp, roce.cnp_priority)
    settings, firmware = wanted.parse(given["settings"]), wanted.versions(given["firmware"])
    asked = nic_firmware.Asked(settings, usual, devices, wanted.profile_settings(expected), firmware)
    if not asked.settings and not asked.of_profile and usual is None:
        # Nothing is wanted: nothing is looked at.
        return dict(apply.converge(host, True, Plan), diff=[], notes=[])
    # Tools that a killed run has left running on a card must end before the card is judged.
    with contextlib.nullcontext() if check_mode else locks.hold(host, "nic_firmware.lock", PATIENCE):
        return bring_to(host, given, expected, asked, check_mode)


def bring_to(
    host: Host, given: Mapping[str, Any], expected: profile.Profile, asked: nic_firmware.Asked, check_mode: bool
) -> Dict[str, Any]:
    """Bring the cards to what is wanted of them, and return the module's result."""
    machine = topology.read(host, ask_nvidia_smi=False)
    matched = rails.match(machine, expected)
    cards, _absent = nic_firmware.cards(machine, expected, matched, asked)
    functions = [address for card in cards for address in card.functions]
    permit = apply.Permission(host, functions, given["max_disruption"])
    hands = nic_firmware.Hands()
    seen: List[nic_firmware.Have] = []

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


if __name__ == "__main__":
    main()
