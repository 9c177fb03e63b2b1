# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar fabric plan``: draft a cabling plan of a sweep.

Doubts about the draft are findings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, FINDINGS, GOOD


def add(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    text = "draft a cabling plan for review"
    action = actions.add_parser("plan", help=text, description=f"{text.capitalize()}.")
    text = "record of playbooks/fabric.yml (file or directory), or a directory of dumps"
    action.add_argument("record", type=Path, metavar="RECORD", help=text)
    action.add_argument("-o", "--output", type=Path, metavar="FILE", help="new file (default: standard output)")
    action.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from ansible_collections.busbar.fabric.plugins.plugin_utils import cabling_draft, cabling_plan

    try:
        made = cabling_draft.read(arguments.record)
        head = "".join(f"# {printable(line)}\n" for line in made.says)
        return _write(head + cabling_plan.write(made.plan), arguments.output, made.doubts)
    except cabling_plan.UnfitError as error:
        return _fail("plan", "nothing is drafted of a fabric that may lack a cable:", *error.reasons)
    except ParseError as error:
        return _fail("plan", str(error))


def _write(text: str, output: Path | None, doubts: Sequence[str]) -> int:
    if output is None:
        print(text, end="")
    else:
        try:
            with output.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            return _fail("", f"{output} exists, and is never overwritten: remove it, or write elsewhere and compare")
        print(f"written to {output}", file=sys.stderr)
    _doubt(doubts)
    return FINDINGS if doubts else GOOD


def _doubt(doubts: Sequence[str]) -> None:
    for doubt in doubts:
        print(f"look at this before you use it: {printable(doubt)}", file=sys.stderr)


def _fail(action: str, *messages: str) -> int:
    for message in messages:
        print(f"busbar fabric{' ' if action else ''}{action}: {printable(message)}", file=sys.stderr)
    return ERROR
