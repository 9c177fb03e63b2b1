# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read sweeps from files: a directory of outputs of tools, each folder in it a plane.

Outputs are recognised by their lines, not by file names; a file may hold several outputs one after another, and stderr.
Other lines are reported, and make the sweep incomplete.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, ReadError
from . import db_csv, discovery, merge, subnet_manager, tool_output
from .sweep import Sweep
from .tool_output import ToolOutput

# Bytes of one file: ibdiagnet's of 10,000 ports has some 40 MB.  Files of one plane, and planes of one directory.
FILE, FILES, PLANES = 256 << 20, 200, 64
_DB_CSV, _ERRORS, _LOG = "db_csv", "ibqueryerrors", "opensm.log"
# Name, which is its command -> a line that only this output has, and its parser. In the order of trust: the topology
# names nodes.
_TOOLS: Dict[str, Tuple[re.Pattern[str], Callable[[str, str], ToolOutput]]] = {
    "ibnetdiscover": (
        re.compile(r"# Topology file: generated|vendid=0x|(?:Switch|Ca|Rt)\s*[0-9]+\s*\"[SHR]-"),
        discovery.parse_ibnetdiscover,
    ),
    _DB_CSV: (re.compile(r"START_[A-Z0-9_]+\s*$"), db_csv.parse),
    "iblinkinfo": (
        re.compile(r'0x[0-9a-f]{16} ".*==\(|Switch: 0x[0-9a-f]{16} |(?:CA|Router): .*:$'),
        discovery.parse_iblinkinfo,
    ),
    "sminfo": (re.compile(r"sminfo: "), subnet_manager.parse_sminfo),
    "saquery SMIR": (re.compile(r"SMInfoRecord dump:"), subnet_manager.parse_records),
    _LOG: (subnet_manager.LOG_LINE, subnet_manager.parse_log),
    "unhealthy ports": (subnet_manager.UNHEALTHY_LINE, subnet_manager.parse_unhealthy),
    "ibdiagnet2.pm": (db_csv.PM_LINE, db_csv.parse_pm),
    _ERRORS: (
        re.compile(r'(?:Errors|Data Counters) for (?:0x[0-9a-f]+ )?"|## Summary: '),
        lambda text, source: discovery.parse_ibqueryerrors(text, "", source),
    ),
}
# Forms of output that are recognised and not read -> the command to run in their place.
_UNREADABLE = (
    (re.compile(r"(?:Ca|Switch)\t: 0x[0-9a-f]{16} ports "), "ibnetdiscover"),
    (re.compile(r"(?:SW|CA|RT)\s+[0-9]+\s+[0-9]+ 0x[0-9a-f]{16} "), "ibnetdiscover without -p"),
    (re.compile(r"CA '[\w.-]+'$|Infiniband device '"), "ibnetdiscover and sminfo"),
    (re.compile(r"PortSelect:\."), "ibqueryerrors --counters"),
    (re.compile(r"BaseVers:\.|Mkey:\.|NodeRecord dump:"), "ibnetdiscover"),
    (re.compile(r"-[IWE]- |[{\[]\s*$|[{\[].*\"|<"), "ibdiagnet, and store its ibdiagnet2.db_csv"),
    (re.compile(r"[^\n]*[\x00-\x08]"), "ibnetdiscover without --cache"),
    (re.compile(""), "ibnetdiscover, iblinkinfo --line, sminfo and ibqueryerrors --counters"),
)
# Lines of stderr, and a shell's prompt before a command.
_STDERR = re.compile(r"ibwarn: |ibpanic: |.*\bumad \(DR path|.*\bbad status [0-9]+|[a-z]+: iberror: ")
_PROMPT = re.compile(r"(?:\[[^\]]+@[^\]]+\]|[\w.-]+@[\w.-]+:\S*)? ?[#$] .*")


class _Part(NamedTuple):
    """Lines of one output in a file. Lines of other outputs are empty, so that numbers stay."""

    tool: str
    lines: List[str]
    stderr: List[str]


def read(host: Host, folder: str) -> Tuple[Sweep, ...]:
    """Return a sweep of the files in a directory, and one of each folder in it.

    Raises ReadError and ParseError where there is none.
    """
    if not os.path.isdir(host.system(folder)):
        raise ReadError(folder, "is not a directory on this host")
    paths = ["%s/%s" % (folder, name) for name in host.listdir_system(folder)]
    folders = [path for path in paths if os.path.isdir(host.system(path))]
    if len(folders) > PLANES:
        raise ParseError("%s holds %d folders, expected one a plane, %d at most" % (folder, len(folders), PLANES))
    found = [sweep for sweep in (_plane(host, place) for place in [folder, *folders]) if sweep is not None]
    if not found:
        raise ParseError("%s holds no file; write outputs of ibnetdiscover, iblinkinfo --line etc. there" % folder)
    return tuple(found)


def _plane(host: Host, folder: str) -> Optional[Sweep]:
    """Return the sweep of the files of a directory; None where there are none."""
    paths = ["%s/%s" % (folder, name) for name in host.listdir_system(folder)]
    paths = [path for path in paths if not os.path.isdir(host.system(path))]
    text = "holds %d files, of which %d were read" % (len(paths), FILES)
    problems = [tool_output.problem(folder, text)] if len(paths) > FILES else []
    outputs: List[Tuple[str, ToolOutput]] = []
    newest = 0.0
    for path in paths[:FILES]:
        try:
            content = host.read_system(path, errors="replace", limit=FILE) or ""
            newest = max(newest, os.stat(host.system(path)).st_mtime)
            outputs += parse(content, path, problems)
        except ReadError as error:
            problems.append(tool_output.problem(error.problem.source, error.problem.message))
        except OSError as error:
            problems.append(tool_output.problem(path, "cannot be read: %s" % error.strerror))
    return join(outputs, problems, at=newest) if paths else None


def join(outputs: Sequence[Tuple[str, ToolOutput]], problems: Sequence[Problem], at: float) -> Sweep:
    """Return the sweep of outputs, each with the name of its tool."""
    merged = merge.Merged()
    for name in _TOOLS:
        for tool, output in outputs:
            if tool == name != _ERRORS:
                merged.add(output)
    counting = [output for tool, output in outputs if tool == _ERRORS or output.counters]
    if counting:
        merged.count(counting)
    source = _DB_CSV if {tool for tool, _output in outputs} == {_DB_CSV} else "dumps"
    return merged.sweep(problems, at=at, source=source)


def parse(text: str, source: str, problems: List[Problem]) -> List[Tuple[str, ToolOutput]]:
    """Return each output in a text with the name of its tool. Other lines are added to problems."""
    found: List[Tuple[str, ToolOutput]] = []
    unknown: List[Tuple[int, str]] = []
    parts, rest = _parts(text.splitlines(), unknown)
    for tool, lines, stderr in parts:
        name = "%s (%s)" % (source, tool)
        if tool == _ERRORS:
            output = discovery.parse_ibqueryerrors("\n".join(lines), "\n".join(stderr), name)
        else:
            output = _TOOLS[tool][1]("\n".join(lines), name)
            output.complain("\n".join(stderr))
        is_file = tool.startswith((_DB_CSV, _LOG, "unhealthy", "ibdiagnet"))
        hint = "; copy the whole file" if is_file else "; store all that `%s` prints" % tool
        if output.cut:
            output.cut += hint
        elif output.odd_lines:
            output.odd_lines[-1] += hint
        found.append((tool, output))
    of_none = ToolOutput(source)
    of_none.complain("\n".join(rest))
    if unknown:
        number, line = unknown[0]
        command = next(command for pattern, command in _UNREADABLE if pattern.match(line))
        text = "%d lines belong to no known output, the first: line %d, %s; run %s"
        of_none.partial.append(text % (len(unknown), number, tool_output.quote(line), command))
    elif not found and not rest and not source.endswith((".err", ".stderr")):
        of_none.partial.append("is empty")
    problems += of_none.missing()
    return found


def _parts(lines: Sequence[str], unknown: List[Tuple[int, str]]) -> Tuple[List[_Part], List[str]]:
    """Return the outputs, and lines of stderr that belong to none. unknown: lines of no output are added to it."""
    found: List[_Part] = []
    tool, ended = "", False
    before: List[str] = []
    for number, line in enumerate(lines):
        if tool != _DB_CSV:
            if _PROMPT.fullmatch(line) and not line.startswith("# "):
                tool, ended = "", False
                continue
            if tool != _LOG and _STDERR.match(line) and not line.startswith("sminfo: sm lid"):
                (found[-1].stderr if tool else before).append(line)
                continue
            sign = next((name for name, (pattern, _parser) in _TOOLS.items() if pattern.match(line)), None)
            # Counters of a port differ from its errors only by the line before them.
            if sign is not None and (sign != tool or ended or line.startswith("# Topology file")):
                tool, ended = sign, False
                found.append(_Part(tool, [""] * number, before))
                before = []
            ended = ended or line.startswith("## Suppressed:")
        if tool:
            body = found[-1].lines
            body += [""] * (number - len(body))
            body.append(line)
        elif line.strip() and not line.startswith("#"):
            unknown.append((number + 1, line))
    return found, before
