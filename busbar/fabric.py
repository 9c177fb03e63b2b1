# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar fabric plan``: draft a cabling plan of a sweep; doubts about the draft are findings.

``busbar fabric topology``: compare Slurm's topology with a sweep.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, FINDINGS, GOOD, UNKNOWN

from .command_line import complain, print_list


def add(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    record = "record of playbooks/fabric.yml (file or directory)"
    for name, run, text, given in (
        ("plan", _plan, "draft a cabling plan for review", f"{record}, or a directory of dumps"),
        ("topology", _topology, "compare Slurm's topology with a sweep", record),
    ):
        action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
        action.add_argument("record", type=Path, metavar="RECORD", help=given)
        if run is _plan:
            action.add_argument("-o", "--output", type=Path, metavar="FILE", help="new file (default: standard output)")
        else:
            action.add_argument("topology", type=Path, metavar="FILE", help="output of scontrol show topology")
        action.add_argument("-v", "--verbose", action="store_true", help="print every line, not one screen")
        action.set_defaults(run=run)


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
            return complain("fabric plan", f"{arguments.output} exists: remove it, or write elsewhere and compare")
        print(f"written to {arguments.output}", file=sys.stderr)
    if made.doubts:
        lines = [f"look at this before you use it: {doubt}" for doubt in made.doubts]
        print_list(lines, "" if arguments.verbose else "-v", "doubt")
    return FINDINGS if made.doubts else GOOD


def _topology(arguments: argparse.Namespace) -> int:
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan, record, slurm_topology
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric

    try:
        stored = record.read(arguments.record)
        source = str(arguments.topology)
        groups = slurm_topology.parse(cabling_plan.read_text(arguments.topology), source)
    except ParseError as error:
        return complain("fabric topology", str(error))
    if not stored.complete:
        text = f"{arguments.record}: the sweep is incomplete: run playbooks/fabric.yml again"
        return complain("fabric topology", text, UNKNOWN)
    found = slurm_topology.compare(groups, Fabric(Evidence(sweeps=stored.sweeps, hosts=stored.hosts)))
    print_list(found, "" if arguments.verbose else "-v", "difference")
    if not found:
        print(f"{len(groups)} switches or blocks of Slurm are groups of leaves of the fabric")
    return FINDINGS if found else GOOD
