# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compute whether a network carries the traffic of a training step, what it needs, and the step it allows. Pure.

Bandwidths are GB/s (1e9 bytes), rates of NICs Gbit/s, times seconds. A node's rate is the busbw of a collective over
all GPUs of many nodes, as nccl-tests prints it. docs/bars.md#sizing has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile

from . import prediction, screen, terminal
from .busbw_bars import Prediction
from .campaign.cluster_table import duration, number
from .exit_code import FINDINGS, GOOD, UNKNOWN
from .training_traffic import Traffic, Training, count_text, gigabytes, traffic

# Share of a NIC's rate that collectives reach: the lower one of prediction.py's two sources.
EFFICIENCY = prediction.EFFICIENCY_ETHERNET
# Share of a step that may be lost to waiting for the network.
LOSS = 0.05
# TFLOPS in BF16 without sparsity, from NVIDIA's data sheets, by the driver's name of the GPU.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}
_RINGS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Figure:
    """A result with its unit, such as ``12.3 GB/s``, and its formula."""

    name: str
    value: str
    formula: str


@dataclass(frozen=True, kw_only=True)
class Sized:
    """compute: seconds of a step without waiting, None where no step was requested.   step: with waiting.

    enough: the step is not longer than allowed; None where none was requested.
    unknown: why it cannot be decided.
    """

    traffic: tuple[Traffic, ...]
    figures: tuple[Figure, ...] = ()
    bottleneck: str = ""
    compute: float | None = None
    step: float | None = None
    enough: bool | None = None
    unknown: str = ""

    @property
    def exit_code(self) -> int:
        """Return FINDINGS: not enough; UNKNOWN: cannot be decided; GOOD: enough, or no step was requested."""
        return UNKNOWN if self.unknown else FINDINGS if self.enough is False else GOOD


def peak(profile: Profile) -> float:
    """Return TFLOPS of a GPU, 0 where not known."""
    peaks = {PEAKS.get(name, 0.0) for name in profile.gpus.models}
    return peaks.pop() if len(peaks) == 1 else 0.0


def predicted(profile: Profile, nodes: int) -> dict[str, Prediction]:
    """Return collective -> what the profile's links allow by rings."""
    return {
        collective: prediction.between(profile, collective, False, max(nodes, 2), "cluster", efficiency=EFFICIENCY)
        for collective in _RINGS
    }


# -- times -------------------------------------------------------------------------------------------------------------


def _edges(found: Sequence[Traffic]) -> list[tuple[float, float, float]]:
    """Return for every window: the window, and seconds and GB of all traffic that has this one or a narrower one."""
    edges = []
    for edge in sorted({one.window for one in found}):
        within = [one for one in found if one.window <= edge]
        edges.append((edge, sum(one.seconds or 0.0 for one in within), sum(one.load / 1e9 for one in within)))
    return edges


def step_time(compute: float, found: Sequence[Traffic]) -> float:
    """Return seconds of a step. Traffic that may begin (1 - window) into it shares the network with later traffic."""
    return max([compute, *((1 - window) * compute + seconds for window, seconds, _load in _edges(found))])


@dataclass(frozen=True)
class Need:
    """The deciding need: of the traffic that fits a window, how often the time for it is too short.

    scale: how many times as fast the network has to be.   load: GB, as busbw counts.
    usable: seconds that it may take.
    """

    scale: float
    load: float
    usable: float


def need(compute: float, found: Sequence[Traffic]) -> Need:
    """Return the need of a step of no more than compute / (1 - LOSS)."""
    wait = compute * LOSS / (1 - LOSS)
    edges = [(load, seconds, window * compute + wait) for window, seconds, load in _edges(found)]
    return max((Need(seconds / usable, load, usable) for load, seconds, usable in edges), key=lambda one: one.scale)


def allowed_compute(found: Sequence[Traffic]) -> float:
    """Return the least seconds of computation of which the network makes no more than that / (1 - LOSS)."""
    wait = LOSS / (1 - LOSS)
    return max((seconds / (window + wait) for window, seconds, _load in _edges(found)), default=0.0)


def compute_time(training: Training, tflops: float, mfu: float) -> tuple[float, str]:
    """Return seconds of a step at ``mfu`` (0 to 1) of ``tflops`` a GPU, and the formula, without attention."""
    seconds = 6.0 * training.parameters * training.tokens / (training.gpus * tflops * 1e12 * mfu)
    work = f"6 x {count_text(training.parameters)} parameters x {training.tokens} tokens"
    return seconds, f"{work} / ({training.gpus} GPUs x {tflops:g} TFLOPS x {100 * mfu:g} %)"


# -- the whole ---------------------------------------------------------------------------------------------------------


def size(
    training: Training, profile: Profile, rates: Mapping[str, Prediction], compute: tuple[float, str] | None
) -> Sized:
    """Return every figure. rates: of ``predicted``.

    compute: seconds of a step without waiting, and its formula; None: compute which one is allowed.
    """
    unknown = next((rate.rule for rate in rates.values() if rate.busbw is None), "")
    # A need does not depend on the rate.
    found = [
        replace(one, seconds=one.load / 1e9 / (1.0 if unknown else rate_of(one, rates).busbw or 1.0))
        for one in traffic(training, profile.gpus.count)
    ]
    seconds = None if compute is None else compute[0]
    figures = [] if compute is None else [Figure("step without waiting", _time(compute[0]), compute[1])]
    if not found:
        return Sized(
            traffic=(),
            figures=tuple(figures),
            bottleneck="the GPUs: nothing leaves the node",
            compute=seconds,
            step=seconds,
            enough=None if seconds is None else True,
        )
    figures += [] if seconds is None else _needs(profile, need(seconds, found))
    if unknown:
        without = tuple(replace(one, seconds=None) for one in found)
        return Sized(traffic=without, figures=tuple(figures), compute=seconds, unknown=unknown)
    step = None if seconds is None else step_time(seconds, found)
    most = max(found, key=lambda one: one.seconds or 0.0)
    hidden = seconds is not None and step is not None and step <= seconds * (1 + 1e-9)
    gpus = "the GPUs: all traffic between nodes is hidden"
    return Sized(
        traffic=tuple(found),
        figures=(*figures, *_steps(rate_of(most, rates), step, allowed_compute(found) / (1 - LOSS))),
        bottleneck=gpus if hidden else f"the network, most by {most.what} ({most.kind} parallelism)",
        compute=seconds,
        step=step,
        enough=None if step is None or seconds is None else step <= seconds / (1 - LOSS) * (1 + 1e-9),
    )


def _steps(rate: Prediction, step: float | None, allowed: float) -> list[Figure]:
    longest = "longest of (1 - window) x computation + the traffic that fits that window"
    waits = [] if step is None else [Figure("step with waiting", _time(step), longest)]
    least = f"from it on no more than {100 * LOSS:g} % of a step is waiting"
    there = Figure("busbw there is", _rate(rate.busbw or 0.0), rate.rule)
    return [there, *waits, Figure("step the network allows", _time(allowed), least)]


def rate_of(one: Traffic, rates: Mapping[str, Prediction]) -> Prediction:
    return rates.get(one.collective, rates["all_reduce"])


def _needs(profile: Profile, wanted: Need) -> list[Figure]:
    needed, nics = wanted.load / wanted.usable, len(profile.rails)
    nic = sum(rail.rate_gbps for rail in profile.rails) / nics / 8
    usable = f"{wanted.usable:.4g} s, in which it is hidden or {100 * LOSS:g} % of the step wait"
    return [
        Figure("needed busbw", _rate(needed), f"{wanted.load:.4g} GB as busbw counts them / {usable}"),
        Figure(
            "needed NICs a node",
            str(math.ceil(needed / nic / EFFICIENCY - 1e-9)),
            f"{needed:.4g} GB/s / ({nic:.4g} GB/s x {EFFICIENCY:g}), rounded up; there are {nics}",
        ),
    ]


def _time(seconds: float) -> str:
    return duration(1e6 * seconds) if seconds else "0 s"


def _rate(value: float) -> str:
    return f"{number(value) if value < 1e4 else f'{value:.0f}'} GB/s"


# -- text --------------------------------------------------------------------------------------------------------------


def render(title: str, sized: Sized, width: int) -> str:
    """Return the verdict, traffic, figures with their formulas; no line is longer than ``width``."""
    width = max(width, 40)
    rows = [(figure.name, figure.value, printable(figure.formula)) for figure in sized.figures]
    heads = ["TRAFFIC A STEP", "RANKS", "A GPU SENDS", "TAKES", "HIDDEN IN"]
    cells = [_cells(one, sized) for one in sized.traffic]
    lines = [line for text in (title, verdict(sized)) for line in screen.wrapped(text, width)]
    lines += ["", *terminal.table(heads, cells, width)] if cells else []
    lines += ["", *terminal.aligned(rows, width)] if rows else []
    lines += ["", *screen.wrapped(f"bottleneck: {sized.bottleneck}", width)] if sized.bottleneck else []
    return "\n".join(lines)


def _cells(one: Traffic, sized: Sized) -> terminal.Line:
    hidden = f"{100 * one.window:.3g} %" if one.window else "-"
    if one.window and sized.compute is not None:
        hidden = duration(1e6 * one.window * sized.compute)
    takes = "-" if one.seconds is None else duration(1e6 * one.seconds)
    cells = (f"{one.kind}: {one.collective}", str(one.ranks), gigabytes(one.gpu_bytes), takes, hidden)
    return cells, (f"{one.what}: {one.formula}", one.why_window)


def verdict(sized: Sized) -> str:
    """Return in one sentence whether it is enough, and what it needs."""
    found = {figure.name: figure.value for figure in sized.figures}
    needs = ""
    if "needed busbw" in found:
        needs = f"needed: {found['needed busbw']} of busbw, {found['needed NICs a node']} NICs a node"
    if sized.unknown:
        return f"UNKNOWN whether that is enough: {sized.unknown}" + (f" ({needs})" if needs else "")
    if sized.enough is None:
        allowed = found.get("step the network allows")
        if allowed is None:
            return "NOTHING crosses the network"
        return f"THE NETWORK ALLOWS a step of {allowed}; nothing shorter was requested (--mfu)"
    wait = 0.0 if not sized.step or sized.compute is None else 100 * (1 - sized.compute / sized.step)
    text = f"{wait:.1f} % of the step is waiting, {100 * LOSS:g} % may be" + (f"; {needs}" if needs else "")
    return f"{'ENOUGH' if sized.enough else 'NOT ENOUGH'}: {text}"
