# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar fabric plan``: draft a cabling plan of a sweep.

Doubts about the draft are findings.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, FINDINGS, GOOD

from .command_line import complain, print_list


def add(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    text = "draft a cabling plan for review"
    action = actions.add_parser("plan", help=text, description=f"{text.capitalize()}.")
    text = "record of playbooks/fabric.yml (file or directory), or a directory of dumps"
    action.add_argument("record", type=Path, metavar="RECORD", help=text)
    action.add_argument("-o", "--output", type=Path, metavar="FILE", help="new file (default: standard output)")
    action.add_argument("-v", "--verbose", action="store_true", help="print each doubt, not one screen")
    action.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import draft as cabling_draft

    try:
        made = cabling_draft.read(arguments.record)
    except cabling_plan.UnfitError as error:
        lines = ["nothing is drafted of a fabric that may lack a cable:", *error.reasons]
        print_list((f"busbar fabric plan: {line}" for line in lines), "" if arguments.verbose else "-v", "reason")
        return ERROR
    except ParseError as error:
        return complain("fabric plan", str(error))
    head = "".join(f"# {printable(line)}\n" for line in made.says)
    text = head + cabling_plan.write(made.plan)
    if arguments.output is None:
        print(text, end="")
    else:
        try:
            with arguments.output.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except FileExistsError:
            message = f"{arguments.output} exists, and is never overwritten: remove it, or write elsewhere and compare"
            return complain("fabric plan", message)
        print(f"written to {arguments.output}", file=sys.stderr)
    if made.doubts:
        lines = [f"look at this before you use it: {doubt}" for doubt in made.doubts]
        print_list(lines, "" if arguments.verbose else "-v", "doubt")
    return FINDINGS if made.doubts else GOOD
