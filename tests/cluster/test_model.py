# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's nccl-tests as one job over four simulated nodes, by the real launchers: what it prints, and what moves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping

import pytest

from busbar.lab.cluster_faults import CATALOGUE

from .simulated import Simulated

INFO = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
GIB = 1 << 30


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d+ +float", line)]


def busbw(text: str) -> float:
    """Of the largest size, out of place."""
    return float(rows(text)[-1][7])


def run(
    simulated: Simulated,
    launcher: str,
    words: str,
    more: Mapping[str, str],
    per_node: int = 2,
    alone: bool = False,
) -> tuple[int, str]:
    """Exit code and output of all_reduce over all nodes. more: variables."""
    argv = [*simulated.words(launcher, per_node, more), simulated.program("all_reduce", alone=alone), *words.split()]
    done = simulated.nodes[0].run(argv, {"OMPI_MCA_mpi_yield_when_idle": "1", **more})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_all_ranks_are_one_job_of_which_each_rail_and_each_log_tells(simulated: Simulated, launcher: str) -> None:
    before = simulated.moved()
    rc, text = run(simulated, launcher, "-b 8 -e 8G -f 32", INFO, 8)
    assert rc == 0, text
    assert text.count("# simulated by the Busbar lab") == text.count("# nccl-tests version") == 1
    ranks = re.findall(r"^#  Rank +(\d+) .* on +(\w+) device +(\d+)", text, re.MULTILINE)
    names = [node.name for node in simulated.nodes]
    assert ranks == [(str(n), names[n // 8], str(n % 8)) for n in range(32)]
    # Eight rails of 48 GB/s: NVLSTree's share of the network over more than two nodes.
    assert busbw(text) == pytest.approx(380, rel=0.02)
    # Published for two nodes: 47 us with eight GPUs each.
    assert 50 < float(rows(text)[0][5]) < 80
    assert len(set(re.findall(r"rank (\d+) nranks 32 .* - Init COMPLETE", text))) >= 30  # lines of a launcher tear
    assert "via NET/IB/0/GDRDMA" in text
    assert "NET/Socket" not in text
    rails = {machine.rail(number).name for machine in simulated.machines for number in range(8)}
    for machine, was, now in zip(simulated.machines, before, simulated.moved(), strict=True):
        sent = {name: now[name] - was.get(name, 0) for name in now}
        assert set(sent) == rails, machine.hostname
        # A tree over four nodes: each byte twice over three quarters of the nodes, 41 times, and the smaller sizes.
        assert sum(sent.values()) == pytest.approx(1.5 * 41 * 8 * GIB * 32 / 31, rel=0.05)


def ended(fault: str) -> Callable[[int, str], bool]:
    """Whether a run looks as it does with this fault: exit code, output."""

    def drops(least: float, most: float) -> Callable[[int, str], bool]:
        return lambda rc, text: rc == 0 and least < busbw(text) < most

    found: dict[str, Callable[[int, str], bool]] = {
        # Two GPUs of each node over two rails of 48 GB/s: 95.
        "dead-rail": drops(46, 49),
        "slow-rail": drops(37, 39),
        "gdr-off": lambda rc, text: drops(46, 49)(rc, text) and bool(re.search(r"via NET/IB/\d+$", text, re.MULTILINE)),
        "socket-fallback": lambda rc, text: rc == 0 and busbw(text) < 7 and "Using network Socket" in text,
        "one-hca": drops(46, 49),
        "lossy": drops(32, 35),
        "oversubscribed": drops(37, 39),
        "slow-rank": drops(180, 190),
        "unsteady": lambda rc, text: rc == 0,
        "crash": lambda rc, text: rc != 0 and "Test NCCL failure" in text and len(rows(text)) == 1,
        "killed-rank": lambda rc, text: rc != 0 and "Avg bus" not in text and len(rows(text)) == 1,
        "singletons": lambda rc, text: text.count("# nccl-tests version") == 8,
        "mixed-versions": lambda rc, text: rc != 0 and "Mismatched NCCL version detected" in text and not rows(text),
        "unequal-variable": lambda rc, text: rc == 0 and "NCCL_IB_TIMEOUT set by environment to 14." in text,
    }  # fmt: skip
    return found[fault]


@pytest.mark.parametrize("fault", [fault.name for fault in CATALOGUE if fault.ends and fault.name != "slow-rank"])
def test_each_fault_is_seen_in_what_the_job_prints(simulated: Simulated, fault: str) -> None:
    with simulated.broken(fault) as put:
        rc, text = run(simulated, "mpirun", "-b 512M -e 8G -f 16", {**INFO, "NCCL_ALGO": "Ring"}, alone=put.alone)
    assert ended(fault)(rc, text), text


def test_a_rank_that_hangs_leaves_the_rows_before_it(simulated: Simulated) -> None:
    head = simulated.nodes[0]
    argv = [*simulated.words("mpirun", 2, {}), simulated.program("all_reduce"), "-b", "512M", "-e", "8G", "-f", "4"]
    with simulated.broken("hung-rank"), head.start(argv, stdout=subprocess.PIPE, text=True) as job:
        lines: list[str] = []
        while not rows("".join(lines)):
            lines.append(job.stdout.readline())
            assert lines[-1], lines
        for pid in [pid for pid, words in head.processes().items() if words[:1] == ["mpirun"]]:
            os.kill(pid, signal.SIGTERM)
        rest = job.stdout.read()
        assert job.wait(60) != 0
    assert "Avg bus bandwidth" not in rest
    assert len(rows("".join(lines) + rest)) == 1


def test_noise_differs_from_run_to_run_and_comes_back_with_its_seed(simulated: Simulated) -> None:
    with simulated.broken("unsteady"):
        figures = [busbw(run(simulated, "mpirun", "-b 8G -e 8G", {})[1]) for _ in range(2)]
    assert abs(figures[0] - figures[1]) > 1
