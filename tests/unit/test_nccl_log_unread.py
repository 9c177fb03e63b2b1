# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What no rule has made anything of is told, each kind once, and within limits."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, unread
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose

HEAD = "node1:300:310 [0] NCCL INFO"


def kept(*lines: str) -> list[tuple[str, int, int, bool]]:
    log = job.read(["\n".join([*lines, ""]).encode()])
    return [(one.text, one.order, one.count, one.nccl) for one in log.unread.kept]


def test_a_log_of_nothing_but_such_lines_is_counted_beyond_the_limits() -> None:
    text = unread.Unread()
    for number in range(unread.LOOKED_AT + 5):
        text.line(b"alike %d" % number, 0, number)
    assert ([one.count for one in text.kept], text.left_out) == ([unread.LOOKED_AT], 5)
    for number in range(unread.KINDS + 50):
        text.line(b"%s word" % bytes([97 + number // 26 % 26, 97 + number % 26]), 0, number)
    assert len(text.kept) == unread.KINDS


def test_hostile_lines_are_cut_and_printed_as_text() -> None:
    [(text, *_rest)] = kept("\x1b[31mred " + "x" * 5000)
    assert len(text) == unread.LONGEST
    log = job.read([b"\x1b[31mred\n" + f"{HEAD} Using network Socket\n".encode()])
    assert "\x1b" not in diagnose.render(log, split(log), judge.judge(log), 100)


def test_of_a_long_table_the_last_line_is_told() -> None:
    rows = [f"row {number} of {number / 7:.2f}" for number in range(1, 3 * unread.LOOKED_AT)]
    [table] = job.read(["\n".join([*rows, ""]).encode()]).unread.kept
    assert (table.text, table.last, table.end) == (rows[0], rows[-1], len(rows))
