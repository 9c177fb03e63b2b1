# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases that real logs name by the form of their messages alone."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import judge, report
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import RELEASES
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.log_reader import Reader

NAMES = re.compile(rb"NCCL version (2[0-9.]*)\S*")
NUMBERS = re.compile(rb"(?:nccl_version_code|nccl-library)[ =][0-9]*")


def test_real_logs_name_a_range_that_holds_their_release(samples: Path) -> None:
    judged = 0
    for log in sorted([*samples.rglob("*.txt"), *samples.parent.glob("cases/diagnose/real-*")]):
        text = log.read_bytes()
        versions = {version.decode() for version in NAMES.findall(text)}
        if len(versions) != 1 or text.count(b" NCCL ") < 50:
            continue
        reader = Reader()
        reader.source(log.name)
        reader.feed(NUMBERS.sub(b"", NAMES.sub(b"", text)))
        reader.end()
        result = judge.judge(reader.log)
        [job, *_others] = report.report(result)["jobs"]
        assert job["nccl"] == [], log
        first, last = map(RELEASES.index, job["nccl_between"])
        assert first <= RELEASES.index(versions.pop()) <= last, log
        assert last - first < 4, log
        judged += 1
    assert judged > 12
