# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Four nodes with ssh and Slurm, made once for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from tests import slurm_daemons

from .nodes import Cluster, cluster
from .playing import play, site
from .simulated import Simulated


@pytest.fixture(scope="session")
def _nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(4, [tmp_path_factory.getbasetemp()]) as nodes:
        nodes.start_slurm()
        yield nodes


def _end_steps(nodes: Cluster, after: float) -> None:
    """End what slurmd has for the steps of a job: where a node was lost, it waits for that node for many minutes."""
    deadline = time.monotonic() + after
    while steps := [pid for node in nodes.nodes for pid, words in node.processes().items() if _is_step(words)]:
        if time.monotonic() > deadline:
            for pid in steps:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def _is_step(words: Sequence[str]) -> bool:
    return bool(words) and words[0].startswith("slurmstepd:")


@pytest.fixture
def nodes(_nodes: Cluster) -> Iterator[Cluster]:
    """Four nodes on which nothing runs."""
    yield _nodes
    # A session of ssh, and a step of Slurm, end a moment after what was run in them.
    _end_steps(_nodes, after=60)
    slurm_daemons.wait("the nodes to be idle", lambda: not any(node.processes() for node in _nodes.nodes))
    # Of a job whose srun was killed the nodes are kept for a minute or two.
    if _nodes.slurm and _nodes.slurm.run("squeue", "--noheader"):
        _nodes.slurm.reset()


@pytest.fixture(scope="session")
def _simulated(_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(_nodes, tmp_path_factory.mktemp("programs"))


@pytest.fixture
def simulated(nodes: Cluster, _simulated: Simulated) -> Simulated:
    """The same nodes with simulated GPUs and rails, healthy."""
    return _simulated


__all__ = ["play", "site"]
