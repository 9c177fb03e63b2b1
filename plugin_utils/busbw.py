# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bus bandwidth that a node has to reach: bars out of a file, and a prediction from the profile's links.

The bar decides; the prediction stands beside it and shows a bar that is off. It is made from the profile alone: a node
with nine of eighteen NVLinks must not lower what is expected of it. Bandwidths are busbw in GB/s (1e9 bytes).
Sources: nccl.md 7 (NCCL's own constants, src/graph/topo.h; published and measured figures), docs/bars.md.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile

SCOPES = ("node",)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")

# GB/s of one NVLink, one direction, as NCCL counts it (topo.h), by what the driver calls the GPU.
_NVLINK: tuple[tuple[str, float, bool], ...] = (
    # model, GB/s, can do NVLS (Hopper and later)
    (r"Tesla V100\b|V100\b", 20.0, False),
    (r"A100\b|A800\b", 20.0, False),
    (r"H100\b|H200\b|H800\b|H20\b|GH200\b", 20.6, True),
    (r"B100\b|B200\b|B300\b|GB200\b|GB300\b", 40.1, True),
)
# What a healthy node reaches of links x constant, at 8 GiB. Measured on eight H200 (all_reduce 366.7, all_gather 354.9,
# reduce_scatter 357.2 GB/s of 370.8) and on four (broadcast 362.9, reduce 367.0, alltoall 353.3, sendrecv 365.9), NVLS
# off. all_reduce is a little below that, to fit two GPUs (350.1), too.
_REACHED = {
    "all_reduce": 0.97,
    "all_gather": 0.95,
    "reduce_scatter": 0.955,
    "broadcast": 0.98,
    "reduce": 0.985,
    "alltoall": 0.95,
    "sendrecv": 0.985,
}
# Two ranks do not fill the links with these: measured on two H200, 311 and 294 GB/s.
_REACHED_BY_TWO = {"all_gather": 0.84, "reduce_scatter": 0.79}
# all_reduce in the NVSwitch, in place of the above, by number of GPUs: published runs on H100 and H200 (nccl#1455,
# nccl-tests#272). With four or fewer it gains nothing. Blackwell from NCCL's own constants, not measured.
_NVLS_HOPPER = {5: 1.13, 6: 1.19, 7: 1.24, 8: 1.29}
_NVLS_BLACKWELL = {8: 1.115}


@dataclass(frozen=True)
class Bar:
    """What a run has to reach. busbw: GB/s at ``size`` bytes and above. healthy: GB/s measured on a healthy node."""

    platform: str
    nvls: bool
    scope: str
    collective: str
    size: int
    busbw: float
    healthy: float | None
    source: str


@dataclass(frozen=True)
class Prediction:
    """busbw: None where nothing can be predicted. rule: how the figure came about, or why there is none."""

    busbw: float | None
    rule: str


# -- bars ------------------------------------------------------------------------------------------------------------


def parse_bars(data: object, name: str) -> tuple[Bar, ...]:
    """The bars in a parsed YAML list. Raises ParseError that names the entry and the key."""
    if not isinstance(data, list):
        raise ParseError(f"{name} is not a list of bars")
    bars: list[Bar] = []
    keys = set()
    for number, entry in enumerate(data, 1):
        bar = _bar(entry, "%s, entry %d" % (name, number))
        key = (bar.platform, bar.nvls, bar.scope, bar.collective, bar.size)
        if key in keys:
            raise ParseError("%s, entry %d: there is a bar for the same run above" % (name, number))
        keys.add(key)
        bars.append(bar)
    return tuple(bars)


def _bar(entry: object, where: str) -> Bar:
    if not isinstance(entry, dict):
        raise ParseError(f"{where} is not a mapping")
    required = {"platform", "nvls", "scope", "collective", "size", "busbw", "source"}
    for key in entry:
        if key not in required | {"healthy"}:
            raise ParseError(f"{where} has unknown key {key!r}")
    for key in sorted(required - set(entry)):
        raise ParseError(f"{where} has no key {key}")
    for key in ("platform", "scope", "collective", "source"):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise ParseError(f"{where}: {key} is {entry[key]!r}, expected text")
    for key, known in (("scope", SCOPES), ("collective", COLLECTIVES)):
        if entry[key] not in known:
            raise ParseError("{}: {} is {!r}, expected one of {}".format(where, key, entry[key], ", ".join(known)))
    if not isinstance(entry["nvls"], bool):
        raise ParseError("{}: nvls is {!r}, expected true or false".format(where, entry["nvls"]))
    healthy = entry.get("healthy")
    bar = Bar(
        platform=entry["platform"],
        nvls=entry["nvls"],
        scope=entry["scope"],
        collective=entry["collective"],
        size=_size(entry["size"], where),
        busbw=_figure(entry["busbw"], f"{where}: busbw"),
        healthy=None if healthy is None else _figure(healthy, f"{where}: healthy"),
        source=entry["source"],
    )
    if bar.healthy is not None and bar.busbw > bar.healthy:
        raise ParseError(f"{where}: the bar {bar.busbw:g} is above what a healthy node reaches, {bar.healthy:g}")
    return bar


def _size(value: object, where: str) -> int:
    try:
        return parse_size(str(value))
    except ParseError as error:
        raise ParseError(f"{where}: {error}") from error


def _figure(value: Any, what: str) -> float:
    # An int of a thousand digits is no float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ParseError(
            "{} is {!r}, expected GB/s above 0".format(what, value if not isinstance(value, int) else "...")
        )
    return float(value)


def find_bar(
    files: Sequence[Sequence[Bar]], platform: str, nvls: bool, scope: str, collective: str, size: int
) -> Bar | None:
    """The bar for a run: of the first file with a bar for it, the bar for the largest size up to ``size`` bytes."""
    for bars in files:
        key = (platform, nvls, scope, collective)
        fitting = [b for b in bars if (b.platform, b.nvls, b.scope, b.collective) == key and b.size <= size]
        if fitting:
            return max(fitting, key=lambda bar: bar.size)
    return None


# -- prediction ------------------------------------------------------------------------------------------------------


def _nvlink(profile: Profile) -> tuple[float, bool] | None:
    """GB/s of a link and whether NVLS is possible; None for a model that is not known, or several unlike ones."""
    found = set()
    for model in profile.gpus.models:
        match = next((row for row in _NVLINK if re.match(rf"(?:NVIDIA )?(?:{row[0]})", model)), None)
        found.add(match[1:] if match else None)
    return found.pop() if len(found) == 1 else None


def nvls_expected(profile: Profile, settings: Mapping[str, str]) -> bool:
    """Whether NCCL is to reduce in the NVSwitch on this platform. settings: NCCL's variables as the site sets them."""
    generation = _nvlink(profile)
    possible = profile.gpus.nvlink_fabric and generation is not None and generation[1]
    return possible and settings.get("NCCL_NVLS_ENABLE", "").strip() != "0"


def predict(profile: Profile, collective: str, nvls: bool, gpus: int | None = None) -> Prediction:
    """busbw of a large message within a node. gpus: ranks, where that is not all GPUs of the profile."""
    ranks = profile.gpus.count if gpus is None else gpus
    generation = _nvlink(profile)
    if not profile.gpus.nvlinks:
        return Prediction(None, "no NVLinks in the profile")
    if generation is None:
        return Prediction(None, "the NVLinks of {} are not known".format(", ".join(profile.gpus.models)))
    if collective not in _REACHED:
        return Prediction(None, f"{collective} is not known")
    speed = generation[0]
    reached = _REACHED[collective]
    if ranks == 2:
        reached = _REACHED_BY_TWO.get(collective, reached)
    how = ""
    if nvls and collective == "all_reduce":
        gains: dict[int, float] = _NVLS_HOPPER if speed < 30 else _NVLS_BLACKWELL
        if ranks in gains:
            reached, how = gains[ranks], " with NVLS"
    busbw = profile.gpus.nvlinks * speed * reached
    return Prediction(busbw, "%d NVLinks x %g GB/s x %g%s" % (profile.gpus.nvlinks, speed, reached, how))


# -- the user's model ------------------------------------------------------------------------------------------------


def model_bytes(parameters: str, gpus: int) -> int:
    """Bytes of a model's gradients in BF16: ``7B`` (parameters) is 14 GB. Raises ParseError.

    Rounded up to whole shares of 16 bytes a GPU: nccl-tests rounds down what is not.
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(?:[eE]\+?([0-9]{1,2}))?([KMBT]?)", str(parameters).strip())
    units = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    count = float(match.group(1)) * 10.0 ** int(match.group(2) or 0) * units[match.group(3)] if match else 0.0
    if not 1e6 <= count <= 1e14:
        raise ParseError(f"a model of {parameters!r} parameters: expected a form like 350M, 7B or 1.3T")
    share = 16 * gpus
    return math.ceil(2 * round(count) / share) * share
