# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""InfiniBand partitions as a host sees them: the table of keys of each port, which the subnet manager fills.

A key's bit 15 marks a full member; two limited members of one partition cannot talk to each other. Reading it needs no
permission on the fabric. Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband (pkeys); IBTA 1, 10.9.
"""

from __future__ import annotations

from typing import Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt, noted
from .pci import fullmatch, natural_key, parse_decimal
from .platform_checks import RECHECK
from .rdma import DEVICES
from .topology import Nic

FULL = 0x8000
# Number of keys in a finding.
_SHOWN = 8

RAIL_PARTITION = Check(
    "platform.rail_partition",
    why="a port without the key, and two limited members of a partition, cannot talk to each other: jobs time out",
    fix="add the Port GUID (ibstat on the host) as a full member, in UFM or the subnet manager's partitions.conf"
    " (then pkill -HUP opensm); " + RECHECK,
    severity="critical",
)
"""InfiniBand: does the rail's port have all keys of `busbar_fabric_partitions`, as a full member if the key has bit
15; read on the host itself, without a sweep"""

# Index in the table -> key, without empty places.
Table = Mapping[int, int]
# By (device, port); a Problem where a table could not be read.
Tables = Mapping[Tuple[str, int], Union[Table, Problem]]


def wanted(site: Mapping[str, Sequence[str]]) -> Tuple[int, ...]:
    """Return keys that every rail must have. site: the site's values by name."""
    return tuple(parse_key(key) for key in site.get("busbar_fabric_partitions") or ())


def parse_key(text: str) -> int:
    """``0x8001``; 0 is an empty place. Raises ParseError."""
    return int(fullmatch("0x[0-9a-fA-F]{1,4}", text.strip(), "a partition key like 0x8001").group(), 16)


def read(host: Host, nics: Iterable[Nic]) -> Tables:
    """Return the key tables of the InfiniBand ports among these."""
    return {port: _table(host, source) for _nic, port, source in _ports(nics)}


def _ports(nics: Iterable[Nic]) -> Iterator[Tuple[Nic, Tuple[str, int], str]]:
    """Yield each NIC with an InfiniBand port, that port, and the folder of its keys."""
    for nic in nics:
        if nic.rdma is not None and nic.port is not None and nic.link_layer == "InfiniBand":
            port = nic.rdma.name, nic.port.number
            yield nic, port, "%s/%s/ports/%d/pkeys" % (DEVICES, *port)


def _table(host: Host, path: str) -> Union[Table, Problem]:
    table: Dict[int, int] = {}
    problems: List[Problem] = []
    entries = attempt(lambda: host.listdir(path), path, problems) or ()
    for entry in sorted(entries, key=natural_key):
        name = "%s/%s" % (path, entry)
        with noted(name, problems):
            table[parse_decimal(entry)] = parse_key(host.require(name))
    if problems or not table:
        return problems[0] if problems else Problem(path, "lists no key")
    return {index: key for index, key in table.items() if key}


def judge(nics: Iterable[Nic], tables: Tables, asked: Sequence[int], down: Mapping[str, Finding]) -> List[Finding]:
    """Judge each InfiniBand port; [] if no key is wanted. down: PCI address -> why its port is not up."""
    want = ", ".join("0x%04x" % key for key in asked)
    findings = []
    for nic, port, source in _ports(nics) if asked else ():
        table = tables.get(port, Problem(source, "was not read"))
        fix: Optional[str] = None
        if isinstance(table, Problem):
            state, have, fix = "unknown", str(table), "see the output of grep . %s/* on the host" % source
        else:
            # NCCL takes index 0, or that of NCCL_IB_PKEY.
            texts = ["0x%04x at index %d" % (key, index) for index, key in sorted(table.items())]
            more = ["and %d more" % (len(texts) - _SHOWN)] if len(texts) > _SHOWN else []
            missing, have = lacking(set(table.values()), asked), ", ".join(texts[:_SHOWN] + more) or "no key"
            state, have = ("drift", "lacks %s: %s" % (", ".join(missing), have)) if missing else ("ok", have)
        findings.append(RAIL_PARTITION.judge(nic.label, state, want, have, source, fix, down.get(nic.pci)))
    return findings


def lacking(keys: Collection[int], asked: Sequence[int]) -> Tuple[str, ...]:
    """Return each wanted key that these do not cover, in words: a full member is a limited one, too."""
    missing = [key for key in asked if key not in keys and not (not key & FULL and key | FULL in keys)]
    return tuple(
        "0x%04x%s" % (key, " (a limited member only)" if key & FULL and key & ~FULL in keys else "") for key in missing
    )
