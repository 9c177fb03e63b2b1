# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, in a directory of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.conftest import COMPILED
from tests.debian import PLACES
from tests.trees import tool

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "squeue": "slurm-client"}
NODES = ("node01", "node02", "node03")
CONF = (ROOT / "tests/slurm/slurm.conf").read_text()


def ansibles_environment(home: Path) -> dict[str, str]:
    """Of whoever starts a playbook of this checkout."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": COMPILED,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }


def ended(argv: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What a command of this checkout has printed, once it has ended."""
    return subprocess.run(argv, env=environment, cwd=folder, capture_output=True, text=True, timeout=3600, check=False)


def wait(for_what: str, ready: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds} s for {for_what}"
        time.sleep(0.2)


class Slurm:
    def __init__(self, top: Path, nodes: Sequence[str] = NODES, more: str = "") -> None:
        """more: lines of slurm.conf, of which the last counts."""
        self.top = top
        self.nodes = nodes
        self.environment = {**os.environ, "PATH": PLACES, "SLURM_CONF": str(top / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for folder in ("state", "munge", *nodes):
            (top / folder).mkdir(mode=0o700)
        (top / "slurm.conf").write_text(self.configuration(more))
        # A module gives its tools no SLURM_CONF: these bring it along. So TOP/sys is the root of a node with Slurm.
        self.put_tools(top / "sys")

    def put_tools(self, root: Path) -> None:
        """For a node whose root that is."""
        for name in ("scontrol", "squeue"):
            path = shutil.which(name, path=PLACES)
            tool(root, f"usr/bin/{name}", f'SLURM_CONF={self.top}/slurm.conf exec {path} "$@"')

    def configuration(self, more: str) -> str:
        """slurm.conf. All daemons are on loopback, each with a port of its own."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ("slurmctld", *self.nodes)]
        ports = [taken.getsockname()[1] for taken in sockets]
        for taken in sockets:
            taken.close()
        text = CONF.format(top=self.top, controller="localhost(127.0.0.1)", port=ports[0]) + more
        for node, port in zip(self.nodes, ports[1:], strict=True):
            text += f"NodeName={node} NodeHostname=localhost Port={port} CPUs=1 RealMemory=2000\n"
        return text

    @contextlib.contextmanager
    def configured(self, more: str) -> Iterator[None]:
        """Meanwhile what is started has these lines in slurm.conf, of which the last counts."""
        path = self.top / "slurm.conf"
        before = path.read_text()
        path.write_text(before + more)
        try:
            yield
        finally:
            path.write_text(before)

    def entering(self, node: str) -> Sequence[str]:
        """Words before a command that has to run on a node; "" for where slurmctld runs."""
        return ()

    def run(self, *argv: str, check: bool = True) -> str:
        argv = (*self.entering(""), *argv)
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    def start(self) -> None:
        self.start_munge()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        argv = ("sinfo", "--noheader", "--partition=main", "--format=%D %t")
        wait("the nodes", lambda: self.run(*argv).split() == [str(len(self.nodes)), "idle"])

    def start_munge(self) -> None:
        munge = self.top / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o600)
        places = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        self._start("munged", "--foreground", "--force", *(f"--{name}={munge}/{at}" for name, at in places.items()))
        wait("munged", (munge / "socket").exists)
        munge.chmod(0o711)

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node, node=node)

    def kill_node(self, node: str) -> None:
        """As a node that loses its power: slurmd, and what it has started."""
        daemon = self.daemons.pop(f"slurmd -D -N {node}")
        daemon.kill()
        daemon.wait(600)

    def revive_node(self, node: str) -> None:
        """Slurm waits a minute for a word about the jobs of a node that comes back, and for none of one set down."""
        self.start_node(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D")
        wait("slurmctld", lambda: "is UP" in self.run("scontrol", "ping", check=False))

    def stop_controller(self) -> None:
        self._stop("slurmctld -D")

    def stop(self) -> None:
        self.run("scancel", "--user=root", check=False)
        for name in reversed(list(self.daemons)):
            self._stop(name)

    def _start(self, *argv: str, node: str = "") -> None:
        with (self.top / f"{argv[0]}.out").open("ab") as out:
            self.daemons[" ".join(argv)] = subprocess.Popen(
                [*self.entering(node), *argv], env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _stop(self, name: str) -> None:
        daemon = self.daemons.pop(name)
        daemon.terminate()
        daemon.wait(600)

    def node(self, name: str = "node01") -> str:
        """What Slurm says of a node: ``IDLE``, ``IDLE+DRAIN the reason``."""
        line = self.run("scontrol", "-o", "show", "node", name)
        # Not before slurmctld has asked it again, which it does every few seconds, a node that was resumed responds.
        state = line.split(" State=")[1].split()[0].replace("+NOT_RESPONDING", "")
        return f"{state} {line.partition(' Reason=')[2].partition(' [root@')[0]}".strip()

    def submit(self, seconds: int, name: str = "node01", *more: str) -> str:
        """Id of a job that runs on the node."""
        argv = ("sbatch", "--parsable", f"--nodelist={name}", "--output=/dev/null", *more, "--wrap", f"sleep {seconds}")
        job = self.run(*argv).strip()
        wait("the job", lambda: self.run("squeue", "--noheader", "--format=%t", f"--jobs={job}").strip() == "R")
        return job

    def reset(self) -> None:
        self.run("scancel", "--user=root")
        wait("the jobs to end", lambda: not self.run("squeue", "--noheader"))
        wait("idle nodes", lambda: all(self._idle(name) for name in self.nodes))

    def _idle(self, name: str) -> bool:
        if self.node(name) == "IDLE":
            return True
        # Not every state can be left at once, as after a restart of slurmctld.
        self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        return False
