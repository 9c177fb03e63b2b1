# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of nccl-tests 2.19.6 print and write: text and JSON. Sizes are in bytes, times in microseconds."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

from .job import Rank
from .options import Options
from .stop import Stop

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


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class Report:
    """The JSON file, where -J names one: its head before the run, the rest when the program ends."""

    def __init__(self, path: str | None, library: int, arguments: list[str]) -> None:
        """path: None also for a process that is not the first, which has none."""
        self.file, self.rest, attempt = None, {}, -1
        while path is not None and self.file is None:
            name = path if attempt < 0 else f"{path}.{attempt}"
            try:
                self.file = open(name, "x", encoding="utf-8")  # noqa: SIM115 it stays open for the whole run
            except FileExistsError:
                attempt += 1
            except OSError:
                print(f"# skipping json output; {name} not accessible")
                return
        if self.file is None:
            return
        print(f"# Writing JSON output to {name}")
        head = {
            "simulated": "true",
            "version": 3,
            "start_time": now(),
            "args": arguments,
            "env": [f"{key}={value}" for key, value in os.environ.items()],
            "nccl_version": library,
        }
        self.file.write(json.dumps(head, separators=(",", ":"))[:-1])
        self.file.flush()

    rest: dict[str, Any]

    def finish(self) -> None:
        if self.file is not None:
            text = json.dumps(self.rest, separators=(",", ":"))
            self.file.write(f",{text[1:]}\n" if self.rest else "}\n")
            self.file.close()


def say_head(out: Out, options: Options, report: Report, program: str, headers: int, library: int) -> None:
    kind, step = ("factor", options.step_factor) if options.step_factor > 1 else ("bytes", options.step_bytes)
    out.say(f"# nccl-tests version 2.19.6 nccl-headers={headers} nccl-library={library}")
    out.say(f"# Collective test starting: {program}")
    out.say(
        f"# nThread 1 nGpus {options.gpus} minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {step}({kind}) warmup iters: {options.warmup} iters: {options.iterations} "
        f"agg iters: 1 validation: {options.check} graph: 0 unalign: 0\n#"
    )
    report.rest["config"] = {
        "nthreads": 1,
        "ngpus": options.gpus,
        "minimum_bytes": options.min_bytes,
        "maximum_bytes": options.max_bytes,
        f"step_{kind}": step,
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "aggregated_iterations": 1,
        "validation": options.check,
        "graph": 0,
        "blocking_collectives": "false",
        "per_iter_timing": "false",
        "per_iter_skip": 0,
        "parallel_init": "false",
    }
    out.say("# Using devices")


def say_devices(out: Out, report: Report, ranks: list[Rank]) -> None:
    """Print a line for each rank; the real program lists the first one of each process in its JSON."""
    devices = []
    for rank in ranks:
        process, gpu = rank.process, rank.card
        out.say(
            f"#  Rank {rank.number:2d} Group {0:2d} Pid {process.pid:6d} on {process.host:>10} "
            f"device {rank.device:2d} [{gpu.address}] {gpu.name}"
        )
        if rank.gpu == 0:
            who = {"rank": rank.number, "group": 0, "pid": process.pid, "hostname": process.host}
            devices.append({**who, "device": rank.device, "device_hex": gpu.address, "device_info": gpu.name})
    report.rest["config"]["devices"] = devices


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


def conclude(out: Out, name: str, report: Report, busbw: list[float], failed: int) -> None:
    """Print the last lines. Raises Stop where data were wrong or the mean is too far below NCCL_TESTS_MIN_BW."""
    mean = sum(busbw) / len(busbw)
    wanted = os.environ.get("NCCL_TESTS_MIN_BW", "")
    bar = float(wanted) if re.fullmatch(r"\d+\.?\d*", wanted) else -1.0
    below = mean < bar * 0.9
    out.say(f"# {'Out of bounds values':<20} : {failed} {'FAILED' if failed else 'OK'}")
    verdict = "" if bar == -1 else "FAILED" if below else "OK"
    out.say(f"# {'Avg bus bandwidth':<20} : {mean:g} {verdict}")
    out.say(f"#\n# Collective test concluded: {name}\n#\n")
    okay = {True: "true", False: "false"}
    report.rest["out_of_bounds"] = {"count": failed, "okay": okay[not failed]}
    told = "unchecked" if bar == -1 else okay[not below]
    report.rest["average_bus_bandwidth"] = {"bandwidth": round(mean, 6), "okay": told}
    report.rest["errors"] = [""]
    if failed or below:
        raise Stop(7)
