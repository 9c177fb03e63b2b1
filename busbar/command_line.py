# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Serve all commands: options that are numbers, packages that they need, and the message of a failure."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterable

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR

# Module -> the package that it comes with.
PACKAGES = {"ansible": "ansible-core", "ansible_runner": "ansible-runner"}
# Title of the arguments that --help counts and --help-all prints.
MORE = "more options"
_ERRNO = re.compile(r"\[Errno \d+\] ")
ANSIBLE = ("ansible", "ansible_runner")


def number(low: float, high: float, what: str) -> Callable[[str], float]:
    """Return the parser of an option. what: ``number of seconds``, for the message."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a {what} from {low:g} to {high:g}")
        return value

    return parse


def add_ansible(command: argparse.ArgumentParser) -> None:
    """Add the options that are passed on to Ansible: ansible_process.pass_on."""
    more = next((group for group in command._action_groups if group.title == MORE), None)
    more = more or command.add_argument_group(MORE)
    text = "NAME=VALUE, JSON or @FILE, as for ansible-playbook"
    more.add_argument("-e", "--extra-vars", action="append", default=[], metavar="VARS", help=text)
    text = "password of vaults, as for ansible-playbook"
    more.add_argument("--vault-password-file", action="append", metavar="FILE", help=text)
    text = "LABEL@FILE, as for ansible-playbook"
    more.add_argument("--vault-id", type=_vault_id, action="append", metavar="ID", help=text)
    text = "password for sudo, as for ansible-playbook"
    more.add_argument("--become-password-file", action="append", metavar="FILE", help=text)


def _vault_id(text: str) -> str:
    if text.endswith(("@prompt", "@prompt_ask_vault_pass")) or "@" not in text:
        raise argparse.ArgumentTypeError(f"no password is prompted for: write LABEL@FILE, not {text[:40]!r}")
    return text


def not_installed(modules: Iterable[str]) -> str:
    """Return how to install those of the modules that are missing; "" where none is."""
    lacking = [PACKAGES[name] for name in modules if importlib.util.find_spec(name) is None]
    return f"not installed: {sys.executable} -m pip install {' '.join(lacking)}" if lacking else ""


def complain(command: str, message: str | BaseException, code: int = ERROR) -> int:
    """Print what a command could not do, and return the exit code. Raises BrokenPipeError, which cli ends quietly."""
    if isinstance(message, BrokenPipeError):
        raise message
    text = message if isinstance(message, str) else error_text(message)
    # A program that we quote may be Python.
    print(f"busbar {command}: {printable(_ERRNO.sub('', text))}", file=sys.stderr)
    return code


def print_list(lines: Iterable[str], more: str, noun: str) -> None:
    """Print one screen of lines to standard error. more: names the way to all of them; "" prints them."""
    lines = [*map(printable, lines)]
    shown = screen.page((), [[line] for line in lines], (), terminal.COLUMNS, more, noun) if more else lines
    for line in shown:
        print(line, file=sys.stderr)
