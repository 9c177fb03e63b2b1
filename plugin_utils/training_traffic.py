# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compute the traffic between nodes of a training step of a dense model, by kind of parallelism. Pure.

Bytes are of one step. Ranks are placed as Megatron does it: tensor, then data, then pipeline, from the innermost on.
docs/bars.md#sizing has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .model_sizes import ELEMENT

# Share of the backward pass in the computation.
BACKWARD = 2 / 3
# A transformer has 12 layers x width^2 parameters, and a width of about 128 x layers: GPT-3 (Brown et al. 2020, table
# 2.1). The widths of Llama 2 and 3 are within 11 % of what follows from that.
_ASPECT = 128
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


@dataclass(frozen=True)
class Traffic:
    """One kind of traffic that leaves the node.

    gpu_bytes: sent by a GPU.
    load: bytes as busbw counts them: seconds = load / rate of the node.
    window: share of the computation in which it can be hidden.   seconds: None where the rate is not known.
    """

    kind: str
    collective: str
    what: str
    ranks: int
    gpu_bytes: float
    load: float
    window: float
    formula: str
    why_window: str
    seconds: float | None = None


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


def _window(training: Training) -> tuple[float, str]:
    """Return the share of the computation in which data-parallel traffic can be hidden, and why."""
    if training.zero == 3:
        return 1.0, "layers are gathered all through the step"
    if training.micro_batches == 1:
        return BACKWARD, "in the backward pass, 2/3 of the computation"
    last = f"in the backward pass of the last of {training.micro_batches} micro batches"
    return BACKWARD / training.micro_batches, last


@dataclass(frozen=True)
class _Group:
    """Ranks that are ``stride`` apart. local: of them in one node."""

    ranks: int
    stride: int
    gpus: int

    @property
    def local(self) -> int:
        return 1 if self.stride >= self.gpus else min(self.ranks, self.gpus // self.stride)

    @property
    def nodes(self) -> int:
        return self.ranks // self.local


def gigabytes(count: float) -> str:
    """Format bytes: ``4.38 GB``, ``134 MB``."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f} B"


def count_text(parameters: float) -> str:
    """Format a number of parameters: ``70B``."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if parameters >= factor:
            return f"{parameters / factor:.4g}{unit}"
    return f"{parameters:.6g}"


def traffic(training: Training, gpus: int) -> list[Traffic]:
    """Return every kind that leaves a node of ``gpus`` GPUs, without its seconds."""
    found = []
    if _Group(training.data, training.tensor, gpus).nodes > 1:
        found += _of_parameters(training, gpus)
    if _Group(training.pipeline, training.tensor * training.data, gpus).nodes > 1:
        found.append(_pipeline(training, gpus))
    return found


def _of_parameters(training: Training, gpus: int) -> list[Traffic]:
    t = training
    parts = t.tensor * t.pipeline
    sent = [("all_reduce", "gradients", 1)]
    if t.zero:
        gathers = 2 * t.micro_batches if t.zero == 3 else 1
        sent = [("reduce_scatter", "gradients", 1), ("all_gather", "parameters", gathers)]
    return [_ring(t, gpus, collective, what, ELEMENT * t.parameters / parts, calls) for collective, what, calls in sent]


def _ring(training: Training, gpus: int, collective: str, what: str, message: float, calls: int) -> Traffic:
    """Return a collective by rings: busbw is 2(n-1)/n x S / t of an all-reduce, and half of it of its two halves."""
    group = _Group(training.data, training.tensor, gpus)
    factor, n = _FACTORS[collective], group.ranks
    one = factor * (n - 1) / n * message * calls
    # Groups of this kind with GPUs of a node, which share its NICs.
    groups = group.gpus / group.local
    parts = training.tensor * training.pipeline
    text = f"{ELEMENT} x {count_text(training.parameters)}{f' / {parts}' if parts > 1 else ''}"
    formula = [f"{'2' if factor == 2 else ''}(n-1)/n x S, n = {n}, S = {text} = {gigabytes(message)}"]
    if calls > 1:
        formula.append(f"{calls} times")
    if groups > 1:
        formula.append(f"{groups:g} such groups share a node's NICs")
    window, why = _window(training)
    return Traffic(
        kind="data",
        collective=collective,
        what=what,
        ranks=n,
        gpu_bytes=one,
        load=one * groups,
        window=window,
        formula="; ".join(formula),
        why_window=why,
    )


def _pipeline(training: Training, gpus: int) -> Traffic:
    t = training
    stage = t.tensor * t.data
    group = _Group(t.pipeline, stage, gpus)
    message = t.tokens / t.data * t.width * ELEMENT / t.tensor
    # The first stage sends activations alone, the last one gradients alone; between nodes, a stage at either edge, too.
    ways = 2 if t.pipeline > 2 and group.local == 1 else 1
    return Traffic(
        kind="pipeline",
        collective="sendrecv",
        what="activations to the next stage",
        ranks=t.pipeline,
        gpu_bytes=ways * message,
        load=ways * message * gpus,
        window=0.0,
        formula=f"S = {t.tokens} / {t.data} x {t.width:.0f} x {ELEMENT}{f' / {t.tensor}' if t.tensor > 1 else ''}"
        f" = {gigabytes(message)} a direction; {ways} direction{'s' * (ways > 1)}; width: estimated from parameters",
        why_window="the computation waits for it",
    )
