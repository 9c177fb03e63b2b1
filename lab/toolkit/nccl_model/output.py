# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of nccl-tests 2.19.6 are given, of that what Busbar gives, and what they print.

Sizes are in bytes, times in microseconds.
"""

from __future__ import annotations

import getopt
import os
import sys
from dataclasses import dataclass

from .job import Rank
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


SIMULATED = "# simulated by the Busbar lab: no figure below is a measurement"
REDUCE = ("all_reduce", "reduce_scatter", "reduce", "sendrecv")


class Out:
    """Standard output of the first process; what others would say there is not printed.

    It is buffered by lines, as the real one: only what this process itself logs can come into the middle of a row.
    """

    def __init__(self, first: bool) -> None:
        self.stream = sys.stdout if first else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 until the end

    def say(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=self.stream)


def fitted(value: float, width: int) -> str:
    for digits in (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def say_head(out: Out, options: Options, program: str, headers: int, library: int) -> None:
    out.say(f"# nccl-tests version 2.19.6 nccl-headers={headers} nccl-library={library}")
    out.say(f"# Collective test starting: {program}")
    out.say(
        f"# nThread 1 nGpus {options.gpus} minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {options.step_factor}(factor) warmup iters: {options.warmup} iters: {options.iterations} "
        f"agg iters: 1 validation: {options.check} graph: 0 unalign: 0\n#"
    )
    out.say("# Using devices")


def say_devices(out: Out, ranks: list[Rank]) -> None:
    for rank in ranks:
        process, gpu = rank.process, rank.card
        out.say(
            f"#  Rank {rank.number:2d} Group {0:2d} Pid {process.pid:6d} on {process.host:>10} "
            f"device {rank.device:2d} [{gpu.address}] {gpu.name}"
        )


def say_header(out: Out) -> None:
    start, place = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "  {:>7}  {:>6}  {:>6}  {:>6}"
    columns = start + place * 2 + " "
    heads = " " * 11 + "out-of-place" + " " * 23 + "in-place" + " " * 10
    out.say("#\n" + start.format(*[""] * 5) + heads)
    out.say(columns.format("size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2))
    out.say(columns.format("(B)", "(elements)", "", "", "", *["(us)", "(GB/s)", "(GB/s)", ""] * 2))


def counts(collective: str, size: int, ranks: int) -> tuple[int, int]:
    """Return the count and the size that a row shows: of what is shared out, each rank has a multiple of 16 bytes."""
    elements = size // 4
    if collective in ("all_reduce", "broadcast", "reduce", "sendrecv"):
        return elements, elements * 4
    share = elements // ranks & -4
    return share, share * ranks * 4


def conclude(out: Out, name: str, busbw: list[float], failed: int) -> None:
    """Print the last lines. Raises Stop where data were wrong."""
    out.say(f"# {'Out of bounds values':<20} : {failed} {'FAILED' if failed else 'OK'}")
    out.say(f"# {'Avg bus bandwidth':<20} : {sum(busbw) / len(busbw):g} ")
    out.say(f"#\n# Collective test concluded: {name}\n#\n")
    if failed:
        raise Stop(7)
