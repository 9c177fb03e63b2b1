# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Four simulated trays of one NVLink domain by the real mpirun and srun: measured over NVLink where it is there, and
with its cause where it is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import machines
from lab.machine import Machine
from tests import series

from .nodes import Cluster
from .playing import inventory, player
from .simulated import Simulated
from .test_faults import PER_NODE, measure, roots

# What the lab's trays reach, of 18 NVLinks by NCCL's own constant; published over two trays are 811.
REACHED = 18 * 40.1 * 0.985 * 1.15


class Trays(Simulated):
    """The same nodes as trays of a GB200 NVL72."""

    def __init__(self, simulated: Simulated, folder: Path) -> None:
        self.cluster, self.nodes, self.folder = simulated.cluster, simulated.nodes, folder
        self.machines = [self.machine(node.name) for node in self.nodes]
        self._there: dict[str, Machine] = {}
        self.restore()

    make = staticmethod(machines.gb200)


@pytest.fixture(scope="module")
def _trays(_nodes: Cluster, _simulated: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trays]:
    def clear() -> None:
        for node in _nodes.nodes:
            shutil.rmtree(_simulated.root(node))

    clear()
    yield Trays(_simulated, tmp_path_factory.mktemp("trays"))
    clear()
    _simulated.restore()


@pytest.fixture
def trays(nodes: Cluster, _trays: Trays) -> Trays:
    return _trays


def over_nvlink(trays: Trays, tmp_path: Path, kind: str, **more: Any) -> dict[str, Any]:
    values = {"way": "nvlink", "environment": {"NCCL_MNNVL_ENABLE": "1"}, "algorithm": "", "bar_busbw": 650.0, **more}
    return measure(trays, tmp_path, kind, **values)


@pytest.mark.parametrize("kind", series.first("srun", "mpirun"))
def test_trays_of_a_domain_are_measured_over_nvlink(trays: Trays, tmp_path: Path, kind: str) -> None:
    before = trays.moved()
    result = over_nvlink(trays, tmp_path, kind)
    assert roots(result) == {}
    assert result["simulated"]
    assert result["busbw"] == pytest.approx(REACHED, rel=0.01)
    assert (result["transport"]["networks"], result["transport"]["proven"]) == (["NVLink"], True)
    assert trays.moved() == before
    hosts = result["transport"]["hosts"].values()
    assert [one["ranks"] for one in hosts] == [PER_NODE] * len(trays.nodes)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    series.first(
        ("mpirun", "imex-stopped", "Check the IMEX configuration (nvidia-imex-ctl -N)"),
        ("srun", "no-domain", "cause: GPUs of node03 are in no NVLink domain"),
        ("mpirun", "other-clique", "clique 0x1 of node03, not the clique 0x7ffe of domain"),
    ),
)
def test_what_keeps_nvlink_out_gets_its_verdict(trays: Trays, tmp_path: Path, kind: str, name: str, says: str) -> None:
    with trays.broken(name) as fault:
        result = over_nvlink(trays, tmp_path, kind)
    assert roots(result) == {fault.check: fault.state}
    [told] = [one for one in result["findings"] if one["check"] == fault.check]
    assert says in told["have"]
    assert "busbw" not in {one.partition(".")[2].partition("[")[0] for one in result["passed"]}


@pytest.mark.long
def test_each_domain_is_measured_by_itself_and_a_lone_tray_is_named(trays: Trays, tmp_path: Path) -> None:
    away = trays.machines[-1].hostname
    with trays.broken("other-rack", away):
        done = player(inventory(trays, tmp_path, "gb200-nvl72"), tmp_path)(
            "benchmark", "--tags", "nccl_cluster", nccl_benchmark_scope="nvlink_domain", nccl_benchmark_localise=False
        )
    assert done.rc == 2, done.out
    # Who is alone in a domain has no verdict, and the others have theirs.
    assert {host: [one[:2] for one in told] for host, told in done.findings.items() if told} == {
        away: [("nccl_cluster.member", "unknown")]
    }
    assert "no other tray of its NVLink domain" in (done.findings[away][0][2] or "")
    assert done.record.simulated
    [job] = [job for job in done.record.jobs if not job.what]
    assert job.hosts == tuple(machine.hostname for machine in trays.machines[:-1])
    assert job.transport["networks"] == ["NVLink"]
    assert job.bar is not None
    assert job.busbw is not None
    assert 0.75 * job.busbw < job.bar < job.busbw
    assert "over the NVLinks of 3 trays: predicted, not measured" in job.bar_source
    text = " ".join(done.out.split())
    assert "transport: proven: NVLink between all nodes, nothing over the network" in text
    assert "simulated: no figure in it is a measurement" in text
