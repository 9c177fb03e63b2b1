# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of nccl-tests 2.19.6 print and write: text and JSON. Sizes are in bytes, times in microseconds."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from .job import Rank
from .options import OPERATIONS, TYPES, Options
from .stop import Stop

SIMULATED = "# simulated by the Busbar lab: no figure below is a measurement"


class Out:
    """Standard output of the first process; what others would say there is not printed.

    It is buffered by lines, as the real one: only what this process itself logs can come into the middle of a row.
    """

    def __init__(self, first: bool) -> None:
        self.first = first

    def say(self, text: str, end: str = "\n") -> None:
        if self.first:
            print(text, end=end)


def fitted(value: float, width: int) -> str:
    for digits in (2, 1, 0):
        text = f"{value:{width}.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class Report:
    """The JSON file, where one is asked for: its head before the run, the rest when the program ends."""

    def __init__(self, path: str | None, library: int, arguments: list[str]) -> None:
        """path: None also for a process that is not the first, which has none."""
        self.file = None
        self.rest: dict[str, Any] = {}
        if path is None:
            return
        attempt = -1
        while self.file is None:
            name = path if attempt < 0 else f"{path}.{attempt}"
            try:
                self.file = open(name, "x", encoding="utf-8")  # noqa: SIM115 it stays open for the whole run
            except FileExistsError:
                attempt += 1
            except OSError:
                print(f"# skipping json output; {name} not accessible")
                return
        print(f"# Writing JSON output to {name}")
        environment = [_sanitised(f"{key}={value}") for key, value in os.environ.items()]
        head = {
            "simulated": "true",
            "version": 3,
            "start_time": now(),
            "args": [_sanitised(word) for word in arguments],
            "env": environment,
            "nccl_version": library,
        }
        self.file.write(json.dumps(head, separators=(",", ":"))[:-1])
        self.file.flush()

    def finish(self) -> None:
        if self.file is None:
            return
        text = json.dumps(self.rest, separators=(",", ":"))
        self.file.write(f",{text[1:]}\n" if self.rest else "}\n")
        self.file.close()


def _sanitised(text: str) -> str:
    """nccl-tests stops a string where it is too long for it or not printable."""
    return re.match(r"[\x20-\x7e\t\n]*", text[:2047]).group()  # type: ignore[union-attr]


def say_head(out: Out, options: Options, report: Report, program: str, headers: int, library: int) -> None:
    kind, step = ("factor", options.step_factor) if options.step_factor > 1 else ("bytes", options.step_bytes)
    out.say(f"# nccl-tests version 2.19.6 nccl-headers={headers} nccl-library={library}")
    out.say(f"# Collective test starting: {program}")
    out.say(
        f"# nThread {options.threads} nGpus {options.gpus} minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {step}({kind}) warmup iters: {options.warmup} iters: {options.iterations} "
        f"agg iters: {options.aggregated} validation: {options.check} graph: {options.graph} "
        f"unalign: {options.unalign}"
    )
    if options.per_iteration:
        skips = f"; summary skips first {options.skipped} iterations" if options.skipped else ""
        out.say(f"# Per-Iteration Report: CUDA event timing; i_* uses max over process rows{skips} ")
    out.say("#")
    config: dict[str, Any] = {
        "nthreads": options.threads,
        "ngpus": options.gpus,
        "minimum_bytes": options.min_bytes,
        "maximum_bytes": options.max_bytes,
        f"step_{kind}": step,
        "warmup_iters": options.warmup,
        "iterations": options.iterations,
        "aggregated_iterations": options.aggregated,
        "validation": options.check,
        "graph": options.graph,
        "blocking_collectives": _bool(options.blocking),
        "per_iter_timing": _bool(options.per_iteration),
        "per_iter_skip": options.skipped,
        "parallel_init": _bool(options.parallel_init),
    }
    report.rest["config"] = config
    out.say("# Using devices")


def say_devices(out: Out, report: Report, ranks: list[Rank]) -> None:
    """A line for each rank; the real program lists the first one of each process in its JSON."""
    devices = []
    for rank in ranks:
        process, gpu = rank.process, rank.card
        out.say(
            f"#  Rank {rank.number:2d} Group {0:2d} Pid {process.pid:6d} on {process.host:>10} "
            f"device {rank.device:2d} [{gpu.address}] {gpu.name}"
        )
        if rank.gpu == 0:
            who = {"rank": rank.number, "group": 0, "pid": process.pid, "hostname": process.host}
            shown = {"device": rank.device, "device_hex": gpu.address, "device_info": gpu.name}
            devices.append({**who, **shown})
    report.rest["config"]["devices"] = devices


def _bool(value: object) -> str:
    return "true" if value else "false"


def say_header(out: Out, per_iteration: bool) -> None:
    start = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
    names, units = ["time", "algbw", "busbw", "#wrong"], ["(us)", "(GB/s)", "(GB/s)", ""]
    place = "  {:>7}  {:>6}  {:>6}  {:>6}"
    heads = " " * 11 + "out-of-place" + " " * 23 + "in-place" + " " * 10
    if per_iteration:
        names, units = [*names, "i_min", "i_max", "i_p99", "i_cv%"], [*units, "(us)", "(us)", "(us)", "(%)"]
        place += "  {:>7}" * 4
        heads = " " * 14 + "out-of-place (+ per-iteration)" + " " * 32 + "in-place (+ per-iteration)"
    columns = start + place * 2 + " "
    out.say("#\n" + start.format(*[""] * 5) + heads)
    out.say(columns.format("size", "count", "type", "redop", "root", *names, *names))
    out.say(columns.format("(B)", "(elements)", "", "", "", *units, *units))


def per_iteration(rows: list[list[float]], skipped: int) -> tuple[str, dict[str, Any]]:
    """What a row of the table and the JSON file say of it. rows: of each process, microseconds of each iteration."""
    times = [max(column) for column in zip(*rows)]  # noqa: B905 Python 3.9
    ordered = sorted(times[skipped:])
    count = len(ordered)
    mean = sum(ordered) / count
    deviation = math.sqrt(sum((time_ - mean) ** 2 for time_ in ordered) / count)
    share = deviation / mean * 100 if mean > 0 else 0.0
    at = {percent: ordered[min(count - 1, (count * percent + 99) // 100 - 1)] for percent in (95, 99)}
    found: dict[str, Any] = {
        "skipped_iterations": skipped,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": ordered[count // 2],
        "p95_us": at[95],
        "p99_us": at[99],
        "stdev_us": deviation,
        "cv_pct": share,
        "times_us": times,
    }
    if len(rows) > 1:
        found["per_process_max_times_us"] = rows
    shown = "".join(f"  {fitted(value, 7)}" for value in (ordered[0], ordered[-1], at[99], share))
    return shown, found


def counts(collective: str, size: int, width: int, ranks: int) -> tuple[int, int]:
    """The count and the size that a row shows: of what is shared out, each rank has a multiple of 16 bytes."""
    elements = size // width
    if collective in ("all_reduce", "broadcast", "reduce", "sendrecv"):
        return elements, elements * width
    share = elements // ranks & -(16 // width)
    return share, share * ranks * width


def tables(collective: str, options: Options, ranks: int) -> Iterator[tuple[str, str, int]]:
    """Type, operation and root of each."""
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    operations: tuple[str, ...] = ("" if collective == "hypercube" else "none",)
    if collective in ("all_reduce", "reduce_scatter", "reduce", "sendrecv"):
        operations = OPERATIONS if options.operation == "all" else (options.operation,)
    for datatype in TYPES if options.datatype == "all" else (options.datatype,):
        for operation in operations:
            for root in range(ranks) if rooted and options.root == -1 else (options.root if rooted else -1,):
                yield datatype, operation, root


def sizes(options: Options) -> Iterator[int]:
    size = options.min_bytes
    while size <= options.max_bytes:
        yield size
        size = size * options.step_factor if options.step_factor > 1 else size + options.step_bytes


def conclude(out: Out, name: str, report: Report, busbw: list[float], failed: int) -> None:
    """The last lines. Raises Stop where data were wrong or the mean is too far below NCCL_TESTS_MIN_BW."""
    mean = sum(busbw) / len(busbw) if busbw else math.nan
    wanted = os.environ.get("NCCL_TESTS_MIN_BW")
    bar = float((re.match(r"\s*[+-]?\d*\.?\d+", wanted) or ["0"])[0]) if wanted else -1.0
    below = mean < bar * 0.9
    out.say(f"# {'Out of bounds values':<20} : {failed} {'FAILED' if failed else 'OK'}")
    verdict = "" if bar == -1 else "FAILED" if below else "OK"
    out.say(f"# {'Avg bus bandwidth':<20} : {'-nan' if math.isnan(mean) else f'{mean:g}'} {verdict}")
    out.say(f"#\n# Collective test concluded: {name}\n#\n")
    report.rest["out_of_bounds"] = {"count": failed, "okay": _bool(not failed)}
    report.rest["average_bus_bandwidth"] = {
        "bandwidth": "nan" if math.isnan(mean) else round(mean, 6),
        "okay": "unchecked" if bar == -1 else _bool(not below),
    }
    report.rest["errors"] = [""]
    if failed or below:
        raise Stop(7)
