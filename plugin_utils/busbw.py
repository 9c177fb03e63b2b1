# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read bars: the bus bandwidth, or the latency, that a run has to reach.

A bar decides; the prediction (prediction.py) shows a bar that is implausible. Bandwidths are in GB/s (1e9
bytes), latencies in microseconds. What the keys mean: docs/bars.md.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member

# Scope of a run: all GPUs of a node, two nodes, one rail of several nodes, the nodes of a leaf switch, the trays of an
# NVLink domain over their NVLinks, all nodes.
SCOPES = ("node", *cluster_member.SCOPES)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
# Algorithm that NCCL is set to; "" is NCCL's choice.
ALGORITHMS = ("", "Ring", "SHARP")


@dataclass(frozen=True)
class Bar:
    """The limit of a run: a bandwidth from messages of ``size`` bytes on, or a latency up to that size.

    busbw: GB/s, None in a latency bar; with algorithm SHARP it is algbw, see ``measure``.
    healthy: figure of a healthy node or cluster, in the bar's unit.
    algorithm: one of ALGORITHMS.   latency_us: microseconds at most, None in a bandwidth bar.
    nvls: of a latency bar always False: small messages are not reduced in the NVSwitch.
    """

    platform: str
    nvls: bool
    scope: str
    collective: str
    size: int
    busbw: float | None
    healthy: float | None
    source: str
    algorithm: str = ""
    latency_us: float | None = None


@dataclass(frozen=True)
class Prediction:
    """busbw: GB/s (with SHARP algbw); None where nothing can be predicted. rule: its derivation, or why not."""

    busbw: float | None
    rule: str


def measure(algorithm: str) -> str:
    """Return ``busbw`` or ``algbw``: the figure that a bar or prediction of this algorithm applies to.

    Where switches reduce (SHARP), each byte crosses a NIC once: busbw would exceed the wire.
    """
    return "algbw" if algorithm == "SHARP" else "busbw"


def of_algbw(figure: float | None, ranks: int) -> float | None:
    """Return the busbw that nccl-tests print for an algbw of all_reduce; None stays None."""
    return None if figure is None else round(figure * 2 * (ranks - 1) / ranks, 1)


def parse_bars(data: object, name: str) -> tuple[Bar, ...]:
    """Return the bars of a parsed YAML list. Raises ParseError that names the entry and the key."""
    if not isinstance(data, list):
        raise ParseError(f"{name} is not a list of bars")
    bars: list[Bar] = []
    keys = set()
    for number, entry in enumerate(data, 1):
        where = "%s, entry %d" % (name, number)
        for one in _of_each_platform(entry, where):
            bar = _bar(one, where)
            key = (_run(bar), bar.size, bar.busbw is None)
            if key in keys:
                raise ParseError(f"{where}: there is a bar for the same run above")
            keys.add(key)
            bars.append(bar)
    return tuple(bars)


def _of_each_platform(entry: object, where: str) -> list[object]:
    """Return the entry for each platform of its list: machines of the same board share a bar. Raises ParseError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("platform"), list):
        return [entry]
    if not entry["platform"]:
        raise ParseError(f"{where}: platform is an empty list")
    return [{**entry, "platform": platform} for platform in entry["platform"]]


def _run(bar: Bar) -> tuple[str, bool, str, str, str]:
    return bar.platform, bar.nvls, bar.scope, bar.collective, bar.algorithm


def _bar(entry: object, where: str) -> Bar:
    if not isinstance(entry, dict):
        raise ParseError(f"{where} is not a mapping")
    of_latency = "latency_us" in entry and "busbw" not in entry
    figure = "latency_us" if of_latency else "busbw"
    required = {"platform", "scope", "collective", "size", "source", figure, *(() if of_latency else ("nvls",))}
    optional = {"healthy"} if of_latency else {"healthy", "algorithm"}
    for key in entry:
        if key not in required | optional:
            if key in ("nvls", "algorithm", "latency_us"):
                raise ParseError(f"{where}: a bar with latency_us has no nvls, no algorithm and no busbw")
            raise ParseError(f"{where} has unknown key {key!r}")
    for key in sorted(required - set(entry)):
        raise ParseError(f"{where} has no key {key}")
    for key in ("platform", "scope", "collective", "source"):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise ParseError(f"{where}: {key} is {entry[key]!r}, expected text")
    for key, known_words in (("scope", SCOPES), ("collective", COLLECTIVES)):
        if entry[key] not in known_words:
            words = ", ".join(known_words)
            raise ParseError(f"{where}: {key} is {entry[key]!r}, expected one of {words}")
    algorithm = entry.get("algorithm", "")
    if algorithm not in ALGORITHMS:
        raise ParseError(f"{where}: algorithm is {algorithm!r}, expected Ring, SHARP, or none for NCCL's choice")
    if algorithm == "SHARP" and (entry["collective"] != "all_reduce" or entry["scope"] == "node"):
        raise ParseError(f"{where}: algorithm SHARP is for all_reduce between nodes")
    nvls = entry.get("nvls", False)
    if not isinstance(nvls, bool):
        raise ParseError(f"{where}: nvls is {nvls!r}, expected true or false")
    value = _figure(entry[figure], f"{where}: {figure}")
    healthy = None if entry.get("healthy") is None else _figure(entry["healthy"], f"{where}: healthy")
    if healthy is not None and (value < healthy if of_latency else value > healthy):
        side = "below" if of_latency else "above"
        raise ParseError(f"{where}: the bar {value:g} is {side} what a healthy node reaches, {healthy:g}")
    return Bar(
        platform=entry["platform"],
        nvls=nvls,
        scope=entry["scope"],
        collective=entry["collective"],
        size=_size(entry["size"], where),
        busbw=None if of_latency else value,
        healthy=healthy,
        source=entry["source"],
        algorithm=algorithm,
        latency_us=value if of_latency else None,
    )


def _size(value: object, where: str) -> int:
    try:
        return parse_size(str(value))
    except ParseError as error:
        raise ParseError(f"{where}: {error}") from error


def _figure(value: object, what: str) -> float:
    # An int of a thousand digits is too large for a float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        unit = "microseconds" if what.endswith("latency_us") else "GB/s"
        raise ParseError(f"{what} is {value if not isinstance(value, int) else '...'!r}, expected {unit} above 0")
    return float(value)


def find_bar(
    files: Sequence[Sequence[Bar]],
    platform: str,
    nvls: bool,
    scope: str,
    collective: str,
    size: int,
    algorithm: str = "",
) -> Bar | None:
    """Return a run's bar: of the first file with a bar for it, the one for the largest size up to ``size`` bytes.

    A bar of another scope or algorithm is never used.
    """
    key = (platform, nvls, scope, collective, algorithm)
    for bars in files:
        fitting = [bar for bar in bars if bar.busbw is not None and _run(bar) == key and bar.size <= size]
        if fitting:
            return max(fitting, key=lambda bar: bar.size)
    return None


def find_latency_bar(
    files: Sequence[Sequence[Bar]], platform: str, scope: str, collective: str, size: int
) -> Bar | None:
    """Return the latency bar of the first file with one, for the smallest size from ``size`` bytes up."""
    key = (platform, False, scope, collective, "")
    for bars in files:
        fitting = [bar for bar in bars if bar.latency_us is not None and _run(bar) == key and bar.size >= size]
        if fitting:
            return min(fitting, key=lambda bar: bar.size)
    return None
