# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compute the messages that training the site's model sends: collective, bytes, purpose."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

# BF16.
ELEMENT = 2
# PyTorch's bucket_cap_mb of DistributedDataParallel, and DeepSpeed's reduce_bucket_size and allgather_bucket_size.
DDP_BUCKET = 25 << 20
ZERO_BUCKET = 500_000_000 * ELEMENT
# Messages of a training step as a whole: gradients (DDP), or parameters and gradients (FSDP, ZeRO).
WHOLE = ("all_reduce", "all_gather", "reduce_scatter")
# A larger number is a typing error.
_MOST = 10**7


@dataclass(frozen=True)
class ModelSize:
    """One message. bytes: as nccl-tests counts them for this collective. what: its purpose, for people."""

    collective: str
    bytes: int
    what: str


def parameter_count(parameters: str) -> int:
    """Return the number of ``7B`` as 7,000,000,000. Raises ParseError."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(?:[eE]\+?([0-9]{1,2}))?([KMBT]?)", str(parameters).strip())
    units = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    count = float(match.group(1)) * 10.0 ** int(match.group(2) or 0) * units[match.group(3)] if match else 0.0
    if not 1e6 <= count <= 1e14:
        raise ParseError(f"a model of {parameters!r} parameters: expected a form like 350M, 7B or 1.3T")
    return round(count)


def shares(count: float, gpus: int) -> int:
    """Return bytes, rounded up to whole shares of 16 bytes a GPU: nccl-tests rounds down."""
    share = 16 * gpus
    return math.ceil(count / share) * share


def gradient_bytes(parameters: str, gpus: int) -> int:
    """Return the bytes of a model's gradients in BF16: ``7B`` (parameters) is 14 GB. Raises ParseError."""
    return shares(ELEMENT * parameter_count(parameters), gpus)


def parallelism_errors(given: Mapping[str, int]) -> list[str]:
    """Return a sentence for each error of busbar_model_parallelism, whose keys and types are checked."""
    name = "busbar_model_parallelism"
    errors = [f"{name}.{key} is {of}, expected 1 to {_MOST}" for key, of in given.items() if not 0 < of <= _MOST]
    if errors:
        return errors
    for whole, part in (("layers", "pipeline"), ("hidden", "tensor")):
        if whole in given and given[whole] % given.get(part, 1):
            over = f"{part} {given[part]}, over which it is split"
            errors.append(f"{name}: {whole} {given[whole]} is not a multiple of {over}")
    if given.get("tensor", 1) * given.get("pipeline", 1) * given.get("data", 1) > _MOST:
        errors.append(f"{name}: tensor x pipeline x data is more than {_MOST} GPUs")
    if (_activations(given) or 0) > 1 << 40:
        errors.append(f"{name}: micro_batch x sequence x hidden is more than 1T in BF16")
    return errors


def _activations(given: Mapping[str, int]) -> int | None:
    """Return the bytes of one micro batch between two layers; None where the intent does not have them."""
    if not {"micro_batch", "sequence", "hidden"} <= set(given):
        return None
    return given["micro_batch"] * given["sequence"] * given["hidden"] * ELEMENT


def sizes(parameters: str, parallelism: Mapping[str, int], gpus: int) -> tuple[ModelSize, ...]:
    """Return the messages of a training step over ``gpus`` ranks, each once, the largest first. Raises ParseError.

    parameters: as busbar_model_parameters has it; with "" (no model named), the buckets that frameworks make are left.
    parallelism: as busbar_model_parallelism has it.
    """
    errors = parallelism_errors(parallelism)
    if errors:
        raise ParseError("; ".join(errors))
    tensor, pipeline = parallelism.get("tensor", 1), parallelism.get("pipeline", 1)
    parts = tensor * pipeline
    # Collective, bytes before they are whole shares, and what is sent.
    found = [
        ("all_reduce", float(DDP_BUCKET), "DDP bucket of 25 MiB"),
        ("reduce_scatter", float(ZERO_BUCKET), "ZeRO bucket of 5e8 elements, gradients"),
        ("all_gather", float(ZERO_BUCKET), "ZeRO bucket of 5e8 elements, parameters"),
    ]
    if parameters:
        whole = ELEMENT * parameter_count(parameters)
        split = f" of one of {parts} parts (tensor {tensor} x pipeline {pipeline})" if parts > 1 else ""
        found += [(collective, whole / tensor / pipeline, f"whole model, BF16{split}") for collective in WHOLE]
        if "layers" in parallelism:
            what = f"FSDP unit, 1 of {parallelism['layers']} layers"
            unit = whole / parallelism["layers"] / tensor
            found += [(collective, unit, what) for collective in ("all_gather", "reduce_scatter")]
    activations = _activations(parallelism)
    if activations is not None:
        what = "activations {micro_batch} x {sequence} x {hidden}, BF16".format(**parallelism)
        found += [("all_reduce", float(activations), f"tensor-parallel {what}")] if tensor > 1 else []
        found += [("sendrecv", float(activations), f"pipeline {what}")] if pipeline > 1 else []
    first: dict[tuple[str, int], ModelSize] = {}
    for collective, size, what in found:
        one = ModelSize(collective, shares(size, gpus), what)
        first.setdefault((collective, one.bytes), one)
    return tuple(sorted(first.values(), key=lambda one: (-one.bytes, one.collective)))
