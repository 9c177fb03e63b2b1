# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The nodes of a cluster with the lab's GPUs, rails, nccl-tests and perftest, and the lab's faults between them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab import cluster_faults, nvidia_smi, tree
from lab.cluster_faults import FABRIC, NCCL_CONF, PROFILE, ClusterFault
from lab.machine import Machine
from lab.machines import hgx_h100
from lab.nccl_tests import TOOLKIT
from tests.trees import put_all, tool

from .nodes import Cluster, Node

# Below each node's own /tmp.
ROOT = "/tmp/lab"
HARDWARE = f"{ROOT}/srv/busbar-lab/hw"
PROGRAM = """\
#!/bin/sh
export BUSBAR_LAB_ROOT={root}
exec {python} -I {model} {name}_perf 22809 22809 {build} "$0" "$@"
"""


class Simulated:
    """The cluster's nodes as HGX H100 with eight InfiniBand rails each, below two leaves."""

    make: Callable[[str], Machine] = staticmethod(hgx_h100)

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """folder: one that all nodes have, for the programs."""
        self.cluster = cluster
        self.nodes: Sequence[Node] = cluster.nodes
        self.folder = folder
        self.machines = [self.machine(node.name) for node in self.nodes]
        self._there: dict[str, Machine] = {}
        for node in self.nodes:
            # A file of the node's own over the one that all share, and that nobody has changed yet.
            node.run(["sh", "-c", f"cat {PROFILE} > {ROOT}.profile; mount --bind {ROOT}.profile {PROFILE}"])
        for node, machine in zip(self.nodes, self.machines, strict=True):
            self.install(node, machine)
        self.put({})

    @classmethod
    def machine(cls, name: str) -> Machine:
        """Whose GPUs are next to the CPUs that there are, so that a process can be bound to them."""
        machine = cls.make(name)
        for node in machine.nodes:
            node.cpulist = f"0-{(os.cpu_count() or 1) - 1}"
        return machine

    def install(self, node: Node, machine: Machine) -> None:
        """What a node has below ROOT beside its hardware."""
        tree.write_tools(machine, self.root(node))

    def configuration(self, machine: Machine, faults: Sequence[ClusterFault]) -> dict[str, str]:
        """Path below ROOT -> text, of what provisioning has left there."""
        return {NCCL_CONF: cluster_faults.conf(machine, faults)}

    @property
    def leaves(self) -> dict[str, str]:
        """Node -> its leaf."""
        return {name: leaf for leaf, names in cluster_faults.leaves(self.machines).items() for name in names}

    @staticmethod
    def root(node: Node) -> Path:
        """ROOT of a node, on this machine."""
        return node.tmp / ROOT.removeprefix("/tmp/")

    def program(self, collective: str, alone: bool = False) -> str:
        """Path of a program on every node."""
        path = f"{collective}_perf{'' if alone else '_mpi'}"
        build = "single" if alone else "mpi:libmpi.so.40"
        model = shlex.quote(str(TOOLKIT / "nccl_tests_model.py"))
        words = {"root": ROOT, "python": shlex.quote(sys.executable), "model": model, "name": collective}
        tool(self.folder, path, PROGRAM.format(**words, build=build))
        return str(self.folder / path)

    def put(self, faults: Mapping[str, Sequence[ClusterFault]]) -> None:
        """All nodes as they are with these faults, and with no other. faults: node -> those that it has."""
        broken, fabric = cluster_faults.broken(self.machines, faults)
        for node, machine in zip(self.nodes, broken, strict=True):
            root, mine = self.root(node), faults.get(node.name, ())
            if self._there.get(node.name) != machine:
                self._there[node.name] = machine
                tree.write_hardware(machine, root / HARDWARE.removeprefix(f"{ROOT}/"))
                answers = {f"/{name}": text for name, text in nvidia_smi.answers(machine).items()}
                tree.Tree(answers).write(root / "usr/share/busbar-lab/nvidia-smi")
            put_all(root, {FABRIC: json.dumps(fabric), **self.configuration(machine, mine)})
            (node.tmp / f"{ROOT.removeprefix('/tmp/')}.profile").write_text("".join(fault.profile for fault in mine))

    def restore(self) -> None:
        """All nodes as they were made, after something else has been in their place."""
        self._there.clear()
        for node, machine in zip(self.nodes, self.machines, strict=True):
            self.install(node, machine)
        self.put({})

    @contextmanager
    def broken(self, name: str, host: str = "") -> Iterator[ClusterFault]:
        """host: the node that has the fault; the usual one where none is named."""
        fault = cluster_faults.named(name)
        self.put({host or cluster_faults.usual(self.machines): [fault]})
        try:
            yield fault
        finally:
            self.put({})

    def moved(self) -> list[dict[str, int]]:
        """Of each node the bytes that its rails have sent since its hardware was put there, by device."""
        found = []
        for node, machine in zip(self.nodes, self.machines, strict=True):
            folder = node.tmp / HARDWARE.removeprefix("/tmp/") / "sys/class/infiniband"
            counts = {
                rdma.name: int((folder / rdma.name / "ports/1/counters/port_xmit_data").read_text()) * 4
                for rdma in machine.rdma
            }
            found.append({name: sent for name, sent in counts.items() if sent})
        return found
