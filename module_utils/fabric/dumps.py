# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sweeps of what somebody has written down: a directory of outputs of tools, each folder in it a plane of its own.

What a file holds is seen by its lines and not by its name; a file may hold outputs of several tools one after another,
and what the tools said on stderr. What is of none of them is named, and the sweep is not complete.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, ReadError
from . import db_csv, iblinkinfo, ibnetdiscover, ibqueryerrors, merge, subnet_manager, told
from .sweep import Sweep
from .told import Told

# Bytes of one file: ibdiagnet's of 10,000 ports has some 40 MB.  Files of one plane, and planes of one directory.
FILE, FILES, PLANES = 256 << 20, 200, 64
_DB_CSV = "db_csv"
# The first line of an output, or any that is of no other tool's.
_SIGNS: Tuple[Tuple[str, re.Pattern[str]], ...] = (
    ("ibnetdiscover", re.compile(r"# Topology file: generated|vendid=0x|(?:Switch|Ca|Rt)\s*[0-9]+\s*\"[SHR]-")),
    ("ibnetdiscover -p", re.compile(r"(?:SW|CA|RT)\s+[0-9]+\s+[0-9]+ 0x[0-9a-f]{16} ")),
    ("iblinkinfo", re.compile(r'0x[0-9a-f]{16} ".*==\(|Switch: 0x[0-9a-f]{16} |(?:CA|Router): .*:$')),
    ("ibqueryerrors", re.compile(r'(?:Errors|Data Counters) for (?:0x[0-9a-f]+ )?"|## Summary: ')),
    ("sminfo", re.compile(r"sminfo: ")),
    ("saquery SMIR", re.compile(r"SMInfoRecord dump:")),
    ("opensm.log", subnet_manager.LOG_LINE),
    ("unhealthy ports", subnet_manager.UNHEALTHY_LINE),
    (_DB_CSV, re.compile(r"START_[A-Z0-9_]+\s*$")),
)
_PARSERS: Dict[str, Callable[[str, str], Told]] = {
    "ibnetdiscover": ibnetdiscover.parse,
    "ibnetdiscover -p": ibnetdiscover.parse_ports,
    "iblinkinfo": iblinkinfo.parse,
    "sminfo": subnet_manager.parse_sminfo,
    "saquery SMIR": subnet_manager.parse_records,
    "opensm.log": subnet_manager.parse_log,
    "unhealthy ports": subnet_manager.parse_unhealthy,
    _DB_CSV: db_csv.parse,
}
_COUNTING = ("ibqueryerrors", _DB_CSV)
# What a tool says on stderr where that was caught, too, and a shell's prompt before a command.
_STDERR = re.compile(r"ibwarn: |ibpanic: |.*\bumad \(DR path|.*\bbad status [0-9]+|[a-z]+: iberror: ")
_PROMPT = re.compile(r"(?:\[[^\]]+@[^\]]+\]|[\w.-]+@[\w.-]+:\S*)? ?[#$] .*")


def read(host: Host, folder: str) -> Tuple[Sweep, ...]:
    """A sweep of the files in it, and one of each folder in it. Raises ReadError and ParseError where there is none."""
    if not os.path.isdir(host.system(folder)):
        raise ReadError(folder, "is not a directory on this host")
    names = host.listdir_system(folder)
    below = [name for name in names if os.path.isdir(host.system("%s/%s" % (folder, name)))]
    if len(below) > PLANES:
        raise ParseError(
            "%s holds %d folders, expected one for each of at most %d planes" % (folder, len(below), PLANES)
        )
    places = [folder, *("%s/%s" % (folder, name) for name in below)]
    found = [one for one in (_plane(host, place) for place in places) if one is not None]
    if not found:
        raise ParseError(
            "%s holds no file; write outputs of ibnetdiscover, iblinkinfo --line and others there" % folder
        )
    return tuple(found)


def _plane(host: Host, folder: str) -> Optional[Sweep]:
    """Of the files right in it; None where there are none."""
    paths = ["%s/%s" % (folder, name) for name in host.listdir_system(folder)]
    paths = [path for path in paths if not os.path.isdir(host.system(path))]
    if not paths:
        return None
    problems: List[Problem] = []
    if len(paths) > FILES:
        problems.append(told.problem(folder, "holds %d files, of which %d were read" % (len(paths), FILES)))
    outputs: List[Tuple[str, Told]] = []
    newest = 0.0
    for path in paths[:FILES]:
        try:
            text = host.read_system(path, errors="replace", limit=FILE)
            newest = max(newest, os.stat(host.system(path)).st_mtime)
        except ReadError as error:
            problems.append(told.problem(error.problem.source, error.problem.message))
            continue
        except OSError as error:
            problems.append(told.problem(path, "cannot be read: %s" % error.strerror))
            continue
        outputs += parse(text or "", path, problems)
    return join(outputs, problems, at=newest)


def join(outputs: Sequence[Tuple[str, Told]], problems: Sequence[Problem], at: float) -> Sweep:
    """One sweep of outputs, each with the name of its tool. The topology is believed first: it knows nodes by name."""
    tools = [tool for tool, _said in outputs]
    order = ["ibnetdiscover", _DB_CSV, "iblinkinfo", "ibnetdiscover -p", "sminfo", "saquery SMIR", "opensm.log"]
    order.append("unhealthy ports")
    merged = merge.Merged()
    said = [one for name in order for tool, one in outputs if tool == name]
    for one in said:
        merged.add(one)
    counting = [one for tool, one in outputs if tool in _COUNTING and (one.counters or tool == "ibqueryerrors")]
    if counting:
        merged.count(counting)
    source = _DB_CSV if set(tools) == {_DB_CSV} else "dumps"
    return merged.sweep(said, problems, at=at, source=source)


def parse(text: str, source: str, problems: List[Problem]) -> List[Tuple[str, Told]]:
    """Each output in a text, by the name of its tool. What is of none is added to problems."""
    found: List[Tuple[str, Told]] = []
    nobodys: List[str] = []
    outputs, complaints_of_none = _outputs(text.splitlines(), nobodys)
    for tool, lines, complaints in outputs:
        name = "%s (%s)" % (source, tool)
        body, stderr = "\n".join(lines), "\n".join(complaints)
        if tool == "ibqueryerrors":
            found.append((tool, ibqueryerrors.parse(body, stderr, name)))
            continue
        one = _PARSERS[tool](body, name)
        one.partial += told.complaints(stderr)
        found.append((tool, one))
    problems += [told.problem(source, said) for said in told.complaints("\n".join(complaints_of_none))]
    if nobodys:
        said = "%d lines belong to no known output, the first: %s" % (len(nobodys), nobodys[0])
        problems.append(told.problem(source, said))
    elif not found and not complaints_of_none and not source.endswith((".err", ".stderr")):
        problems.append(told.problem(source, "is empty"))
    return found


def _outputs(lines: Sequence[str], nobodys: List[str]) -> Tuple[List[Tuple[str, List[str], List[str]]], List[str]]:
    """(tool, its lines, what it said on stderr) of each, and what of stderr is of none of them.

    Lines of other outputs are left empty, so that numbers stay.   nobodys: lines of no output are added to it.
    """
    found: List[Tuple[str, List[str], List[str]]] = []
    tool, ended = "", False
    before: List[str] = []
    for number, line in enumerate(lines):
        if tool != _DB_CSV:
            if _PROMPT.fullmatch(line) and not line.startswith("# "):
                tool, ended = "", False
                continue
            if tool != "opensm.log" and _STDERR.match(line) and not line.startswith("sminfo: sm lid"):
                (found[-1][2] if tool else before).append(line)
                continue
            sign = next((name for name, pattern in _SIGNS if pattern.match(line)), None)
            again = sign == tool and (ended or line.startswith("# Topology file"))
            # Counters of a port are distinguished from its errors by the line before them only.
            if sign is not None and (sign != tool or again):
                tool, ended = sign, False
                found.append((tool, [""] * number, before))
                before = []
            ended = ended or line.startswith("## Suppressed:")
        if tool:
            body = found[-1][1]
            body += [""] * (number - len(body))
            body.append(line)
        elif line.strip() and not line.startswith("#"):
            nobodys.append("line %d, %s" % (number + 1, told.shown(line)))
    return found, before
