# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's nccl-tests as one job over four simulated nodes, by the real launchers: what it prints, and what moves.

What it prints with each of the lab's faults is judged in test_faults.py.
"""

from __future__ import annotations

import re

import pytest

from tests import series

from .simulated import Simulated

GIB = 1 << 30


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d+ +float .* 0$", line)]


@pytest.mark.parametrize("launcher", series.first("mpirun", "srun"))
def test_all_ranks_are_one_job_of_which_rails_and_logs_tell(simulated: Simulated, launcher: str) -> None:
    before = simulated.moved()
    variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,BOOTSTRAP"}
    argv = [*simulated.words(launcher, 8, variables), simulated.program("all_reduce")]
    done = simulated.nodes[0].run([*argv, "-b", "8", "-e", "8G", "-f", "32"], variables)
    text = done.stdout
    assert done.returncode == 0, done.stderr
    assert text.count("# simulated by the Busbar lab") == text.count("# nccl-tests version") == 1
    ranks = re.findall(r"^#  Rank +(\d+) .* on +(\w+) device +(\d+)", text, re.MULTILINE)
    names = [node.name for node in simulated.nodes]
    assert ranks == [(str(n), names[n // 8], str(n % 8)) for n in range(32)]
    # Eight rails of 48 GB/s: NVLSTree's share of the network over more than two nodes.
    assert float(rows(text)[-1][7]) == pytest.approx(380, rel=0.02)
    # Published for two nodes: 47 us with eight GPUs each.
    assert 50 < float(rows(text)[0][5]) < 80
    # A launcher may tear a line.
    assert len(set(re.findall(r"rank (\d+) nranks 32 .* - Init COMPLETE", text))) >= 30
    assert "via NET/IB/0/GDRDMA" in text
    assert "NET/Socket" not in text
    for machine, was, now in zip(simulated.machines, before, simulated.moved(), strict=True):
        sent = {name: now[name] - was.get(name, 0) for name in now}
        assert set(sent) == {machine.rail(number).name for number in range(8)}
        # A tree over four nodes: each byte twice over three quarters of the nodes, 41 times, and the smaller sizes.
        assert sum(sent.values()) == pytest.approx(1.5 * 41 * 8 * GIB * 32 / 31, rel=0.05)
