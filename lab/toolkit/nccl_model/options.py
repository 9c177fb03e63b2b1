# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line of nccl-tests 2.19.6. Sizes are in bytes."""

from __future__ import annotations

import getopt
import re
import sys
from dataclasses import dataclass

from .stop import NOT_SIMULATED, Stop

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_LONG = {
    "nthreads": "t", "ngpus": "g", "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f", "iters": "n",
    "agg_iters": "m", "warmup_iters": "w", "run_cycles": "N", "parallel_init": "p", "check": "c", "op": "o",
    "datatype": "d", "root": "r", "blocking": "z", "stream_null": "y", "timeout": "T", "cudagraph": "G",
    "report_cputime": "C", "report_timestamps": "S", "output_file": "J", "average": "a", "local_register": "R",
    "cta_policy": "x", "device_implementation": "D", "device_cta_count": "V", "memory": "M", "unalign": "u",
    "per_iter_timing": "I", "per_iter_skip": "K",
}  # fmt: skip
# These change what is printed in ways that nobody has needed here.
_REFUSED = "NCSDVM"
_USAGE = "".join(f"[-{short},--{name} <value>] \n\t" for name, short in _LONG.items()) + "[-h,--help]"

TYPES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4, "double": 8,
    "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum")


@dataclass
class Options:
    threads: int = 1
    gpus: int = 1
    min_bytes: int = 32 * MIB
    max_bytes: int = 32 * MIB
    step_bytes: int = MIB
    step_factor: int = 1
    iterations: int = 20
    aggregated: int = 1
    warmup: int = 1
    check: int = 1
    graph: int = 0
    unalign: int = 0
    blocking: int = 0
    parallel_init: int = 0
    per_iteration: int = 0
    skipped: int = 0
    root: int = 0
    operation: str = "sum"
    datatype: str = "float"
    output: str | None = None

    @property
    def ranks(self) -> int:
        return self.threads * self.gpus


_NUMBERS = {
    "t": "threads", "g": "gpus", "f": "step_factor", "n": "iterations", "m": "aggregated", "w": "warmup", "c": "check",
    "G": "graph", "u": "unalign", "z": "blocking", "p": "parallel_init", "r": "root",
    "I": "per_iteration", "K": "skipped",
}  # fmt: skip
_SIZES = {"b": ("min_bytes", "minbytes"), "e": ("max_bytes", "maxbytes"), "i": ("step_bytes", "stepBytes")}


def integer(text: str) -> int:
    """As strtol(text, 0) has it: 0x and octal numbers count, what follows the number does not, and no number is 0."""
    match = re.match(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))", text)
    if not match:
        return 0
    sign, hexadecimal, octal, decimal = match.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -number if sign == "-" else number


def parse_size(text: str) -> int:
    """Bytes; below zero where it is no size."""
    match = re.match(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S?)", text)
    units = {"": 1, "K": KIB, "M": MIB, "G": GIB}
    if not match or match.group(2).upper() not in units:
        return -1
    return int(float(match.group(1)) * units[match.group(2).upper()])


def parse(program: str, words: list[str]) -> Options:
    """Raises Stop for -h and for what is no option (the usage, and success) and for sizes that are none (255)."""
    usage = f"USAGE: {program} \n\t{_USAGE}"
    short = "".join(f"{letter}:" for letter in _LONG.values()) + "h"
    try:
        given, _ = getopt.gnu_getopt(words, short, [*(f"{name}=" for name in _LONG), "help"])
    except getopt.GetoptError as error:
        raise Stop(0, f"invalid option '?'\n{usage}", f"{program}: {error.msg}") from error
    options = Options()
    for name, value in given:
        letter = _LONG.get(name.lstrip("-"), name.lstrip("-")[:1])
        if letter == "h":
            raise Stop(0, usage)
        if letter in _REFUSED:
            raise Stop(NOT_SIMULATED, err=f"lab: option -{letter} of nccl-tests is not simulated")
        if letter in _SIZES:
            attribute, word = _SIZES[letter]
            size = parse_size(value)
            if size < 0:
                raise Stop(255, err=f"invalid size specified for '{word}'")
            setattr(options, attribute, size)
        elif letter in _NUMBERS:
            setattr(options, _NUMBERS[letter], integer(value))
        elif letter == "J":
            options.output = value
        elif letter == "o":
            options.operation = _named(value, (*OPERATIONS, "all"), "op")
        elif letter == "d":
            options.datatype = _named(value, (*TYPES, "all"), "type")
    _settle_per_iteration(options)
    if options.ranks < 1:
        raise Stop(NOT_SIMULATED, err="lab: a run without GPUs is not simulated")
    if options.min_bytes > options.max_bytes:
        sizes = f"{options.min_bytes} > {options.max_bytes}"
        raise Stop(255, err=f"invalid sizes for 'minbytes' and 'maxbytes': {sizes}")
    return options


def _settle_per_iteration(options: Options) -> None:
    """What does not go together is switched off, with a word about it."""
    said = []
    if options.per_iteration not in (0, 1):
        said.append("per-iteration timing (-I) only supports 0=off or 1=on. Disabling.")
        options.per_iteration = 0
    if options.per_iteration and options.graph >= 1:
        said.append("per-iteration timing (-I) is incompatible with CUDA graph mode (-G). Disabling.")
        options.per_iteration = 0
    if not 0 <= options.skipped < max(1, options.iterations):
        said.append(f"per-iteration skip (-K) must be between 0 and {options.iterations - 1}. Disabling.")
        options.skipped = 0
    if options.skipped and not options.per_iteration:
        said.append("per-iteration skip (-K) requires per-iteration timing (-I 1). Disabling.")
        options.skipped = 0
    for line in said:
        print(line, file=sys.stderr)


def _named(value: str, names: tuple[str, ...], what: str) -> str:
    if value in names:
        return value
    default = "sum" if what == "op" else "float"
    print(f"invalid {what} {value}, defaulting to {default}")
    return default
