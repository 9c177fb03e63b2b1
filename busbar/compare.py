# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar compare``: two results of a benchmark, before and after, judged with the noise of both.

Something worse is a finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import worst

from .command_line import complain, number


def add(command: argparse.ArgumentParser) -> None:
    text = "results of a node (file), of a run (directory) or cluster.json"
    command.add_argument("before", type=Path, metavar="BEFORE", help=text)
    command.add_argument("after", type=Path, metavar="AFTER", help="the same of another run")
    command.add_argument("--json", action="store_true", help="print every size of every run as JSON")
    text = "noise of unrepeated figures; without it they are not judged"
    command.add_argument("--noise", type=_percent, metavar="PERCENT", help=text)
    text = "compare different versions of NCCL or nccl-tests, too"
    command.add_argument("--across-versions", action="store_true", help=text)
    command.add_argument("--plot", type=Path, metavar="DIRECTORY", help="write before-after.svg and .png there")
    command.set_defaults(run=run)


def _percent(text: str) -> float:
    return number(0, 100, "number of percent")(text) / 100


def run(arguments: argparse.Namespace) -> int:
    """Here, so that the other commands start without them."""
    from ansible_collections.busbar.fabric.plugins.plugin_utils import (
        benchmark_results,
        results_compare,
        sharp_judge,
        terminal,
    )

    try:
        before, after = benchmark_results.load(arguments.before), benchmark_results.load(arguments.after)
    except (OSError, ParseError) as error:
        return complain("compare", error)
    found = results_compare.compare(before, after, arguments.noise, arguments.across_versions)
    sharp = _sharp(arguments.before, arguments.after)
    if arguments.json:
        more = {"sharp": [one.to_dict() for one in sharp]} if sharp else {}
        print(json.dumps({**results_compare.to_dict(before, after, found), **more}, indent=1))
    else:
        print(results_compare.render(before, after, found, terminal.COLUMNS))
        for line in sharp_judge.sentences(sharp):
            print(textwrap.fill(printable(line), terminal.COLUMNS, subsequent_indent="  ", break_on_hyphens=False))
    if arguments.plot is not None:
        from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_plot

        arguments.plot.mkdir(parents=True, exist_ok=True)
        paths, problem = cluster_plot.plot_change(arguments.plot, before, after)
        print(problem or f"plots: {', '.join(map(str, paths))}", file=sys.stderr)
    if sharp:
        # With SHARP and without are two kinds of run, of which the findings tell.
        apart = [one for one in found if one.size is None and one.collective == "all_reduce"]
        found = [one for one in found if one not in apart]
        return worst([sharp_judge.exit_code(sharp), *([results_compare.exit_code(found)] if found else [])])
    return results_compare.exit_code(found)


def _sharp(before: Path, after: Path) -> list[Finding]:
    """Of two records of clusters where one was measured with SHARP and the other without; else nothing."""
    from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, sharp_judge

    try:
        records = [cluster_record.read(path) for path in (before, after)]
    except (ParseError, OSError):
        return []
    for one, other in (records[::-1], records):
        if sharp_judge.is_asked(one) and not sharp_judge.is_asked(other):
            return sharp_judge.judge(one, other)
    return []
