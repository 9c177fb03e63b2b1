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
# Share of what the profile's links allow, below which a measurement is noted.
_HEALTHY = 0.85
_RINGS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Rate:
    """busbw: GB/s that a node's GPUs exchange with other nodes.   source: of the figure.

    bound: the limiting part, for people.
    """

    busbw: float
    source: str = ""
    bound: str = "the NICs"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """rates: by collective; "" for all others. Empty where unknown: ``unknown`` has the reason."""

    profile: Profile
    rates: Mapping[str, Rate]
    unknown: str = ""
    measured: bool = False

    @property
    def peak(self) -> float:
        """Return TFLOPS of a GPU, 0 where not known."""
        peaks = {PEAKS.get(name, 0.0) for name in self.profile.gpus.models}
        return peaks.pop() if len(peaks) == 1 else 0.0

    @property
    def nics(self) -> int:
        """Return the NICs of a node."""
        return len(self.profile.rails)

    @property
    def nic(self) -> float:
        """Return GB/s that a collective reaches of one NIC."""
        return sum(rail.rate_gbps for rail in self.profile.rails) / self.nics / 8 * EFFICIENCY


@dataclass(frozen=True)
class Figure:
    """unit: "s", "GB/s", "%", "GPU-hours"; "" of a plain number."""

    name: str
    value: float
    unit: str
    formula: str


@dataclass(frozen=True, kw_only=True)
class Sized:
    """compute: seconds of a step without waiting, None where no step was requested.   step: with waiting.

    enough: the step is not longer than allowed; None where none was requested.
    unknown: why it cannot be decided.
    """

    traffic: tuple[Traffic, ...]
    figures: tuple[Figure, ...]
    bottleneck: str
    notes: tuple[str, ...]
    compute: float | None = None
    step: float | None = None
    enough: bool | None = None
    unknown: str = ""

    @property
    def exit_code(self) -> int:
        """Return FINDINGS: not enough; UNKNOWN: cannot be decided; GOOD: enough, or no step was requested."""
        return UNKNOWN if self.unknown else FINDINGS if self.enough is False else GOOD


# -- the network's rates -----------------------------------------------------------------------------------------------


def predicted(profile: Profile, nodes: int) -> Cluster:
    """Return what the profile's links allow by rings."""
    nodes = max(nodes, 2)
    wire = sum(rail.rate_gbps for rail in profile.rails) / 8 * EFFICIENCY
    rates: dict[str, Rate] = {}
    for collective in _RINGS:
        found = prediction.between(profile, collective, False, nodes, "cluster", efficiency=EFFICIENCY)
        if found.busbw is None:
            return Cluster(profile=profile, rates={}, unknown=found.rule)
        bound = "the NICs" if found.busbw > 0.999 * wire else "NVLink or PCIe slots of the node, before the NICs"
        rates[collective] = Rate(found.busbw, f"predicted: {found.rule}", bound)
    rates[""] = rates["all_reduce"]
    return Cluster(profile=profile, rates=rates)


def as_measured(profile: Profile, busbw: float) -> Cluster:
    """Return a cluster with one measured figure for all collectives."""
    rate = Rate(busbw, f"measured: --busbw {busbw:g}", "the network as it was measured")
    return Cluster(profile=profile, rates={"": rate}, measured=True)


def _rate(cluster: Cluster, collective: str) -> Rate:
    """Return the rate; 1 GB/s where it is unknown, since a need does not depend on it."""
    return cluster.rates.get(collective) or cluster.rates.get("") or Rate(1.0)


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
    seconds: it takes so long.   usable: it may take so long.
    """

    scale: float
    load: float
    seconds: float
    usable: float


def need(compute: float, found: Sequence[Traffic]) -> Need:
    """Return the need of a step of no more than compute / (1 - LOSS)."""
    wait = compute * LOSS / (1 - LOSS)
    worst = Need(0.0, 0.0, 0.0, compute)
    for window, seconds, load in _edges(found):
        usable = window * compute + wait
        if seconds / usable > worst.scale:
            worst = Need(seconds / usable, load, seconds, usable)
    return worst


def allowed_compute(found: Sequence[Traffic]) -> float:
    """Return the least seconds of computation of which the network makes no more than that / (1 - LOSS)."""
    wait = LOSS / (1 - LOSS)
    return max((seconds / (window + wait) for window, seconds, _load in _edges(found)), default=0.0)


def compute_time(training: Training, peak: float, mfu: float) -> tuple[float, str]:
    """Return seconds of a step at ``mfu`` (0 to 1) of ``peak`` TFLOPS a GPU, and the formula, without attention."""
    seconds = 6.0 * training.parameters * training.tokens / (training.gpus * peak * 1e12 * mfu)
    work = f"6 x {count_text(training.parameters)} parameters x {training.tokens} tokens"
    return seconds, f"{work} / ({training.gpus} GPUs x {peak:g} TFLOPS x {100 * mfu:g} %)"


# -- the whole ---------------------------------------------------------------------------------------------------------


def size(training: Training, cluster: Cluster, compute: tuple[float, str] | None) -> Sized:
    """Return every figure. compute: seconds of a step without waiting, and its formula; None: which one is allowed."""
    found = [
        replace(one, seconds=one.load / 1e9 / _rate(cluster, one.collective).busbw)
        for one in traffic(training, cluster.profile.gpus.count)
    ]
    known = bool(cluster.rates) or not found
    figures: list[Figure] = []
    step = seconds = None
    if compute is not None:
        seconds = compute[0]
        figures.append(Figure("step without waiting", seconds, "s", compute[1]))
        step = step_time(seconds, found) if known else None
        if found:
            figures += _needs(cluster, need(seconds, found))
    if known and found:
        if seconds is not None and step is not None:
            figures += _steps(training, cluster, found, seconds, step)
        figures += _allowed(training, cluster, found)
    return Sized(
        traffic=tuple(found if known else [replace(one, seconds=None) for one in found]),
        figures=tuple(figures),
        bottleneck=_bottleneck(cluster, found, seconds, step) if known else "",
        notes=_notes(training, cluster),
        compute=seconds,
        step=step,
        enough=None if step is None or seconds is None else step <= seconds / (1 - LOSS) * (1 + 1e-9),
        unknown="" if known else cluster.unknown,
    )


def _needs(cluster: Cluster, wanted: Need) -> list[Figure]:
    needed, nics = wanted.load / wanted.usable, cluster.nics
    usable = f"{wanted.usable:.4g} s, in which it is hidden or {100 * LOSS:g} % of the step wait"
    one = f"({cluster.nic / EFFICIENCY:.4g} GB/s x {EFFICIENCY:g})"
    rounded, each = math.ceil(needed / cluster.nic - 1e-9), needed / nics
    return [
        Figure("needed busbw", needed, "GB/s", f"{wanted.load:.4g} GB as busbw counts them / {usable}"),
        Figure("needed NICs a node", rounded, "", f"{needed:.4g} GB/s / {one}, rounded up; there are {nics}"),
        Figure("needed of each NIC", each, "GB/s", f"{needed:.4g} / {nics}: the rings share the message"),
    ]


def _steps(training: Training, cluster: Cluster, found: Sequence[Traffic], compute: float, step: float) -> list[Figure]:
    wanted, busy, waits = need(compute, found), sum(one.seconds or 0.0 for one in found), 1 - compute / step
    source = _rate(cluster, max(found, key=lambda one: one.load).collective).source
    longest = f"the longest of (1 - window) x {compute:.4g} s + the traffic that fits that window"
    lost = f"{100 * waits:.3g} % x {training.gpus} GPUs x 24 h"
    return [
        Figure("busbw there is", wanted.load / wanted.seconds, "GB/s", source),
        Figure("step with waiting", step, "s", longest),
        Figure("of it computing", 100 * compute / step, "%", f"{compute:.4g} s / {step:.4g} s"),
        Figure("network busy", 100 * busy / step, "%", f"{busy:.4g} s of traffic / {step:.4g} s"),
        Figure("lost a day", waits * training.gpus * 24, "GPU-hours", lost),
    ]


def _allowed(training: Training, cluster: Cluster, found: Sequence[Traffic]) -> list[Figure]:
    busy = sum(one.seconds or 0.0 for one in found)
    step = allowed_compute(found) / (1 - LOSS)
    figures = [
        Figure("network alone", busy, "s", "all traffic between nodes, one after the other: no step is shorter"),
        Figure("step the network allows", step, "s", f"from it on no more than {100 * LOSS:g} % of a step is waiting"),
    ]
    if training.tokens:
        text = f"{training.tokens} tokens / {step:.4g} s"
        figures.append(Figure("tokens/s there", training.tokens / step, "", text))
        if cluster.peak:
            part = compute_time(training, cluster.peak, 1.0)[0] / step
            text = f"the step at 100 % of {cluster.peak:g} TFLOPS / {step:.4g} s"
            figures.append(Figure("MFU there", 100 * part, "%", text + "; the GPUs end first" * (part > 1)))
    return figures


def _bottleneck(cluster: Cluster, found: Sequence[Traffic], compute: float | None, step: float | None) -> str:
    if not found:
        return "the GPUs: nothing leaves the node"
    if compute is not None and step is not None and step <= compute * (1 + 1e-9):
        return "the GPUs: all traffic between nodes is hidden"
    most = max(found, key=lambda one: one.seconds or 0.0)
    return f"{_rate(cluster, most.collective).bound}, most by {most.what} ({most.kind} parallelism)"


def _notes(training: Training, cluster: Cluster) -> tuple[str, ...]:
    notes = []
    expected = predicted(cluster.profile, training.gpus // cluster.profile.gpus.count).rates
    if cluster.measured and expected:
        rate, best = _rate(cluster, "all_reduce").busbw, expected["all_reduce"].busbw
        if rate < _HEALTHY * best:
            share = f"{rate:.4g} GB/s is {100 * rate / best:.0f} % of what the profile's links allow ({best:.4g})"
            notes.append(f"{share}: look for the cause first (playbooks/localise.yml)")
    if training.micro_batches == 1 and (training.zero == 3 or training.pipeline > 1):
        notes.append("counted with one micro batch a step: give --micro-batches where there are more")
    return tuple(notes)


# -- text --------------------------------------------------------------------------------------------------------------


def render(title: str, sized: Sized, width: int) -> str:
    """Return the verdict, traffic, figures with their formulas, and notes; no line is longer than ``width``."""
    width = max(width, 40)
    rows = [(figure.name, value_text(figure), printable(figure.formula)) for figure in sized.figures]
    heads = ["TRAFFIC A STEP", "RANKS", "A GPU SENDS", "LEAVES A NODE", "TAKES", "HIDDEN IN"]
    cells = [_cells(one, sized) for one in sized.traffic]
    notes = [f"bottleneck: {sized.bottleneck}"] if sized.bottleneck else []
    notes += [f"note: {note}" for note in sized.notes]
    lines = [line for text in (title, verdict(sized)) for line in screen.wrapped(text, width)]
    lines += ["", *terminal.table(heads, cells, width)] if cells else []
    lines += ["", *terminal.aligned(rows, width)] if rows else []
    lines += [""] if notes else []
    return "\n".join([*lines, *(line for text in notes for line in screen.wrapped(text, width))])


def _cells(one: Traffic, sized: Sized) -> terminal.Line:
    hidden = f"{100 * one.window:.3g} %" if one.window else "-"
    if one.window and sized.compute is not None:
        hidden = duration(1e6 * one.window * sized.compute)
    takes = "-" if one.seconds is None else duration(1e6 * one.seconds)
    sent = (gigabytes(one.gpu_bytes), gigabytes(one.node_bytes))
    cells = (f"{one.kind}: {one.collective}", str(one.ranks), *sent, takes, hidden)
    return cells, (f"{one.what}: {one.formula}", one.why_window)


def value_text(figure: Figure) -> str:
    """Format a figure: ``12.3 GB/s``, ``1.24 s``."""
    value = figure.value
    if figure.unit == "s":
        return duration(1e6 * value) if value else "0 s"
    if figure.unit in ("%", ""):
        return f"{value:.1f} %" if figure.unit else f"{value:.0f}"
    return f"{number(value) if value < 1e4 else f'{value:.0f}'} {figure.unit}"


def verdict(sized: Sized) -> str:
    """Return in one sentence whether it is enough, and what it needs."""
    found = {figure.name: value_text(figure) for figure in sized.figures}
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
