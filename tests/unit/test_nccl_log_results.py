# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What programs report of their own work: speed, results, progress and success, each kind of line once."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, results


def test_of_very_many_lines_the_last_ones_are_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "LOOKED_AT", 3)
    read = job.read([b"a\nb\nc\n" + b"".join(b"filler %d\n" % number for number in range(600)) + b"sum = 7\n"])
    assert [(one.kind, one.text, one.order) for one in read.results.kept] == [("result", "sum = 7", 604)]
