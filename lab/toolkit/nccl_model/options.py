# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of the command line of nccl-tests 2.19.6 the options that Busbar gives. Sizes are in bytes."""

from __future__ import annotations

import getopt
from dataclasses import dataclass

from .stop import NOT_SIMULATED, Stop

MIB, GIB = 1 << 20, 1 << 30
_UNITS = {"K": 1 << 10, "M": MIB, "G": GIB}
_NAMES = {
    "-g": "gpus",
    "-b": "min_bytes",
    "-e": "max_bytes",
    "-f": "step_factor",
    "-n": "iterations",
    "-w": "warmup",
    "-c": "check",
}


@dataclass
class Options:
    gpus: int = 1
    min_bytes: int = 32 * MIB
    max_bytes: int = 32 * MIB
    step_factor: int = 2
    iterations: int = 20
    warmup: int = 1
    check: int = 1

    def sizes(self) -> list[int]:
        found = [self.min_bytes]
        while found[-1] * self.step_factor <= self.max_bytes:
            found.append(found[-1] * self.step_factor)
        return found


def parse(words: list[str]) -> Options:
    """Raises Stop for another option."""
    try:
        given, _ = getopt.getopt(words, "g:b:e:f:n:w:c:")
    except getopt.GetoptError as error:
        raise Stop(NOT_SIMULATED, err=f"lab: of nccl-tests this is not simulated: {error.msg}") from error
    options = Options()
    for letter, value in given:
        number = int(value[:-1]) * _UNITS[value[-1]] if value[-1] in _UNITS else int(value)
        setattr(options, _NAMES[letter], number)
    return options
