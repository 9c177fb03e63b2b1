# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read bars: the bus bandwidth, or the latency, that a run has to reach.

A bar decides; the prediction (prediction.py) shows a bar that is implausible. Bandwidths are in GB/s (1e9
bytes), latencies in microseconds. What the keys mean: docs/bars.md.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member

from . import codec
from .plain_data import Plain

# Scope of a run: all GPUs of a node, two nodes, one rail of several nodes, the nodes of a leaf switch, the trays of an
# NVLink domain over their NVLinks, all nodes.
SCOPES = ("node", *cluster_member.SCOPES)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
# Algorithm that NCCL is set to; "" is NCCL's choice.
ALGORITHMS = ("", "Ring", "SHARP")


@dataclass(frozen=True)
class Bar:
    """The limit of a run: a bandwidth from messages of ``size`` bytes on, or a latency up to that size.

    busbw: GB/s, None in a latency bar; with algorithm SHARP it is algbw: the
        switches reduce, each byte crosses a NIC once, and busbw would exceed the wire.
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


def of_algbw(figure: float | None, ranks: int) -> float | None:
    """Return the busbw that nccl-tests print for an algbw of all_reduce; None stays None."""
    return None if figure is None else round(figure * 2 * (ranks - 1) / ranks, 1)


def parse_bars(data: object, name: str) -> tuple[Bar, ...]:
    """Return the bars of a parsed YAML list. Raises ParseError that names the entry and the key."""
    if not isinstance(data, list):
        raise ParseError(f"{name} is not a list of bars")
    bars: dict[tuple[object, ...], Bar] = {}
    for number, entry in enumerate(data, 1):
        where = "%s, entry %d" % (name, number)
        for one in _of_each_platform(entry, where):
            bar = _bar(one, where)
            if bars.setdefault((_run(bar), bar.size, bar.busbw is None), bar) is not bar:
                raise ParseError(f"{where}: there is a bar for the same run above")
    return tuple(bars.values())


def _of_each_platform(entry: object, where: str) -> list[object]:
    """Return the entry for each platform of its list: machines of the same board share a bar. Raises ParseError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("platform"), list):
        return [entry]
    if not entry["platform"]:
        raise ParseError(f"{where}: platform is an empty list")
    return [{**entry, "platform": platform} for platform in entry["platform"]]


def _run(bar: Bar) -> tuple[str, bool, str, str, str]:
    return bar.platform, bar.nvls, bar.scope, bar.collective, bar.algorithm


_rate = codec.number(0.001, 1e6)
_ANY = {
    **dict.fromkeys(("platform", "source"), codec.text(codec.LINE, re.compile(r".*\S.*", re.DOTALL))),
    "scope": codec.one_of(*SCOPES),
    "collective": codec.one_of(*COLLECTIVES),
    "size": codec.read_by(lambda value: parse_size(str(value))),
    "healthy": codec.maybe(_rate),
}
_LATENCY = codec.Record({**_ANY, "latency_us": _rate}, ("healthy",))
_algorithm = codec.one_of("Ring", "SHARP", "")
_BANDWIDTH = codec.Record(
    {**_ANY, "busbw": _rate, "nvls": codec.flag, "algorithm": _algorithm}, ("healthy", "algorithm")
)


def _bar(entry: object, where: str) -> Bar:
    of_latency = isinstance(entry, dict) and "latency_us" in entry and "busbw" not in entry
    try:
        (_LATENCY if of_latency else _BANDWIDTH)(entry)
    except codec.Invalid as error:
        raise ParseError(f"{where}: {error}") from None
    given: Plain = {"nvls": False, "healthy": None, "busbw": None, **dict(entry)}  # type: ignore[call-overload]
    if given.get("algorithm") == "SHARP" and (given["collective"] != "all_reduce" or given["scope"] == "node"):
        raise ParseError(f"{where}: algorithm SHARP is for all_reduce between nodes")
    value, healthy = given["latency_us" if of_latency else "busbw"], given["healthy"]
    if healthy is not None and (value < healthy if of_latency else value > healthy):
        side = "below" if of_latency else "above"
        raise ParseError(f"{where}: the bar {value:g} is {side} what a healthy node reaches, {healthy:g}")
    figures = {name: float(given[name]) for name in ("busbw", "healthy", "latency_us") if given.get(name) is not None}
    return Bar(**{**given, **figures, "size": parse_size(str(given["size"]))})


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
    fitting = [
        [bar for bar in bars if bar.busbw is not None and _run(bar) == key and bar.size <= size] for bars in files
    ]
    return next((max(bars, key=lambda bar: bar.size) for bars in fitting if bars), None)


def find_latency_bar(
    files: Sequence[Sequence[Bar]], platform: str, scope: str, collective: str, size: int
) -> Bar | None:
    """Return the latency bar of the first file with one, for the smallest size from ``size`` bytes up."""
    key = (platform, False, scope, collective, "")
    fitting = [[bar for bar in bars if bar.busbw is None and _run(bar) == key and bar.size >= size] for bars in files]
    return next((min(bars, key=lambda bar: bar.size) for bars in fitting if bars), None)
