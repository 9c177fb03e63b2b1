# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The ``busbar`` command: arguments in, exit code out. Each subcommand's work is in the module of its name.

Only the command that is given is imported: all of them take half a second of processor time, Ansible's part the most.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR

from . import __version__
from .lab.machine import LabError


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code, of plugin_utils/exit_code.py."""
    words = sys.argv[1:] if argv is None else argv
    code = ERROR
    with contextlib.ExitStack() as stack:
        stack.push(_end_judging)
        code = _run(words)
    return code


def _end_judging(kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None) -> bool:
    """Print an error of the program and end it there; SystemExit and signals go on."""
    is_program_error = kind is not None and issubclass(kind, Exception)
    if is_program_error:
        traceback.print_exception(error)
    return is_program_error


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # What a file holds may not exist in the terminal's character set.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except (LabError, OSError) as error:
        print(f"busbar: {printable(str(error))}", file=sys.stderr)
        return ERROR
    return code


Fill = Callable[["_Parser"], None]


class _Parser(argparse.ArgumentParser):
    """argparse ends with 2 for a wrong command line, which means findings here."""

    def __init__(self, *args: Any, fill: Fill | None = None, **more: Any) -> None:
        """fill: adds the arguments, once they are asked for."""
        super().__init__(*args, **more)
        self._fill = fill

    def parse_known_args(self, *args: Any, **more: Any) -> Any:
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return super().parse_known_args(*args, **more)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: error: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="busbar",
        description="Provision, verify and repair the network path of GPU clusters. The playbooks do the work on"
        " hosts: ansible-playbook site.yml -i INVENTORY.",
    )
    parser.add_argument("--version", action="version", version=f"busbar {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (text, fill) in _COMMANDS.items():
        commands.add_parser(name, help=text, fill=fill)
    return parser


def _lint(command: _Parser) -> None:
    from . import job_variables, lint

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


def _diagnose(command: _Parser) -> None:
    from . import diagnose

    command.add_argument(
        "logs", nargs="+", metavar="LOG", help="file to read, plain or packed by gzip, bzip2 or xz; - is standard input"
    )
    command.add_argument("--json", action="store_true", help="findings, and the proof of the transport, as JSON")
    text = "a training log with step times, and GPU utilisation where it has it: is it the network at all"
    command.add_argument("--training", metavar="FILE", help=text)
    text = "print all findings, quotes and facts, however many"
    command.add_argument("--all", dest="everything", action="store_true", help=text)
    command.set_defaults(run=lambda a: diagnose.run(a.logs, a.json, a.training, a.everything))


def _profile(command: _Parser) -> None:
    from . import profile

    action = command.add_subparsers(required=True, metavar="ACTION").add_parser(
        "capture", help="draft a site profile from a healthy host, for review"
    )
    action.add_argument("host", metavar="HOST", help="a host of the inventory")
    action.add_argument("-i", "--inventory", required=True, type=Path)
    action.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the draft there; never overwrites")
    action.set_defaults(run=lambda a: profile.capture(a.host, a.inventory, a.output))


def _of(module: str, name: str = "add") -> Fill:
    """Return the function of a module that adds the arguments."""
    return lambda command: getattr(importlib.import_module(f".{module}", __package__), name)(command)


# Command -> what it is for, and what adds its arguments.
_COMMANDS: dict[str, tuple[str, Fill]] = {
    "lint": ("say what NCCL would make of an nccl.conf or a job script", _lint),
    "diagnose": ("what happened to a job, out of its NCCL_DEBUG output", _diagnose),
    "drift": (
        "what differs from the intent tonight, and since when; changes nothing",
        _of("drift.command", "add_drift"),
    ),
    "report": ("a past run of drift, in any form", _of("drift.command", "add_report")),
    "hang": (
        "which rank a running NCCL job waits for, and what to keep before it is killed; changes nothing",
        _of("hang"),
    ),
    "remediate": (
        "mend what findings accuse nodes of, one node first, prove it, and give the node back",
        _of("remediate"),
    ),
    "preflight": (
        "inside a Slurm job: which of its own nodes are slow or broken, before it starts; asked by steps of srun",
        _of("preflight.command"),
    ),
    "kubernetes": (
        "the gate's verdict on a node as a condition of the Kubernetes Node, and a taint where it fails",
        _of("kubernetes"),
    ),
    "compare": (
        "what is better or worse between two results of a benchmark, and what only looks so",
        _of("compare"),
    ),
    "size": (
        "what a training step sends, which bandwidth that needs, and which step a network allows",
        _of("size"),
    ),
    "measure": (
        "measure idle nodes, the oldest results first, within a night's budget and beside no user's job",
        _of("measure"),
    ),
    "gate": ("what the gate between jobs says of nodes, and which it keeps out; changes nothing in Slurm", _of("gate")),
    "fabric": (
        "draft a cabling plan of a complete, healthy sweep",
        _of("fabric"),
    ),
    "profile": ("platform profiles", _profile),
    "lab": ("simulated nodes, as containers or as directory trees", _of("lab.command")),
}
