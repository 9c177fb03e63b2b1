# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs on the nodes of a cluster, started and ended as the module nccl_perf does it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch, rank_guard
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.rank_guard import RankView

from tests import debian

from .nodes import Cluster, Node

COLLECTIONS = Path(__file__).resolve().parent.parent.parent / "collections"
# Debian has no mpi4py in a virtual environment; the library itself needs no more than ctypes.
HELLO = """
import ctypes, ctypes.util, os, socket
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
assert mpi.MPI_Init(None, None) == 0
world = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
rank, size = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank)), mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Barrier(world)
print(socket.gethostname(), rank.value, size.value, flush=True)
mpi.MPI_Finalize()
"""
# On the first node of a job: what nccl_perf does with the launcher.
HEAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
argv, environment, limit, out = json.loads(sys.stdin.read())
ended = process_group.run(argv, "/", environment, limit, out + "/stdout", out + "/stderr")
print(json.dumps([ended.rc, ended.ending, ended.left_behind]))
"""


@dataclass(frozen=True)
class Done:
    """What is known of a job that has ended. rc: None where there is none.   said: stderr of launcher and ranks."""

    rc: int | None
    ending: str
    views: tuple[RankView, ...]
    text: str
    said: str
    launch: launch.Launch

    def states(self, asked: Sequence[str] = ()) -> dict[str, str]:
        """Last word of each check on the job -> its state, and what was found where it is not ok."""
        findings = launch.judge(self.views, self.launch, "test", asked).findings
        return {f.check.rpartition(".")[2]: "ok" if f.ok else f"{f.state}: {f.have}" for f in findings}


class Job:
    """A job on some nodes, on its way."""

    def __init__(
        self,
        nodes: Sequence[Node],
        kind: str,
        program: Sequence[str],
        out: Path,
        limit: float = 300,
        per_node: int = 2,
        environment: Mapping[str, str] | None = None,
        root: str = "/",
        **more: Any,
    ) -> None:
        """out: a new folder that the nodes share.   root: of the nodes' hardware.   more: of the launch."""
        self.launch = launch.wanted({**asked(nodes, kind, per_node), **more})
        self.out = out
        self.out.mkdir()
        path = debian.PLACES
        launcher = launch.Launcher(kind, kind, "4.1" if kind == "mpirun" else "22.05", as_root=True)
        variables = {"PATH": path, **(environment or {})}
        argv = [*launch.words(self.launch, launcher, [*variables], limit, root), *program]
        task = [argv, {**variables, **launch.environment(launcher), "HOME": "/root"}, limit + launch.GRACE, str(out)]
        head = [sys.executable, "-c", HEAD, str(COLLECTIONS)]
        (out / "given").write_text(json.dumps(task))
        with (out / "given").open() as read, (out / "ended").open("w") as ended, (out / "head").open("w") as err:
            self.head: subprocess.Popen[bytes] = nodes[0].start(head, stdin=read, stdout=ended, stderr=err)

    def done(self) -> Done:
        """Waits for the head; what it has left on the nodes is another question."""
        self.head.wait(600)
        ended = (self.out / "ended").read_text()
        rc, ending, _left = json.loads(ended) if ended else (None, "killed", [])
        paths = (self.out / "stdout", self.out / "stderr")
        out, said = (path.read_text(errors="replace") if path.exists() else "" for path in paths)
        views, text = rank_guard.parse(out)
        return Done(rc, ending, views, text, said, self.launch)


def asked(nodes: Sequence[Node], kind: str, per_node: int) -> dict[str, Any]:
    """How a launcher is asked for a job over all these nodes."""
    return {"kind": kind, "hosts": [node.name for node in nodes], "per_node": per_node, "python": sys.executable}


def run(nodes: Sequence[Node], kind: str, program: Sequence[str], out: Path, **more: Any) -> Done:
    return Job(nodes, kind, program, out, **more).done()


def processes(cluster: Cluster) -> dict[int, list[str]]:
    """Process id on this machine -> words, of all that runs on any node beside its daemons."""
    return {pid: words for node in cluster.nodes for pid, words in node.processes().items()}
