# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compute whether a network carries the traffic of a training step of a dense model, and the step it allows. Pure.

Bandwidths are GB/s (1e9 bytes), rates of NICs Gbit/s, times seconds. A node's rate is the busbw of a collective over
all GPUs of many nodes, as nccl-tests prints it. Ranks are placed as Megatron does it: tensor, then data, then pipeline,
from the innermost on. docs/bars.md#sizing has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile

from . import prediction, screen, terminal
from .busbw_bars import Prediction
from .campaign.cluster_table import duration, number
from .exit_code import FINDINGS, GOOD, UNKNOWN
from .model_sizes import ELEMENT

# Share of a NIC's rate that collectives reach: the lower one of prediction.py's two sources.
EFFICIENCY = prediction.EFFICIENCY_ETHERNET
# Share of a step that may be lost to waiting for the network.
LOSS = 0.05
# Share of the backward pass in the computation.
BACKWARD = 2 / 3
# A transformer has 12 layers x width^2 parameters, and a width of about 128 x layers: GPT-3 (Brown et al. 2020, table
# 2.1). The widths of Llama 2 and 3 are within 11 % of what follows from that.
_ASPECT = 128
# TFLOPS in BF16 without sparsity, from NVIDIA's data sheets, by the driver's name of the GPU.
PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H200": 989.0,
    "NVIDIA B200": 2250.0,
}
# Bytes of a collective by rings, as a multiple of (n-1)/n of its message; busbw counts the same.
_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class Training:
    """The model, its split, and its batch. tokens: of a step, 0 where not given.   zero: 0 without ZeRO."""

    parameters: int
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    tokens: int = 0
    micro_batches: int = 1

    @property
    def gpus(self) -> int:
        """Return the GPUs of the job."""
        return self.data * self.tensor * self.pipeline

    @property
    def width(self) -> float:
        """Estimate the elements of a token between two layers."""
        return math.cbrt(self.parameters * _ASPECT / 12)

    def compute_time(self, tflops: float, mfu: float) -> float:
        """Return seconds of a step at ``mfu`` (0 to 1) of ``tflops`` a GPU, without attention."""
        return 6.0 * self.parameters * self.tokens / (self.gpus * tflops * 1e12 * mfu)


@dataclass(frozen=True)
class Traffic:
    """One kind of traffic that leaves the node.

    sent: bytes of a GPU.   load: bytes of a node as busbw counts them: seconds = load / rate of the node.
    window: share of the computation in which it can be hidden.   seconds: None where the rate is not known.
    """

    collective: str
    what: str
    ranks: int
    sent: float
    load: float
    window: float
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sized:
    """compute: seconds of a step without waiting, None where no step was requested.   step: with waiting.

    allowed: shortest step of which the network makes no more than LOSS wait.   needed: busbw, of the requested step.
    nics: of a node, for that.   rate: what there is.   unknown: why it cannot be decided.
    """

    traffic: tuple[Traffic, ...]
    compute: float | None = None
    step: float | None = None
    allowed: float = 0.0
    needed: float = 0.0
    nics: int = 0
    rate: Prediction | None = None
    unknown: str = ""

    @property
    def enough(self) -> bool | None:
        """Return whether the step is no longer than allowed; None where that is not known, or no step requested."""
        if self.step is None or self.compute is None:
            return None
        return self.step <= self.compute / (1 - LOSS) * (1 + 1e-9)

    @property
    def exit_code(self) -> int:
        """Return FINDINGS: not enough; UNKNOWN: cannot be decided; GOOD: enough, or no step was requested."""
        return UNKNOWN if self.unknown else FINDINGS if self.enough is False else GOOD


def errors(training: Training, gpus: int) -> list[str]:
    """Return what is wrong with the split, a sentence for each mistake. gpus: of a node."""
    wrong = []
    t = training
    if gpus % t.tensor:
        wrong.append(f"--tp {t.tensor} does not divide a node's {gpus} GPUs: tensor parallelism stays in the node")
    stage = t.tensor * t.data
    if gpus % stage and stage % gpus:
        whole = f"neither a part nor a multiple of a node's {gpus}"
        wrong.append(f"--pp {t.pipeline} leaves stages of {stage} GPUs, {whole}")
    if t.pipeline > 1 and not t.tokens:
        wrong.append("--pp above 1 sends activations: give --tokens, too")
    return wrong


def peak(profile: Profile) -> float:
    """Return TFLOPS of a GPU, 0 where not known."""
    peaks = {PEAKS.get(name, 0.0) for name in profile.gpus.models}
    return peaks.pop() if len(peaks) == 1 else 0.0


# -- bytes -------------------------------------------------------------------------------------------------------------


def traffic(training: Training, gpus: int) -> list[Traffic]:
    """Return every kind that leaves a node of ``gpus`` GPUs, without its seconds."""
    t, found = training, []
    local = _ranks_of_node(t.data, t.tensor, gpus)
    if t.data > local:
        message = ELEMENT * t.parameters / (t.tensor * t.pipeline)
        for collective, what, calls in _of_parameters(t):
            sent = _FACTORS[collective] * (t.data - 1) / t.data * message * calls
            # Groups of this kind with GPUs of a node share its NICs.
            load = sent * gpus / local
            found.append(Traffic(collective, what, t.data, sent, load, _window(t)))
    local = _ranks_of_node(t.pipeline, t.tensor * t.data, gpus)
    if t.pipeline > local:
        # The first stage sends activations alone, the last gradients alone; between nodes, a stage at either edge, too.
        ways = 2 if t.pipeline > 2 and local == 1 else 1
        sent = ways * t.tokens / t.data * t.width * ELEMENT / t.tensor
        what = "activations"
        found.append(Traffic("sendrecv", what, t.pipeline, sent, sent * gpus, 0.0))
    return found


def _ranks_of_node(ranks: int, stride: int, gpus: int) -> int:
    """Return how many ranks that are ``stride`` apart lie in one node."""
    return 1 if stride >= gpus else min(ranks, gpus // stride)


def _of_parameters(training: Training) -> list[tuple[str, str, int]]:
    """Return the collectives of data parallelism, what they carry, and how often in a step."""
    if not training.zero:
        return [("all_reduce", "gradients", 1)]
    gathers = 2 * training.micro_batches if training.zero == 3 else 1
    return [("reduce_scatter", "gradients", 1), ("all_gather", "parameters", gathers)]


def _window(training: Training) -> float:
    """Return the share of the computation in which data-parallel traffic can be hidden.

    With ZeRO-3 layers are gathered all through the step; else it is the backward pass of the last micro batch.
    """
    return 1.0 if training.zero == 3 else BACKWARD / training.micro_batches


# -- times -------------------------------------------------------------------------------------------------------------


def _edges(found: Sequence[Traffic]) -> Iterator[tuple[float, float, float]]:
    """Yield every window, and seconds and GB of all traffic that has this one or a narrower one."""
    for edge in sorted({one.window for one in found}):
        within = [one for one in found if one.window <= edge]
        yield edge, sum(one.seconds or 0.0 for one in within), sum(one.load / 1e9 for one in within)


def step_time(compute: float, found: Sequence[Traffic]) -> float:
    """Return seconds of a step. Traffic that may begin (1 - window) into it shares the network with later traffic."""
    return max([compute, *((1 - window) * compute + seconds for window, seconds, _load in _edges(found))])


def needed_rate(compute: float, found: Sequence[Traffic]) -> float:
    """Return GB/s, as busbw counts, of a step of no more than compute / (1 - LOSS)."""
    wait = compute * LOSS / (1 - LOSS)
    return max(load / (window * compute + wait) for window, _seconds, load in _edges(found))


def allowed_compute(found: Sequence[Traffic]) -> float:
    """Return the least seconds of computation of which the network makes no more than that / (1 - LOSS)."""
    wait = LOSS / (1 - LOSS)
    return max((seconds / (window + wait) for window, seconds, _load in _edges(found)), default=0.0)


# -- the whole ---------------------------------------------------------------------------------------------------------


def predicted(profile: Profile, nodes: int) -> dict[str, Prediction]:
    """Return collective -> what the profile's links allow by rings."""
    return {
        collective: prediction.between(profile, collective, False, max(nodes, 2), "cluster", efficiency=EFFICIENCY)
        for collective in _FACTORS
    }


def size(training: Training, profile: Profile, rates: Mapping[str, Prediction], compute: float | None) -> Sized:
    """Return every figure. rates: of ``predicted``.

    compute: seconds of a step without waiting; None: compute which one is allowed.
    """
    found = traffic(training, profile.gpus.count)
    if not found:
        return Sized(traffic=(), compute=compute, step=compute)
    needed = 0.0 if compute is None else needed_rate(compute, found)
    nic = sum(rail.rate_gbps for rail in profile.rails) / len(profile.rails) / 8 * EFFICIENCY
    whole = Sized(traffic=tuple(found), compute=compute, needed=needed, nics=math.ceil(needed / nic - 1e-9))
    if unknown := next((rate.rule for rate in rates.values() if rate.busbw is None), ""):
        return replace(whole, unknown=unknown)
    timed = [replace(one, seconds=one.load / 1e9 / (_rate_of(one, rates).busbw or 1.0)) for one in found]
    return replace(
        whole,
        traffic=tuple(timed),
        step=None if compute is None else step_time(compute, timed),
        allowed=allowed_compute(timed) / (1 - LOSS),
        rate=_rate_of(_largest(timed), rates),
    )


def _rate_of(one: Traffic, rates: Mapping[str, Prediction]) -> Prediction:
    return rates.get(one.collective, rates["all_reduce"])


def _largest(found: Sequence[Traffic]) -> Traffic:
    return max(found, key=lambda one: one.seconds or 0.0)


# -- text --------------------------------------------------------------------------------------------------------------


def render(title: str, sized: Sized, width: int) -> str:
    """Return the verdict, traffic and figures; no line is longer than ``width``."""
    width = max(width, 40)
    lines = [line for text in (title, verdict(sized)) for line in screen.wrapped(text, width)]
    if sized.traffic:
        heads = ["TRAFFIC A STEP", "RANKS", "A GPU SENDS", "TAKES", "HIDDEN IN"]
        lines += ["", *terminal.table(heads, [_cells(one, sized) for one in sized.traffic], width)]
    if rows := _figures(sized):
        lines += ["", *terminal.aligned(rows, width)]
    if bottleneck := _bottleneck(sized):
        lines += ["", *screen.wrapped(f"bottleneck: {bottleneck}", width)]
    return "\n".join(lines)


def _cells(one: Traffic, sized: Sized) -> terminal.Line:
    hidden = f"{100 * one.window:.3g} %" if one.window else "-"
    if one.window and sized.compute is not None:
        hidden = duration(1e6 * one.window * sized.compute)
    takes = "-" if one.seconds is None else duration(1e6 * one.seconds)
    return (f"{one.what}: {one.collective}", str(one.ranks), gigabytes(one.sent), takes, hidden), []


def _figures(sized: Sized) -> list[tuple[str, str]]:
    found = []
    if sized.compute is not None:
        found.append(("step without waiting", _time(sized.compute)))
    if sized.needed:
        found += [("needed busbw", _rate(sized.needed)), ("needed NICs a node", str(sized.nics))]
    if sized.rate is not None:
        found.append(("busbw there is", f"{_rate(sized.rate.busbw or 0.0)} ({printable(sized.rate.rule)})"))
        if sized.step is not None:
            found.append(("step with waiting", _time(sized.step)))
        found.append(("step the network allows", _time(sized.allowed)))
    return found


def _bottleneck(sized: Sized) -> str:
    if not sized.traffic:
        return "the GPUs: nothing leaves the node"
    if sized.unknown:
        return ""
    if sized.step is not None and sized.compute is not None and sized.step <= sized.compute * (1 + 1e-9):
        return "the GPUs: all traffic between nodes is hidden"
    return f"the network, most by {_largest(sized.traffic).what}"


def verdict(sized: Sized) -> str:
    """Return in one sentence whether it is enough, and what it needs."""
    needs = ""
    if sized.needed:
        needs = f"needed: {_rate(sized.needed)} of busbw, {terminal.counted(sized.nics, 'NIC')} a node"
    if sized.unknown:
        return f"UNKNOWN whether that is enough: {sized.unknown}" + (f" ({needs})" if needs else "")
    if sized.step is None or sized.compute is None:
        if not sized.traffic:
            return "NOTHING crosses the network"
        return f"THE NETWORK ALLOWS a step of {_time(sized.allowed)}; nothing shorter was requested (--mfu)"
    wait = 100 * (1 - sized.compute / sized.step) if sized.step else 0.0
    text = f"{wait:.1f} % of the step is waiting, {100 * LOSS:g} % may be" + (f"; {needs}" if needs else "")
    return f"{'ENOUGH' if sized.enough else 'NOT ENOUGH'}: {text}"


def gigabytes(count: float) -> str:
    """Format bytes: ``4.38 GB``, ``134 MB``."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f} B"


def _time(seconds: float) -> str:
    return duration(1e6 * seconds) if seconds else "0 s"


def _rate(value: float) -> str:
    return f"{number(value) if value < 1e4 else f'{value:.0f}'} GB/s"
