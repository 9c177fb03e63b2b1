# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find ports whose counters since the previous run stand out among all ports like them.

Below every limit a port may still lose a hundred times what the others do, and no vendor has published usual values at
400 Gb/s. Like ports have one link layer and speed. What is high on a quarter of them is a matter of the fabric, or of
jobs, and no outlier. Joined with the findings of ib_fabric on the same cables: one cause, one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_modules, judge_ports, port_counters
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_ports import PortGrowth

from .. import codec, result_schema, suite
from ..fabric import counters as fabric_rates
from ..role_result import RoleResult
from .table import Results

ROLE = "node_health"
PORT_OUTLIER = Check(
    "node_health.port_outlier",
    why="within limits, this port loses or waits many times as much as similar ones: it may fail next, or its host is"
    " slow",
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
# Checks of a cable on the node, and those of the fabric.
_OF_A_CABLE = {
    judge_ports.PORT_LINK_DOWNED.id: fabric_rates.LINK_DOWNED.id,
    judge_ports.PORT_SYMBOL_ERRORS.id: fabric_rates.SYMBOLS.id,
    judge_ports.PORT_ERRORS.id: fabric_rates.ERRORS.id,
    judge_modules.BIT_ERRORS.id: fabric_rates.SYMBOLS.id,
}


@dataclass(frozen=True)
class Port:
    """A port as the node reports it, with its host. seconds: of the growth, which is known."""

    host: str
    grown: PortGrowth
    seconds: float

    @property
    def like(self) -> tuple[str, str]:
        return self.grown.link_layer, self.grown.speed

    def count(self, name: str) -> int:
        return self.grown.grown.get(name, 0)


@dataclass(frozen=True)
class Measure:
    """A compared figure.   unit: for people.   floor: up to this a port is no outlier.   grave: it is major.

    of: its value; None where the port does not report it.
    """

    name: str
    unit: str
    floor: float
    of: Callable[[Port], float | None]
    grave: bool = False


def _symbols(port: Port) -> float | None:
    """Return errors a day after FEC; the other counter of Ethernet includes corrected ones."""
    name = "symbol_error" if port.like[0] == "InfiniBand" else "rx_pcs_symbol_err_phy"
    return port.count(name) * port_counters.DAY / port.seconds


def _a_day(*names: str) -> Callable[[Port], float | None]:
    return lambda port: sum(port.count(name) for name in names) * port_counters.DAY / port.seconds


def _of_a_million(packets: str, *names: str) -> Callable[[Port], float | None]:
    def rate(port: Port) -> float | None:
        sent = port.count(packets)
        return 1e6 * sum(port.count(name) for name in names) / sent if sent >= ENOUGH else None

    return rate


def _of_the_time(name: str) -> Callable[[Port], float | None]:
    return lambda port: port.count(name) / 1e4 / port.seconds


# Floors have no published source: a healthy port's errors of a day, and a few millionths of the packets.
MEASURES = (
    Measure("symbol errors", "a day", 10, _symbols, grave=True),
    Measure("damaged packets", "a day", 10, _a_day(*port_counters.judged("errors")), grave=True),
    Measure(
        *("packets sent again", "of a million", 10),
        _of_a_million("port_xmit_packets", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"),
    ),
    Measure(
        *("packets dropped on the switch's side", "of a million", 1),
        _of_a_million("port_xmit_packets", *port_counters.judged("discards")),
    ),
    Measure(
        *("packets dropped by the host", "of a million", 1),
        _of_a_million("port_rcv_packets", *port_counters.judged("host_discards", ("pcie", "buffers"))),
    ),
    Measure(
        "packets marked by ECN", "of a million", 10_000, _of_a_million("port_rcv_packets", "np_ecn_marked_roce_packets")
    ),
    Measure("pauses that the network requested", "% of the time", 1, _of_the_time("rx_paused_us")),
    Measure("pauses that this host requested", "% of the time", 0.1, _of_the_time("tx_paused_us")),
)


def join(results: Results, _files: object = None) -> None:
    """Add the findings of the comparison to the role's results. results: host -> role -> result."""
    ports = [port for host, of_host in results.items() for port in _ports_of(host, of_host.get(ROLE))]
    for host, findings in judge(ports).items():
        before = results[host][ROLE]
        results[host][ROLE] = before.adding(_behind(one, before.findings) for one in findings)
    for host in {port.host for port in ports}:
        _behind_the_fabric(
            host, results[host], {port.grown.pci: port.grown.rail for port in ports if port.host == host}
        )


def judge(ports: Iterable[Port]) -> dict[str, list[Finding]]:
    """Return host -> a finding for each outlier among its ports; an ok one where all were compared and none is."""
    groups: dict[tuple[str, str], list[Port]] = defaultdict(list)
    for port in ports:
        groups[port.like].append(port)
    said: dict[str, list[Finding]] = defaultdict(list)
    compared: set[str] = set()
    for like, group in groups.items():
        if len(group) < FEWEST:
            continue
        compared |= {port.host for port in group}
        for port, texts, grave in _outliers(group):
            said[port.host].append(
                PORT_OUTLIER.judge(
                    f"{port.grown.pci} {port.grown.device} rail {port.grown.rail}",
                    *("drift", f"as {len(group)} ports of {' '.join(like)}", "; ".join(texts), "counters of all hosts"),
                    severity="major" if grave else None,
                )
            )
    return {
        host: said[host]
        or [PORT_OUTLIER.judge("ports", "ok", have="as on %d hosts" % len(compared), source="counters of all hosts")]
        for host in sorted(compared)
    }


def _outliers(group: Sequence[Port]) -> Iterator[tuple[Port, list[str], bool]]:
    texts: dict[int, list[str]] = defaultdict(list)
    grave: set[int] = set()
    for measure in MEASURES:
        values = [(number, value) for number, port in enumerate(group) if (value := measure.of(port)) is not None]
        if len(values) < FEWEST:
            continue
        usual = sorted(value for _number, value in values)[len(values) * 3 // 4]
        for number, value in values:
            if value > max(measure.floor, FACTOR * usual):
                texts[number].append(
                    f"{measure.name} {value:.3g} {measure.unit}, three quarters have {usual:.3g} or less"
                )
                grave |= {number} if measure.grave else set()
    for number in sorted(texts):
        yield group[number], texts[number], number in grave


def _ports_of(host: str, role: RoleResult | None) -> Iterator[Port]:
    """Yield the ports of a host; none without a valid result, which the verdict reports."""
    for one in (role and role.part("ports", result_schema.health_ports)) or ():
        grown = codec.build(PortGrowth, one)
        if grown.seconds is not None and grown.seconds >= SHORTEST and grown.speed:
            yield Port(host, grown, grown.seconds)


def _behind(finding: Finding, found: Sequence[Finding]) -> Finding:
    """Name what the node itself reports of the port as the cause."""
    own = (one for one in found if one.check.startswith("node_health.port_") and one.because is None)
    cause = next((one.id for one in own if one.identity == finding.identity), None)
    return finding if finding.ok else replace(finding, because=cause)


def _behind_the_fabric(host: str, of_host: dict[str, RoleResult], rails: Mapping[str, int]) -> None:
    """Link a port's finding to that of ib_fabric on its cable, which has both ends."""
    fabric = of_host.get(suite.FABRIC, RoleResult())
    told = [one for one in fabric.findings if one.check in _OF_A_CABLE.values()]

    def linked(one: Finding) -> Finding:
        rail = rails.get(one.subject.split(" ", 1)[0])
        if one.check not in _OF_A_CABLE or one.because is not None or one.state != "drift" or rail is None:
            return one
        same = [other for other in told if other.subject == f"{host} rail {rail}"]
        # Many equal cables are one line, without their names, which applies to the host, too.
        many = [other for other in told if other.check == _OF_A_CABLE[one.check] and " links" in other.subject]
        return replace(one, because=next((other.id for other in (*same, *many)), None))

    of_host[ROLE] = replace(of_host[ROLE], findings=tuple(map(linked, of_host[ROLE].findings)))
