# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The nodes themselves: the real launchers start one job over all of them."""

from __future__ import annotations

import sys

from .nodes import Cluster

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
EXPECTED = ["node01 0 4", "node02 1 4", "node03 2 4", "node04 3 4"]


def test_mpirun_starts_one_job_by_ssh(nodes: Cluster) -> None:
    hosts = ",".join(f"{node.name}:1" for node in nodes.nodes)
    argv = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_no_tree_spawn", "1", "-H", hosts]
    done = nodes.nodes[0].run([*argv, sys.executable, "-c", HELLO])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == EXPECTED


def test_srun_starts_one_job(nodes: Cluster) -> None:
    argv = ["srun", "--mpi=pmix", "--nodes=4", "--ntasks-per-node=1", "--exclusive"]
    done = nodes.nodes[0].run([*argv, sys.executable, "-c", HELLO])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == EXPECTED
