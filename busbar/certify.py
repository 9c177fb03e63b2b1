# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar certify``: answer a buyer's acceptance test from what the nightly check has read, without asking a node."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, codec, results_folder, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.certify import record, sheet
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD

from .command_line import complain
from .drift import output

# Bytes of a findings file, of which 1,000 hosts have 60 MB, and of the buyer's.
LIMIT, VALUES_LIMIT = 512 << 20, 64 << 20
T = TypeVar("T")


def add(command: argparse.ArgumentParser) -> None:
    text = "file of busbar drift --findings or busbar_findings_path (several: the latest of each check)"
    command.add_argument("findings", nargs="+", type=Path, metavar="FINDINGS", help=text)
    text = "audit.values.json that the buyer's cmax audit has written"
    command.add_argument("--answers", type=Path, metavar="FILE", help=text)
    command.add_argument("--markdown", metavar="FILE", help="write the sheet, with all evidence (- for the terminal)")
    command.add_argument("--json", metavar="FILE", help="write the sheet as JSON (- for the terminal)")
    text = "store the sheet in DIRECTORY/certify, for the report of busbar drift"
    command.add_argument("--results", type=Path, metavar="DIRECTORY", help=text)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    today = accepted.today()
    try:
        files = [_read(path, LIMIT, lambda data: sheet.proofs(data, today)) for path in arguments.findings]
        asked = _read(arguments.answers, VALUES_LIMIT, sheet.values) if arguments.answers else None
    except (OSError, ParseError) as error:
        return complain("certify", error)
    known = sheet.joined(files)
    rows = sheet.answer(known, asked)
    if arguments.markdown:
        source = ", ".join(map(str, arguments.findings))
        output.write(arguments.markdown, "\n".join(sheet.markdown(rows, known, source)) + "\n")
    data = json.dumps(sheet.to_dict(rows, known), indent=1) + "\n"
    if arguments.json:
        output.write(arguments.json, data)
    if arguments.results:
        stored = record.file(arguments.results)
        stored.parent.mkdir(exist_ok=True)
        output.write(str(stored), data)
    if "-" not in (arguments.markdown, arguments.json):
        print(text(rows, known))
    return FINDINGS if any(row.answer == sheet.OPEN for row in rows) else GOOD


def _read(path: Path, limit: int, parse: Callable[[object], T]) -> T:
    """Return what ``parse`` makes of the JSON of a file. Raises OSError, and ParseError that names the file."""
    try:
        return parse(codec.read(results_folder.content(path, limit).decode(), limit))
    except (ParseError, ValueError) as error:
        raise ParseError(f"{path}: {printable(str(error)[:300])}") from None


def text(rows: list[sheet.Row], known: sheet.Proofs) -> str:
    """Return one screen: the number of each answer, and what is open."""
    counted = Counter(row.answer for row in rows)
    head = f"CERTIFY: {', '.join(f'{counted[one]} {one}' for one in sheet.ANSWERS if counted[one])}"
    left = sum(bool(host.invalid) for host in known.hosts.values())
    hosts = terminal.counted(len(known.hosts), "host")
    second = f"{hosts}, proofs of {known.at}" + (f", {left} without a result" if left else "")
    blocks = []
    for row in (row for row in rows if row.answer == sheet.OPEN):
        tool = f" (the tool: {row.tool})" if row.tool else ""
        lines = screen.wrapped(f"open  {row.criterion.subject}{tool}", terminal.WIDTH, 0, 1)
        blocks.append([*lines, *screen.wrapped(row.todo[0], terminal.WIDTH, 6, 1)])
    heads = [head + (" (simulated)" if known.simulated else ""), second, ""]
    return "\n".join(map(printable, screen.page(heads, blocks, (), terminal.WIDTH, "--markdown FILE", "open answer")))
