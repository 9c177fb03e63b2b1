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


def test_lines_that_differ_by_numbers_alone_are_one_kind() -> None:
    said = ["cell 1 has 2.5", f"{HEAD} Flux capacitor 7 is charged", "cell 2 has 2.25", "lid on", "cell 3 has 2"]
    assert kept(*said) == [
        ("cell 1 has 2.5", 1, 3, False),
        ("Flux capacitor 7 is charged", 2, 1, True),
        ("lid on", 4, 1, False),
    ]


def test_what_a_rule_has_read_and_what_says_nothing_is_not_among_them() -> None:
    said = [
        f"{HEAD} Using network Socket",
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in main',
        "    trainer.fit(model)",
        "    ^^^^^^^^^^^^^^^^^^",
        "RuntimeError: the loader has nothing",
        "==========",
        "",
        "[rank0]:   ~~~~^^^",
        " 37%|####      | 37/100",
    ]
    assert kept(*said) == []


def test_of_many_those_at_a_failure_are_printed_and_the_rest_is_counted() -> None:
    words = [f"{first}{second} is ready" for first in "abcdef" for second in "ghijklmn"]
    said = [*words[:40], "RuntimeError: the loader has nothing", *words[40:]]
    log = job.read(["\n".join([*said, ""]).encode()])
    printed = diagnose.screenful(log, split(log), judge.judge(log), 100)
    assert printed.count("not read by a rule: ") == diagnose.UNREAD
    assert "ag is ready" not in printed
    assert all(word in diagnose.render(log, split(log), judge.judge(log), 100) for word in words)


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


def test_a_network_whose_plugin_is_missing_is_the_cause_and_not_harmless() -> None:
    said = [
        "node1:300:310 [0] NCCL INFO NET/Plugin: Could not find: abc libnccl-net-abc.so.",
        "node1:300:310 [0] net.cc:626 NCCL WARN Error: network ABC Fabric not found.",
        "node1:300:310 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send]   via NET/IB/0 comm 0x... nRanks 02",
        "node1:300:310 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 9.00 (kernels 0.34",
        "node1:300:310 [0] NCCL WARN NET/ABC Could not find ncclGetVersion symbol",
    ]
    log = job.read(["\n".join([*said, ""]).encode()])
    printed = diagnose.render(log, split(log), judge.judge(log), 200)
    assert "verdict: Error: network ABC Fabric not found" in printed
    assert "harmless: no plugin for NET" not in printed
    assert "profiler or tuner" not in printed
    assert "1->0 by NET/IB/0, 1 channel" in printed
    assert "most of it" not in printed
    assert "ncclGetVersion" not in printed.partition("the rest of the log")[0]
