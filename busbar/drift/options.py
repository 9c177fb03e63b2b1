# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of ``busbar drift`` and ``busbar report``."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole

from ..command_line import MORE, add_ansible
from .command import HISTORY, LEAST_DAYS, drift, show
from .formats import FORMATS, RESULTS


def add_drift(command: argparse.ArgumentParser) -> None:
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", required=True, action="append", type=Path, metavar="PATH", help=text)
    command.add_argument("--limit", metavar="HOSTS", help="only these hosts; an empty limit is refused")
    more = command.add_argument_group(MORE, "FILE: - is standard output; {date} is replaced by the day of the run.")
    text = f"lowest severity that counts ({SEVERITIES[-1]})"
    command.add_argument("--fail-on", choices=SEVERITIES, metavar="SEVERITY", help=text)
    for name, kind, metavar, text in (
        ("--keep-days", _days, "N", "delete older runs, and older files named by {date}"),
        ("--notify", _argv, "COMMAND", "command to run, without a shell, when the result changes"),
        ("--webhook", Path, "FILE", "file with the https address to notify"),
        ("--forks", _positive, "N", "hosts queried in parallel (default: ansible.cfg)"),
        ("--host-timeout", _positive, "S", "timeout of one host in seconds (%(default)s)"),
        ("--timeout", _positive, "S", "timeout of the run in seconds (%(default)s)"),
        ("--inspector", Path, "DIRECTORY", "plot the busbw of jobs, too: records of NCCL's Inspector, of the last day"),
    ):
        more.add_argument(name, type=kind, metavar=metavar, help=text)
    text = "notify of every run that is not in sync"
    more.add_argument("--notify-always", action="store_true", help=text)
    text = "ssh, or one Slurm step (default: busbar_engine)"
    more.add_argument("--engine", choices=("ssh", "slurm"), help=text)
    command.add_argument("--findings", metavar="FILE", help="write findings for remediate")
    _outputs(command, more)
    add_ansible(command)
    command.set_defaults(run=drift, host_timeout=300, timeout=7200)


def add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("--run", dest="number", type=_positive, metavar="N", help="run (default: last complete one)")
    command.add_argument("--list", action="store_true", help="list the runs of the history")
    text = "print the nodes of groups A,B, for --limit @FILE"
    command.add_argument("--nodes", metavar="GROUP", help=text)
    more = command.add_argument_group(MORE, "FILE: - is standard output; {date} is the day of the run.")
    _outputs(command, more)
    text = "inventory: its secrets are removed from the report"
    command.add_argument("-i", "--inventory", action="append", type=Path, metavar="PATH", help=text)
    add_ansible(command)
    command.set_defaults(run=show)


def _outputs(command: argparse.ArgumentParser, more: argparse._ActionsContainer) -> None:
    command.add_argument("-v", "--verbose", action="store_true", help="print everything, not one screen")
    command.add_argument("--history", type=Path, metavar="FILE", help=f"SQLite file ({HISTORY})")
    more.add_argument("--mode", type=_mode, default=0o600, metavar="BITS", help="permissions of the reports (600)")
    text = f"benchmark results (default: {RESULTS})"
    more.add_argument("--results", type=Path, metavar="DIRECTORY", help=text)
    for name, content in FORMATS.items():
        text = f"write {content}{' (-: standard output)' if name == 'json' else ''}"
        command.add_argument(f"--{name}", metavar="FILE", help=text)


def _positive(text: str) -> int:
    number = whole(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of 1 or more")
    return number


def _days(text: str) -> int:
    if _positive(text) < LEAST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is less than {LEAST_DAYS}, the days that a run is compared with")
    return int(text)


def _mode(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a file mode such as 640")
    return int(text, 8)


def _argv(text: str) -> list[str]:
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a command: {error}") from error
    if not argv:
        raise argparse.ArgumentTypeError("is empty")
    return argv
