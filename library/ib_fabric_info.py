#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_fabric_info
short_description: Sweep the InfiniBand planes that a host sees, or read a stored sweep
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads switches, hosts, cables, their rates and counters by infiniband-diags (C(sminfo), C(saquery),
    C(ibnetdiscover), C(iblinkinfo), C(ibqueryerrors)). Ports with the same subnet manager are one plane, which is swept
    once, within O(seconds). These tools also exit with 0 if most of the fabric did not respond; a sweep reports whether
    it is complete, and in its C(problems) what is missing.
  - Changes nothing, and clears no counter. The control node judges what the sweeps show.
options:
  devices:
    description: Ports to sweep from, as C(DEVICE:PORT); by default every active InfiniBand port.
    type: list
    elements: str
    default: []
  seconds:
    description: Time limit of each plane in seconds.
    type: float
    default: 120
  partitions:
    description: Also query each host port for its partition keys; one process for each port.
    type: bool
    default: false
  known:
    description: Planes that another host has swept just now, by the GUIDs of their subnet managers; they are left out.
    type: list
    elements: str
    default: []
  dumps:
    description:
      - Directory on the host with outputs of these tools and C(ibdiagnet2.db_csv), of any names, to be read instead;
        each folder in it is a separate plane.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Sweep the planes that this host sees
  busbar.fabric.ib_fabric_info:
  register: fabric

- name: Read a stored sweep
  busbar.fabric.ib_fabric_info:
    dumps: /var/tmp/fabric-2026-11-22
"""

RETURN = r"""
sweeps:
  description:
    - One for each plane, small as JSON. A row of C(nodes) is GUID, kind, description, system GUID, device id, firmware,
      PSID and ports; a row of ports is number, state, physical state, width, speed, the width and speed that both ends
      support, the other end, LID, GUID, counters and why they could not be read.
  type: list
  elements: dict
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import diags, dumps, sweep

LONGEST = 3600
SPEC: module.Spec = {
    "devices": {"type": "list", "elements": "str", "default": []},
    "seconds": {"type": "float", "default": 120},
    "partitions": {"type": "bool", "default": False},
    "known": {"type": "list", "elements": "str", "default": []},
    "dumps": {"type": "path", "default": ""},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    if not 0 < given["seconds"] <= LONGEST:
        raise ParseError("seconds is %g, expected up to %d" % (given["seconds"], LONGEST))
    if given["dumps"] and given["devices"]:
        raise ParseError("devices and dumps are two ways to a sweep: give one of them")
    if given["dumps"]:
        found = list(dumps.read(host, given["dumps"]))
        findings = [diags.sweeps_read(found, found[0].source)]
    else:
        reading = diags.read(host, given["devices"], given["seconds"], given["partitions"], given["known"])
        found = reading.sweeps
        findings = reading.findings
    return dict(Plan(tuple(findings)).result(), sweeps=[sweep.to_dict(one) for one in found])


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
