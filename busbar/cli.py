# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the command line of ``busbar`` and run the command, whose work is in the module of its name.

Only that module is imported: all of them take half a second of processor time, Ansible's part the most.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import did_you_mean
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, MEANINGS

from . import __version__, ansible_process
from .command_line import MORE, complain


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code; plugin_utils/exit_code.py lists them."""
    words = sys.argv[1:] if argv is None else argv
    code = ERROR
    with contextlib.ExitStack() as stack:
        stack.push(_end_judging)
        code = _run(words)
    return code


def _end_judging(kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None) -> bool:
    """Print an error of the program, or that Ctrl-C ended it, and end it there; SystemExit goes on."""
    if kind is KeyboardInterrupt:
        print("busbar: ended by SIGINT", file=sys.stderr)
    elif kind is not None and issubclass(kind, Exception):
        traceback.print_exception(error)
    else:
        return False
    return True


def _run(argv: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # The text of a file may not exist in the terminal's character set.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ansible_process.use_utf8()
    parser = _parser()
    arguments, _unknown = parser.parse_known_args(argv)
    try:
        ansible_process.pass_on(arguments)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except OSError as error:
        return complain(argv[0], error)
    return code


Fill = Callable[["_Parser"], None]


_CODES = textwrap.fill(
    # A code stays on the line of its meaning.
    "exit codes: " + ", ".join(f"{code}\xa0{meaning}" for code, meaning in MEANINGS.items()),
    width=80,
    subsequent_indent=" " * len("exit codes: "),
).replace("\xa0", " ")


class _Formatter(argparse.HelpFormatter):
    """Print one line for an option: ``-i, --inventory PATH``; the usage names what is required."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)
        # Commands stand deeper than options.
        self._action_max_length = 14

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *more: Any) -> None:
        actions = [*actions]
        required = [action for action in actions if action.required or not action.option_strings]
        if len(required) < len(actions):
            self._prog += " [options]"
        super().add_usage(usage, required, *more)

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        # The usage has the word COMMAND already.
        return text.partition("\n")[2] if isinstance(action, argparse._SubParsersAction) else text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        plain = len(action.option_strings) < 2 and action.nargs != "+"
        if plain or action.nargs == 0 or not action.option_strings:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar or action.dest.upper()}"


class _Parser(argparse.ArgumentParser):
    """Print the purpose first and the exit codes last, and end with ERROR where argparse ends with 2."""

    def __init__(self, *, fill: Fill | None = None, description: str = "", example: str = "", **more: Any) -> None:
        """fill: adds the arguments before they are parsed."""
        super().__init__(formatter_class=_Formatter, add_help=False, **more)
        self.add_argument("-h", "--help", "--help-all", action=_Help, nargs=0, help=argparse.SUPPRESS)
        self.all_options = False
        self._fill = fill
        self._purpose, self._example = description, example

    def parse_known_args(self, *args: Any, **more: Any) -> Any:
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        found, unknown = super().parse_known_args(*args, **more)
        if unknown:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            hints = (did_you_mean(word.partition("=")[0], known, "") for word in unknown if word.startswith("-"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def format_help(self) -> str:
        groups, count = self._action_groups, 0
        if not self.all_options:
            self._action_groups = [group for group in groups if group.title != MORE]
            count = sum(len(group._group_actions) for group in groups if group.title == MORE)
        text = super().format_help()
        self._action_groups = groups
        rest = f"{count} {MORE}: {self.prog} --help-all\n" if count else ""
        example = f"example:    {self._example}\n" if self._example else ""
        return f"{self._purpose}\n{text}\n{rest}{example}{_CODES}\n"

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: error: {message}\n")


class _Help(argparse.Action):
    def __call__(self, parser: Any, _found: object, _values: object, option: str | None = None) -> None:
        parser.all_options = option == "--help-all"
        parser.print_help()
        parser.exit()


def _parser() -> _Parser:
    text = "Provision, verify and repair the network path of GPU clusters (docs/commands.md)."
    parser = _Parser(prog="busbar", usage="busbar [--version] COMMAND [options]", description=text)
    version = f"busbar {__version__}"
    parser.add_argument("--version", action="version", version=version, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(title="commands", prog="busbar", required=True, metavar="COMMAND")
    for name, (purpose, example, fill) in COMMANDS.items():
        commands.add_parser(name, help=purpose, description=f"{purpose}.", example=f"busbar {example}", fill=fill)
    return parser


def _lint(command: _Parser) -> None:
    from . import job_variables, lint

    command.add_argument("files", nargs="+", metavar="FILE", help="file to check; - is standard input")
    text = "libnccl.so.2 that the jobs use (repeatable)"
    command.add_argument("--library", action="append", default=[], metavar="PATH", help=text)
    command.add_argument("--nccl-version", metavar="X.Y.Z", help="version to check against, without a library")
    text = f"type of FILE: {', '.join(job_variables.KINDS)} (default: detected)"
    command.add_argument("--as", dest="kind", choices=job_variables.KINDS, metavar="TYPE", help=text)
    command.add_argument("-v", "--verbose", action="store_true", help="print each finding, not one screen")
    command.set_defaults(run=lambda a: lint.run(a.files, a.library, a.nccl_version, a.kind, a.verbose))


def _diagnose(command: _Parser) -> None:
    from . import diagnose

    text = "log, plain or compressed (gzip, bzip2, xz); - is standard input"
    command.add_argument("logs", nargs="*", metavar="LOG", help=text)
    command.add_argument("--json", action="store_true", help="print findings and transports as JSON")
    command.add_argument("--all", dest="everything", action="store_true", help="print all findings, quotes and facts")
    text = "directory of PyTorch's flight recorder dumps, instead of logs"
    command.add_argument("--recorder", metavar="DIR", help=text)
    text = "directory with the records of NCCL's Inspector plugin, instead of logs"
    command.add_argument("--inspector", metavar="DIR", help=text)
    text = "directory of `busbar watch` of a node of the job: Xids and link flaps while the job ran"
    command.add_argument("--watch", metavar="DIR", help=text)
    command.set_defaults(run=lambda a: diagnose.run(a.logs, a.json, a.everything, a.recorder, a.inspector, a.watch))


def _fill_from(module: str, name: str = "add") -> Fill:
    return lambda command: getattr(importlib.import_module(f".{module}", __package__), name)(command)


# Command -> its purpose, an example, and what adds its arguments.
COMMANDS: dict[str, tuple[str, str, Fill]] = {
    "check": ("Check this machine, or others, without an inventory", "check", _fill_from("check")),
    "lint": ("Check an nccl.conf or job script for harmful settings", "lint /etc/nccl.conf train.sbatch", _lint),
    "diagnose": ("Explain a failed or slow job from its NCCL_DEBUG output", "diagnose nccl.log", _diagnose),
    "drift": (
        "Report which nodes differ from the intent, and since when",
        "drift -i inventory --html drift.html",
        _fill_from("drift.options", "add_drift"),
    ),
    "report": (
        "Render a past drift run",
        "report --html drift.html",
        _fill_from("drift.options", "add_report"),
    ),
    "certify": (
        "Answer a buyer's acceptance test from a nightly check",
        "certify findings.json --answers audit.values.json --markdown sheet.md",
        _fill_from("certify"),
    ),
    "capture": (
        "Archive what the checks read here, to be checked elsewhere",
        "capture --redact",
        _fill_from("capture"),
    ),
    "watch": ("Report stalled jobs and flapping links while they run", "watch --patience 300", _fill_from("watch")),
    "hang": ("Find the rank that a running NCCL job waits for", "hang node07 -i inventory", _fill_from("hang")),
    "remediate": (
        "Repair nodes with findings, verify, and return them to service",
        "remediate findings.json -i inventory --check",
        _fill_from("remediate"),
    ),
    "preflight": (
        "Find slow or broken nodes of a Slurm job before it starts",
        "preflight --platform hgx-h100 --fabric infiniband",
        _fill_from("preflight.command"),
    ),
    "kubernetes": (
        "Set the gate's verdict as condition and taint of the Node",
        "kubernetes --node gpu-07 --check",
        _fill_from("kubernetes"),
    ),
    "benchmark": (
        "Print a stored benchmark result, or compare it with another",
        "benchmark after/cluster.json --against before/cluster.json",
        _fill_from("benchmark"),
    ),
    "size": (
        "Calculate a training step's traffic and the bandwidth it needs",
        "size --parameters 70B --profile hgx-h100 --nodes 16 --tp 8",
        _fill_from("size"),
    ),
    "measure": (
        "Benchmark idle nodes, oldest results first, within a budget",
        "measure -i inventory --check",
        _fill_from("measure"),
    ),
    "gate": ("Show the gate's verdict on nodes, and which it drains", "gate -i inventory", _fill_from("gate")),
    "fabric": (
        "Draft a cabling plan, or compare Slurm's topology with a sweep",
        "fabric plan busbar-results -o cabling.csv",
        _fill_from("fabric"),
    ),
}
