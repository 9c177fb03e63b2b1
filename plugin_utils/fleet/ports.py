# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find ports whose counters since the previous run stand out among all ports like them.

Below every limit a port may still lose a hundred times what the others do, and no vendor has published usual values at
400 Gb/s. Like ports have one link layer and speed. What is high on a quarter of them is a matter of the fabric, or of
jobs, and no outlier. Joined with the findings of ib_fabric on the same cables: one cause, one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_modules, judge_ports, port_counters
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_ports import PortGrowth

from .. import codec, result_schema, suite
from ..fabric import links as fabric_rates
from ..role_result import RoleResult
from .table import Results

ROLE = "node_health"
PORT_OUTLIER = Check(
    "node_health.port_outlier",
    why="within limits, it loses or waits many times as much as similar ports: it may fail next, or slow its host",
    fix="compare this rail with another one of its kind: cable and transceiver at both ends (mlxlink -d DEVICE -m -c"
    " -e), slot (platform.rail_pcie), settings (roce_qos.*); exchange the cable with that of a good rail, and see"
    " which rail stands out in the next run",
    severity="minor",
)
"Does no rail's port stand out from the ports like it: ten times what three quarters of them stay below"
# Ports needed for a usual value, and the seconds of a run's interval. No published source.
FEWEST, SHORTEST = 8, port_counters.HOUR
# Factor over the upper quartile. No published source.
FACTOR = 10.0
# Packets from which a share of them is significant. No published source.
ENOUGH = 1e6
SENT, RECEIVED = "port_xmit_packets", "port_rcv_packets"
# Checks of a cable on the node, and those of the fabric.
_OF_A_CABLE = {
    judge_ports.PORT_LINK_DOWNED.id: fabric_rates.LINK_DOWNED.id,
    judge_ports.PORT_SYMBOL_ERRORS.id: fabric_rates.SYMBOLS.id,
    judge_ports.PORT_ERRORS.id: fabric_rates.ERRORS.id,
    judge_modules.BIT_ERRORS.id: fabric_rates.SYMBOLS.id,
}


class Port(NamedTuple):
    """A port as the node reports it, with its host. seconds: of the growth, which is known."""

    host: str
    grown: PortGrowth
    seconds: float

    @property
    def like(self) -> tuple[str, str]:
        return self.grown.link_layer, self.grown.speed


class Measure(NamedTuple):
    """A compared figure: counters a day, of a million packets, or as microseconds in per cent of the time.

    floor: up to this a port is no outlier.   counters: added up.   packets: counter of the packets, "" for none.
    unit: "" for a day.   grave: it is major.
    """

    name: str
    floor: float
    counters: Sequence[str]
    packets: str = ""
    unit: str = "a day"
    grave: bool = False

    def value(self, port: Port) -> float | None:
        """Return None where the port has sent too few packets."""
        grown = port.grown.grown
        # On Ethernet the usual counter of symbol errors includes corrected ones.
        on_ethernet = self.name == "symbol errors" and port.like[0] != "InfiniBand"
        count = sum(grown.get(name, 0) for name in (("rx_pcs_symbol_err_phy",) if on_ethernet else self.counters))
        if self.packets:
            packets = grown.get(self.packets, 0)
            return 1e6 * count / packets if packets >= ENOUGH else None
        return count / 1e4 / port.seconds if self.unit[0] == "%" else count * port_counters.DAY / port.seconds


_OF_HOST = port_counters.judged("host_discards", ("pcie", "buffers"))
_SHARE, _TIME = "of a million", "% of the time"
# Floors have no published source: a healthy port's errors of a day, and a few millionths of the packets.
MEASURES = (
    Measure("symbol errors", 10, ("symbol_error",), grave=True),
    Measure("damaged packets", 10, port_counters.judged("errors"), grave=True),
    Measure("packets sent again", 10, ("packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"), SENT, _SHARE),
    Measure("packets dropped on the switch's side", 1, port_counters.judged("discards"), SENT, _SHARE),
    Measure("packets dropped by the host", 1, _OF_HOST, RECEIVED, _SHARE),
    Measure("packets marked by ECN", 10_000, ("np_ecn_marked_roce_packets",), RECEIVED, _SHARE),
    Measure("pauses that the network requested", 1, ("rx_paused_us",), unit=_TIME),
    Measure("pauses that this host requested", 0.1, ("tx_paused_us",), unit=_TIME),
)


def join(results: Results) -> None:
    """Add the findings of the comparison to the role's results. results: host -> role -> result."""
    ports: list[Port] = []
    for host, of_host in results.items():
        # Without a valid result, which the verdict reports, there are none.
        for one in (of_host[ROLE].part("ports", result_schema.health_ports) if ROLE in of_host else None) or ():
            grown = codec.build(PortGrowth, one)
            if grown.seconds is not None and grown.seconds >= SHORTEST and grown.speed:
                ports.append(Port(host, grown, grown.seconds))
    for host, findings in judge(ports).items():
        before = results[host][ROLE]
        results[host][ROLE] = before.adding(_behind(one, before.findings) for one in findings)
    rails: dict[str, dict[str, int]] = defaultdict(dict)
    for port in ports:
        rails[port.host][port.grown.pci] = port.grown.rail
    for host, of_pci in rails.items():
        own, fabric = results[host][ROLE], results[host].get(suite.FABRIC, RoleResult()).findings
        linked = tuple(_behind_the_fabric(host, one, of_pci.get(one.identity), fabric) for one in own.findings)
        results[host][ROLE] = replace(own, findings=linked)


def judge(ports: Iterable[Port]) -> dict[str, list[Finding]]:
    """Return host -> a finding for each outlier among its ports; an ok one where all were compared and none is."""
    groups: dict[tuple[str, str], list[Port]] = defaultdict(list)
    for port in ports:
        groups[port.like].append(port)
    found: dict[str, list[Finding]] = defaultdict(list)
    compared: set[str] = set()
    source = "counters of all hosts"
    for like, group in groups.items():
        if len(group) < FEWEST:
            continue
        compared |= {port.host for port in group}
        for port, texts, severity in _outliers(group):
            subject = f"{port.grown.pci} {port.grown.device} rail {port.grown.rail}"
            want, have = f"as {len(group)} ports of {' '.join(like)}", "; ".join(texts)
            found[port.host].append(PORT_OUTLIER.judge(subject, "drift", want, have, source, severity=severity))
    ok = PORT_OUTLIER.judge("ports", "ok", have="as on %d hosts" % len(compared), source=source) if compared else None
    return {host: found[host] or [ok] for host in sorted(compared) if ok is not None}


def _outliers(group: Sequence[Port]) -> Iterator[tuple[Port, list[str], str | None]]:
    texts: dict[int, list[str]] = defaultdict(list)
    grave: set[int] = set()
    for measure in MEASURES:
        values = [(number, value) for number, port in enumerate(group) if (value := measure.value(port)) is not None]
        if len(values) < FEWEST:
            continue
        usual = sorted(value for _number, value in values)[len(values) * 3 // 4]
        for number, value in values:
            if value > max(measure.floor, FACTOR * usual):
                text = f"{measure.name} {value:.3g} {measure.unit}, three quarters have {usual:.3g} or less"
                texts[number].append(text)
                grave |= {number} if measure.grave else set()
    for number in sorted(texts):
        yield group[number], texts[number], "major" if number in grave else None


def _behind(finding: Finding, found: Sequence[Finding]) -> Finding:
    """Name what the node itself reports of the port as the cause."""
    own = (one for one in found if one.check.startswith("node_health.port_") and one.because is None)
    cause = next((one.id for one in own if one.identity == finding.identity), None)
    return finding if finding.ok else replace(finding, because=cause)


def _behind_the_fabric(host: str, finding: Finding, rail: int | None, fabric: Sequence[Finding]) -> Finding:
    """Link a port's finding to that of ib_fabric on its cable, which has both ends."""
    if finding.check not in _OF_A_CABLE or finding.because is not None or finding.state != "drift" or rail is None:
        return finding
    same = [one for one in fabric if one.check in _OF_A_CABLE.values() and one.subject == f"{host} rail {rail}"]
    # Many equal cables are one line, without their names, which applies to the host, too.
    many = [one for one in fabric if one.check == _OF_A_CABLE[finding.check] and " links" in one.subject]
    return replace(finding, because=next((one.id for one in (*same, *many)), None))
