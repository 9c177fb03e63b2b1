# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the files that the ranks of a job have written into one directory, and print a verdict on them."""

from __future__ import annotations

import os
import re
import stat
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.recorder_findings import describe_ranks

# Lines of the first screen, and findings on it.
LINES, FINDINGS = 12, 3
_MOST_FILES = 200_000
_CUT = " ..."


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


def screen(
    verdict: str, found: Iterable[Finding], facts: str, width: int, details: Sequence[str] | None = None
) -> list[str]:
    """Return the first screen, at most LINES lines; with details (``--all``) every finding in full, and these lines."""
    most = 1000 if details is not None else 2
    groups = _groups(found)
    shown = groups if details is not None else groups[:FINDINGS]
    lines = wrap(f"verdict: {verdict}", width, 1)
    for group in shown:
        first = group[0]
        because = " (follows)" if first.because else ""
        text = f"{first.severity}: {_subject([finding.subject for finding in group])}: {first.have} [{first.check}]"
        lines += wrap(text + because, width, most)
        lines += wrap(f"    do: {first.fix}", width, 1000 if details is not None else 1)
        if details is not None:
            lines += wrap(f"    why: {first.why}", width, most)
    for line in details or ():
        lines += wrap(line, width, most)
    rest = len(groups) - len(shown)
    more = [f"{rest} more finding{'s' * (rest > 1)}: --all, or --json"] if rest else []
    return [*lines, *more, *wrap(f"facts: {facts}", width, 1)]


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
