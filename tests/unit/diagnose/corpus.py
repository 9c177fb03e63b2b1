# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the logs beside this file, and fold a diagnosis into rows of typed facts.

A file holds cases: ``#== NAME`` begins one, ``#-- FILE`` a further file of its job, and a name that ends in a backslash
marks a log whose last line has no end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import Result, judge
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.log_reader import Reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import of_states

# printf formats of NCCL's WARN, INFO and VERSION calls, from src/ of the tags v2.18.1-1 to v2.30.7-1 of NVIDIA/nccl,
# without what only files of Windows print: oldest and newest release, level, class, and the format as in the source.
FORMATS = [line.split("\t") for line in Path(__file__).with_name("nccl_formats.tsv").read_text().splitlines()[1:]]
# Sentences, and what other rows hold.
_PROSE = {"text", "missing", "why", "reason", "lines", "findings", "sources", "name", "line", "last_line", "check"}


def cases() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield each case's name and its files."""
    for file in sorted((Path(__file__).parent / "logs").glob("*.txt")):
        for part in re.split(rb"^#== ", file.read_bytes(), flags=re.MULTILINE)[1:]:
            head, _end, text = part.partition(b"\n")
            name = head.decode()
            if name.endswith(" \\"):
                name, text = name[:-2], text[:-1]
            first, *rest = re.split(rb"^#-- (.*)\n", text, flags=re.MULTILINE)
            files = list(zip(map(bytes.decode, rest[::2]), rest[1::2], strict=True)) or [("log", first)]
            yield f"{file.stem}: {name}", files


def diagnose(files: Sequence[tuple[str, bytes]]) -> Result:
    reader = Reader()
    for name, text in files:
        reader.source(name)
        reader.feed(text)
    reader.end()
    return judge(reader.log)


def rows(result: Result) -> list[Any]:
    """Return root, facts of each job, events and findings without prose."""
    data = report(result)
    root = result.root
    found: list[Any] = [
        {
            "exit": of_states(finding.state for finding in result.findings),
            "verdict": data["verdict"]["state"],
            "root": root
            and [root.event, root.code, root.finding.check, root.confidence, list(root.ranks), list(root.hosts)],
        }
    ]
    found += [_typed(job) for job in data["jobs"]]
    found += [_typed({"watchdog": data["watchdog"], "tests": data["tests"], "exits": data["exits"]})]
    found += [[one["event"], one["code"], one["count"], one["because"], one["confidence"]] for one in data["events"]]
    found += [[one.check, one.subject, one.state, one.severity, one.because] for one in result.findings]
    return found


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _typed(item) for key, item in value.items() if key not in _PROSE and item not in (None, [], {}, "", 0)
        }
    return [_typed(item) for item in value] if isinstance(value, list | tuple) else value
