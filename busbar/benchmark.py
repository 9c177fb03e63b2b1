# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar benchmark``: print the table of a stored result, or compare it with another, with the noise of both."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    benchmark_results,
    results_compare,
    screen,
    sharp_judge,
    terminal,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import of_states, worst

from .command_line import complain, number


def add(command: argparse.ArgumentParser) -> None:
    text = "results of a node (file), of a run (directory) or cluster.json"
    command.add_argument("result", type=Path, metavar="RESULT", help=text)
    command.add_argument("--against", type=Path, metavar="OTHER", help="compare with this earlier result")
    command.add_argument("-v", "--verbose", action="store_true", help="print the whole table, not one screen")
    text = "with --against: print every size of every run as JSON"
    command.add_argument("--json", action="store_true", help=text)
    text = "with --against: noise of unrepeated figures, which are not judged without it"
    percent = number(0, 100, "number of percent")
    command.add_argument("--noise", type=lambda text: percent(text) / 100, metavar="PERCENT", help=text)
    text = "with --against: compare different versions of NCCL or nccl-tests, too"
    command.add_argument("--across-versions", action="store_true", help=text)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Return the worst exit code of the findings that are stored, or of the comparison."""
    if arguments.against is None and (arguments.json or arguments.noise is not None or arguments.across_versions):
        return complain("benchmark", "--json, --noise and --across-versions need --against OTHER")
    try:
        return _compare(arguments) if arguments.against else _print(arguments.result, arguments.verbose)
    except (OSError, ParseError) as error:
        return complain("benchmark", error)


def _print(path: Path, verbose: bool) -> int:
    records, nodes = benchmark_results.read(path)
    for node in nodes.values():
        node["runs"] = [{**run, "stored": True} for run in node["runs"]]
    tables = [cluster_table.render_nodes(nodes, time.time(), terminal.WIDTH)] * bool(nodes)
    tables += [cluster_table.render(record, terminal.COLUMNS) for record in records]
    print("\n\n".join(screen.cut(table, terminal.WIDTH, "-v", verbose) for table in tables))
    judged = [*(one["state"] for node in nodes.values() for one in node["findings"])]
    judged += [one.state for record in records for one in record.findings]
    passed = any(node["passed"] for node in nodes.values()) or any(record.passed for record in records)
    return of_states(judged or ([] if passed else ["unknown"]))


def _compare(arguments: argparse.Namespace) -> int:
    before, after = benchmark_results.load(arguments.against), benchmark_results.load(arguments.result)
    found = results_compare.compare(before, after, arguments.noise, arguments.across_versions)
    sharp = sharp_judge.of_two(before.records, after.records)
    if arguments.json:
        more = {"sharp": [one.to_dict() for one in sharp]} if sharp else {}
        print(json.dumps({**results_compare.to_dict(before, after, found), **more}, indent=1))
    else:
        print(results_compare.render(before, after, found, terminal.COLUMNS))
        for line in cluster_table.wrapped(sharp_judge.sentences(sharp), terminal.COLUMNS):
            print(line)
    if not sharp:
        return results_compare.exit_code(found)
    # With SHARP and without are two kinds of run, of which the findings tell.
    found = [one for one in found if one.size is not None or one.collective != "all_reduce"]
    return worst([sharp_judge.exit_code(sharp), *([results_compare.exit_code(found)] if found else [])])
