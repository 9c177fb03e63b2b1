# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar lint``: print how NCCL reads an nccl.conf, or the variables of a job script.

One unreadable file of several is UNKNOWN; ERROR where none can be read.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core import host as core_host
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import FILE_LIMIT, Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import gpu
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import checks, gdrcopy, grammar, net_plugins
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library as nccl_library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import lint as nccl_lint
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import variables as nccl_variables
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import parse_version
from ansible_collections.busbar.fabric.plugins.plugin_utils import screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, GOOD, UNKNOWN, of_states, worst

from . import job_containers, job_variables
from .command_line import complain

NOT_EXPORTED = Check(
    "nccl_conf.lint.not_exported",
    why="No program that the script starts gets it.",
    fix="Export it, or remove the line.",
)
"Does what the script starts get the variable that it sets (busbar lint alone)"

_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")


def run(
    paths: Sequence[str], libraries: Sequence[str], version: str | None, kind: str | None = None, verbose: bool = False
) -> int:
    """Lint files ("-": standard input) against libraries, or against a version where there is no library.

    kind: one of job_variables.KINDS for all of them; None: by each file's name and content.
    """
    try:
        wanted = parse_version(version) if version is not None else None
        use = Use([nccl_library.scan(path) for path in libraries], wanted, without_gdrcopy=_without_gdrcopy(Host()))
        if libraries and {*libraries} <= {*nccl_library.STANDARD_PATHS}:
            # They are installed here, so plugins have to be, too.
            use = use._replace(plugin_files=net_plugins.find(Host(), []))
    except (ParseError, ReadError) as error:
        return complain("lint", error)
    code = GOOD
    # Of each file that could be read, the number of variables that it sets.
    read: list[int] = []
    findings: list[Finding] = []
    for path in paths:
        name = "<stdin>" if path == "-" else path
        try:
            text = _read(path, name)
            of_file = kind or job_variables.kind_of(name, text)
            if of_file == "conf":
                findings += [*nccl_lint.lint(text, use, name), *_conflicts(text, path)]
                read.append(len(grammar.settings(grammar.parse(text))))
            else:
                job = job_variables.read(text, of_file)
                findings += _job(job, text, name, use)
                read.append(len(job.assignments))
        except (ReadError, ParseError) as error:
            code = complain("lint", error if isinstance(error, ReadError) else f"{name}: {error}", UNKNOWN)
    # That no library is known is printed below the findings.
    findings = [finding for finding in findings if finding.check != checks.LINT_LIBRARY.id]
    if read:
        _print(findings, read, bool(use.versions), verbose)
    return worst([code, of_states(finding.state for finding in findings)]) if read else ERROR


def _without_gdrcopy(host: Host) -> str:
    """Return what of GDRCopy's driver a GPU node lacks; "" on another machine."""
    return " and ".join(gdrcopy.lacking(host)) if host.realpath(gpu.VERSION) is not None else ""


def _print(findings: Sequence[Finding], files: Sequence[int], of_release: bool, verbose: bool) -> None:
    counts = Counter(finding.severity for finding in findings)
    detail = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    total = f"{terminal.counted(len(findings), 'finding')} in {terminal.counted(len(files), 'file')}"
    total += f" (no variable of NCCL in {files.count(0)})" if 0 in files else ""
    tail = [total + (f": {detail}" if detail else "")]
    if not of_release:
        tail.append("Checked only what holds for every release of NCCL; for yours add --library or --nccl-version.")
    blocks = _blocks(findings, verbose)
    whole = [line for block in blocks for line in block] + tail
    print("\n".join(whole if verbose else screen.page((), blocks, tail, terminal.COLUMNS, "busbar lint -v")))


def _job(job: job_variables.Job, text: str, name: str, use: Use) -> list[Finding]:
    findings: list[Finding] = []
    if "\r\n" in text and not job.documents:
        why = "A shell reads the carriage return as the last character of each line."
        findings.append(checks.CARRIAGE_RETURN.judge(name, "drift", "LF", "CR LF", name, why=why, severity="major"))
    used, anywhere = job_variables.expansions(text)
    given = {item.name for item in job.assignments if item.scope not in ("shell", "cut")}
    chosen = {item.name: item.value for item in job.assignments if item.value and not item.conditional}
    use = use._replace(place="job", plugin=net_plugins.of_settings(chosen))
    for item in job.assignments:
        where, reader = f"{name}:{item.line}", nccl_variables.reader(item.name)
        close = item.name in nccl_variables.NEVER or nccl_variables.misspelt(item.name)
        own = reader is None and (item.name in used or (item.name in anywhere and not close))
        if item.scope == "unread":
            have, fix = (
                f"{item.name} is behind a quote without end",
                "End what `bash -n` shows, or split a long command.",
            )
            why = "It is not judged: a quote before it does not end, or a command has more than 400 lines."
            findings.append(NOT_EXPORTED.judge(f"{where} {item.name}", "unknown", "an end", have, where, fix, why=why))
        if (item.scope in ("unclear", "unread") and item.value is None) or own:
            continue
        if item.scope not in ("shell", "cut") or (close and reader is None):
            findings += nccl_lint.lint_variable(item.name, item.value or "", where, use)
        elif (item.scope == "cut" or item.name not in used | given) and reader not in (None, nccl_variables.BUILD):
            export = f"export {item.name}=..."
            what = "is cut off at a blank or comma" if item.scope == "cut" else "is set for the shell alone"
            have = f"{item.name} {what}"
            fix = f"Write {export}, or remove the line."
            findings.append(NOT_EXPORTED.judge(f"{where} {item.name}", "drift", export, have, where, fix))
    return findings + job_containers.judge(job, text, name)


def _conflicts(text: str, path: str) -> list[Finding]:
    """Return settings read before /etc/nccl.conf on this machine that differ: the environment, ~/.nccl.conf."""
    meant = grammar.settings(grammar.parse(text))
    findings = nccl_lint.conflicts(meant, os.environ, "the environment")
    own = os.path.expanduser("~/.nccl.conf")
    if os.path.exists(own) and not (path != "-" and os.path.samefile(own, path)):
        findings += nccl_lint.conflicts(meant, grammar.settings(grammar.parse(_read(own, own))), own)
    return findings


def _read(path: str, name: str) -> str:
    """Return the text of a file with byte order mark and carriage returns: both are findings."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise ReadError(name, "is closed")
            data = sys.stdin.buffer.read(FILE_LIMIT + 1)
        else:
            with open(path, "rb") as stream:
                data = stream.read(FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ReadError(name, f"cannot be read: {reason}") from error
    if len(data) > FILE_LIMIT:
        raise ReadError(name, f"is larger than {FILE_LIMIT >> 20} MiB")
    return core_host.decode_text(data, name)


def _blocks(findings: Sequence[Finding], verbose: bool) -> list[list[str]]:
    """Return the lines of the findings, worst first; those that differ in variable and place share a block.

    verbose: each is a block.
    """
    blocks: dict[tuple[object, ...], list[str]] = {}
    places: dict[tuple[object, ...], list[str]] = {}
    for number, finding in enumerate(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))):
        severity = finding.severity if finding.state == "drift" else f"{finding.severity}, {finding.state}"
        rule = finding.check.rsplit(".", 1)[1]
        # A conflict has no line: its subject names variable and place.
        where = finding.subject if rule == "conflict" else finding.source
        words = (severity, rule, *(_VARIABLE.sub("", text) for text in (finding.why, finding.fix)))
        kind: tuple[object, ...] = (number,) if verbose else words
        head = f"{where}: {severity}: {finding.have or ''} [{rule}]"
        blocks.setdefault(kind, [printable(text) for text in (head, f"    {finding.why}", f"    {finding.fix}")])
        places.setdefault(kind, []).append(where)
    for kind, block in blocks.items():
        block[1:1] = screen.listed("    also ", places[kind][1:], terminal.COLUMNS, False)
    return [*blocks.values()]
