"""What is judged of runs of nccl-tests: on one node, over the network and over NVLink. Each case is one golden."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import judge as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import Run, Wanted
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.transport import Moved

from tests import goldens

from . import test_nccl_perf_network as network
from .test_nccl_perf import COMMAND, FOOT, SIZES, VERSION, WANTED, devices, output, row
from .test_nccl_perf_network import MOVED, NEW, NOW, OLD, QUIET, fabric, judged, log, read, repeated, text_of, tray_log

FAILED = FOOT.replace("0 OK", "1 FAILED")


def rows_of(figures: str = "T 4.17 6.25 0", in_place: str | None = None, middle: str = "float sum -1") -> str:
    return "".join(row(size, figures, in_place, middle) for size in SIZES)


def last_row(figures: str, in_place: str | None = None, foot: str = FOOT) -> str:
    return output(row(SIZES[0]) + row(SIZES[1]) + row(SIZES[2], figures, in_place), foot=foot)


def of(collective: str) -> str:
    return VERSION.replace("all_reduce", collective)


def rounded(*sizes: int) -> str:
    """all_gather of 4 ranks, whose sizes are whole shares of 16 bytes."""
    rows = (row(size, "T 4.00 3.00 0" if size else "9.1 0.00 0.00 0") for size in sizes)
    return output("".join(rows), head=of("all_gather"))


def on(*hosts: str) -> str:
    return output(ranks=devices(hosts))


ROUNDED = {"collective": "all_gather", "sizes": (8, 1000, 10_000_063)}
# Programs that ran alone under a launcher, as a build without MPI does: each is rank 0 of 1 and ends with 0.
ALONE = output(rows_of("T 115.2 0.00 0"), ranks=devices(("node01",)))
FAST_BEFORE = row(SIZES[0], "T 60 90.0 0") + row(SIZES[1], "T 60 90.0 0")
HUNG = {"rc": None, "ending": "timeout", "stderr": "Per user-direction, it has been aborted.\n"}

# Case -> what is wanted, and the run, where they are not as of WANTED and a good one.
ON_A_NODE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "good": ({"bar_busbw": 6.0}, {}),
    "no exit code": ({}, {"rc": None}),
    "timeout": ({}, {"rc": None, "ending": "timeout"}),
    "timeout before any size": ({}, {**HUNG, "stdout": ""}),
    "timeout after a size": ({}, {**HUNG, "stdout": output(rows=row(SIZES[0]), foot="")}),
    "overflow": ({}, {"rc": None, "ending": "overflow"}),
    "exit code 3": ({}, {"rc": 3}),
    "children left behind": ({}, {"left_behind": (4000,)}),
    "no output": ({}, {"stdout": ""}),
    "garbage": ({}, {"stdout": "garbage"}),
    "not started": ({}, {"rc": None, "ending": "not started: no such file", "stdout": ""}),
    "usage": ({}, {"stdout": "USAGE: all_reduce_perf \n"}),
    "a table without its foot": ({}, {"stdout": output(foot="")}),
    "no rows": ({}, {"stdout": output(rows="")}),
    "one size": ({}, {"stdout": output(rows=row(SIZES[0]))}),
    "one size, with a bar": ({"bar_busbw": 1}, {"stdout": output(rows=row(SIZES[0]))}),
    "a size is missing": ({}, {"stdout": output(rows=row(SIZES[0]) + row(SIZES[2]))}),
    "no devices": ({}, {"stdout": output(ranks="")}),
    "three ranks": ({}, {"stdout": on("node01", "node01", "node02")}),
    "one host": ({}, {"stdout": on(*["node01"] * 4)}),
    "three ranks on one host": ({}, {"stdout": on("node01", "node01", "node01", "node02")}),
    "another host": ({}, {"stdout": on("node01", "node01", "node03", "node03")}),
    "two groups": ({}, {"stdout": output(ranks=devices().replace("Rank  3 Group  0", "Rank  3 Group  1"))}),
    "another collective": ({}, {"stdout": output(head=of("all_gather"))}),
    "an error": ({}, {"stdout": output() + "node01: Test CUDA failure common.cu:291 'x'\n"}),
    "an error and its exit code": ({}, {"rc": 3, "stdout": "node01: Test NCCL failure common.cu:1 'system error'\n"}),
    "wrong values": ({}, {"stdout": last_row("T 4.17 6.25 3", foot=FAILED)}),
    "wrong values in place": ({}, {"stdout": last_row("T 4.17 6.25 0", "T 4.17 6.25 2")}),
    "wrong values in the foot alone": ({}, {"stdout": output(foot=FAILED)}),
    "wrong values and their exit code": ({}, {"rc": 7, "stdout": output(foot=FAILED)}),
    "not checked": ({}, {"stdout": last_row("T 4.17 6.25 N/A")}),
    "not checked in place": ({}, {"stdout": last_row("T 4.17 6.25 0", "T 4.17 6.25 N/A")}),
    "no busbw": ({}, {"stdout": last_row("T 115.2 0.00 0")}),
    "busbw is no number": ({}, {"stdout": last_row("T nan nan 0")}),
    "busbw without end": ({}, {"stdout": last_row("0.00 inf inf 0")}),
    **{
        f"{collective}, not checked {'in place' if in_place else 'at all'}": (
            {"collective": collective},
            {"stdout": output(rows_of(f"T 4.17 {busbw} {'0' if in_place else 'N/A'}", in_place), head=of(collective))},
        )
        for collective, busbw in (("alltoall", "3.13"), ("sendrecv", "4.17"))
        for in_place in (f"T 4.17 {busbw} N/A", None)
    },
    "four programs, each alone": ({}, {"stdout": ALONE * 4}),
    # The number of ranks and hosts is right in sum.
    "two programs, each on its host": ({}, {"stdout": on("node01", "node01") + on("node02", "node02")}),
    "a reduced maximum": (
        {},
        {
            "stdout": output(
                row(SIZES[0]) + row(SIZES[1]),
                ranks=devices() + "# Reducing maxBytes to 2097152 due to memory limitation\n",
            )
        },
    ),
    "sizes rounded down": (ROUNDED, {"stdout": rounded(0, 960, 10_000_000)}),
    "a size rounded too far": (ROUNDED, {"stdout": rounded(0, 900, 10_000_000)}),
    "sizes rounded, one missing": (ROUNDED, {"stdout": rounded(0, 10_000_000)}),
    "a second table is cut": (
        {},
        {"stdout": output(rows_of() + "".join(row(size, middle="half sum -1") for size in SIZES[:2]))},
    ),
    # The largest size out of place counts.
    **{
        f"bar {bar} at 6.25": (
            {"bar_busbw": bar},
            {"stdout": output(FAST_BEFORE + row(SIZES[2], "T 4.17 6.25 0", "T 60 90.0 0"))},
        )
        for bar in (6.25, 6.3)
    },
    "a slow table behind a good one": (
        {"bar_busbw": 6},
        {"stdout": output(rows_of() + rows_of("T 2.0 3.0 0", middle="half sum -1"))},
    ),
    # Rows of two runs that were mixed up, each with all of its cells.
    "figures of two runs": ({}, {"stdout": last_row("251.46 4.17 6.25 0")}),
    **{
        f"{days} days old": ({"max_age_days": 7}, {"finished": NOW - days * 86400}) for days in (0, 6.9, 7.1, -1)
    },
    "another command": ({}, {"command": ("/opt/all_reduce_perf", "-b", "8")}),
}  # fmt: skip


def on_a_node(wanted: Wanted, run: Run) -> list[Finding]:
    result, problem = perf.read(run)
    plan = perf.judge(result, wanted, run, NOW, problem)
    assert not plan.changes
    return list(plan.findings)


# -- over the network --------------------------------------------------------------------------------------------------

SAID = log()
CONNECTED = "node02:4002:5002 [0] NCCL INFO Connected"
assert CONNECTED in text_of(SAID)
SLOW_BAR = replace(network.WANTED, bar_busbw=300.0)
SHARP = replace(network.WANTED, algorithm="SHARP")
TWICE, THRICE = (replace(network.WANTED, repeats=number) for number in (2, 3))
COMPLETION = (
    "\n[2026-11-22 10:00:00] node02:4003:5003 [1] transport/net_ib.cc:1298 NCCL WARN NET/IB : Got completion from"
    " peer 10.0.0.1<40000> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid fe80::1 remoteGid fe80::2\n"
)
KEY = "not started: mpirun started nothing: Host key verification failed.; put the host's key into known_hosts"
SINGLETONS = "".join(output(ranks=devices((node,))) for node in ("node01", "node01", "node02", "node02"))
LABELS: dict[str, Callable[[int, str], str]] = {
    "mpirun": lambda number, line: f"[1,{number % 4}]<stdout>:{line}",
    "srun": lambda number, line: f"{number % 4:3d}: {line}",
}


def each(change: Callable[[int, str], str | None], said: dict[int, list[str]] = SAID) -> dict[int, list[str]]:
    """The ranks' lines, each changed, or left out where the change is None."""
    changed = {rank: [change(rank, line) for line in lines] for rank, lines in said.items()}
    return {rank: [line for line in lines if line is not None] for rank, lines in changed.items()}


def labelled(label: str) -> str:
    lines = text_of(SAID).splitlines()
    return "".join(f"{LABELS[label](number, line)}\n" for number, line in enumerate(lines))


def another_job() -> dict[int, list[str]]:
    other = each(lambda _rank, line: line.replace(":4", ":7"), log(comm="bad"))
    return {**SAID, **{rank + 10: lines for rank, lines in other.items()}}


def one_hca_less() -> dict[int, list[str]]:
    other = each(lambda _rank, line: line.replace(" [1]mlx5_1:1/IB", ""), log(used=(0, 0)))
    return {**SAID, 2: other[2], 3: other[3]}


def connected() -> dict[int, list[str]]:
    """With SHARP."""
    head = "NCCL INFO"
    return {
        rank: [*lines, f"{lines[0].partition(head)[0]}{head} rank {rank} Connected CollNet"]
        for rank, lines in SAID.items()
    }


def before_start(rank: int) -> list[str]:
    starts = [number for number, line in enumerate(SAID[rank]) if "Init START" in line]
    return SAID[rank][: starts[0] + 1]


def unproven(folder: Path) -> Run:
    bad = replace(read(folder, text_of({})), command=())
    return replace(repeated(folder, [4.17]), others=(bad,))


Case = tuple[Wanted, Callable[[Path], Run]]


def case(
    said: dict[int, list[str]] | str,
    table: str | None = None,
    wanted: Wanted = network.WANTED,
    rails: dict[str, dict[str, Moved]] | None = None,
    **run: Any,
) -> Case:
    """table: behind the ranks' lines.   run: what of it is not as of a good one."""
    text = said if isinstance(said, str) else text_of(said, table)
    return wanted, lambda folder: replace(read(folder, text, wanted, rails), **run)


NO_CHANNEL = each(lambda _rank, line: None if "Channel" in line else line)
ELSEWHERE = each(lambda _rank, line: line.replace("node02", "node07"))
# A figure is torn in two: its row is lost, and no other is put together from its parts.
TORN = row(SIZES[2]).replace("6.25", f"6.{SAID[3][6]}\n25", 1)
# Half of a row of another table behind half of this one.
FAKE = row(SIZES[2])[:-60] + row(SIZES[2], "T 90.0 135.0 0")[-60:]
TWO_ROWS = row(SIZES[0]) + row(SIZES[1])
SOCKETS = log("Socket", "", network.SOCKETS, (0, 0))
STILL, MOVED_LITTLE = (
    {node: {name: Moved(moved, moved) for name in of} for node, of in MOVED.items()} for moved in (0, 9)
)

UNPROVEN = {
    "no NCCL_DEBUG": {},
    "a rank without a log": {rank: lines for rank, lines in SAID.items() if rank != 3},
    "no connection": NO_CHANNEL,
    "two jobs": another_job(),
    "other hosts": ELSEWHERE,
}
OVER_NETWORK: dict[str, Case] = {
    "network": case(SAID),
    **{f"network, {label}": case(labelled(label)) for label in LABELS},
    # A line that a launcher has torn is of no host that took part.
    **{
        f"network, torn {torn}": case(text_of(SAID).replace(CONNECTED, CONNECTED.replace("node02:4002", torn)))
        for torn in ("4/1node02:4002", "de02:4002", "node02:40")
    },
    "network, a stranger with a rank": case(text_of(SAID).replace("node02:4002:5002", "node09:4002:5002")),
    # The bar is cleared.
    "sockets": case(SOCKETS, rails={}),
    "sockets, a higher bar": case(SOCKETS, wanted=SLOW_BAR, rails={}),
    **{f"network, {name}": case(said) for name, said in UNPROVEN.items()},
    "network, singletons": case({}, SINGLETONS),
    "network, a row of another job": case(SAID, output() + row(SIZES[2], "T 90.0 135.0 0")),
    "network, no host key": case(SAID, rc=None, ending=KEY),
    "network, no GPUDirect": case(log(gdr="")),
    "network, one HCA for both ranks": case(log(used=(0, 0))),
    "network, eight rails": case(SAID, wanted=replace(network.WANTED, rails=8)),
    # A cable is out: NCCL reports the rail is used, and its counters stand still.
    "network, a rail that stands still": case(
        SAID, rails={**MOVED, "node02": {**MOVED["node02"], "mlx5_1": Moved(4096, 0)}}
    ),
    "network, rails of a node unknown": case(SAID, rails={"node01": MOVED["node01"]}),
    "network, rails that stand still": case(SAID, rails=MOVED_LITTLE),
    "network, an HCA less on a node": case(
        one_hca_less(), rails={**MOVED, "node02": {"mlx5_0": Moved(10**9, 10**9)}}
    ),
    "SHARP, not connected": case(SAID, wanted=SHARP),
    "SHARP": case(connected(), wanted=SHARP),
    "network, a torn figure": case(SAID, output(TWO_ROWS + TORN)),
    "network, halves of two rows": case(SAID, output(TWO_ROWS + FAKE)),
    **{
        f"{len(algbws)} of 3 repeats, {min(algbws)}": (THRICE, functools.partial(repeated, algbws=algbws))
        for algbws in ((4.10, 4.17, 4.20), (4.17, 4.17, 3.60), (4.17, 4.17, 0.60), (3.9, 3.9, 4.17), (4.17, 4.17))
    },
    "a repeat without proof": (TWICE, unproven),
    "network, exit code 3": case(SAID, COMPLETION, rc=3),
    # A rank never came, and the counters stood still while the others waited: none of them knows the nodes.
    "network, a rank never came": case(
        {rank: before_start(rank) for rank in (0, 1, 3)}, "", rails=STILL, rc=None, ending="timeout"
    ),
}  # fmt: skip


# -- over NVLink -------------------------------------------------------------------------------------------------------

GROUP = "NVLS comm 0x55d headRank 0 nHeads 4 nvlsRanks 4 buffSize 1 nvlsPerRankSize 2 nvlsTotalSize 3"
IMEX = (
    "\nnode02:4002:5002 [0] mnnvl.cc:74 NCCL WARN MNNVL (cliqueSize 4) is available but not working on this system."
    " Check the IMEX configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.\n"
)
# What the log says where NVLink between the trays is off, and why.
OFF: dict[str, dict[str, Any]] = {
    # One tray's GPUs in no domain switch it off for all, silently.
    "no domain": {"fabrics": (fabric(), fabric("0.0", "0x0"))},
    "not registered": {"fabrics": (fabric(state=2), fabric())},
    "no line of a tray": {"fabrics": (fabric(), "")},
    "two cliques": {"fabrics": (fabric(), fabric(clique="0x1"))},
    "NCCL_CUMEM_ENABLE": {"extra": ("NCCL_CUMEM_ENABLE set by environment to 0.",)},
    "NCCL_P2P_LEVEL": {"extra": ("NCCL_P2P_LEVEL set by environment to LOC",)},
    "no reason": {},
}


def within() -> dict[int, list[str]]:
    """Connections between ranks of one tray alone."""
    pairs = {0: "-> 1[1]", 1: "-> 0[0]", 2: "-> 3[1]", 3: "-> 2[0]"}
    ring = {0: "-> 1[1]", 1: "-> 2[0]", 2: "-> 3[1]", 3: "-> 0[0]"}
    return each(lambda rank, line: line.replace(ring[rank], pairs[rank]), tray_log())


def trays(said: dict[int, list[str]], table: str | None = None, **more: Any) -> Case:
    return case(said, table, **{"wanted": network.OVER_NVLINK, "rails": QUIET, **more})


CARRIED = {node: {"mlx5_0": Moved(10**9, 10**9)} for node in ("node01", "node02")}
NO_COUNT = each(lambda _rank, line: None if " nRanks " in line else line, tray_log(on=0, way=""))
CLIQUE = "NCCL_MNNVL_CLIQUE_ID set by environment to 1."
OVER_NVLINK: dict[str, Case] = {
    **{f"NVLink, NCCL {version}": trays(tray_log(version)) for version in (OLD, NEW)},
    # Switches that reduce for all trays are a connection between them.
    "NVLink, switches": trays(tray_log(way="", extra=(GROUP,))),
    "NVLink, no connection": trays(tray_log(way="")),
    "NVLink, within trays": trays(within()),
    **{f"NVLink off, {why}": trays(tray_log(on=0, nodes=2, **said), rails={}) for why, said in OFF.items()},
    "NVLink in parts": trays(tray_log(nodes=2, fabrics=(fabric(), fabric(clique="0x1")), extra=(CLIQUE,))),
    "NVLink, not every rank reports": trays(
        each(lambda _rank, line: line.partition(" MNNVL 1")[0], tray_log(OLD))
    ),
    "NVLink, a rank without a log": trays({rank: lines for rank, lines in tray_log().items() if rank != 3}),
    "NVLink, rails carried it": trays(tray_log(), rails=CARRIED),
    # It is tried before a rank reports how many nodes there are.
    "NVLink, IMEX": trays(NO_COUNT, IMEX, rails={}, rc=3),
    "NVLink, below the bar": trays(tray_log(), wanted=replace(network.OVER_NVLINK, bar_busbw=700.0)),
}  # fmt: skip
BETWEEN_NODES = {**OVER_NETWORK, **OVER_NVLINK}
CASES = [*ON_A_NODE, *BETWEEN_NODES]


def findings(case: str, folder: Path) -> list[Finding]:
    if case in ON_A_NODE:
        wanted, run = ON_A_NODE[case]
        return on_a_node(replace(WANTED, **wanted), replace(Run(COMMAND, 0, "", 60.0, NOW, stdout=output()), **run))
    return list(judged(BETWEEN_NODES[case][1](folder), BETWEEN_NODES[case][0]).values())


WITH_VALUE = ("nccl_perf.transport", "nccl_perf.nvlink", "nccl_perf.busbw", "nccl_perf.spread")


def short(check: str) -> str:
    return check.partition(".")[2].partition("[")[0]


def rows(found: Iterable[Finding]) -> list[list[str | None]]:
    """State, severity and cause of findings, and their checks."""
    checks: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        key = ("ok",) if one.ok else (one.state, one.severity, short(one.because or ""))
        checks.setdefault(key, []).append(short(one.check))
    return [[*key, " ".join(names)] for key, names in checks.items()]


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_a_run_is_judged_to_be(tmp_path: Path, case: str) -> None:
    goldens.check("benchmark_findings", case, rows(findings(case, tmp_path)))


@pytest.mark.parametrize("name", UNPROVEN)
def test_no_verdict_on_a_bandwidth_without_its_transport_whatever_the_bar(tmp_path: Path, name: str) -> None:
    run = read(tmp_path, text_of(UNPROVEN[name]))
    assert rows(judged(run, SLOW_BAR).values()) == rows(judged(run).values())


@pytest.mark.golden
def test_what_is_printed_of_runs(tmp_path: Path) -> None:
    parts = []
    for case in CASES:
        parts.append(f"== {case}")
        parts += [
            f"{short(one.check)} {one.subject}: {one.have}" + ("" if one.ok else f"; {one.fix}")
            for one in findings(case, tmp_path)
            if (one.ok and one.check in WITH_VALUE) or (not one.ok and one.because is None)
        ]
    goldens.text("benchmark", "\n".join(parts) + "\n")
