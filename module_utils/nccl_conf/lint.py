# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lint a nccl.conf, or a variable of a job, for lines that do not do what they look like.

NCCL reports nothing: a blank beside ``=`` makes another variable, and the only trace is a job that runs over TCP.
``lint`` compares what NCCL's reader (grammar) takes from a line with its intended meaning, and that with the variables
that the installed libraries read and the values that they take (lint_values).
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.finding import SEVERITIES, Finding
from . import checks, grammar, lint_values, net_plugins
from .lint_values import Fault, Use, filled, show, weight
from .variables import BUILD, NCCL_TESTS, NEVER, PYTORCH, VARIABLES, known_names, misspelt, reader, similar
from .version import NEWEST, format_version

_CANONICAL_LIMIT = 1000  # bytes of a name or value that no release cuts
_BLANKS = " \t\v\f"
_EXPORT = re.compile(r"[ \t]*(?:export|setenv|set|declare[ \t]+-x)[ \t]+(.*)", re.DOTALL)
_INLINE_COMMENT = re.compile(r"(?:^|[ \t]+)#")
_PLAIN = re.compile(r"[ -~\t]*")
_DUMP = ("minor", "It is a debugging output that every job would overwrite.")
# Name -> severity, why.
_WRONG_PLACE = {
    "NCCL_COMM_ID": ("critical", "It is the rendezvous address of one job; here every job would share it."),
    "NCCL_CONF_FILE": ("major", "Which files are read is settled before any of them is opened: here it does nothing."),
    "NCCL_HOSTID": ("major", "Ranks with equal values are taken for one machine, and a copied file makes them equal."),
    **{"NCCL_%s_DUMP_FILE%s" % (what, rank): _DUMP for what in ("GRAPH", "TOPO") for rank in ("", "_RANK")},
}


def lint(text: str, use: Use, path: str) -> List[Finding]:
    """Return the faults of a file, its name being ``path``; [] for a canonical file whose lines are all effective."""
    findings = []
    if not use.versions:
        want, have = "a readable libnccl.so.2 or a version", "neither a library nor a version is known"
        findings.append(checks.LINT_LIBRARY.judge(path, "unknown", want, have))
    if text.startswith("\ufeff"):
        findings.append(checks.BOM.judge(path, "drift", "a file that starts with its first line", "byte order mark"))
        text = text[1:]

    plugin = net_plugins.of_settings(grammar.settings(grammar.parse(text)))
    use = use._replace(plugin=plugin or use.plugin)
    raws = grammar.rows(text)
    lines = [grammar.whole(number, raw[: -1 if raw.endswith("\r") else None]) for number, raw in enumerate(raws, 1)]
    returned = [line for line, raw in zip(lines, raws) if raw.endswith("\r")]
    if returned:
        old = not use.versions or use.before(grammar.STRIPS_CR)
        pairs = [(line.name or "", line.value or "") for line in returned if line.name is not None and old]
        costs = [_cost(name, value + "\r", value) for name, value in pairs]
        severity = min(costs, key=SEVERITIES.index, default="minor")
        want, have = "lines that end in a line feed alone", "%d lines end in a carriage return" % len(returned)
        where = "%s:%d" % (path, returned[0].number)
        findings.append(checks.CARRIAGE_RETURN.judge(path, "drift", want, have, where, severity=severity))
    return findings + _line_findings(lines, use, path)


def _line_findings(lines: Sequence[grammar.Line], use: Use, path: str) -> List[Finding]:
    seen: Dict[str, grammar.Line] = {}
    judgements: List[Tuple[grammar.Line, str, List[Fault]]] = []
    for line in lines:
        faults = list(_line_faults(line, use))
        if line.name is None or line.value is None:
            judgements.append((line, "", faults))
            continue
        name, value, spelling = _clean(line.name, line.value)
        judgements.append((line, name, faults))
        if _is_indented_comment(line.raw):
            continue
        first = seen.setdefault(line.name, line)
        if first is not line:
            severity = "minor" if line.value == first.value else "major"
            faults.append(filled(checks.DUPLICATE, "each name once", first.number, severity=severity))
            continue
        faults += [*spelling, *_meaning_faults(name, value, use)]
    findings = []
    for line, name, faults in judgements:
        where = "%s:%d" % (path, line.number)
        findings += _judged(faults, "%s %s" % (where, show(name, 80)) if name else where, where, show(line.raw))
    return findings


def lint_variable(name: str, value: str, where: str, use: Use) -> List[Finding]:
    """Return the faults of a variable that is set outside nccl.conf; worst first. where: FILE:LINE."""
    bare = value.strip(_BLANKS + "\r\n").strip("\"'")
    faults = []
    if bare != value:
        why = "NCCL trims nothing and knows no quotes: the characters around the value become a part of it."
        want = show("%s=%s" % (name, bare))
        faults.append(Fault(checks.QUOTES, want, why, "Write %s." % want, _cost(name, value, bare)))
    faults += _meaning_faults(name, bare, use)
    found = _judged(faults, "%s %s" % (where, show(name, 80)), where, show("%s=%s" % (name, value)))
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _judged(faults: Iterable[Fault], subject: str, source: str, have: str) -> List[Finding]:
    """A finding of each; of several with the same check, of the first."""
    first: Dict[str, Fault] = {}
    for fault in faults:
        first.setdefault(fault.check.id, fault)
    return [
        one.check.judge(subject, one.state, one.want, have, source, one.fix, why=one.why, severity=one.severity)
        for one in first.values()
    ]


def _meaning_faults(name: str, value: str, use: Use) -> List[Fault]:
    """Return faults of a name and a value that have no stray characters."""
    of_name = _name_fault(name, use)
    return [of_name] if of_name is not None else list(lint_values.faults(name, value, use)) if value else []


def _name_fault(name: str, use: Use) -> Optional[Fault]:
    """Return why no program reads this variable, or why it should not stand in ``use.place``."""
    program = reader(name)
    foreign, why = checks.FOREIGN_VARIABLE, ""
    if name in NEVER:
        return Fault(checks.NEVER_EXISTED, None, checks.NEVER_EXISTED.why % name, NEVER[name])
    if name in PYTORCH:
        why = "NCCL does not read %s. PyTorch does, as the old name of TORCH_%s, before NCCL reads a file."
        return Fault(foreign, "TORCH_" + name, why % (name, name), "Set TORCH_%s in the job." % name)
    if program == NCCL_TESTS and use.place == "file":
        why = "%s is read by nccl-tests, before NCCL reads this file." % name
        return Fault(checks.WRONG_PLACE, None, why, "Set it where the test is started.")
    if program not in (None, "library") and (program != BUILD or use.place != "file"):
        return None
    if not name.startswith("NCCL_"):
        close = similar(name.upper(), VARIABLES, 0.85)
        if close:
            why = "NCCL reads no variable %s; names are matched exactly." % show(name, 80)
            return Fault(checks.UNKNOWN_VARIABLE, close, why, "Write %s." % close)
        return Fault(foreign, None, foreign.why % show(name, 80))
    if name in _WRONG_PLACE and use.place != "job" and (name, use.place) != ("NCCL_CONF_FILE", "environment"):
        severity, why = _WRONG_PLACE[name]
        return Fault(checks.WRONG_PLACE, None, why, severity=severity)
    if use.place != "file" and program is None and not misspelt(name):
        why = "%s is not a variable of NCCL or of a plugin that Busbar knows." % show(name, 80)
        return Fault(foreign, None, why, "Remove the line if no program or script of yours reads it.")
    return _never_read(name, use)


def _never_read(name: str, use: Use) -> Optional[Fault]:
    variable = VARIABLES.get(name)
    readers = [
        ("%s (%s)" % (show(one.path), format_version(one.version)), one.version, one.names) for one in use.libraries
    ]
    readers = readers or [("NCCL %s" % format_version(one), one, known_names(one)) for one in use.versions]
    if not readers:
        # Which release reads the file is not known: only what none of the last years reads is certain.
        if variable is not None and (variable.removed is None or variable.removed > (2, 18, 1)):
            return None
        readers = [("NCCL %s" % format_version(NEWEST), NEWEST, frozenset())]
    lacking = [version for _place, version, names in readers if name not in names]
    if not lacking:
        return None
    where = ", ".join(place for place, _version, names in readers if name not in names)
    severity = "major" if len(lacking) == len(readers) else "minor"
    if variable is not None and variable.removed is not None and min(lacking) >= variable.removed:
        why = checks.DEAD_VARIABLE.why % (name, format_version(variable.removed), where)
        return Fault(checks.DEAD_VARIABLE, None, why, severity=severity)
    why = checks.UNKNOWN_VARIABLE.why % (show(name, 80), where)
    if variable is not None and variable.since is not None and max(lacking) < variable.since:
        why += " The first release that reads it is %s." % format_version(variable.since)
        return Fault(checks.UNKNOWN_VARIABLE, None, why, "Remove the line until that release is installed.", severity)
    if not use.libraries and variable is None and max(lacking) > NEWEST:
        why = "Whether %s reads %s is not known: the table ends with %s." % (
            *(where, show(name, 80), format_version(NEWEST)),
        )
        fix = "Name the library (busbar_nccl_libraries; --library)."
        return Fault(checks.UNKNOWN_VARIABLE, None, why, fix, severity, "unknown")
    known: Set[str] = set().union(*(library.names for library in use.libraries)) if use.libraries else {*VARIABLES}
    close = misspelt(name) or similar(name, sorted(known), 0.8)
    fix = "Write %s, if that was meant." % close if close else "Remove the line."
    return Fault(checks.UNKNOWN_VARIABLE, close, why, fix, severity)


def _cost(name: str, read: str, meant: str) -> str:
    """Severity of a value that NCCL reads as ``read``: none but looks where it yields the same number as ``meant``."""
    same = _reads_integer(name) and grammar.strtoll(read)[0] == grammar.strtoll(meant)[0]
    return "minor" if same else weight(name)


def _reads_integer(name: str) -> bool:
    return name in VARIABLES and VARIABLES[name].kind == "int"


def conflicts(meant: Mapping[str, str], other: Mapping[str, str], other_path: str) -> List[Finding]:
    """Return variables that a file read before ours sets otherwise: the first definition wins, ours has no effect.

    other: what that file sets: ``settings(parse(...))`` for ~/.nccl.conf, the pairs of /etc/environment.
    """
    found = []
    for name in sorted(set(meant) & set(other)):
        if meant[name] != other[name]:
            subject, fix = "%s %s" % (other_path, show(name, 80)), checks.CONFLICT.fix % other_path
            want, have = show(meant[name]), show(other[name])
            found.append(checks.CONFLICT.judge(subject, "drift", want, have, other_path, fix, severity=weight(name)))
    return found


def _is_indented_comment(raw: str) -> bool:
    return raw[:1] != "#" and raw.lstrip(_BLANKS).startswith("#")


def _line_faults(line: grammar.Line, use: Use) -> Iterator[Fault]:
    """Yield faults of a line as a whole, before its name and value are judged."""
    raw = line.raw
    if not _PLAIN.fullmatch(raw):
        severity = "minor" if line.kind == "comment" else weight(line.name or "")
        yield Fault(checks.CHARACTER, "printable ASCII", severity=severity)
    if line.kind == "comment":
        old = use.before(grammar.COMMENTS)
        if old and "=" in raw:
            yield filled(checks.COMMENT_ASSIGNMENT, "a comment without =", old)
    elif _is_indented_comment(raw):
        yield Fault(checks.INDENTED_COMMENT, show(raw.lstrip(_BLANKS)))
    elif line.kind == "ignored":
        if raw.strip(_BLANKS):
            yield Fault(checks.NO_ASSIGNMENT, "NAME=VALUE")
    else:
        name, _equals, value = raw.partition("=")
        of_name, longest = len(grammar.encoded(name)), max(len(grammar.encoded(part)) for part in (name, value))
        if longest > _CANONICAL_LIMIT:
            crash = use.before(grammar.SAFE_NAMES) if of_name > grammar.LIMIT else None
            severity = "critical" if crash else "major" if longest > grammar.LIMIT else "minor"
            why = checks.TOO_LONG.why + (" %s overruns its buffer and ends the job." % crash if crash else "")
            yield Fault(checks.TOO_LONG, "at most %d bytes" % _CANONICAL_LIMIT, why, severity=severity)
        if not value:
            yield Fault(checks.EMPTY_VALUE, "a value, or no line")


def _clean(name: str, value: str) -> Tuple[str, str, List[Fault]]:
    """Return the intended name and value, and the faults between them and what NCCL reads."""
    faults = []
    export = _EXPORT.match(name)
    meant = (export.group(1) if export else name).strip(_BLANKS)
    if export:
        faults.append(filled(checks.EXPORT, show("%s=%s" % (meant, value)), show(name, 80), show(meant, 80)))
    comment = _INLINE_COMMENT.search(value)
    bare = value[: comment.start()] if comment else value
    stripped = bare.strip(_BLANKS)
    unquoted = stripped.strip("\"'")
    want = show("%s=%s" % (meant, unquoted))
    if bare != value:
        faults.append(Fault(checks.INLINE_COMMENT, want, severity=_cost(meant, value, unquoted)))
    lost = meant != name and not export
    if lost or stripped != bare:
        what = "name, and the variable stays unset" if lost else "value"
        faults.append(filled(checks.BLANK, want, what, severity="major" if lost else _cost(meant, bare, stripped)))
    if unquoted != stripped:
        number = "the value is no longer a number and reads as 0"
        what = number if _reads_integer(meant) else "they become a part of the value"
        faults.append(filled(checks.QUOTES, want, what, severity=_cost(meant, stripped, unquoted)))
    return meant, unquoted, faults
