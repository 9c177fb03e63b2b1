# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the files that the ranks of a job have written into one directory, and print a report on them."""

from __future__ import annotations

import json
import os
import re
import stat
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.recorder_findings import describe_ranks
from ansible_collections.busbar.fabric.plugins.plugin_utils import terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import of_states
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .command_line import complain

# Lines of the first screen, and findings on it.
LINES, FINDINGS = 12, 3
_MOST_FILES = 200_000
_CUT = " ..."
STOPPED, SLOW, DIFFERENT, OK, NOT_KNOWN = "stopped", "slow", "mismatch", "ok", "unknown"


class JobFilesError(Exception):
    """The directory does not hold the files of one job; the message says why."""


def walk(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory, sorted. Raises JobFilesError, OSError."""

    def fail(error: OSError) -> None:
        raise error

    count = 0
    for folder, folders, names in os.walk(directory, onerror=fail):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                raise JobFilesError(f"{directory} has more than {_MOST_FILES} files")
            yield Path(folder, name)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file; a pipe does not hold the command. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return open(descriptor, "rb")


class Report(NamedTuple):
    """verdict: STOPPED, SLOW, DIFFERENT, OK or NOT_KNOWN, and a sentence.   facts: a line.   details: of ``--all``.

    data: further keys of ``--json``.
    """

    verdict: tuple[str, str]
    findings: Sequence[Finding]
    facts: str
    details: Sequence[str]
    data: Plain


def run(make: Callable[[Path], Report], directory: str, as_json: bool, everything: bool) -> int:
    """Print the report on a directory. Return the exit code: what is missing for a verdict is a finding, too."""
    try:
        report = make(Path(directory))
    except (JobFilesError, OSError) as error:
        return complain("diagnose", error)
    if as_json:
        (word, sentence), found = report.verdict, [finding.to_dict() for finding in report.findings]
        print(json.dumps({"verdict": word, "sentence": sentence, **report.data, "findings": found}, indent=1))
    else:
        print("\n".join(map(printable, _screen(report, terminal.WIDTH, everything))))
    return of_states(finding.state for finding in report.findings)


def _screen(report: Report, width: int, everything: bool) -> list[str]:
    """Return the first screen, at most LINES lines; with ``--all`` every finding in full, and the details."""
    most, groups = 1000 if everything else 2, _groups(report.findings)
    shown = groups if everything else groups[:FINDINGS]
    word, sentence = report.verdict
    lines = wrap(f"verdict: {word if word != NOT_KNOWN else 'cannot tell'}: {sentence}", width, 1)
    for first, *others in shown:
        because = " (follows)" if first.because else ""
        subject = _subject([finding.subject for finding in (first, *others)])
        lines += wrap(f"{first.severity}: {subject}: {first.have} [{first.check}]{because}", width, most)
        lines += wrap(f"    do: {first.fix}", width, 1000 if everything else 1)
        lines += wrap(f"    why: {first.why}", width, most) if everything else []
    for line in report.details if everything else ():
        lines += wrap(line, width, most)
    rest = len(groups) - len(shown)
    more = [f"{rest} more finding{'s' * (rest > 1)}: --all, or --json"] if rest else []
    return [*lines, *more, *wrap(f"facts: {report.facts}", width, 1)]


def _subject(subjects: Sequence[str]) -> str:
    numbers = [int(text[5:]) for text in subjects if re.fullmatch(r"rank [0-9]{1,7}", text)]
    return describe_ranks(numbers) if len(numbers) == len(subjects) else ", ".join(subjects)


def _groups(found: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings that differ in their rank only as one."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in found:
        key = (finding.check, finding.state, finding.severity, finding.have, finding.fix, finding.because)
        alike.setdefault(key, []).append(finding)
    return list(alike.values())


def wrap(text: str, width: int, most: int) -> list[str]:
    """Return the text in lines, the last one cut where it needs more than ``most``."""
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    found = textwrap.wrap(printable(text), width, subsequent_indent=indent, drop_whitespace=True) or [""]
    if len(found) > most:
        found = [*found[: most - 1], found[most - 1][: width - len(_CUT)] + _CUT]
    return found
