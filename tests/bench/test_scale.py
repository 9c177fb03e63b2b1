# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cost of the nightly check and of a converged site.yml on the control node, beside others. Printed, never asserted.

    pytest -s tests/bench/test_scale.py                                      50 hosts
    BUSBAR_BENCH_HOSTS=50,200,1000 pytest -s tests/bench/test_scale.py -k ask_the_same
    BUSBAR_BENCH_WORKING=200 pytest -s tests/bench/test_scale.py -k work_here
    BUSBAR_BENCH_STORED=1000,10000 pytest -s tests/bench/test_scale.py -k stored

As root on Debian, or where sshd is. How the hosts are made: fleet.py.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.bench import fleet
from tests.bench.conftest import HOSTS, ROUNDS, WORKING, Show
from tests.bench.fleet import PYTHON, Fleet, Spent

STORED = [int(word) for word in os.environ.get("BUSBAR_BENCH_STORED", "50,200").split(",")]
FORKS = "25"
NO_MASTER = "-o ControlMaster=no"
MASTER = "-o ControlMaster=auto -o ControlPersist=60s"
Runs = dict[str, Callable[[], Spent]]
# Runs a script; each of its processes reports, with all that it writes and at its end, what it has spent so far.
OWN = """
import os, resource, sys
errors, write, end = os.dup(2), os.write, os._exit
def count():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    write(errors, b"%d %f\\n" % (os.getpid(), spent.ru_utime + spent.ru_stime))
def counted_write(target, data):
    count()
    return write(target, data)
def counted_end(code):
    count()
    end(code)
os.write, os._exit = counted_write, counted_end
exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
"""


def compared(show: Show, title: str, of: int, runs: Mapping[str, Callable[[], Spent]], rounds: int = 1) -> list[Spent]:
    """Show medians of interleaved rounds: seconds of the control node, and wall time as a multiple of the first's."""
    costs = fleet.medians(runs, rounds)
    first = next(iter(costs.values()))
    show(f"\n{title}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} (simulated hosts)")
    show(f"{'':44} {'hosts':>6} {'wall s':>8} {'CPU s':>8} {'CPU ms/host':>12} {'MB':>6} {'wall ratio':>11}")
    for name, cost in costs.items():
        each, ratio = 1000 * cost.cpu / of, cost.wall / first.wall
        show(f"{name:44} {of:6} {cost.wall:8.2f} {cost.cpu:8.2f} {each:12.1f} {cost.rss:6.0f} {ratio:11.2f}")
    return [*costs.values()]


def clush(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """Pipe the same script to the same python over the same ssh."""
    argv = [str(program), "-S", "-f", FORKS, "-o", made.ssh_args(NO_MASTER), "-w", ",".join(fleet.names(of))]
    log = made.top / "clush.log"
    cost = fleet.spent([*argv, f"{python} -I -S -"], made.environment, log, stdin=made.top / "script.py")
    responses = sum('[{"' in line for line in log.read_text().splitlines())
    assert responses == of, f"{responses} of {of} responded to clush"
    return cost


def pyinfra(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """Run the script, which is on the host already: pyinfra sends none of it."""
    command = f"{python} -I -S - < {shlex.quote(str(made.top / 'script.py'))}"
    return _pyinfra(made, program, of, "exec", "--", command)


def pyinfra_sends(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """Send the script by SFTP, as the others do every night, and run it."""
    deploy = made.top / "sends.py"
    with tempfile.TemporaryDirectory(dir=made.top) as there:
        deploy.write_text(
            "from pyinfra import host\nfrom pyinfra.operations import files, server\n"
            f"there = '{there}/' + host.name\n"
            f"files.put(src='{made.top}/script.py', dest=there, force=True)\n"
            f"server.shell(commands=['{python} -I -S - < ' + there])\n"
        )
        cost = _pyinfra(made, program, of, str(deploy))
        sent = len(os.listdir(there))
    assert sent == of, f"pyinfra has sent {sent} of {of} scripts"
    return cost


def _pyinfra(made: Fleet, program: Path, of: int, *what: str) -> Spent:
    data = {
        "ssh_hostname": "127.0.0.1",
        "ssh_port": made.port,
        "ssh_key": str(made.top / "id"),
        "ssh_known_hosts_file": str(made.top / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
    }
    inventory = made.top / "pyinfra.py"
    inventory.write_text(f"hosts = ({fleet.names(of)!r}, {data!r})\n")
    argv = [str(program), "-y", "--parallel", FORKS, str(inventory), *what]
    return fleet.spent(argv, made.environment, made.top / "pyinfra.log")


def judged(made: Fleet, playbook: str, of: int, *arguments: str, python: str = PYTHON, ssh: str = NO_MASTER) -> Spent:
    given = {"ANSIBLE_SSH_ARGS": made.ssh_args(ssh), "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    return made.judged(playbook, made.inventory(of, python), of, "--forks", FORKS, *arguments, **given)


def contestants(made: Fleet, python: str, of: int) -> Runs:
    """Return those that run the same script on so many hosts, all at the same width."""
    found: Runs = {"drift.yml": partial(judged, made, "drift", of, "--check", python=python)}
    peers = fleet.install_peers()
    if "clush" in peers:
        found["clush, same script"] = partial(clush, made, peers["clush"], python, of)
    if "pyinfra" in peers:
        found["pyinfra, same script"] = partial(pyinfra, made, peers["pyinfra"], python, of)
        found["pyinfra, which sends it"] = partial(pyinfra_sends, made, peers["pyinfra"], python, of)
    return found


@pytest.mark.parametrize("of", HOSTS)
def test_peers_that_ask_the_same(hosts: Fleet, show: Show, of: int) -> None:
    """Nodes respond at once, and none of their work is done here."""
    python = hosts.stored_python()
    runs = contestants(hosts, python, of)
    # The floor: a fork, a login, a command.
    raw = hosts.top / "raw.yml"
    tasks = [{"ansible.builtin.raw": "true"}]
    raw.write_text(yaml.safe_dump([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}]))
    given = {"ANSIBLE_SSH_ARGS": hosts.ssh_args(NO_MASTER)}
    runs["one raw task"] = partial(hosts.play, hosts.inventory(of), raw, "--forks", FORKS, **given)
    command = [sys.executable, "-m", "busbar", "drift", "--forks", FORKS, "-i", str(hosts.inventory(of, python))]
    command += ["--history", str(hosts.top / "history.sqlite"), "--json", str(hosts.top / "report.json")]
    log = hosts.top / "busbar.log"
    runs["busbar drift, with history and report"] = partial(fleet.spent, command, {**hosts.environment, **given}, log)
    title = f"nodes that respond at once, {FORKS} at a time, curve25519, medians of {ROUNDS}; target of clush: 1.5"
    drift = compared(show, title, of, runs, ROUNDS)[0]
    show(f"drift.yml, CPU a host: {1000 * drift.cpu / of:.0f} ms (target <= 30)")


@pytest.mark.parametrize("of", WORKING)
def test_peers_with_nodes_that_work_here(hosts: Fleet, show: Show, of: int) -> None:
    """The node's own Python runs the script, on the same cores as the control node."""
    compared(show, f"nodes that work on this machine, {FORKS} at a time", of, contestants(hosts, PYTHON, of))


@pytest.mark.parametrize("of", HOSTS)
def test_a_fleet_that_is_as_it_should_be(hosts: Fleet, show: Show, of: int) -> None:
    """Hosts have no other result than that of the audit: a role that ran on one would fail."""
    python = hosts.stored_python()
    runs: Runs = {"drift.yml": partial(judged, hosts, "drift", of, "--check", python=python)}
    runs["site.yml"] = partial(judged, hosts, "site", of, python=python, ssh=MASTER)
    compared(show, f"nothing to do, {FORKS} at a time; target 1.3", of, runs, ROUNDS)


def test_cost_on_a_node(hosts: Fleet, show: Show) -> None:
    """Without the lab's tools: they are Python, and the real ones are not here."""
    argv, script = [PYTHON, "-I", "-S", "-c", OWN], (hosts.top / "script.py").read_text()
    spent = []
    for _round in range(5):
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
        spent.append(sum(map(float, dict(line.split() for line in done.stderr.splitlines()).values())))
    cost = statistics.median(spent)
    show(f"\nhost_audit on a node with 8 GPUs: {cost:.2f} s CPU (target < 0.5), {len(script)} bytes of script")


@pytest.mark.parametrize("of", STORED)
def test_stored_answers(hosts: Fleet, show: Show, of: int) -> None:
    """No ssh: the cost of Ansible and the suite."""
    inventory = hosts.inventory(of, connection="stored", bench_answer=str(hosts.top / "answer.json"))
    with fleet.memory() as most:
        run = partial(hosts.judged, "drift", inventory, of, "--check", "--forks", FORKS)
        compared(show, "no transport, one run", of, {"drift.yml, null transport": run})
    show(f"all processes together, shared pages counted once: {max(most):.0f} MB (target at 10,000: < 600 MB)")
