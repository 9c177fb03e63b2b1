# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""InfiniBand partitions as a host sees them: the table of keys of each port, which the subnet manager fills.

A key's bit 15 marks a full member; two limited members of one partition cannot talk to each other. Reading it needs no
permission on the fabric. Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband (pkeys); IBTA 1, 10.9.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, ReadError, problem_of
from .pci import natural_key, parse_decimal
from .rdma import DEVICES
from .topology import Nic

FULL = 0x8000
_KEY = re.compile(r"0x([0-9a-fA-F]{1,4})")
# Number of keys in a finding.
_SHOWN = 8

RAIL_PARTITION = Check(
    "platform.rail_partition",
    why="a port without the key cannot talk in that partition, and two limited members of it cannot talk to each other:"
    " jobs fail to connect, or time out",
    fix="add the Port GUID (ibstat on the host) to the partition as a full member, in /etc/opensm/partitions.conf of"
    " the subnet manager or in UFM; let opensm read the file again (pkill -HUP opensm); then"
    " run site.yml --tags platform for this host again",
    severity="critical",
)
"""InfiniBand: does the rail's port have all keys of `busbar_fabric_partitions`, as a full member if the key has bit
15; read on the host itself, without a sweep"""

# Index in the table -> key, without empty places.
Table = Mapping[int, int]
# By (device, port); a Problem where a table could not be read.
Tables = Mapping[Tuple[str, int], Union[Table, Problem]]


def wanted(site: Mapping[str, Any]) -> Tuple[int, ...]:
    """Return keys that every rail must have. site: the site's values by name."""
    return tuple(parse_key(key) for key in site.get("busbar_fabric_partitions") or ())


def parse_key(text: str) -> int:
    """``0x8001``; 0 is an empty place. Raises ParseError."""
    match = _KEY.fullmatch(text.strip())
    if match is None:
        raise ParseError("%.80r is not a partition key like 0x8001" % text)
    return int(match.group(1), 16)


def read(host: Host, nics: Iterable[Nic]) -> Tables:
    """Return the key tables of the InfiniBand ports among these."""
    found: Dict[Tuple[str, int], Union[Table, Problem]] = {}
    for nic in nics:
        if nic.rdma is None or nic.port is None or nic.port.link_layer != "InfiniBand":
            continue
        path = "%s/ports/%d/pkeys" % (nic.rdma.source, nic.port.number)
        found[nic.rdma.name, nic.port.number] = _table(host, path)
    return found


def _table(host: Host, path: str) -> Union[Table, Problem]:
    table: Dict[int, int] = {}
    name = path
    try:
        entries = sorted(host.listdir(path), key=natural_key)
        if not entries:
            return Problem(path, "lists no key")
        for entry in entries:
            name = "%s/%s" % (path, entry)
            text = host.read(name)
            if text is None:
                raise ParseError("is gone")
            key = parse_key(text)
            if key:
                table[parse_decimal(entry)] = key
    except (ReadError, ParseError) as error:
        return problem_of(error, name)
    return table


def lacking(keys: Collection[int], asked: Sequence[int]) -> Tuple[str, ...]:
    """Return each wanted key that these do not cover, in words: a full member is a limited one, too."""
    missing = [key for key in asked if key not in keys and not (not key & FULL and key | FULL in keys)]
    return tuple(
        "0x%04x%s" % (key, " (a limited member only)" if key & FULL and key & ~FULL in keys else "") for key in missing
    )


def judge(nics: Iterable[Nic], tables: Tables, asked: Sequence[int], down: Mapping[str, Finding]) -> List[Finding]:
    """Judge each InfiniBand port; [] if no key is wanted. down: PCI address -> why its port is not up."""
    want = ", ".join("0x%04x" % key for key in asked)
    findings = []
    for nic in nics:
        if not asked or nic.rdma is None or nic.port is None or nic.port.link_layer != "InfiniBand":
            continue
        source = "%s/%s/ports/%d/pkeys" % (DEVICES, nic.rdma.name, nic.port.number)
        table = tables.get((nic.rdma.name, nic.port.number), Problem(source, "was not read"))
        fix: Optional[str] = None
        if isinstance(table, Problem):
            state, have = "unknown", str(table)
            fix = "see the output of grep . %s/* on the host" % source
        else:
            missing = lacking(set(table.values()), asked)
            state, have = "drift" if missing else "ok", _key_list(table)
            if missing:
                have = "lacks %s: %s" % (", ".join(missing), have)
        because = down.get(nic.pci) if state != "ok" else None
        findings.append(RAIL_PARTITION.judge(nic.label, state, want, have, source, fix, because))
    return findings


def _key_list(table: Table) -> str:
    """Return keys with their indices: NCCL takes index 0, or that of NCCL_IB_PKEY."""
    said = ["0x%04x at index %d" % (key, index) for index, key in sorted(table.items())]
    more = ["and %d more" % (len(said) - _SHOWN)] if len(said) > _SHOWN else []
    return ", ".join(said[:_SHOWN] + more) or "no key"
