# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line of nccl-tests 2.19.6. Sizes are in bytes."""

from __future__ import annotations

import getopt
import re
from dataclasses import dataclass

from .stop import NOT_SIMULATED, Stop

MIB, GIB = 1 << 20, 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB}

_LONG = {
    "nthreads": "t", "ngpus": "g", "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f", "iters": "n",
    "agg_iters": "m", "warmup_iters": "w", "run_cycles": "N", "parallel_init": "p", "check": "c", "op": "o",
    "datatype": "d", "root": "r", "blocking": "z", "stream_null": "y", "timeout": "T", "cudagraph": "G",
    "report_cputime": "C", "report_timestamps": "S", "output_file": "J", "average": "a", "local_register": "R",
    "cta_policy": "x", "device_implementation": "D", "device_cta_count": "V", "memory": "M", "unalign": "u",
    "per_iter_timing": "I", "per_iter_skip": "K",
}  # fmt: skip
_USAGE = "".join(f"[-{short},--{name} <value>] \n\t" for name, short in _LONG.items()) + "[-h,--help]"
_NUMBERS = {"g": "gpus", "f": "step_factor", "n": "iterations", "w": "warmup", "c": "check"}
_SIZES = {"b": ("min_bytes", "minbytes"), "e": ("max_bytes", "maxbytes"), "i": ("step_bytes", "stepBytes")}


@dataclass
class Options:
    gpus: int = 1
    min_bytes: int = 32 * MIB
    max_bytes: int = 32 * MIB
    step_bytes: int = MIB
    step_factor: int = 1
    iterations: int = 20
    warmup: int = 1
    check: int = 1
    output: str | None = None

    def sizes(self) -> list[int]:
        found = [self.min_bytes]
        while found[-1] <= self.max_bytes:
            found.append(found[-1] * self.step_factor if self.step_factor > 1 else found[-1] + self.step_bytes)
        return found[:-1]


def parse_size(text: str) -> int:
    """Return the bytes; below zero where it is no size."""
    match = re.fullmatch(r"(\d+\.?\d*)([KMG]?)", text.upper())
    return int(float(match[1]) * _UNITS[match[2]]) if match else -1


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
        if letter in _SIZES:
            attribute, word = _SIZES[letter]
            size = parse_size(value)
            if size < 0:
                raise Stop(255, err=f"invalid size specified for '{word}'")
            setattr(options, attribute, size)
        elif letter in _NUMBERS:
            setattr(options, _NUMBERS[letter], int(value))
        elif letter == "J":
            options.output = value
        else:
            raise Stop(NOT_SIMULATED, err=f"lab: option -{letter} of nccl-tests is not simulated")
    if options.min_bytes > options.max_bytes:
        sizes = f"{options.min_bytes} > {options.max_bytes}"
        raise Stop(255, err=f"invalid sizes for 'minbytes' and 'maxbytes': {sizes}")
    return options
