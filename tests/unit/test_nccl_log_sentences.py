# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No sentence of ``busbar diagnose`` has an empty part, whatever of a log's lines is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, shown

from tests import readings

LOGS = sorted((readings.FOLDER / "nccl_log.report.parse").glob("*.txt"))
# Where nothing stands between two words, or behind a colon.
EMPTY = re.compile(
    r"\b(?:as|on|of|by|says|at|to|from|is|and|with)  |\b(?:on|of|by|at|as) ?[;,)]| ,|: ?(?:;|$)|\(\)|^, |; ;"
)
QUOTED = re.compile(r"the program reports|line \d|\|")
HEAD = re.compile(r"[\w.-]{1,80}:(\d{1,8}:\d{1,8} \[)")


def sentences(text: str) -> list[str]:
    log = job.read([text.encode()])
    said = [finding.have or "" for finding in judge.judge(log)]
    for number, one in enumerate(jobs.split(log)):
        said += shown.shown(log, one, number == 0) + shown.not_shown(log, one, number == 0)
    return [one for one in said if not QUOTED.search(one)]


CUTS: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "host": lambda text: HEAD.sub(r":\1", text),
    "some hosts": lambda text: "\n".join(
        HEAD.sub(r":\1", line) if n % 2 else line for n, line in enumerate(text.split("\n"))
    ),
    "process": lambda text: re.sub(r"[\w.-]{1,80}:\d{1,8}:\d{1,8} \[", "[", text),
    "ends": lambda text: "\n".join(line[: 3 * len(line) // 4] for line in text.split("\n")),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_no_part_of_a_sentence_is_empty(log: Path, cut: str) -> None:
    assert [one for one in sentences(CUTS[cut](log.read_text(errors="replace"))) if EMPTY.search(one)] == []
