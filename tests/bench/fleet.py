# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated hosts behind one real sshd on loopback, and what a command over them costs the machine it is started on.

Every host is a name of its own with a line of its own in known_hosts; all of them share one tree of the lab. Their
python is Debian's, or a program that reads what it is given and answers with what the real one has answered: real nodes
work beside the control node and not on its cores.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab import store
from tests import sshd
from tests.trees import tool

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache" / "bench"
PYTHON = "/usr/bin/python3"
# The one of the lab's nodes that has more to say.
NODE = "node02"
SSHD_CONFIG = """\
MaxStartups 2000
PerSourceMaxStartups none
LogLevel ERROR
Subsystem sftp internal-sftp
# No user's own shell start, which costs more than the login.
SetEnv HOME={top}/home
"""
SSH_CONFIG = """\
Host gpu*
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {top}/id
  IdentitiesOnly yes
  UserKnownHostsFile {top}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  LogLevel ERROR
  KexAlgorithms curve25519-sha256
"""
# Of a verdict: how many hosts have been judged by an answer of their own.
ANSWERED = """\
import json, sys
hosts = json.load(open(sys.argv[1]))["hosts"].values()
print(sum(not any(one["check"].startswith("run.") for one in host["findings"]) for host in hosts))
"""
STORED_PYTHON = "#!/bin/sh\ncat >/dev/null\ncat {top}/answer.json\n"


@dataclass(frozen=True)
class Spent:
    """Seconds, and MB of the largest process. cpu: of the command and all that it waited for, thus of ssh clients."""

    wall: float
    cpu: float
    rss: float


def spent(argv: Sequence[str], environment: Mapping[str, str], log: Path, stdin: Path | None = None) -> Spent:
    """What a command costs this machine. sshd and what runs on the hosts are not among its children."""
    with open(log, "w") as out, open(stdin or os.devnull) as given:
        begin = time.monotonic()
        child = subprocess.Popen(argv, env=environment, cwd=log.parent, stdin=given, stdout=out, stderr=out)
        _pid, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
    # 2: of drift and of failed checks.
    assert child.returncode in (0, 2), f"{' '.join(argv[:3])} ended with {child.returncode}:\n{log.read_text()[-2000:]}"
    return Spent(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@contextlib.contextmanager
def memory() -> Iterator[list[float]]:
    """MB of all that this process starts meanwhile, a figure for each half second; a shared page counts once."""
    ended, found = threading.Event(), [0.0]

    def look() -> None:
        while not ended.wait(0.5):
            found.append(sum(map(_share, _descendants(os.getpid()))) / 1024)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield found
    finally:
        ended.set()
        watch.join()


def _share(pid: int) -> int:
    """KB of a process, of each page its share; 0 of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def medians(contestants: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, Spent]:
    """Of interleaved repetitions, so that what else the machine does meets all alike."""
    found: dict[str, list[Spent]] = {name: [] for name in contestants}
    for _round in range(rounds):
        for name, run in contestants.items():
            found[name].append(run())
    return {
        name: Spent(*(statistics.median(getattr(one, field) for one in of_name) for field in ("wall", "cpu", "rss")))
        for name, of_name in found.items()
    }


@dataclass(frozen=True)
class Fleet:
    """most: so many hosts at most."""

    top: Path
    port: int
    most: int
    environment: Mapping[str, str]

    def ssh_args(self, *more: str) -> str:
        path = self.top / "ssh_config"
        text = SSH_CONFIG.format(top=self.top, port=self.port, user=getpass.getuser())
        # Without an alias they would all be the one host 127.0.0.1.
        path.write_text(text + "".join(f"Host {name}\n  HostKeyAlias {name}\n" for name in names(self.most)))
        return " ".join(["-F", str(path), *more])

    def inventory(self, hosts: int, python: str = PYTHON, connection: str = "ssh", **variables: Any) -> Path:
        path = self.top / f"inventory-{hosts}-{Path(python).name}-{connection}" / "hosts.json"
        path.parent.mkdir(exist_ok=True)
        given = {**_values(self.top / "lab"), "ansible_python_interpreter": python, "ansible_connection": connection}
        group = {"hosts": {name: {} for name in names(hosts)}, "vars": {**given, **variables}}
        path.write_text(json.dumps({"gpu_nodes": group}))
        return path

    def stored_python(self) -> str:
        """Return a node's Python that responds at once, with none of this machine's time."""
        tool(self.top, "stored-python", STORED_PYTHON.format(top=self.top))
        return str(self.top / "stored-python")

    def play(self, inventory: Path, playbook: str | Path, *arguments: str, **environment: str) -> Spent:
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        argv = [program, str(playbook), "-i", str(inventory), *arguments]
        return spent(argv, {**self.environment, **environment}, self.top / f"{Path(playbook).stem}.log")

    def judged(self, playbook: str, inventory: Path, hosts: int, *arguments: str, **environment: str) -> Spent:
        """A playbook that ends with a verdict, by the name of its file; fails unless every host has been judged.

        top/findings.json: the verdict. top/PLAYBOOK.log: what was printed, as Ansible's own callback does.
        """
        findings = self.top / "findings.json"
        findings.unlink(missing_ok=True)
        given = ("-e", f"busbar_findings_path={findings}", *arguments)
        cost = self.play(inventory, ROOT / "playbooks" / f"{playbook}.yml", *given, **environment)
        # In a process of its own: what this one has ever held counts as memory of all that it starts.
        argv = [sys.executable, "-c", ANSWERED, str(findings)]
        answered = int(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)
        assert answered == hosts, (self.top / f"{playbook}.log").read_text()[-2000:]
        return cost


def names(hosts: int) -> list[str]:
    return [f"gpu{number:05}" for number in range(1, hosts + 1)]


def _values(lab: Path) -> dict[str, Any]:
    inventory = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())
    group = yaml.safe_load((lab / "inventory" / "group_vars" / "gpu_nodes.yml").read_text())
    return {**group, **inventory["gpu_nodes"]["hosts"][NODE]}


@contextlib.contextmanager
def fleet(top: Path, most: int) -> Iterator[Fleet]:
    """Up to so many hosts. top/script.py: what is asked of each. top/answer.json: what the tree answers, in sync."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
        "HOME": str(top / "home"),
        "ANSIBLE_HOME": str(top / "ansible"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(top / "cp"),
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C.UTF-8",
    }
    (top / "home").mkdir()
    with sshd.sshd(top, SSHD_CONFIG.format(top=top)) as host:
        made = Fleet(top, host["ansible_port"], most, environment)
        _prepare_tree(made)
        key = " ".join((top / "host_key.pub").read_text().split()[:2])
        # pyinfra knows no HostKeyAlias.
        lines = [f"{name} {key}\n" for name in (*names(most), f"[127.0.0.1]:{made.port}")]
        (top / "known_hosts").write_text("".join(lines))
        yield made


def _prepare_tree(made: Fleet) -> None:
    lab = made.top / "lab"
    store.create(lab, {NODE: store.STANDARD[NODE]})
    made.play(lab / "inventory", ROOT / "site.yml")
    question = made.inventory(1, connection="stored", bench_question=str(made.top / "script.py"))
    made.play(question, ROOT / "playbooks" / "drift.yml", "--check")
    script = (made.top / "script.py").read_text()
    done = subprocess.run([PYTHON, "-I", "-S", "-"], input=script, capture_output=True, text=True, check=True)
    (made.top / "answer.json").write_text(done.stdout)


def install_peers() -> dict[str, Path]:
    """clush and pyinfra, those that pip could bring into a virtual environment of their own."""
    home = CACHE / "venv"
    if not (home / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    found = {}
    for program, package in (("clush", "ClusterShell==1.10.1"), ("pyinfra", "pyinfra==3.10.0")):
        path = home / "bin" / program
        if not path.exists():
            argv = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", package]
            subprocess.run(argv, capture_output=True, check=False)
        if path.exists():
            found[program] = path
    return found
