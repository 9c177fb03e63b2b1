# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the programs of nccl-tests 2.19.6 would print on the simulated node that this runs on.

Run by the lab's stand-ins: PROGRAM HEADERS LIBRARY mpi|single ARGV... (versions as NCCL's codes). Options, layouts,
error texts and exit codes are nccl-tests'; the figures are made from what the node has right now: the GPUs and NVLinks
that nvidia-smi answers with, the PCIe links in its /sys, and NCCL's variables as NCCL would find them. One process on
one node: more is refused. Sizes are in bytes, times in microseconds, bandwidths in GB/s. Stands alone, Python >= 3.9.
"""

from __future__ import annotations

import getopt
import hashlib
import json
import math
import os
import pwd
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SIMULATED = "# simulated by the Busbar lab: no figure below is a measurement"
# Another directory holds the node only in tests.
ROOT = os.environ.get("BUSBAR_LAB_ROOT", "")
ANSWERS = f"{ROOT}/usr/share/busbar-lab/nvidia-smi"
SYS = f"{ROOT}/srv/busbar-lab/hw/sys"
NOT_SIMULATED = 64

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Stop(Exception):
    """The program ends here. ``out`` and ``err`` are what it still prints, ``trace`` the line of common.cu it names."""

    def __init__(self, code: int, out: str = "", err: str = "", trace: int | None = None) -> None:
        super().__init__(code)
        self.code, self.out, self.err, self.trace = code, out, err, trace


# -- the command line ------------------------------------------------------------------------------------------------

_LONG = {
    "nthreads": "t", "ngpus": "g", "minbytes": "b", "maxbytes": "e", "stepbytes": "i", "stepfactor": "f", "iters": "n",
    "agg_iters": "m", "warmup_iters": "w", "run_cycles": "N", "parallel_init": "p", "check": "c", "op": "o",
    "datatype": "d", "root": "r", "blocking": "z", "stream_null": "y", "timeout": "T", "cudagraph": "G",
    "report_cputime": "C", "report_timestamps": "S", "output_file": "J", "average": "a", "local_register": "R",
    "cta_policy": "x", "device_implementation": "D", "device_cta_count": "V", "memory": "M", "unalign": "u",
    "per_iter_timing": "I", "per_iter_skip": "K",
}  # fmt: skip
# These change what is printed in ways that nobody has needed here.
_REFUSED = "NCSDVMIK"
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
            raise Stop(NOT_SIMULATED, err=f"busbar lab: option -{letter} of nccl-tests is not simulated")
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
    if options.ranks < 1:
        raise Stop(NOT_SIMULATED, err="busbar lab: a run without GPUs is not simulated")
    if options.min_bytes > options.max_bytes:
        sizes = f"{options.min_bytes} > {options.max_bytes}"
        raise Stop(255, err=f"invalid sizes for 'minbytes' and 'maxbytes': {sizes}")
    return options


def _named(value: str, names: tuple[str, ...], what: str) -> str:
    if value in names:
        return value
    default = "sum" if what == "op" else "float"
    print(f"invalid {what} {value}, defaulting to {default}")
    return default


# -- the node --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One that the driver has. ``address``: domain:bus:device.   lanes: PCIe width.   held_mib: used by others."""

    address: str
    uuid: str
    name: str
    memory: int
    nvlinks: int
    lanes: int
    fabric: str
    slow: bool
    wrong: bool
    held_mib: int


def read_gpus() -> list[Gpu]:
    """What CUDA would count, CUDA_VISIBLE_DEVICES considered. Raises Stop where there is no driver to ask."""
    try:
        rows = [line.split("\t") for line in _read(f"{ANSWERS}/query.tsv").splitlines()]
        links = re.split(r"^GPU \d+:.*\n", _read(f"{ANSWERS}/nvlink-s"), flags=re.MULTILINE)[1:]
        driver = json.loads(_read(f"{ANSWERS}/.driver.json"))
    except OSError as error:
        raise cuda_failure("CUDA driver version is insufficient for CUDA runtime version") from error
    gpus = []
    for values, states in zip(rows[2:], links):  # noqa: B905 Python 3.9
        row = dict(zip(rows[0], values))  # noqa: B905
        domain, bus, function = row["pci.bus_id"].lower().split(":")
        address = f"{domain[-4:]}:{bus}:{function}"
        gpus.append(
            Gpu(
                address=address.split(".")[0],
                uuid=row["uuid"],
                name=row["name"],
                memory=int(row["memory.total"].split()[0]) * MIB,
                nvlinks=states.count(" GB/s"),
                lanes=integer(_read(f"{SYS}/bus/pci/devices/{address}/current_link_width")) or 16,
                fabric=row["fabric.state"],
                slow=address in driver["slow"],
                wrong=address in driver["wrong"],
                held_mib=driver["held_mib"].get(address, 0),
            )
        )
    return _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(gpus: list[Gpu], chosen: str | None) -> list[Gpu]:
    """CUDA stops at the first name that it cannot make sense of."""
    if chosen is None:
        return gpus
    found: list[Gpu] = []
    for word in chosen.split(","):
        matching = [g for n, g in enumerate(gpus) if word.strip() == str(n) or (word[:4] == "GPU-" and word in g.uuid)]
        if not matching or matching[0] in found:
            break
        found.append(matching[0])
    return found


def hangs() -> bool:
    return bool(json.loads(_read(f"{ANSWERS}/.driver.json"))["hang"])


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


# -- NCCL's variables ------------------------------------------------------------------------------------------------


def settings() -> dict[str, str]:
    """The environment, then NCCL_CONF_FILE or the user's file, then /etc/nccl.conf: the first to name it has it."""
    found = dict(os.environ)
    named = found.get("NCCL_CONF_FILE")
    for path in (named or f"{ROOT}{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf", f"{ROOT}/etc/nccl.conf"):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
                lines = stream.read().split("\n")
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name[:1023], value[:1023])
    return found


def number(found: dict[str, str], name: str, default: int) -> int:
    """Empty is the default, what is no number is 0."""
    return integer(found[name]) if found.get(name) else default


def p2p_allowed(found: dict[str, str]) -> bool:
    level = found.get("NCCL_P2P_LEVEL", "")
    local = level == "LOC" or (level[:1].isdigit() and integer(level) == 0)
    return not local and number(found, "NCCL_P2P_DISABLE", 0) != 1


_FUNCTIONS = {
    "all_reduce_perf": "allreduce",
    "all_gather_perf": "allgather",
    "reduce_scatter_perf": "reducescatter",
    "broadcast_perf": "broadcast",
    "reduce_perf": "reduce",
}
_ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")


def allowed(text: str, names: tuple[str, ...], function: str) -> set[str]:
    """NCCL_ALGO or NCCL_PROTO: [^]list[;function:[^]list]. Raises Stop: since 2.24 a word it does not know is fatal."""
    chosen = set(names)
    for part in filter(None, text.lower().split(";")):
        where, colon, words = part.rpartition(":")
        exclude, listed = words.startswith("^"), words.lstrip("^").split(",")
        strange = [word for word in listed if word not in names]
        if colon and where not in _FUNCTIONS.values():
            strange.insert(0, where)
        if strange:
            raise nccl_failure(USAGE_ERROR, 1615, f'Unrecognized element token "{strange[0]}" when parsing "{text}"')
        if not colon or where == function:
            chosen = set(names) - set(listed) if exclude else set(listed)
    return chosen


def check_interface(found: dict[str, str]) -> None:
    """NCCL's bootstrap needs one interface that NCCL_SOCKET_IFNAME leaves. Raises Stop."""
    words = found.get("NCCL_SOCKET_IFNAME", "")
    exclude = words.startswith("^")
    whole = words.lstrip("^").startswith("=")
    names = [word.split(":")[0] for word in words.lstrip("^").lstrip("=").split(",") if word]

    def listed(interface: str) -> bool:
        return any(interface == name if whole else interface.startswith(name) for name in names)

    if words and all(listed(interface) == exclude for interface in os.listdir(f"{SYS}/class/net")):
        raise nccl_failure(USAGE_ERROR, 1550, "Bootstrap : no socket interface found")


USAGE_ERROR = "invalid usage (run with NCCL_DEBUG=WARN for details)"
CUDA_ERROR = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"


def nccl_failure(text: str, line: int, last_error: str) -> Stop:
    where = f"{socket.gethostname()}: Test NCCL failure common.cu:{line}"
    return Stop(3, f"{where} '{text} / {last_error}'", trace=line)


def cuda_failure(text: str) -> Stop:
    return Stop(2, f"{socket.gethostname()}: Test CUDA failure util.cu:672 '{text}'")


# -- the figures -----------------------------------------------------------------------------------------------------

# GB/s of one NVLink 4 in NCCL's own model, and what published runs reach of it.
NVLINK, REACHED = 20.6, 0.985
# NVLink SHARP on 5 to 8 GPUs against a ring, from published all_reduce runs. With fewer GPUs it gains nothing.
NVLS_GAIN = {5: 1.135, 6: 1.19, 7: 1.245, 8: 1.30}
SHARED_MEMORY, SOCKETS = 10.0, 1.8
# What each reaches of all_reduce's ring; gather, scatter and hypercube are assumed.
SHARE = {"all_gather": 0.97, "reduce_scatter": 0.97, "alltoall": 0.96, "broadcast": 0.99, "gather": 0.96}
SHARE |= {"scatter": 0.96, "hypercube": 0.9}
PROTOCOL_SHARE = {"simple": 1.0, "ll128": 0.93, "ll": 0.25}
SLOW_GPU, SHARED_GPU = 0.6, 0.7
# Published all_reduce busbw by size, on 8 GPUs with NVLS. The time above that of the last figure's bandwidth is what a
# size costs, whatever the path.
_RAMP = ((MIB, 43.0), (16 * MIB, 234.0), (64 * MIB, 362.0), (512 * MIB, 438.0), (GIB, 466.0), (8 * GIB, 480.0))
_OVERHEAD = [(math.log2(size), 1.75 * size * (1 / bandwidth - 1 / 480.0) / 1e3) for size, bandwidth in _RAMP]
MEMORY = 1500.0  # one GPU copies to itself


def overhead(size: int) -> float:
    """Microseconds, between the points of the ramp by the logarithm of the size."""
    if size <= MIB:
        return _OVERHEAD[0][1]
    place = math.log2(size)
    for n, (high, after) in enumerate(_OVERHEAD):
        if place <= high:
            low, before = _OVERHEAD[n - 1]
            return before + (after - before) * (place - low) / (high - low)
    return _OVERHEAD[-1][1]


def factor(collective: str, ranks: int) -> float:
    """busbw / algbw."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "sendrecv", "hypercube") else (ranks - 1) / ranks


def peak(program: str, gpus: list[Gpu], found: dict[str, str]) -> float:
    """busbw at any size that is large enough. Raises Stop where NCCL finds no way to do it."""
    collective = program[: -len("_perf")]
    function = _FUNCTIONS.get(program, "")
    algorithms = allowed(found.get("NCCL_ALGO", ""), _ALGORITHMS, function)
    protocols = allowed(found.get("NCCL_PROTO", ""), _PROTOCOLS, function)
    bandwidth, nvlink = SOCKETS, False
    if p2p_allowed(found) and all(gpu.nvlinks for gpu in gpus):
        bandwidth, nvlink = NVLINK * min(gpu.nvlinks for gpu in gpus) * REACHED, True
    elif number(found, "NCCL_SHM_DISABLE", 0) != 1:
        bandwidth = SHARED_MEMORY * min(gpu.lanes for gpu in gpus) / 16
    nvls = nvlink and "simple" in protocols and number(found, "NCCL_NVLS_ENABLE", 2) != 0
    if function:
        usable = {"ring", "tree"} if collective == "all_reduce" else {"ring"}
        usable |= {"nvls"} if nvls and collective in ("all_reduce", "all_gather", "reduce_scatter") else set()
        if not usable & algorithms:
            said = f"No algorithm/protocol available for function {function}"
            raise nccl_failure(USAGE_ERROR, 445, said)
        best = max(PROTOCOL_SHARE[protocol] for protocol in protocols)
        if best < 1:
            bandwidth *= best
        elif nvls and collective == "all_reduce" and "nvls" in algorithms:
            bandwidth *= NVLS_GAIN.get(len(gpus), 1.0)
    if any(gpu.slow for gpu in gpus):
        bandwidth *= SLOW_GPU
    if any(gpu.held_mib for gpu in gpus):
        bandwidth *= SHARED_GPU
    return bandwidth * SHARE.get(collective, 1.0)


def jitter(*parts: object) -> float:
    """0.9975 to 1.0025, always the same for the same parts."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return 1 + (int.from_bytes(digest[:4], "big") / 0xFFFFFFFF - 0.5) * 0.005


def duration(collective: str, size: int, ranks: int, bandwidth: float) -> float:
    """Microseconds."""
    if ranks == 1:
        return 5 + size / MEMORY / 1e3
    return overhead(size) + size * factor(collective, ranks) / bandwidth / 1e3


# -- the output ------------------------------------------------------------------------------------------------------


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


def say_devices(options: Options, report: Report, program: str, headers: int, library: int) -> list[Gpu]:
    """The lines up to the devices; the GPUs of the ranks. Raises Stop where there are not so many."""
    kind, step = ("factor", options.step_factor) if options.step_factor > 1 else ("bytes", options.step_bytes)
    print(f"# nccl-tests version 2.19.6 nccl-headers={headers} nccl-library={library}")
    print(f"# Collective test starting: {program}")
    print(
        f"# nThread {options.threads} nGpus {options.gpus} minBytes {options.min_bytes} maxBytes {options.max_bytes} "
        f"step: {step}({kind}) warmup iters: {options.warmup} iters: {options.iterations} "
        f"agg iters: {options.aggregated} validation: {options.check} graph: {options.graph} "
        f"unalign: {options.unalign}\n#"
    )
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
        "per_iter_timing": "false",
        "per_iter_skip": 0,
        "parallel_init": _bool(options.parallel_init),
    }
    report.rest["config"] = config
    print("# Using devices")
    gpus = read_gpus()
    if any(gpu.fabric not in ("Completed", "N/A") for gpu in gpus):
        raise cuda_failure("system not yet initialized")
    first = max(0, integer(os.environ.get("NCCL_TESTS_DEVICE", "")))
    wanted = first + options.ranks
    if wanted > len(gpus):
        found = f"{wanted} requested but only {len(gpus)} were found."
        raise Stop(
            5, err=f"Invalid number of GPUs: {found}\nPlease check the number of processes and GPUs per process."
        )
    used = gpus[first:wanted]
    host, pid = socket.gethostname(), os.getpid()
    for rank, gpu in enumerate(used):
        print(
            f"#  Rank {rank:2d} Group {0:2d} Pid {pid:6d} on {host:>10} device {first + rank:2d} [{gpu.address}] "
            f"{gpu.name}"
        )
    # The real program lists the first line of its process only.
    shown = {"device": first, "device_hex": used[0].address, "device_info": used[0].name}
    config["devices"] = [{"rank": 0, "group": 0, "pid": pid, "hostname": host, **shown}]
    return used


def _bool(value: object) -> str:
    return "true" if value else "false"


def limit_sizes(options: Options, gpus: list[Gpu]) -> None:
    """nccl-tests lowers sizes for which a GPU is too small, and fails where somebody else has the memory."""
    smallest = min(gpu.memory for gpu in gpus)
    reserved = min(math.ceil(smallest / (16 * GIB)) * GIB, 4 * GIB) + GIB
    buffers = 3 if options.check else 2
    most = (smallest - reserved) // buffers
    if options.max_bytes > most:
        options.max_bytes, options.min_bytes = most, min(options.min_bytes, most)
        print(f"#\n# Reducing maxBytes to {most} due to memory limitation")
    if any(buffers * options.max_bytes + GIB > gpu.memory - gpu.held_mib * MIB for gpu in gpus):
        raise nccl_failure(CUDA_ERROR, 1630, "Cuda failure 2 'out of memory'")


def say_header() -> None:
    start = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"
    columns = start + "  {:>7}  {:>6}  {:>6}  {:>6}" * 2 + " "
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    print("#\n" + start.format(*[""] * 5) + " " * 11 + "out-of-place" + " " * 23 + "in-place" + " " * 10)
    print(columns.format("size", "count", "type", "redop", "root", *names, *names))
    print(columns.format("(B)", "(elements)", "", "", "", *units, *units))


def counts(collective: str, size: int, width: int, ranks: int) -> tuple[int, int]:
    """The count and the size that a row shows: of what is shared out, each rank has a multiple of 16 bytes."""
    elements = size // width
    if collective in ("all_reduce", "broadcast", "reduce", "sendrecv"):
        return elements, elements * width
    share = elements // ranks & -(16 // width)
    return share, share * ranks * width


def tables(collective: str, options: Options) -> Iterator[tuple[str, str, int]]:
    """Type, operation and root of each."""
    rooted = collective in ("broadcast", "reduce", "gather", "scatter")
    operations: tuple[str, ...] = ("" if collective == "hypercube" else "none",)
    if collective in ("all_reduce", "reduce_scatter", "reduce", "sendrecv"):
        operations = OPERATIONS if options.operation == "all" else (options.operation,)
    for datatype in TYPES if options.datatype == "all" else (options.datatype,):
        for operation in operations:
            for root in range(options.ranks) if rooted and options.root == -1 else (options.root if rooted else -1,):
                yield datatype, operation, root


def run(program: str, name: str, options: Options, report: Report, headers: int, library: int) -> None:
    """Raises Stop unless all is well."""
    collective = program[: -len("_perf")]
    gpus = say_devices(options, report, name, headers, library)
    limit_sizes(options, gpus)
    found = settings()
    if found.get("NCCL_DEBUG", "").upper() in ("VERSION", "WARN", "INFO", "TRACE"):
        print(f"NCCL version {library // 10000}.{library // 100 % 100}.{library % 100}+cuda13.0")
    check_interface(found)
    if hangs():
        while True:
            signal.pause()
    bandwidth = peak(program, gpus, found)
    say_header()
    results: list[dict[str, Any]] = []
    report.rest["results"] = results
    wrong = options.check > 0 and any(gpu.wrong for gpu in gpus)
    busbw, failed = [], 0
    if collective == "hypercube" and options.ranks & (options.ranks - 1):
        print(f"nRanks {options.ranks} is not a power of 2, skipping")
    else:
        for datatype, operation, root in tables(collective, options):
            for size in sizes(options):
                count, shown = counts(collective, size, TYPES[datatype], options.ranks)
                line = f"{shown:12d}  {count:12d}  {datatype:>8}  {operation:>6}  {root:>6}"
                row = {"size": shown, "count": count, "type": datatype, "redop": operation, "root": f"{root:6d}"}
                for place in ("out_of_place", "in_place"):
                    checked = options.check > 0 and (
                        place == "out_of_place" or collective not in ("alltoall", "sendrecv")
                    )
                    seconds = duration(collective, shown, options.ranks, bandwidth) * jitter(program, shown, place)
                    moved = shown * (options.ranks - 1) // options.ranks if collective == "hypercube" else shown
                    algbw = moved / seconds / 1e3
                    busbw.append(algbw * factor(collective, options.ranks))
                    bad = count // 1000 + 1 if wrong and checked else 0
                    failed += bad > 0
                    line += f"  {fitted(seconds, 7)}  {fitted(algbw, 6)}  {fitted(busbw[-1], 6)}  "
                    line += f"{bad:>6g}" if checked else "  N/A"
                    row[place] = {
                        "time": round(seconds, 6),
                        "alg_bw": round(algbw, 6),
                        "bus_bw": round(busbw[-1], 6),
                        "nwrong": float(bad) if checked else None,
                    }
                print(line)
                results.append({**row, "actual_iterations": options.iterations, "experiment_name": ""})
    conclude(name, report, busbw, failed)


def sizes(options: Options) -> Iterator[int]:
    size = options.min_bytes
    while size <= options.max_bytes:
        yield size
        size = size * options.step_factor if options.step_factor > 1 else size + options.step_bytes


def conclude(name: str, report: Report, busbw: list[float], failed: int) -> None:
    """The last lines. Raises Stop where data were wrong or the mean is too far below NCCL_TESTS_MIN_BW."""
    mean = sum(busbw) / len(busbw) if busbw else math.nan
    wanted = os.environ.get("NCCL_TESTS_MIN_BW")
    bar = float((re.match(r"\s*[+-]?\d*\.?\d+", wanted) or ["0"])[0]) if wanted else -1.0
    below = mean < bar * 0.9
    print(f"# {'Out of bounds values':<20} : {failed} {'FAILED' if failed else 'OK'}")
    verdict = "" if bar == -1 else "FAILED" if below else "OK"
    print(f"# {'Avg bus bandwidth':<20} : {'-nan' if math.isnan(mean) else f'{mean:g}'} {verdict}")
    print(f"#\n# Collective test concluded: {name}\n#\n")
    report.rest["out_of_bounds"] = {"count": failed, "okay": _bool(not failed)}
    report.rest["average_bus_bandwidth"] = {
        "bandwidth": "nan" if math.isnan(mean) else round(mean, 6),
        "okay": "unchecked" if bar == -1 else _bool(not below),
    }
    report.rest["errors"] = [""]
    if failed or below:
        raise Stop(7)


def main(words: list[str]) -> int:
    (program, headers, library, build), arguments = words[:4], words[4:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(SIMULATED)
    name = os.path.basename(arguments[0])
    report = None
    try:
        options = parse(name, arguments[1:])
        if build == "mpi" and os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
            raise Stop(NOT_SIMULATED, err="busbar lab: runs of several processes are not simulated")
        report = Report(options.output, int(library), arguments)
        run(program, name, options, report, int(headers), int(library))
        stop = Stop(0)
    except Stop as reason:
        stop = reason
    for text, stream in ((stop.out, sys.stdout), (stop.err, sys.stderr)):
        if text:
            print(text, file=stream)
    if report is None:
        return stop.code
    if "devices" in report.rest.get("config", {}):
        report.rest["end_time"] = now()
    report.finish()
    # From here on every level of the real program says where it was.
    for line in [stop.trace, 1454] if stop.trace else [1454] if stop.code in (2, 5, 7) else []:
        print(f" .. {socket.gethostname()} pid {os.getpid()}: Test failure common.cu:{line}")
    return stop.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
