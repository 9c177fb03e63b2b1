# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar size``: compute the traffic of a training step, and whether a cluster's network carries it.

Too little bandwidth is a finding; without a requested step there is none.
"""

from __future__ import annotations

import argparse
import re
from fractions import Fraction
from functools import partial
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import did_you_mean
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile as profiles
from ansible_collections.busbar.fabric.plugins.plugin_utils import model_sizes, profile_files, sizing, terminal

from .command_line import complain, number

# One factor of a whole number; with a unit, as of 70B parameters, it is a multiple of 1,000.
_FACTOR = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMBT]?)", re.ASCII)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _count(text: str, most: int = 10**6) -> int:
    """Parse a whole number: ``512x8192`` is a product, ``4M`` and ``1.5K`` have a unit."""
    factors = [_FACTOR.fullmatch(part) for part in text.replace("_", "").split("x")]
    value = Fraction(1)
    for match in factors:
        value *= Fraction(match[1]) * _UNITS[match[2]] if match else 0
    if value.denominator != 1 or not 1 <= value <= most:
        what = f"not a whole number from 1 to {most}, such as 512 or 4K, nor a product such as 8x64"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is {what}")
    return int(value)


def _parameters(text: str) -> int:
    try:
        return model_sizes.parameter_count(text)
    except ParseError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add(command: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "parameters of the dense model: 350M, 70B, 1.3T"
    command.add_argument("--parameters", type=_parameters, required=True, metavar="P", help=text)
    text = "platform profile: file or name, such as hgx-h100"
    command.add_argument("--profile", required=True, metavar="NAME", help=text)
    command.add_argument("--nodes", type=_count, required=True, metavar="N", help="nodes of the job")
    command.add_argument("--tp", type=_count, default=1, metavar="N", help="tensor parallel ranks, within a node")
    command.add_argument("--pp", type=_count, default=1, metavar="N", help="pipeline stages")
    command.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=0, help="ZeRO stage; 3 is FSDP")
    text = "tokens of a step, all ranks: 4M, or 512x8192"
    command.add_argument("--tokens", type=partial(_count, most=10**10), default=0, metavar="N", help=text)
    text = "micro-batches of a data parallel rank in a step"
    command.add_argument("--micro-batches", type=_count, default=1, metavar="N", help=text)
    text = "share of peak FLOPS; else the minimum step is printed"
    command.add_argument("--mfu", type=number(1, 100, "number of percent"), metavar="PERCENT", help=text)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        profile = _profile(arguments.profile)
        training = _training(arguments, profile)
        rates = sizing.predicted(profile, arguments.nodes)
        found = sizing.size(training, profile, rates, _compute(arguments, training, profile))
    except ParseError as error:
        return complain("size", error)
    title = (
        f"{training.parameters / 1e9:.4g}B parameters on {terminal.counted(training.gpus, 'GPU')} of"
        f" {terminal.counted(arguments.nodes, 'node')} ({profile.name}): dp {training.data} x tp {training.tensor}"
        f" x pp {training.pipeline}, ZeRO-{training.zero}"
    )
    print(sizing.render(title, found, min(terminal.COLUMNS, 120)))
    return found.exit_code


def _training(given: argparse.Namespace, profile: profiles.Profile) -> sizing.Training:
    """Return the training of the arguments. Raises ParseError."""
    gpus = profile.gpus.count
    if not gpus or not profile.rails:
        raise ParseError(f"profile {profile.name} has no {'rails' if gpus else 'GPUs'}")
    total, inner = given.nodes * gpus, given.tp * given.pp
    if total % inner:
        split = f"--tp {given.tp} x --pp {given.pp} = {inner}"
        raise ParseError(f"--nodes {given.nodes} have {total} GPUs, not a multiple of {split}")
    training = sizing.Training(
        given.parameters, total // inner, given.tp, given.pp, given.zero, given.tokens, given.micro_batches
    )
    if wrong := sizing.errors(training, gpus):
        raise ParseError("; ".join(wrong))
    return training


def _compute(given: argparse.Namespace, training: sizing.Training, profile: profiles.Profile) -> float | None:
    """Return the seconds of a step without waiting, None where none was requested. Raises ParseError."""
    if given.mfu is None:
        return None
    if not training.tokens:
        raise ParseError("--mfu needs --tokens, the tokens of a step")
    tflops = sizing.peak(profile)
    if not tflops:
        models = ", ".join(profile.gpus.models)
        raise ParseError(f"the peak of {models} is not known: leave --mfu out to see which step the network allows")
    return training.compute_time(tflops, given.mfu / 100)


def _profile(name: str) -> profiles.Profile:
    """Return a profile from a file, or by name: of ./profiles, else of the suite. Raises ParseError."""
    path, known = Path(name), profile_files.shipped()
    if path.suffix not in (".yml", ".yaml"):
        path = Path("profiles", f"{name}.yml")
        if "/" in name or not path.is_file():
            if name not in known:
                hint = did_you_mean(name, known, "name a file (.yml), or one of ")
                raise ParseError(f"no profile {name[:60]!r}{hint}")
            return profiles.parse(known[name], name)
    data = profile_files.read(path)
    try:
        return profiles.parse(data, path.stem)
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from None
