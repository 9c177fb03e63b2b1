# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read sweeps from files: a directory of outputs of tools, each folder in it a plane.

Outputs are recognised by their lines, not by file names; a file holds one, and perhaps what the tool printed on stderr.
Other lines are reported, and make the sweep incomplete.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

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
# What a fabric that is not swept from here is to be read by.
_RUN = "run ibnetdiscover, iblinkinfo --line, sminfo and ibqueryerrors --counters, each into a separate file"
# Lines of stderr, which may be in the same file.
_STDERR = re.compile(r"ibwarn: |ibpanic: |.*\bumad \(DR path|.*\bbad status [0-9]+|[a-z]+: iberror: ")


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
    """Return the output in a text with the name of its tool; [], and a problem, where it is none that is known."""
    lines = text.splitlines()
    tool = next((name for line in lines for name, (sign, _parser) in _TOOLS.items() if sign.match(line)), "")
    # Lines of other files may look like those of stderr.
    body = lines if tool in (_DB_CSV, _LOG) else ["" if _is_complaint(line) else line for line in lines]
    stderr = "\n".join(line for line, kept in zip(lines, body) if line != kept)
    name = "%s (%s)" % (source, tool) if tool else source
    if tool == _ERRORS:
        output = discovery.parse_ibqueryerrors("\n".join(body), stderr, name)
    else:
        output = _TOOLS[tool][1]("\n".join(body), name) if tool else ToolOutput(name)
        output.complain(stderr)
    if not tool:
        unknown = [line for line in body if line.strip() and not line.startswith("#")]
        if unknown:
            output.partial.append("is no known output, begins with %s; %s" % (tool_output.quote(unknown[0]), _RUN))
        elif not stderr and not source.endswith((".err", ".stderr")):
            output.partial.append("is empty")
        problems += output.missing()
        return []
    is_file = tool.startswith((_DB_CSV, _LOG, "unhealthy", "ibdiagnet"))
    hint = "; copy the whole file" if is_file else "; store all that `%s` prints" % tool
    if output.cut:
        output.cut += hint
    elif output.odd_lines:
        output.odd_lines[-1] += hint
    return [(tool, output)]


def _is_complaint(line: str) -> bool:
    return bool(_STDERR.match(line)) and not line.startswith("sminfo: sm lid")
