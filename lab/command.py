# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``python3 -m lab`` in a checkout: simulated nodes, as containers or as directory trees.

Exit codes: 0 done, 1 not done, 2 usage error, 4 locked by another run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import containers, faults, image, ofed, store
from .machine import LabError, LabLockedError


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 4 if isinstance(error, LabLockedError) else 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m lab", description="Create, break and repair simulated nodes.")
    text = "directory of the lab (default: .lab, else .demo)"
    parser.add_argument("-d", "--directory", type=Path, metavar="DIR", help=text)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    standard = [name for name, builder in store.PLATFORMS.items() if builder in store.STANDARD.values()]

    def action_of(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
        # Behind the action, too, where everybody writes it.
        action.add_argument("-d", "--directory", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        action.set_defaults(run=run)
        return action

    action = action_of("up", _lab_up, "start healthy nodes as containers, with an inventory")
    action.add_argument("--nodes", nargs="+", metavar="NODE", choices=[*store.STANDARD], help="nodes (default: all)")
    release = image.wanted()
    text = f"Debian release of the nodes (default: {release}, or BUSBAR_LAB_RELEASE)"
    action.add_argument("--release", "--suite", dest="suite", choices=image.SUITES, default=release, help=text)
    action.add_argument("--ofed", choices=(ofed.INSTALLED, "none"), default=ofed.INSTALLED, help="OFED of the nodes")
    action = action_of("down", _lab_down, "remove containers, network and directory")
    action.add_argument("--image", action="store_true", help="remove the image, too")
    action = action_of("create", _lab_create, "create healthy nodes as directory trees, without root")
    action.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 2)")
    text = f"platform of all nodes (default: {' and '.join(standard)} in turn)"
    action.add_argument("--platform", choices=sorted(store.PLATFORMS), help=text)
    action_of("status", _lab_status, "list nodes and their faults")
    action = action_of("faults", _lab_faults, "list all faults that can be injected")
    action.add_argument("words", nargs="*", metavar="WORD", help="only those whose line has one of the words")
    action = action_of("reboot", _lab_reboot, "reboot a node with its boot loader's command line")
    action.add_argument("node")
    for name, run, text in (("break", _lab_break, "inject a fault"), ("repair", _lab_repair, "remove a fault")):
        action = action_of(name, run, text)
        action.add_argument("node")
        text = "a name from `python3 -m lab faults`" + (", or all" if name == "repair" else "")
        action.add_argument("fault", help=text)
    return parser


def _directory(arguments: argparse.Namespace, new: str = "") -> Path:
    """The directory named, else ``new``, else that of the lab there is: of containers before one of trees."""
    given: Path | None = arguments.directory
    return given or Path(new or (".lab" if Path(".lab").is_dir() else ".demo"))


def _lab_up(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments, ".lab")
    # What is up already stays as it is.
    there = store.nodes(directory) if containers.is_lab(directory) and any(directory.glob("*/machine.json")) else None
    names = arguments.nodes or there or [*store.STANDARD]
    print(f"{', '.join(names)}: simulated nodes in podman containers, Debian {arguments.suite}, kept in {directory}")
    with image.one_by_one():
        _install(containers.missing_packages())
    machines = {node: store.STANDARD[node] for node in names}
    store.up(directory, machines, arguments.suite, print, with_ofed=arguments.ofed != "none")
    print(f"inventory: {directory / 'inventory'}, remove: python3 -m lab down -d {directory}")
    return 0


def _install(packages: list[str]) -> None:
    """Install Debian packages, unattended. Raises LabError without root or apt-get."""
    if not packages:
        return
    argv = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        raise LabError(f"missing on this machine, by Debian's names of the packages: {', '.join(packages)}")
    if os.getuid() != 0:
        raise LabError(f"missing on this machine: {', '.join(packages)}; run as root: {' '.join(argv)}")
    print(f"the lab installs the packages that are missing here: {', '.join(packages)}", flush=True)
    for command in (["apt-get", "update", "-qq"], argv):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command)} ended with {done.returncode}")


def _lab_down(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments, ".lab")
    lab = containers.Lab(directory)
    print(f"{directory}: " + ("removed" if lab.down() else "there is no lab"))
    if arguments.image:
        print(f"images removed: {', '.join(image.remove(lab.podman)) or 'none'}")
    return 0


def _lab_create(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments, ".demo")
    count = len(store.STANDARD) if arguments.nodes is None else arguments.nodes
    if not 0 < count < 1000:
        raise LabError(f"--nodes {count}: a lab has 1 to 999 nodes")
    builders = [store.PLATFORMS[arguments.platform]] if arguments.platform else [*store.STANDARD.values()]
    store.create(directory, {f"node{number + 1:02}": builders[number % len(builders)] for number in range(count)})
    print(f"{count} simulated node{'s' * (count > 1)} in {directory}; inventory: {directory / 'inventory'}")
    return 0


def _lab_status(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments)
    states = containers.Lab(directory).states() if containers.is_lab(directory) else None
    # Those with faults first.
    for node, present in sorted(store.status(directory).items(), key=lambda item: not item[1]):
        state = "" if states is None else f"{states.get(node, 'no container')}, "
        print(f"{node}: {state}{', '.join(present) or 'healthy'} (simulated)")
    return 0


def _lab_reboot(arguments: argparse.Namespace) -> int:
    line = store.reboot(_directory(arguments), arguments.node)
    print(f"{arguments.node}: booted with {line} (simulated)")
    return 0


def _lab_faults(arguments: argparse.Namespace) -> int:
    lines = []
    for fault in faults.FAULTS.values():
        needs = " (by a benchmark: needs containers)" if fault.measured else ""
        lines.append(f"{fault.name:18} {fault.description} -> {fault.check}{needs}")
    for name, between in store.BETWEEN.items():
        lines.append(f"{name:18} {between.description} -> {between.localised} (between nodes)")
    found = [line for line in lines if not arguments.words or any(word in line for word in arguments.words)]
    print("\n".join(found or ["none"]))
    return 0


def _lab_break(arguments: argparse.Namespace) -> int:
    store.break_(_directory(arguments), arguments.node, arguments.fault)
    name = arguments.fault
    description = store.BETWEEN[name].description if name in store.BETWEEN else faults.named(name).description
    print(f"{arguments.node}: {description} (simulated)")
    return 0


def _lab_repair(arguments: argparse.Namespace) -> int:
    taken = store.repair(_directory(arguments), arguments.node, arguments.fault)
    print(f"{arguments.node}: repaired {', '.join(taken) or 'nothing'}")
    return 0
