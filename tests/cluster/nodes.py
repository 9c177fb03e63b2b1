# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of a cluster on this machine, for the real mpirun, ssh and srun of Debian.

A node is a set of namespaces: its own host name, address, processes, /tmp, /run, /dev/shm, and its own sshd and
slurmd. Everything else, such as /usr and the home of root, is this machine's and the same on all nodes, as on a cluster
with one image and one shared home. All nodes are on one network that nothing outside of them reaches.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import debian, slurm_daemons, sshd

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAMS = {
    **slurm_daemons.PROGRAMS,
    "mpirun": "openmpi-bin",
    # Slurm loads its plugin for PMIx by the name without a version, which only the package for developers has.
    "/usr/lib/*/pmix2/lib/libpmix.so": "libpmix-dev",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
NETWORK = "10.77.0."
CONTROLLER = "controller"
STRANGER = "stranger"
# The first process of a node: it reaps what loses its parent, as any init does, and nothing else.
INIT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("up", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
# TOP/NAME/tree lies over the machine's files. What all nodes share stays visible below the node's own /tmp.
SETUP = """\
set -eu
hostname {name}
mount -t proc proc /proc
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mkdir -p /run/sshd
for path in {shared}; do
    mkdir -p "{top}/{name}/tmp$path"
    mount --bind "$path" "{top}/{name}/tmp$path"
done
for path in /etc/ssh /etc/slurm /etc/openmpi /etc/hosts; do
    mount --bind "{top}/etc/${{path#/etc/}}" "$path"
done
mount --rbind {top}/{name}/tmp/tmp /tmp
ip link set lo up
exec {python} -c "$INIT"
"""
SSH = """\
Host *
    IdentityFile {top}/id
    IdentitiesOnly yes
    GlobalKnownHostsFile /etc/ssh/ssh_known_hosts
"""
# Ranks of several nodes share this machine's cores: who waits must not spin.
MPI = """\
mpi_yield_when_idle = 1
"""
SLURM = """\
MpiDefault=none
SchedulerParameters=sched_interval=1,defer
KillWait=2
"""
HARDWARE = "CPUs=8 RealMemory=1000"


class Node:
    """One node: a place to run commands as root."""

    def __init__(self, name: str, address: str, init: int, top: Path) -> None:
        """init: process id, on this machine, of the node's first process."""
        self.name = name
        self.address = address
        self.init = init
        self.tmp = top / name / "tmp/tmp"
        # For Ansible's local connection: what it runs by this interpreter runs on the node.
        self.python = top / name / "python3"
        # On the node, as of what a task has started in the background, there is nothing left to enter.
        there = f'[ "$(cat /proc/sys/kernel/hostname)" = {name} ] && exec {sys.executable} "$@"'
        self.python.write_text(f'#!/bin/sh\n{there}\nexec {shlex.join(self.entering)} {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    @property
    def entering(self) -> list[str]:
        """Words before a command that has to run on the node."""
        return ["nsenter", f"--target={self.init}", "--mount", "--uts", "--net", "--ipc", "--pid", "--"]

    @property
    def ansible(self) -> dict[str, Any]:
        """Variables of the node in an inventory."""
        return {"ansible_connection": "local", "ansible_python_interpreter": str(self.python)}

    def start(self, argv: Sequence[str], environment: Mapping[str, str] | None = None, **more: Any) -> Any:
        """The running command as subprocess.Popen, with no more environment than it is given."""
        return subprocess.Popen(
            [*self.entering, *argv],
            env={"PATH": debian.PLACES, "HOME": "/root", "LC_ALL": "C", **(environment or {})},
            **{"stdin": subprocess.DEVNULL, **more},
        )

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """What the command said once it has ended. What it left behind is found by ``left``."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            # Files, no pipes: the end of the command is waited for, not the end of all that it has left behind.
            process = self.start(argv, environment, stdout=out, stderr=err)
            try:
                rc = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(argv), rc, out.read(), err.read())

    def processes(self) -> dict[int, list[str]]:
        """Process id on this machine -> its words, of all that runs on the node beside its daemons."""
        return {pid: words for pid, words in self._all().items() if not _daemon(words)}

    def daemons(self, name: str) -> list[int]:
        """Their process ids on this machine."""
        return [pid for pid, words in self._all().items() if _daemon(words) and words[0] == name]

    def _all(self) -> dict[int, list[str]]:
        inside = os.stat(f"/proc/{self.init}/ns/pid").st_ino
        found = {}
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and os.stat(path / "ns/pid").st_ino == inside:
                    words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    if int(path.name) != self.init and state != "Z":
                        found[int(path.name)] = words
        return found


def other_name(name: str) -> str:
    """Under which a node is reached, too; what is before its first dot is not a name."""
    return f"of-{name}.cluster.example"


def _daemon(words: Sequence[str]) -> bool:
    """Whether a node has this process also when nothing is run on it."""
    return bool(words) and (words[0] in ("slurmctld", "slurmd") or "[listener]" in words[0])


class Cluster:
    """Nodes named node01, node02, ... with sshd, and where it is asked for a Slurm of them all."""

    def __init__(self, top: Path, shared: Sequence[Path] = ()) -> None:
        """top: where the files of the nodes lie.   shared: folders below /tmp that all nodes have, beside top."""
        assert all(str(path).startswith("/tmp/") for path in (top, *shared)), shared
        self.top = top
        self.inits: list[subprocess.Popen[str]] = []
        self.nodes: list[Node] = []
        self.slurm: Slurm | None = None
        # Whose checkout is below /tmp has its Python there, too.
        own = [ROOT] if ROOT.is_relative_to("/tmp") else []
        self._shared = [str(path) for path in (*own, *shared, top)]

    def start(self, count: int) -> None:
        self._files(count)
        self.controller = self._node(CONTROLLER, 254)
        _enter(self.controller, "ip link add fabric type bridge && ip link set fabric up")
        _enter(self.controller, f"ip address add {self.controller.address}/24 dev fabric")
        self.nodes = [self._node(f"node{number:02}", number) for number in range(1, count + 1)]
        for node in self.nodes:
            self._wire(node)
            node.start([shutil.which("sshd", path=debian.PLACES) or "sshd", "-D", "-e"], stderr=subprocess.DEVNULL)

    def start_slurm(self, more: str = "") -> Slurm:
        """more: lines of slurm.conf."""
        self.slurm = Slurm(self, more)
        self.slurm.start()
        return self.slurm

    def stop(self) -> None:
        for init in self.inits:
            # With unshare goes its child, the first process of the node (--kill-child), and with that all others.
            init.kill()
            init.wait(600)

    def _files(self, count: int) -> None:
        for folder in ("etc/ssh", "etc/slurm", "etc/openmpi"):
            (self.top / folder).mkdir(parents=True)
        etc = self.top / "etc"
        for name in ("host_key", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.top / name], check=True)
        names = {f"node{number:02}": number for number in range(1, count + 1)} | {CONTROLLER: 254}
        hosts = "".join(f"{NETWORK}{number} {name} {other_name(name)}\n" for name, number in names.items())
        key = " ".join((self.top / "host_key.pub").read_text().split()[:2])
        known = "".join(f"{name},{other_name(name)},{NETWORK}{number} {key}\n" for name, number in names.items())
        # Nobody knows the key of the node by its other name.
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}{NETWORK}2 {STRANGER}\n")
        (etc / "ssh/sshd_config").write_text(sshd.BY_KEY.format(top=self.top))
        (etc / "ssh/ssh_config").write_text(SSH.format(top=self.top))
        (etc / "ssh/ssh_known_hosts").write_text(known)
        (etc / "openmpi/openmpi-mca-params.conf").write_text(MPI)

    def _node(self, name: str, number: int) -> Node:
        (self.top / name / "tmp/tmp").mkdir(parents=True)
        setup = SETUP.format(top=self.top, name=name, python=sys.executable, shared=shlex.join(self._shared))
        argv = ["unshare", "--mount", "--uts", "--net", "--ipc", "--pid", "--fork", "--kill-child", "sh", "-c", setup]
        init = subprocess.Popen(
            argv, env={**os.environ, "INIT": INIT}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.inits.append(init)
        assert init.stdout
        assert init.stdout.readline() == "up\n", f"{name} did not come up"
        (pid,) = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
        return Node(name, f"{NETWORK}{number}", int(pid), self.top)

    def _wire(self, node: Node) -> None:
        link = f"to-{node.name}"
        fabric = ["nsenter", f"--target={self.controller.init}", "--net", "--", "ip", "link"]
        peer = ["peer", "name", "eth0", "netns", str(node.init)]
        subprocess.run([*fabric, "add", link, "type", "veth", *peer], check=True)
        subprocess.run([*fabric, "set", link, "master", "fabric", "up"], check=True)
        _enter(node, f"ip address add {node.address}/24 dev eth0 && ip link set eth0 up")


class Slurm(slurm_daemons.Slurm):
    """The Slurm of a cluster: slurmctld beside the nodes, a slurmd on each."""

    def __init__(self, cluster: Cluster, more: str = "") -> None:
        """more: lines of slurm.conf, of which the last counts."""
        self.cluster = cluster
        top = cluster.top / "slurm"
        top.mkdir()
        super().__init__(top, [node.name for node in cluster.nodes], SLURM + more)
        shutil.copy(self.top / "slurm.conf", cluster.top / "etc/slurm")

    def configuration(self, more: str) -> str:
        controller = self.cluster.controller
        text = slurm_daemons.CONF.format(top=self.top, controller=f"{controller.name}({controller.address})", port=6817)
        lines = (f"NodeName={node.name} NodeAddr={node.address} {HARDWARE}\n" for node in self.cluster.nodes)
        return text + more + "".join(lines)

    def kill_node(self, node: str) -> None:
        """slurmd is below the process that entered the node."""
        [own] = [each for each in self.cluster.nodes if each.name == node]
        for pid in own.daemons("slurmd"):
            os.kill(pid, signal.SIGKILL)
        super().kill_node(node)

    def entering(self, node: str) -> Sequence[str]:
        return next((each for each in self.cluster.nodes if each.name == node), self.cluster.controller).entering


def _enter(node: Node, command: str) -> None:
    done = node.run(["sh", "-c", command])
    assert done.returncode == 0, f"{node.name}: {command}: {done.stderr}"


@contextlib.contextmanager
def cluster(count: int, shared: Sequence[Path] = ()) -> Iterator[Cluster]:
    """Nodes for as long as the context lasts. shared: folders below /tmp that all of them have."""
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="busbar-cluster-", dir="/tmp") as folder:
        made = Cluster(Path(folder), shared)
        try:
            made.start(count)
            yield made
        finally:
            made.stop()
