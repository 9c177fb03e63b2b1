# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store a node's counters, so that the next run can compute their growth.

Totals are useless: two of eight new GPUs have replays, and every old port has symbol errors. The node stores its
counters in FILE, which is not configuration: the audit, which changes nothing else, writes it, too. After a reboot or a
reload of the driver nothing is compared, and a new record begins.

A run within hours of the last compares with the same counters, so that a second look gives the same result. So the file
has two records; the older one stays until the younger is KEPT seconds old.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, NamedTuple, Optional

from ..change import apply
from ..core.finding import printable
from ..core.host import Host, ParseError, ReadError
from ..core.plan import FileChange

FORMAT = 1
FOLDERS = ("/var/lib/busbar", "/var/lib/busbar/health")
FILE = FOLDERS[1] + "/last.json"
# Seconds for which counters stay the baseline: shorter than a night, longer than a day's work.
KEPT = 12 * 3600.0
DAY = 86400.0
# Seconds below which a rate is meaningless.
SHORTEST = 60.0
_BYTES, _DEVICES, _COUNTERS, _TEXT = 4 << 20, 512, 2048, 200
_LARGEST = 1 << 64
# What a port counts when its link comes up for the first time.
_AT_BOOT = {"link_downed": 1, "link_down_events_phy": 1, "carrier_changes": 2}
Counters = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Record:
    """at: seconds of the epoch.   driver_loaded: module -> what changes when it is loaded anew.

    gpus: UUID -> counter -> value.   pci: PCI address -> AER kind -> value.   ports: "PCI address/port" -> its
    entry (port_counters.py).
    """

    boot_id: str
    at: float
    driver_loaded: Mapping[str, str] = field(default_factory=dict)
    gpus: Counters = field(default_factory=dict)
    pci: Counters = field(default_factory=dict)
    ports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def same_driver(self, other: Record, module: str) -> bool:
        """Return whether counters of this driver continue from one record to the other."""
        mine, theirs = self.driver_loaded.get(module), other.driver_loaded.get(module)
        return self.boot_id == other.boot_id and mine == theirs


class StoredRecords(NamedTuple):
    """Content of the file: the last record, and the baseline before it."""

    last: Record
    before: Optional[Record] = None


def parse(text: str) -> StoredRecords:
    """Parse the file. Raises ParseError."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ParseError("is not a record of format %d" % FORMAT)
        return StoredRecords(_record(data), None if data.get("before") is None else _record(data["before"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ParseError("is not a record of this suite: %.120s" % error) from error


def _record(data: Mapping[str, Any]) -> Record:
    loaded = {_text(name): _text(value) for name, value in data["driver_loaded"].items()}
    ports = data["ports"]
    if len(ports) > _DEVICES or not all(isinstance(one, dict) for one in ports.values()):
        raise ValueError("ports are not counters of at most %d devices" % _DEVICES)
    gpus, pci = _counters(data["gpus"]), _counters(data["pci"])
    return Record(_text(data["boot_id"]), _time(data["at"]), loaded, gpus, pci, ports)


def _counters(data: Mapping[str, Mapping[str, object]]) -> Dict[str, Dict[str, int]]:
    if len(data) > _DEVICES or any(len(counts) > _COUNTERS for counts in data.values()):
        raise ValueError("it has more counters than a node has")
    return {_text(key): {_text(name): _count(n) for name, n in counts.items()} for key, counts in data.items()}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError("%.40r is not a count" % (value,))
    return value


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise ValueError("%.40r is not a time" % (value,))
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT:
        raise ValueError("%.40r is not a text of at most %d characters" % (value, _TEXT))
    return printable(value)


def render(kept: StoredRecords) -> str:
    """Return the text that ``parse`` reads."""
    before = None if kept.before is None else vars(kept.before)
    return json.dumps({**vars(kept.last), "format": FORMAT, "before": before}, sort_keys=True)


def baseline(kept: Optional[StoredRecords], now: float, boot_id: str) -> Optional[Record]:
    """Return the record to compare with; None if there is none of this boot.

    A record of the future does not count: the clock was set back.
    """
    found = None
    for record in (kept.last, kept.before) if kept else ():
        if record is not None and record.boot_id == boot_id and record.at <= now:
            found = record if found is None or now - found.at < KEPT else found
    return found


def update_records(kept: Optional[StoredRecords], now: Record) -> StoredRecords:
    """Return the new content of the file after a run with the counters ``now``."""
    last = None if kept is None else kept.last
    if kept is None or last is None or last.boot_id != now.boot_id or last.at > now.at:
        return StoredRecords(now)
    if last.driver_loaded != now.driver_loaded or now.at - last.at >= KEPT:
        return StoredRecords(now, last)
    # New counters are added: they have no earlier value. A port counts anew with another card or interface.
    same = {key: port for key, port in last.ports.items() if _same_port(port, now.ports.get(key, port))}
    gpus, pci, ports = {**now.gpus, **last.gpus}, {**now.pci, **last.pci}, {**now.ports, **same}
    return StoredRecords(replace(last, gpus=gpus, pci=pci, ports=ports), kept.before)


def _same_port(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return all(one.get(name) == other.get(name) for name in ("guid", "loaded"))


def grown(before: Mapping[str, int], now: Mapping[str, int]) -> Dict[str, int]:
    """Return growth of each counter that both have. A smaller value was reset: then its value is the growth."""
    return {name: n - before[name] if n >= before[name] else n for name, n in now.items() if name in before}


def since_boot(now: Record, uptime: float) -> Record:
    """Return what the counters were at boot, for a first look at a node: zero, and one link that went up late.

    Memory errors are counted over the GPU's life, and the recoveries of an NVLink have a limit a day, not a rate.
    uptime: seconds.
    """
    share, at = min(1.0, DAY / max(uptime, 1.0)), now.at - uptime

    def at_boot(name: str, n: int) -> int:
        if name.startswith("link "):
            return 0 if name.endswith(("failed recoveries", "replays")) else n - int(n * share)
        return 0 if name.startswith("slowed ") or name == "replays" else n

    def port_at_boot(port: Mapping[str, Any]) -> Dict[str, Any]:
        return {**port, "at": at, "values": {key: min(n, _AT_BOOT.get(key, 0)) for key, n in port["values"].items()}}

    return replace(
        now,
        at=at,
        gpus={uuid: {name: at_boot(name, n) for name, n in counts.items()} for uuid, counts in now.gpus.items()},
        pci={pci: dict.fromkeys(counts, 0) for pci, counts in now.pci.items()},
        ports={key: port_at_boot(port) for key, port in now.ports.items()},
    )


def read(host: Host) -> Optional[StoredRecords]:
    """Return the stored records; None without any. Raises ReadError, ParseError."""
    text = host.read_system(FILE, limit=_BYTES)
    return None if text is None else parse(text)


def begin_ports_anew(host: Host) -> None:
    """Drop the ports' baseline before the suite takes links down: that is not a fault.

    node_health reports what cannot be read or written.
    """
    try:
        kept = read(host)
        if kept is not None and (kept.last.ports or (kept.before and kept.before.ports)):
            before = None if kept.before is None else replace(kept.before, ports={})
            write(host, StoredRecords(replace(kept.last, ports={}), before))
    except (ReadError, ParseError):
        return


def write(host: Host, kept: StoredRecords) -> None:
    """Write the file. Raises ReadError; a folder that is a link is refused: it could point anywhere."""
    for folder in FOLDERS:
        if os.path.islink(host.system(folder)):
            raise ReadError(folder, "is a link; the record is not written through it: make it a folder of root's")
    apply.write(host, FileChange(FILE, None, render(kept) + "\n"))
