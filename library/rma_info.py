#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: rma_info
short_description: Read what is needed to replace a part of a node
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Serial and part numbers of board, GPUs, NICs and cables, slots, GUIDs, firmware, the NICs' counters of errors, and
    the boot id. Judges nothing, and does not fail for what cannot be read.
  - Changes nothing.
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Read the serial numbers
  busbar.fabric.rma_info:
  register: hardware
"""

RETURN = r"""
hardware:
  description: C(boot_id), C(board), C(driver), C(gpus), C(nics), and C(problems), what could not be read.
  type: dict
  returned: success
findings:
  description: Empty; nothing is judged.
  type: list
  elements: dict
  returned: success
passed:
  description: Empty likewise.
  type: list
  elements: str
  returned: success
commands:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import rma
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan


def main() -> None:
    module.run(AnsibleModule(module.ROOTS, supports_check_mode=True), work)


def work(host: Host, _given: Mapping[str, object], _check_mode: bool) -> Dict[str, Any]:
    return dict(Plan().result(), hardware=rma.read(host).to_dict())


if __name__ == "__main__":
    main()
