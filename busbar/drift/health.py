# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the fleet's health: growth of counters by run, and the worst devices. Pure.

Growth, never totals; of two runs that are not a day apart scaled to a day.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .run import HostResult

_DAY = 86400.0
# Rows of each table, devices that a counter names, counters that a device names, nights that make a device bad.
ROWS, NAMED, COUNTERS, WEEK = 15, 3, 4, 7
_LINK = re.compile(r"link [0-9]+ (.*)")
Devices = Sequence[Plain]


def build(before: Sequence[Mapping[str, Devices]], hosts: Mapping[str, HostResult]) -> Plain | None:
    """Return the section; None where no host reported a device. Keys: docs/report.md.

    before: host -> its devices in each earlier run, oldest first.   hosts: of this run.
    """
    tonight = {name: host.health for name, host in hosts.items()}
    nights = [*before, tonight]
    if not any(devices for night in nights for devices in night.values()):
        return None
    daily = [{(host, one["pci"]): per_day(one) for host, of in night.items() for one in of} for night in nights]
    counters = sorted({name for grown in daily[-1].values() for name in grown})
    rows = [_counter(name, daily) for name in counters]
    rows.sort(key=lambda row: (-row["devices"], row["counter"]))
    worst = sorted(_devices(hosts, tonight, daily[-WEEK:]), key=lambda row: row[0])
    return {
        "nights": len(nights),
        "counters": rows[:ROWS],
        "counters_left_out": len(rows[ROWS:]),
        "worst": [row for _order, row in worst[:ROWS]],
        "worst_left_out": len(worst[ROWS:]),
    }


def per_day(device: Plain) -> dict[str, float]:
    """Return counter -> growth of a day, summed over NVLinks; {} where there is no earlier value."""
    found: dict[str, float] = {}
    if not device["seconds"]:
        return found
    for name, count in device["grown"].items():
        of_link = _LINK.fullmatch(name)
        kind = f"NVLink {of_link.group(1)}" if of_link else name
        found[kind] = found.get(kind, 0.0) + count * _DAY / device["seconds"]
    return found


def growth_text(counter: str, value: float) -> str:
    """Format growth: ``340 s`` of a counter in microseconds that slowed a GPU; else the count."""
    if counter.startswith("slowed "):
        return f"{value / 1e6:,.3g} s" if value < 1e9 else f"{value / 1e6:,.0f} s"
    return f"{value:,.0f}" if value >= 1 else f"{value:.2g}"


def _counter(name: str, daily: Sequence[Mapping[tuple[str, str], Mapping[str, float]]]) -> Plain:
    tonight = {device: grown[name] for device, grown in daily[-1].items() if name in grown}
    most = sorted(tonight.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
    return {
        "counter": name,
        "devices": len(tonight),
        "total": growth_text(name, sum(tonight.values())),
        "worst": [{"host": host, "pci": pci, "grown": growth_text(name, value)} for (host, pci), value in most],
        "trend": [sum(grown.get(name, 0.0) for grown in night.values()) for night in daily],
    }


def _devices(
    hosts: Mapping[str, HostResult],
    tonight: Mapping[str, Devices],
    week: Sequence[Mapping[tuple[str, str], Mapping[str, float]]],
) -> Iterator[tuple[tuple[object, ...], Plain]]:
    """Yield order and row of each device: wrong ones first, then those that grew in most runs, or grew most."""
    for host, devices in tonight.items():
        drifting = [(one.identity, one.check) for one in hosts[host].findings if one.state == "drift"]
        for one in devices:
            grown = week[-1][host, one["pci"]]
            wrong = list(dict.fromkeys(check for identity, check in drifting if identity == one["pci"]))
            if not wrong and not grown:
                continue
            nights = sum(bool(night.get((host, one["pci"]))) for night in week)
            most = sorted(grown.items(), key=lambda item: -item[1])
            size = sum(math.log1p(value) for value in grown.values())
            row = {
                "host": host,
                **{key: one.get(key) for key in ("pci", "name", "serial", "board")},
                "nights": nights,
                "wrong": wrong,
                "grown": [f"{name} {growth_text(name, value)}" for name, value in most[:COUNTERS]],
                "more": len(most[COUNTERS:]),
            }
            yield (-len(wrong), -nights, -size, host, one["pci"]), row
