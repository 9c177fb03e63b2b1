# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the nightly check costs the control node, beside what others take for the same. Printed, never asserted.

    pytest -s tests/bench/test_scale.py                                      50 hosts
    BUSBAR_BENCH_HOSTS=50,200,1000 pytest -s tests/bench/test_scale.py -k ask_the_same
    BUSBAR_BENCH_WORKING=200 pytest -s tests/bench/test_scale.py -k work_here
    BUSBAR_BENCH_STORED=1000,10000 pytest -s tests/bench/test_scale.py -k stored

As root on Debian, or where sshd is. Figures are kept in .cache/bench/scale.json, and the plot is drawn from them:
.cache/bench/scale.svg. How the hosts are made: fleet.py.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bench import fleet
from tests.bench.conftest import CURVE, FEW, FORKS, HOSTS, ROUNDS, WORKING, Show
from tests.bench.fleet import CACHE, PYTHON, ROOT, Fleet, Spent

STORED = [int(word) for word in os.environ.get("BUSBAR_BENCH_STORED", "50,200").split(",")]
AT_ONCE = f"nodes that answer at once, {FORKS} at a time, one round"
MASTER = "-o ControlMaster=auto -o ControlPersist=60s"
# Runs a script; each of its processes says with whatever it writes, and at its end, what it has spent itself so far.
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


def table(show: Show, title: str, of: int, costs: Mapping[str, Spent], first: str) -> None:
    """Seconds and CPU seconds of the control node, in all and a host; wall time as a multiple of the first's."""
    cores = os.cpu_count()
    show(f"\n{title}; {cores} cores, load {os.getloadavg()[0]:.1f} (simulated hosts)")
    show(f"{'':44} {'hosts':>6} {'wall s':>8} {'CPU s':>8} {'CPU ms/host':>12} {'MB':>6} {'wall ratio':>11}")
    for name, cost in costs.items():
        ratio = cost.wall / costs[first].wall
        each = 1000 * cost.cpu / of
        show(f"{name:44} {of:6} {cost.wall:8.2f} {cost.cpu:8.2f} {each:12.1f} {cost.rss:6.0f} {ratio:11.2f}")


def keep(kind: str, of: int, costs: Mapping[str, Spent]) -> None:
    """Where the plot finds them, also those of other runs."""
    path = CACHE / "scale.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    for name, cost in costs.items():
        known.setdefault(kind, {}).setdefault(name, {})[str(of)] = asdict(cost)
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def compared(
    show: Show, title: str, of: int, runs: Mapping[str, Callable[[], Spent]], kind: str = "", rounds: int = 1
) -> dict[str, Spent]:
    """Medians of interleaved rounds, shown beside the first. kind: under which the plot finds them, where it does."""
    costs = fleet.medians(runs, rounds)
    table(show, title, of, costs, next(iter(runs)))
    if kind:
        keep(kind, of, costs)
    return costs


def book(made: Fleet, name: str, *tasks: Mapping[str, Any]) -> Path:
    """A playbook of these tasks."""
    path = made.top / f"{name}.yml"
    path.write_text(yaml.safe_dump([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": [*tasks]}]))
    return path


def clush(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """The same script, piped to the same python over the same ssh."""
    options = made.ssh_args("-o ControlMaster=no", **CURVE)
    argv = [str(program), "-S", "-f", str(FORKS), "-o", options, "-w", ",".join(fleet.names(of))]
    log = made.top / "clush.log"
    cost = fleet.spent([*argv, f"{python} -I -S -"], made.environment, log, stdin=made.top / "script.py")
    answers = sum('[{"' in line for line in log.read_text().splitlines())
    assert answers == of, f"{answers} of {of} answered clush"
    return cost


def pyinfra(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """The script is on the host already: it spares pyinfra what the others have to send."""
    command = f"{python} -I -S - < {shlex.quote(str(made.top / 'script.py'))}"
    return _pyinfra(made, program, of, "exec", "--", command)


def pyinfra_sends(made: Fleet, program: Path, python: str, of: int) -> Spent:
    """It sends the script, which the others do every night: over SFTP, which is how it sends. Then it runs it."""
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


def pyinfra_facts(made: Fleet, program: Path, count: int, of: int) -> Spent:
    """As its users would write it: a fact for each kind of check, here always the same file."""
    deploy = made.top / "facts.py"
    deploy.write_text(
        "from pyinfra import host\nfrom pyinfra.facts.server import Command\n"
        f"for number in range({count}):\n    host.get_fact(Command, f'cat /proc/cmdline # {{number}}')\n"
    )
    return _pyinfra(made, program, of, str(deploy))


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
    argv = [str(program), "-y", "--parallel", str(FORKS), str(inventory), *what]
    return fleet.spent(argv, made.environment, made.top / "pyinfra.log")


def nightly(made: Fleet, python: str, of: int) -> Callable[[], Spent]:
    """drift.yml, which all others are compared with."""
    args = made.ssh_args("-o ControlMaster=no", **CURVE)
    return partial(made.drift, made.inventory(of, python), of, "--forks", str(FORKS), ANSIBLE_SSH_ARGS=args)


def contestants(made: Fleet, python: str, of: int) -> dict[str, Callable[[], Spent]]:
    """Those that ask the same script of so many hosts, all at the same width."""
    found = {"drift.yml": nightly(made, python, of)}
    peers = fleet.install_peers()
    if "clush" in peers:
        found["clush, same script"] = partial(clush, made, peers["clush"], python, of)
    if "pyinfra" in peers:
        found["pyinfra, same script"] = partial(pyinfra, made, peers["pyinfra"], python, of)
        found["pyinfra, which sends it"] = partial(pyinfra_sends, made, peers["pyinfra"], python, of)
    return found


@pytest.mark.parametrize("of", HOSTS)
def test_peers_that_ask_the_same(hosts: Fleet, show: Show, of: int) -> None:
    """Nodes answer at once, and none of their work is done here."""
    runs = contestants(hosts, hosts.stored_python(), of)
    args = hosts.ssh_args("-o ControlMaster=no", **CURVE)
    # The floor: a fork, a login, a command.
    raw = book(hosts, "raw", {"ansible.builtin.raw": "true"})
    runs["one raw task"] = partial(hosts.play, hosts.inventory(of), raw, "--forks", str(FORKS), ANSIBLE_SSH_ARGS=args)
    command = [sys.executable, "-m", "busbar", "drift", "--forks", str(FORKS)]
    command += ["-i", str(hosts.inventory(of, hosts.stored_python()))]
    history = ["--history", str(hosts.top / "history.sqlite"), "--json", str(hosts.top / "report.json")]
    given = {**hosts.environment, "ANSIBLE_SSH_ARGS": args}
    runs["busbar drift, with history and report"] = partial(
        fleet.spent, [*command, *history], given, hosts.top / "busbar.log"
    )
    title = f"nodes that answer at once, {FORKS} at a time, curve25519, medians of {ROUNDS}"
    costs = compared(show, title, of, runs, "peers", ROUNDS)
    for name, target in (("clush, same script", 1.5), ("pyinfra, same script", 1), ("pyinfra, which sends it", 1)):
        if name in costs:
            show(f"drift.yml / {name}: {costs['drift.yml'].wall / costs[name].wall:.2f} (target <= {target})")
        else:
            show(f"{name}: skipped, pip could not install it")
    show(f"drift.yml, CPU a host: {1000 * costs['drift.yml'].cpu / of:.0f} ms (target <= 60)")


def one_task_a_check(made: Fleet) -> tuple[Path, int]:
    """A playbook that reads one file and judges it, as often as the audit has different checks."""
    results = json.loads((made.top / "answer.json").read_text())
    checks = sorted({name.partition("[")[0] for result in results for name in result.get("passed", [])})
    file = json.loads(made.inventory(1).read_text())["gpu_nodes"]["vars"]["busbar_hardware_root"] + "/proc/cmdline"
    tasks = [
        {
            "name": check,
            "ansible.builtin.slurp": {"src": file},
            "register": "read",
            "failed_when": "'BOOT_IMAGE' not in read.content | b64decode",
        }
        for check in checks
    ]
    return book(made, "tasks", *tasks), len(tasks)


@pytest.mark.parametrize("of", WORKING)
def test_peers_with_nodes_that_work_here(hosts: Fleet, show: Show, of: int) -> None:
    """The node's own Python runs the script, on the same cores as the control node."""
    title = f"nodes that work on this machine, {FORKS} at a time, one round"
    costs = compared(show, title, of, contestants(hosts, PYTHON, of), "working")
    if "clush, same script" in costs:
        show(f"drift.yml / clush: {costs['drift.yml'].wall / costs['clush, same script'].wall:.2f} (target <= 1.5)")


def test_the_suite_and_a_task_for_each_check(hosts: Fleet, show: Show) -> None:
    inventory, args = hosts.inventory(FEW), hosts.ssh_args(MASTER, **CURVE)
    ping = book(hosts, "ping", {"ansible.builtin.ping": {}})
    tasks, count = one_task_a_check(hosts)
    runs: dict[str, Callable[[], Spent]] = {
        "drift.yml": nightly(hosts, PYTHON, FEW),
        "one module call (ping)": partial(hosts.play, inventory, ping, ANSIBLE_SSH_ARGS=args),
        "site.yml --check": partial(hosts.play, inventory, ROOT / "site.yml", "--check", ANSIBLE_SSH_ARGS=args),
        f"{count} checks, one slurp each": partial(hosts.play, inventory, tasks, ANSIBLE_SSH_ARGS=args),
    }
    costs = compared(show, "nodes that work on this machine, one round", FEW, runs, "suite")
    assert "FAILED" not in (hosts.top / "tasks.log").read_text()
    of_task = costs[f"{count} checks, one slurp each"]
    show(f"a task for each check / drift.yml: {of_task.wall / costs['drift.yml'].wall:.1f} (target >= 20)")


def test_pyinfra_with_a_fact_for_each_check(hosts: Fleet, show: Show) -> None:
    program = fleet.install_peers().get("pyinfra")
    if program is None:
        pytest.skip("pip could not install pyinfra")
    of, count = min(HOSTS), one_task_a_check(hosts)[1]
    runs: dict[str, Callable[[], Spent]] = {
        "drift.yml": nightly(hosts, hosts.stored_python(), of),
        f"pyinfra, {count} facts": partial(pyinfra_facts, hosts, program, count, of),
    }
    compared(show, AT_ONCE, of, runs, "facts")


def test_a_task_for_each_check_of_nodes_that_answer_at_once(hosts: Fleet, show: Show) -> None:
    of, args = min(HOSTS), hosts.ssh_args(MASTER, **CURVE)
    content = base64.b64encode(b"BOOT_IMAGE=/vmlinuz").decode()
    (hosts.top / "slurp.json").write_text(json.dumps({"changed": False, "content": content, "encoding": "base64"}))
    tasks, count = one_task_a_check(hosts)
    inventory = hosts.inventory(of, hosts.stored_python(answer="slurp.json"))
    name = f"{count} checks, one slurp each"
    runs: dict[str, Callable[[], Spent]] = {
        "drift.yml": nightly(hosts, hosts.stored_python(), of),
        name: partial(hosts.play, inventory, tasks, "--forks", str(FORKS), ANSIBLE_SSH_ARGS=args),
    }
    costs = compared(show, AT_ONCE, of, runs, "tasks")
    assert "FAILED" not in (hosts.top / "tasks.log").read_text()
    show(f"a task for each check / drift.yml: {costs[name].wall / costs['drift.yml'].wall:.1f} (target >= 20)")


def test_what_a_node_spends(hosts: Fleet, show: Show) -> None:
    """Without the lab's tools: they are Python, and the real ones are not here."""
    argv, script = [PYTHON, "-I", "-S", "-c", OWN], (hosts.top / "script.py").read_text()
    spent = []
    for _round in range(5):
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=True)
        last = dict(line.split() for line in done.stderr.splitlines())
        spent.append(sum(map(float, last.values())))
    cost = statistics.median(spent)
    show(f"\nhost_audit on a node with 8 GPUs: {cost:.2f} s CPU (target < 0.5), {len(script)} bytes of script")


def test_ssh_settings(hosts: Fleet, show: Show) -> None:
    of = min(HOSTS)
    inventory = hosts.inventory(of, hosts.stored_python())

    def run(args: str) -> Spent:
        return hosts.drift(inventory, of, "--forks", str(FORKS), ANSIBLE_SSH_ARGS=args)

    settings = {
        "ControlPersist, compressed (Ansible's own)": hosts.ssh_args("-C", MASTER),
        "the same again, its masters alive": hosts.ssh_args("-C", MASTER),
        "no master": hosts.ssh_args("-o ControlMaster=no"),
        "no master, compressed": hosts.ssh_args("-C", "-o ControlMaster=no"),
        "no master, curve25519": hosts.ssh_args("-o ControlMaster=no", **CURVE),
    }
    # Not interleaved: the second needs the masters that the first has left, whose own CPU time is not in its figures.
    costs = {name: run(args) for name, args in settings.items()}
    table(show, "ssh settings of drift.yml, one run each", of, costs, "no master, curve25519")
    keep("ssh", of, costs)


@pytest.mark.parametrize("seconds", [0, 1])
def test_forks(hosts: Fleet, show: Show, seconds: int) -> None:
    of = min(HOSTS)
    inventory, args = hosts.inventory(of, hosts.stored_python(seconds)), hosts.ssh_args("-o ControlMaster=no", **CURVE)
    costs = {
        f"--forks {forks}": hosts.drift(inventory, of, "--forks", str(forks), ANSIBLE_SSH_ARGS=args)
        for forks in (5, 25, 50, 100)
    }
    table(show, f"drift.yml, nodes that answer after {seconds} s, one run each", of, costs, "--forks 25")
    keep(f"forks{seconds}", of, costs)


@pytest.mark.parametrize("of", STORED)
def test_stored_answers(hosts: Fleet, show: Show, of: int) -> None:
    """No ssh at all: what Ansible and the suite cost."""
    inventory = hosts.inventory(of, connection="stored", bench_answer=str(hosts.top / "answer.json"))
    with fleet.memory() as most:
        costs = {"drift.yml, null transport": hosts.drift(inventory, of, "--forks", str(FORKS))}
    table(show, "no transport, one run", of, costs, "drift.yml, null transport")
    keep("null", of, costs)
    show(f"all processes together, what they share counted once: {max(most):.0f} MB (target at 10,000: < 600 MB)")


def test_plot(show: Show) -> None:
    """Over the hosts: wall time of those that ask the same; CPU time a host and memory of the control node."""
    pytest.importorskip("matplotlib", reason="no plot: matplotlib is not installed (pip install matplotlib)")
    import matplotlib
    from matplotlib.figure import Figure

    path = CACHE / "scale.json"
    if not path.exists():
        pytest.skip("no figures yet: run the others first")
    known: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(path.read_text())
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "busbar", "font.size": 9})
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    panels = figure.subplots(1, 3)
    everybody = {**known.get("peers", {}), **known.get("null", {})}

    def draw(panel: Any, label: str, value: Callable[[int, Mapping[str, float]], float]) -> None:
        for name, by_hosts in everybody.items():
            points = sorted((int(of), value(int(of), cost)) for of, cost in by_hosts.items())
            panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        panel.set_xscale("log")
        seen = sorted({int(of) for by_hosts in everybody.values() for of in by_hosts})
        panel.set_xticks(seen, [f"{of:,}" for of in seen])
        panel.set_xticks([], minor=True)
        panel.set_xlabel("hosts")
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.grid(True, color="0.9")

    draw(panels[0], "wall time a host, ms", lambda of, cost: 1000 * cost["wall"] / of)
    draw(panels[1], "CPU time of the control node a host, ms", lambda of, cost: 1000 * cost["cpu"] / of)
    draw(panels[2], "memory of its largest process, MB", lambda of, cost: cost["rss"])
    panels[0].legend(fontsize=7, frameon=False)
    figure.suptitle("The nightly check on one control node (simulated hosts on the same machine)")
    figure.savefig(CACHE / "scale.svg", metadata={"Date": None})
    show(f"\nplot: {CACHE / 'scale.svg'}")
