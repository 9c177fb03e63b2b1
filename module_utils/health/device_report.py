# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Collect for the report how counters of a node's GPUs and PCIe functions grew since the previous run, and which
device it is. Only devices with growth or a finding are reported.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Sequence

from ..core.finding import Finding, printable
from ..core.host import Host, attempt
from ..machine import vpd
from ..machine.profile import Profile
from ..machine.rails import match
from ..machine.topology import Topology
from . import judge
from .node import NodeState

SLOTS = "/sys/bus/pci/slots"
BOARD = "/sys/class/dmi/id/product_serial"
# Placeholders of firmware whose manufacturer has set no serial number.
_NO_SERIAL = ("Default string", "None", "Not Specified", "To be filled by O.E.M.", "Unknown")
# Counters reported per device, the largest first.
_COUNTERS = 50
# Grows under every load: a GPU that is used is held to its power limit.
_NORMAL = "slowed sw_power_cap"


def devices(
    host: Host, have: NodeState, topology: Topology, profile: Profile, findings: Sequence[Finding]
) -> List[Dict[str, object]]:
    """One dict a device: pci, name, seconds, grown, product, serial, part, firmware, slot, board.

    seconds: since the baseline, None without one.   grown: counter -> growth above 0; ``slowed ...`` in microseconds.
    slot: as the chassis numbers it.   board: serial number of the machine. Unknown values are None.
    """
    rails = {nic.pci: "rail %d" % rail for rail, nic in match(topology, profile).nics.items()}
    names = {**{gpu.pci: "GPU%d" % gpu.index for gpu in topology.gpus}, **rails}
    wrong = {one.identity for one in findings if not one.ok}
    listed, now = have.gpus or {}, judge.counters(have)
    found: List[Any] = []
    for pci in sorted({*names, *listed, *have.aer}):
        gpu = listed.get(pci)
        uuid, about = (None, {}) if gpu is None else (gpu.uuid, gpu.texts)
        grown, seconds = judge.grown(have, now, uuid)
        errors, since = judge.grown(have, now, pci)
        counts = {name: n for name, n in grown.items() if n and name != _NORMAL}
        counts.update({"PCIe %s" % kind: n for kind, n in errors.items() if n})
        links = (have.speeds or {}).get(uuid or "", {})
        if counts or pci in wrong or None in links.values():
            if pci in rails:
                about = attempt(partial(vpd.read, host, pci), pci, []) or {}
            most = dict(sorted(counts.items(), key=lambda one: -one[1])[:_COUNTERS])
            known = {key: about.get(key) for key in ("product", "serial", "part", "firmware")}
            name = names.get(pci, "bridge")
            found.append({"pci": pci, "name": name, "seconds": (seconds or since) or None, "grown": most, **known})
    slots = _slots(host) if found else {}
    serial = attempt(partial(host.read, BOARD), BOARD, []) if found else None
    board = None if serial in (None, *_NO_SERIAL) else printable(str(serial))[:200]
    return [dict(one, slot=slots.get(one["pci"].rpartition(".")[0]), board=board) for one in found]


def _slots(host: Host) -> Dict[str, str]:
    """Return ``0000:17:00`` -> slot. A machine whose firmware names none has no such folder."""
    names = attempt(partial(host.listdir, SLOTS), SLOTS, []) or []
    addresses = {name: attempt(partial(host.read, "%s/%s/address" % (SLOTS, name)), SLOTS, []) for name in names}
    return {address.strip(): printable(name)[:40] for name, address in addresses.items() if address}
