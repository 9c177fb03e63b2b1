# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of a cluster that roles can be played on: simulated hardware and a system of their own in each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log

from lab import ofed, repository
from lab.cluster_faults import ClusterFault
from lab.machine import Machine, to_dict
from lab.store import NO_KEY
from tests import debian
from tests.cluster.nodes import Cluster, Node
from tests.cluster.playing import BAR, BENCHMARK, GPUS, OWN_RESULTS, SUITE, built, environment, put_profile
from tests.cluster.simulated import HARDWARE, ROOT, Simulated
from tests.slurm_daemons import ended
from tests.trees import tool

# On the node itself, so that what is written there names its own paths.
WRITE = """\
import json, sys
from pathlib import Path
from lab import machine, tree
tree.write(machine.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
"""


# Of what is measured: drift asks for nothing of it, since the lab's programs were not built on the nodes.
MEASURED = {"nccl_benchmark_collectives": ["all_reduce"], "nccl_tests_commit": "a" * 40, "perftest_seconds": 3}


class Repairable(Simulated):
    """Two GPUs and two rails each; all that a role writes is below ROOT of the node."""

    @classmethod
    def machine(cls, name: str) -> Machine:
        machine = super().machine(name)
        for number in range(GPUS, 8):
            machine.unplug(machine.rail(number).address)
            machine.unplug(machine.gpu(number).address)
        return machine

    def install(self, node: Node, machine: Machine) -> None:
        argv = [sys.executable, "-c", WRITE, json.dumps(to_dict(machine)), HARDWARE, ROOT]
        done = node.run(argv, {"PYTHONPATH": str(SUITE)})
        assert done.returncode == 0, done.stdout + done.stderr
        self._there[node.name] = machine
        for name in ("mpirun", "srun", "scontrol", "squeue"):
            tool(self.root(node), f"usr/bin/{name}", f'exec {shutil.which(name, path=debian.PLACES)} "$@"')
        done = node.run(["sh", "-c", OWN_RESULTS.format(root=ROOT)])
        assert done.returncode == 0, done.stderr

    def configuration(self, machine: Machine, faults: Sequence[ClusterFault]) -> dict[str, str]:
        """Roles write it."""
        return {}

    def put(self, faults: Mapping[str, Sequence[ClusterFault]]) -> None:
        """A role may have changed the hardware of a node since."""
        self._there.clear()
        super().put(faults)


class One(NamedTuple):
    """One finding."""

    check: str
    subject: str
    have: str


class Findings(NamedTuple):
    """A file of findings. hosts: host -> each that follows from no other."""

    hosts: dict[str, list[One]]

    @classmethod
    def read(cls, path: Path) -> Findings:
        found = {}
        for name, told in json.loads(path.read_text())["hosts"].items():
            roots = [one for one in told["findings"] if not one["because"]]
            found[name] = [One(one["check"], one["subject"], one["have"]) for one in roots]
        return cls(found)

    def of(self, host: str) -> set[str]:
        return {f"{one.check} {one.subject}" for one in self.hosts[host]}


class Site:
    """An inventory of the nodes, and what is run by it."""

    def __init__(self, cluster: Cluster, simulated: Repairable, folder: Path) -> None:
        """folder: one that all nodes have."""
        self.cluster, self.simulated, self.folder = cluster, simulated, folder
        self.inventory, self.results = folder / "inventory", folder / "results"
        self.found, self.asked = folder / "localise.json", folder / "drift.json"
        self.programs = built(simulated, folder / "programs")
        put_profile(self.inventory, BAR)
        self.write()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.simulated.nodes)

    def write(self, hosts: Sequence[str] = (), **more: Any) -> None:
        """The inventory. hosts: of the nodes; all where none is named.   more: variables of all of them."""
        values = {
            **self.simulated.machines[0].site,
            **BENCHMARK,
            "busbar_nccl_version": "2.28.9",
            "busbar_drain": "slurm",
            "busbar_max_disruption": "link",
            "busbar_remediate_quarantine": True,
            "mofed_repository_url": f"file:{repository.TOP}",
            "mofed_version": ofed.INSTALLED,
            "mofed_repository_key": NO_KEY,
            "nccl_tests_path": str(self.programs),
            "nccl_tests_commit": "",
            "nccl_benchmark_results_path": str(self.results),
            "nccl_benchmark_collectives": [],
            "nccl_benchmark_timeout": 300,
            # The tests have another HOME than the user database says.
            "ansible_async_dir": str(self.folder / "async"),
            **more,
        }
        leaves = self.simulated.leaves
        found = {
            node.name: {**node.ansible, "busbar_leaf": leaves[node.name]}
            for node in self.simulated.nodes
            if node.name in (hosts or self.names)
        }
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": found, "vars": values}}))

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        done = ended(argv, environment(self.folder))
        print(done.stdout, done.stderr, sep="\n")
        return done

    def provision(self) -> None:
        """The nodes as a run of the roles leaves them."""
        argv = ["ansible-playbook", str(SUITE / "site.yml"), "-i", str(self.inventory)]
        done = self.run(*argv, "--skip-tags", "nccl_tests,nccl_benchmark")
        assert done.returncode == 0, done.stdout + done.stderr

    def localise(self, always: bool = False) -> Findings:
        """always: what the nodes are by themselves is measured anew, too."""
        values = {**MEASURED, "busbar_findings_path": str(self.found)}
        values |= {"nccl_benchmark_when": "always"} if always else {}
        playbook = str(SUITE / "playbooks/localise.yml")
        self.found.unlink(missing_ok=True)
        self.run("ansible-playbook", playbook, "-i", str(self.inventory), "-e", json.dumps(values))
        return Findings.read(self.found)

    def drift(self) -> Findings:
        self.asked.unlink(missing_ok=True)
        history = str(self.folder / "drift.sqlite")
        argv = ["busbar", "drift", "-i", str(self.inventory), "--findings", str(self.asked), "--history", history]
        self.run(*argv)
        return Findings.read(self.asked)

    def remediate(self) -> Findings:
        """Of all that localise and drift have found last."""
        left = self.folder / "left.json"
        argv = ["busbar", "remediate", str(self.found), str(self.asked), "-i", str(self.inventory)]
        self.run(*argv, "-e", json.dumps(MEASURED), "--findings-path", str(left))
        return Findings.read(left)

    def anew(self) -> None:
        """Another night: no fault, every node in service, and no word of what was mended before."""
        self.simulated.put({})
        assert self.cluster.slurm
        self.cluster.slurm.reset()
        action_log.file(self.results).unlink(missing_ok=True)

    def slurm(self, node: str) -> str:
        slurm = self.cluster.slurm
        assert slurm
        return slurm.node(node)
