# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The ``busbar`` command: arguments in, exit code out. Each subcommand's work is in the module of its name."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

from . import (
    __version__,
    compare,
    diagnose,
    fabric,
    gate,
    hang,
    job_variables,
    kubernetes,
    lint,
    measure,
    profile,
    remediate,
)
from . import size as sizing
from .drift import command as drift
from .lab import containers, faults, image, ofed, store
from .lab.machine import LabError
from .preflight import command as preflight


def main(argv: Sequence[str] | None = None) -> int:
    """0 is good, 1 means findings, 2 means that the question could not be answered; drift and report have their own."""
    for stream in (sys.stdout, sys.stderr):
        # What a file holds may not exist in the terminal's character set.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error_code = arguments.error_code
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(arguments.error_code)
    except (LabError, OSError) as error:
        print(f"busbar: {printable(str(error))}", file=sys.stderr)
        return int(arguments.error_code)
    return code


class _Parser(argparse.ArgumentParser):
    """error_code: of a wrong command line. For drift 2 means drift, and no timer shall read a typing error as that."""

    error_code = 2

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.error_code, f"{self.prog}: error: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="busbar",
        description="Provision, verify and repair the network path of GPU clusters. The playbooks do the work on"
        " hosts: ansible-playbook site.yml -i INVENTORY.",
    )
    parser.add_argument("--version", action="version", version=f"busbar {__version__}")
    parser.set_defaults(error_code=_Parser.error_code)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("lint", help="say what NCCL would make of an nccl.conf or a job script")
    command.add_argument("files", nargs="+", metavar="FILE", help="file to read; - is standard input")
    command.add_argument(
        "--library", action="append", default=[], metavar="PATH", help="libnccl.so.2 that jobs use (repeatable)"
    )
    command.add_argument(
        "--nccl-version", metavar="X.Y.Z", help="lint against this version where no library is at hand"
    )
    text = "what FILE is: nccl.conf, shell or batch script, Dockerfile, Kubernetes or compose file, Python"
    command.add_argument(
        "--as", dest="kind", choices=job_variables.KINDS, help=f"{text}; else its name and content tell"
    )
    command.set_defaults(run=lambda a: lint.run(a.files, a.library, a.nccl_version, a.kind))

    command = commands.add_parser("diagnose", help="what happened to a job, out of its NCCL_DEBUG output")
    command.add_argument(
        "logs", nargs="+", metavar="LOG", help="file to read, plain or packed by gzip, bzip2 or xz; - is standard input"
    )
    command.add_argument("--json", action="store_true", help="findings, and the proof of the transport, as JSON")
    text = "a training log with step times, and GPU utilisation where it has it: is it the network at all"
    command.add_argument("--training", metavar="FILE", help=text)
    text = "print all findings, quotes and facts, however many"
    command.add_argument("--all", dest="everything", action="store_true", help=text)
    command.set_defaults(run=lambda a: diagnose.run(a.logs, a.json, a.training, a.everything))

    command = commands.add_parser("drift", help="what differs from the intent tonight, and since when; changes nothing")
    drift.add_drift(command)
    command.error_code = drift.ERROR
    command = commands.add_parser("report", help="a past run of drift, in any form")
    drift.add_report(command)
    command.error_code = drift.ERROR

    text = "which rank a running NCCL job waits for, and what to keep before it is killed; changes nothing"
    command = commands.add_parser("hang", help=text)
    hang.add(command)

    text = "mend what findings accuse nodes of, one node first, prove it, and give the node back"
    remediate.add(commands.add_parser("remediate", help=text))

    text = "inside a Slurm job: which of its own nodes are slow or broken, before it starts; asked by steps of srun"
    preflight.add(commands.add_parser("preflight", help=text))

    text = "the gate's verdict on a node as a condition of the Kubernetes Node, and a taint where it fails"
    kubernetes.add(commands.add_parser("kubernetes", help=text))

    text = "what is better or worse between two results of a benchmark, and what only looks so"
    compare.add(commands.add_parser("compare", help=text))

    text = "what a training step sends, which bandwidth that needs, and which step a network allows"
    sizing.add(commands.add_parser("size", help=text))

    text = "measure idle nodes, the oldest results first, within a night's budget and beside no user's job"
    measure.add(commands.add_parser("measure", help=text))

    text = "what the gate between jobs says of nodes, and which it keeps out; changes nothing in Slurm"
    gate.add(commands.add_parser("gate", help=text))

    text = "cabling plans: of a healthy sweep, out of other tools' files, and as Slurm's tree of switches"
    fabric.add(commands.add_parser("fabric", help=text))

    group = commands.add_parser("profile", help="platform profiles").add_subparsers(required=True, metavar="ACTION")
    command = group.add_parser("capture", help="draft a site profile from a healthy host, for review")
    command.add_argument("host", metavar="HOST", help="a host of the inventory")
    command.add_argument("-i", "--inventory", required=True, type=Path)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the draft there; never overwrites")
    command.set_defaults(run=lambda a: profile.capture(a.host, a.inventory, a.output))

    _lab(commands.add_parser("lab", help="simulated nodes, as containers or as directory trees"))
    return parser


def _lab(parser: argparse.ArgumentParser) -> None:
    text = "where the lab lives (.lab where there is one, and for up and down; else .demo)"
    parser.add_argument("-d", "--directory", type=Path, help=text)
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text)
        # Behind the action, too, where everybody writes it.
        action.add_argument("-d", "--directory", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        action.set_defaults(run=run)
        return action

    action = add("up", _lab_up, "two healthy nodes as containers, and their inventory")
    action.add_argument("--nodes", nargs="+", metavar="NODE", choices=[*store.STANDARD], help="fewer than all")
    release = os.environ.get("BUSBAR_LAB_RELEASE", image.SUITES[0])
    text = f"Debian release of the nodes; without it {release} (BUSBAR_LAB_RELEASE)"
    action.add_argument("--release", "--suite", dest="suite", choices=image.SUITES, default=release, help=text)
    action.add_argument("--ofed", choices=(ofed.INSTALLED, "none"), default=ofed.INSTALLED, help="what the nodes have")
    action.add_argument("-y", "--yes", action="store_true", help="install missing packages without asking")
    action = add("down", _lab_down, "remove containers, network and directory")
    action.add_argument("--image", action="store_true", help="the nodes' image, too")
    add("create", _lab_create, "two healthy nodes as directory trees, and their inventory")
    add("status", _lab_status, "nodes and the faults they have")
    add("faults", _lab_faults, "every fault that can be injected")
    action = add("reboot", _lab_reboot, "start a node anew, with the command line that its boot loader has now")
    action.add_argument("node")
    for name, run, text in (("break", _lab_break, "inject a fault"), ("repair", _lab_repair, "take a fault back")):
        action = add(name, run, text)
        action.add_argument("node")
        action.add_argument("fault", help="a name from `busbar lab faults`" + (", or all" if name == "repair" else ""))


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
        _install(containers.missing_packages(), arguments.yes or bool(os.environ.get("CI")))
    machines = {node: store.STANDARD[node] for node in names}
    store.up(directory, machines, arguments.suite, print, with_ofed=arguments.ofed != "none")
    print(f"inventory: {directory / 'inventory'}, remove: busbar lab down -d {directory}")
    return 0


def _install(packages: list[str], yes: bool) -> None:
    if not packages:
        return
    argv = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        raise LabError(f"missing on this machine, by Debian's names of the packages: {', '.join(packages)}")
    if os.getuid() != 0:
        raise LabError(f"missing on this machine: {', '.join(packages)}; run as root: {' '.join(argv)}")
    print(f"the lab needs packages that are missing here: {', '.join(packages)}")
    if not yes and not (sys.stdin.isatty() and input(f"{' '.join(argv)} [y/N] ").strip().lower() in ("y", "yes")):
        raise LabError(f"not installed; do it yourself ({' '.join(argv)}), or say --yes")
    for command in (["apt-get", "update", "-qq"], argv):
        done = subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
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
    store.create(directory)
    print(f"two simulated nodes in {directory}; inventory: {directory / 'inventory'}")
    return 0


def _lab_status(arguments: argparse.Namespace) -> int:
    directory = _directory(arguments)
    states = containers.Lab(directory).states() if containers.is_lab(directory) else None
    for node, present in store.status(directory).items():
        state = "" if states is None else f"{states.get(node, 'no container')}, "
        print(f"{node}: {state}{', '.join(present) or 'healthy'} (simulated)")
    return 0


def _lab_reboot(arguments: argparse.Namespace) -> int:
    line = store.reboot(_directory(arguments), arguments.node)
    print(f"{arguments.node}: booted with {line} (simulated)")
    return 0


def _lab_faults(arguments: argparse.Namespace) -> int:
    for fault in faults.FAULTS.values():
        shown = " (by a benchmark: needs containers)" if fault.measured else ""
        print(f"{fault.name:18} {fault.description} -> {fault.check}{shown}")
    for name, between in store.BETWEEN.items():
        print(f"{name:18} {between.description} -> {between.localised} (between nodes)")
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
