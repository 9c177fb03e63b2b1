# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The ``busbar`` command: arguments in, exit code out. Each subcommand's work is in the module of its name."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.finding import printable

from . import __version__, lint, profile
from .lab import faults, store
from .lab.machine import LabError


def main(argv: Sequence[str] | None = None) -> int:
    """0 is good, 1 means findings, 2 means that the question could not be answered."""
    for stream in (sys.stdout, sys.stderr):
        # What a file holds may not exist in the terminal's character set.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except (LabError, OSError) as error:
        print(f"busbar: {printable(str(error))}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="busbar",
        description="Provision, verify and repair the network path of GPU clusters. The playbooks do the work on"
        " hosts: ansible-playbook site.yml -i INVENTORY.",
    )
    parser.add_argument("--version", action="version", version=f"busbar {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("lint", help="say what NCCL would make of an nccl.conf")
    command.add_argument("files", nargs="+", metavar="FILE", help="file to read; - is standard input")
    command.add_argument(
        "--library", action="append", default=[], metavar="PATH", help="libnccl.so.2 that jobs use (repeatable)"
    )
    command.add_argument(
        "--nccl-version", metavar="X.Y.Z", help="lint against this version where no library is at hand"
    )
    command.set_defaults(run=lambda a: lint.run(a.files, a.library, a.nccl_version))

    group = commands.add_parser("profile", help="platform profiles").add_subparsers(required=True, metavar="ACTION")
    command = group.add_parser("capture", help="draft a site profile from a healthy host, for review")
    command.add_argument("host", metavar="HOST", help="a host of the inventory")
    command.add_argument("-i", "--inventory", required=True, type=Path)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the draft there; never overwrites")
    command.set_defaults(run=lambda a: profile.capture(a.host, a.inventory, a.output))

    _lab(commands.add_parser("lab", help="simulated nodes as directory trees"))
    return parser


def _lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--directory", type=Path, default=Path(".demo"), help="where the lab lives (.demo)")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("create", help="two healthy nodes and their inventory").set_defaults(run=_lab_create)
    actions.add_parser("status", help="nodes and the faults they have").set_defaults(run=_lab_status)
    actions.add_parser("faults", help="every fault that can be injected").set_defaults(run=_lab_faults)
    for name, text in (("break", "inject a fault"), ("repair", "take a fault back")):
        action = actions.add_parser(name, help=text)
        action.add_argument("node")
        action.add_argument("fault", help="a name from `busbar lab faults`" + (", or all" if name == "repair" else ""))
        action.set_defaults(run=_lab_break if name == "break" else _lab_repair)


def _lab_create(arguments: argparse.Namespace) -> int:
    store.create(arguments.directory)
    print(f"two simulated nodes in {arguments.directory}; inventory: {arguments.directory / 'inventory'}")
    return 0


def _lab_status(arguments: argparse.Namespace) -> int:
    for node, present in store.status(arguments.directory).items():
        print(f"{node}: {', '.join(present) or 'healthy'} (simulated)")
    return 0


def _lab_faults(arguments: argparse.Namespace) -> int:
    for fault in faults.FAULTS.values():
        print(f"{fault.name:18} {fault.description} -> {fault.check}")
    return 0


def _lab_break(arguments: argparse.Namespace) -> int:
    store.break_(arguments.directory, arguments.node, arguments.fault)
    print(f"{arguments.node}: {faults.named(arguments.fault).description} (simulated)")
    return 0


def _lab_repair(arguments: argparse.Namespace) -> int:
    taken = store.repair(arguments.directory, arguments.node, arguments.fault)
    print(f"{arguments.node}: repaired {', '.join(taken) or 'nothing'}")
    return 0
