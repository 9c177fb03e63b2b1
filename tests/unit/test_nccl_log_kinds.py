# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kinds of logs that are read by layers rather than by single rules: what the answer has to say of each."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, quotes, signals


def test_what_is_met_again_is_counted_where_no_further_quote_is_kept() -> None:
    lines = ["ERROR: %s went wrong" % ("x" * n) for n in range(1, quotes.QUOTES + 20)]
    log = job.read(["\n".join([*lines, "ERROR: x went wrong", "w: killed by signal 9", ""]).encode()])
    assert log.quotes.left_out == 19
    assert log.quotes.all[0].count == 2
    assert log.quotes.all[-1].kind == signals.DEATH
