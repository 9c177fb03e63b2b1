"""Forms of lines that nccl_log reads: heads, communicators, rows, reports of programs, and sentences about them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    events,
    failures,
    gdr_less,
    job,
    jobs,
    judge,
    lines,
    notes,
    results,
    shown,
    signal_marks,
    signals,
    table,
    table_rows,
    texts,
    words,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.lines import Head
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

from tests import readings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comm 0x7 rank 1 nranks 4 - COMPLETE", events.Init("0x7", "", "", "", 1, 4, -1, "", True)),
        (
            "ncclCommInitRank comm 0x... rank 3 nRanks 8 cudaDev 3 nvmlDev 3 busId ... commId 0xab - Init START",
            events.Init("0x...", "ab", "", "", 3, 8, 3, "", False),
        ),
        ("comm 0x5 rank 0 nranks 4 cudaDev 0 busId 10 - Destroy COMPLETE", events.Gone("0x5", 0, "Destroy", 4, 0)),
        ("comm 0x5 with 8 ranks and 1 nodes", events.Shape("0x5", -1, 8, 1, 0)),
        ("comm 0x5 rank 2 nranks 8 nnodes 2", events.Shape("0x5", 2, 8, 2, 0)),
        ("comm <ptr> rank 2 nRanks 8 nNodes 2 localRanks 4 ...", events.Shape("", 2, 8, 2, 4)),
        ("nRanks 8 nNodes 2 localRanks 4 localRank 1", events.Shape("", -1, 8, 2, 4)),
        ("Comm config Blocking set to 1", None),
    ],
)
def test_odd_forms_of_communicators_are_read(text: str, said: object) -> None:
    assert texts.event(text) == said


@pytest.mark.parametrize("end", ["Bootstrap : Using eth0:10.0.0.1<0>", "NET/Plugin: No plugin found (libnccl-net.so)"])
def test_a_record_that_sticks_to_the_next_ones_host(end: str) -> None:
    first, second = lines.records(f"pod-a:30:31 [6] NCCL INFO {end}pod-a:40:41 [3] NCCL INFO Using network IB")
    assert (first.text, second.head.host, second.head.pid) == (end, "pod-a", 40)
    # Whoever publishes a log may put a mark into the host's place.
    first, second = lines.records("<a>:1:2 [0] NCCL INFO Using network IB <b>:3:4 [1] NCCL INFO Using network IB")
    assert (first.head.host, second.head.host) == ("<a>", "<b>")


def test_connections_with_their_communicator_behind_them() -> None:
    tail = " comm 0x20a0 nRanks 02"
    assert texts.event(f"Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0{tail}") == events.Channel(
        "net", "IB", 0, 1, True, 0
    )
    assert texts.event(f"Channel 01/0 : 0[c000] -> 1[f000] via P2P/IPC{tail}") == events.Channel("p2p", "IPC", 0, 1)


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("web2:41 [3]", Head("web2", 41, None, 3)),
        ("[1,0]<stdout>:web2:41 [3]", Head("web2", 41, None, 3, rank=0)),
        ("41:97 [3]", Head("", 41, 97, 3)),
        ("97 [3]", Head("", None, None, 3)),
        ("web2:41:97 misc/socket.cc:50", Head("web2", 41, 97, None, "misc/socket.cc:50")),
        ("\u2026b2:41:97 [1]", Head("b2", 41, 97, 1)),
    ],
)
def test_heads_of_which_something_is_left_out(before: str, wanted: Head) -> None:
    assert lines.head(before) == wanted


def test_labels_that_stick_to_a_host_are_no_part_of_it() -> None:
    for label in ("0|", "user@", "pods/", "\x1b[36m(W pid=7)\x1b[0m", "stdout>"):
        assert lines.head(f"{label}n1:7:8 [2]").host == "n1", label
    assert lines.head("<host>:7:8 [2]").host == "<host>"


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def info(text: str, who: str = "n1:7:8 [0]") -> str:
    return f"{who} NCCL INFO {text}\n"


def test_every_note_has_its_groups_and_no_other_line_is_one() -> None:
    for _keys, pattern, kind, sentence in notes.NOTES:
        assert re.compile(pattern).groups >= len(re.findall(r"\{\d", sentence))
        assert kind in (
            "harmless",
            "fallback",
            "odd",
            "fact",
            "closed",
            "older",
            "collnet",
            "plugin_set",
            "matrix",
            "last_words",
            "host_memory",
        )
    assert not isinstance(texts.event("NET/IB : No device found."), events.Note)
    assert texts.event("MNNVL 0 cliqueId 0 cliqueSize 1 cliqueRank 0") is None
    fabric = texts.event("MNNVL busId 0x901000 fabric UUID 1f.2e cliqueId 0x7ffe state 3 healthMask 0x1aa")
    assert fabric == events.Fabric("1f.2e", "0x7ffe", 3)


def test_releases_by_the_form_of_lines() -> None:
    old = info("NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file", "n1:7:8 [0]")
    new = info("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "n2:9:9 [0]")
    have = found(old + new)["nccl_log.version"].have or ""
    assert "lines of n1:7 have the form of NCCL before 2.21, those of n2:9 that of 2.22 or later" in have
    assert "nccl_log.version" not in found(new + new.replace("n2:9", "n1:7"))
    signed = info("NCCL version 2.27.5+cuda12.9", "n2:9:9 [0]")
    assert "of 2.27 or later; only 2.27.5 is named" in (found(old + signed)["nccl_log.version"].have or "")


@pytest.mark.parametrize(
    "text",
    [
        "[2030-01-01 00:00:01] n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion\nfrom peer 10.1.2.3<5> with"
        " status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0)\nreqSize=4 vendor_err=81\n"
        "remoteGids::ffff:10.9.9.9 hca mlx5_7\n",
        "n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.1.2.3 with"
        " status=IBV_WC_LOC_PROT_ERR(4)\n  localGid fe80::1  hca mlx5_7\n",
    ],
)
def test_a_warning_that_was_broken_into_lines(text: str) -> None:
    have = found(text)["nccl_log.completion"].have or ""
    assert ("status 4, local protection" in have, "HCA mlx5_7" in have, "10.1.2.3" in have) == (True, True, True)
    # Another process's line ends it.
    broken = found(text.replace("\n", "\nn2:9:9 [0] NCCL INFO x\n", 1))
    assert not any("mlx5_7" in (one.have or "") for one in broken.values())


def test_how_many_epochs_there_are_to_be_is_no_progress() -> None:
    assert (results.classify("INFO - epochs : 100"), results.classify("epoch: 3")) == ("", "progress")


@pytest.mark.parametrize(
    ("other", "own"),
    [
        ("memory of device 4. RC: -22", "device 4"),
        ("memory of device 4. RC: -12", "device 4 RC: -12"),
        ("memory of device 3. RC: -22", ""),
        ("memory of another device 4. RC: -22", ""),
    ],
)
def test_words_of_its_own(other: str, own: str) -> None:
    assert words.own_words("memory of device 3. RC: -22", other) == own
    assert words.own_words("a 1 b 2 c 3 d 4", "a 5 b 6 c 7 d 8") == ""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Test Error: ", None),
        ("Test error: 4.25 %", None),
        ("mean squared error = 1.5e-3", None),
        ("Connection error: ", signals.ERROR),
        ("Test error: lost the peer", signals.ERROR),
        ('  rank_zero_warn("Error handling is not set up.")', None),
        ("  warnings.warn('2 failed objects to clean up')", None),
        ("ERROR: warned of it", signals.ERROR),
    ],
)
def test_figures_and_sources_of_warnings_report_no_failure(line: str, kind: str | None) -> None:
    said = signals.classify(line)
    assert (said.kind if said else None) == kind


RAISED = """Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    main()
  File "/x/train.py", line 5, in main
    check(args)
  File "/x/args.py", line 3, in check_sizes
    assert not args.size % 3
AssertionError: size 8 is no multiple of 3
"""


CLOSED = "beta:9:9 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer alpha<40001>\n"


def verdict(text: str) -> str:
    log = job.read([text.encode()])
    said = " ".join(render(log, split(log), judge.judge(log), 400).split())
    return said.partition("verdict: ")[2].partition(" critical")[0]


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("./run.sh: line 3: 2311 Killed                  python3 -m server --tp 16", "SIGKILL"),
        ("[2025] Received sigquit from a child process. It usually means the child failed.", "SGLang"),
        ("ERROR 06-24 02:48:49 [x.py:1] Worker pid 311 died, exit code: -15", "SIGTERM"),
    ],
)
def test_more_ways_to_tell_an_end(line: str, about: str) -> None:
    known = signals.classify(line)
    assert known is not None
    assert (known.kind, about in known.about) == ("death" if about == "SIGKILL" else "order", True)


def test_a_flight_recorder_that_is_off_wrote_nothing() -> None:
    said = signals.classify("Stack trace not found, potentially because FlightRecorder is disabled. Set the variable")
    assert said is not None
    assert "has no record" in said.about


@pytest.mark.parametrize("form", ["{:>4}  {}", "{}\t{}", "{:>3} | {}"])
def test_lines_that_were_copied_with_their_numbers(form: str) -> None:
    text = "".join(form.format(number, line) for number, line in enumerate((RAISED + CLOSED).splitlines(True), 98))
    assert "AssertionError: size 8" in verdict(text)
    assert verdict(text) == verdict(RAISED + CLOSED)
    # A launcher's labels are no such numbers.
    labelled = "".join(f"{rank}: {line}" for rank, line in enumerate([CLOSED] * 6))
    assert len(job.read([labelled.encode()]).failures) == 6


HEAD = "[rank{0}]:[E101 {1} ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            HEAD
            + "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
            signals.DEATH,
        ),
        (HEAD + "Exception thrown when waiting for future Flight recorder dump in x: Broken promise", signals.WARNING),
        (HEAD + "Observed flight recorder dump signal from another rank via TCPStore.", signals.WAITS),
        ("[rank0]:[W1] Warning: An unbatched P2P op (send/recv) was called on this ProcessGroup", signals.WARNING),
    ],
)
def test_classes_of_lines_around_a_dump(line: str, kind: str) -> None:
    said = signals.classify(line)
    assert said is not None
    assert said.kind == kind
    assert "which holds the last collectives" not in said.about


def test_a_long_warning_is_cut_so_that_its_peer_is_kept() -> None:
    text = "NET/X request failed " + "a" * 300 + " Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5). Done"
    cut = failures.cut(text, 200)
    assert "Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5" in cut
    assert len(cut) <= 210
    assert failures.cut("b" * 150 + "c" * 150, 200).endswith("c" * 66)
    assert failures.cut(text, 900) == text


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ((2.4, 2.4, 2.5, 2.5, 2.6, 2.7, 2.8, 2.8, 2.8), None),
        ((1.0, 9.8, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), 10.0),
        ((1.0, 9.0, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), None),
    ],
)
def test_flat_is_what_lies_within_five_percent_of_the_mean(figures: tuple[float, ...], wanted: float | None) -> None:
    flat = table.Test(rows=[table_rows.Row(1 << (21 + at), one, None, "sum") for at, one in enumerate(figures)]).flat
    assert (flat and (flat[0], round(flat[1], 1))) == (wanted and (1 << 22, wanted))


def test_hcas_are_not_called_software_devices() -> None:
    assert gdr_less.likely("rxe0+mlx5_0", frozenset()) == "" == gdr_less.likely("rxemu", frozenset({"GB10", "H100"}))


@pytest.mark.parametrize(
    ("line", "want"),
    [
        # Old releases: no root, an error in the place of counts; times of any width.
        (" 33554432 8 float sum 1234.5 27.18 27.18 1e-06 1200.0 27.96 27.96 1e-06", (27.18, 27.96, 1234.5, b"1e-06")),
        (" 33554432 8 float sum 41943 0.80 0.80 0e+00 40000 0.84 0.84 0e+00", (0.8, 0.84, 41943.0, b"0e+00")),
        (" 33554432 8 float sum 41943 0.80 0.80 0e+00", (0.8, None, 41943.0, b"0e+00")),
        (" 4294967296 10 float sum 1.2e+07 0.36 0.36 0e+00 12000000 0.36 0.36 0e+00", (0.36, 0.36, 1.2e7, b"0e+00")),
        (" 8 2 float sum 25 0.00 0.00 0e+00 26 0.00 0.00 0e+00", (0.0, 0.0, 25.0, b"0e+00")),
        # No reduction, with and without a root.
        (" 33554432 8 float 41943 0.80 0.75 0e+00 40000 0.84 0.79 0e+00", (0.75, 0.79, 41943.0, b"0e+00")),
        (" 33554432 8 float 3 41943 0.80 0.75 0e+00 40000 0.84 0.79 0e+00", (0.75, 0.79, 41943.0, b"0e+00")),
        (" 33554432 8 float 0 419.4 80.00 75.00 0e+00", (75.0, None, 419.4, b"0e+00")),
        # New ones: root, counts, N/A; a figure more behind them.
        (" 33554432 8 float sum -1 41943 0.80 1.50 0 40000 0.84 1.57 N/A", (1.5, 1.57, 41943.0, b"0")),
        (" 33554432 8 float sum 2 41943 0.80 1.50 7 40000 0.84 1.57 0 2031-01-01 10:00:00", (1.5, 1.57, 41943.0, b"7")),
        # Cut off behind the time of the second half.
        (" 33554432 8 float sum 41943 0.80 0.75 0e+00 40000", (0.75, None, 41943.0, b"0e+00")),
        # Behind labels of two launchers.
        ("(head, rank=0, pid=4) [1,0]<stdout>: 33554432 8 float none -1 41943 0.80 1.50 0", (1.5, None, 41943.0, b"0")),
    ],
)
def test_a_row_is_read_by_its_own_figures(line: str, want: tuple[float, float | None, float, bytes]) -> None:
    read = table_rows.read(line.encode())
    assert read is not None
    assert (read.row.out, read.row.inside, read.row.time, read.wrong[0]) == want


def of(*texts: str, names: tuple[str, ...] = ()) -> tuple[str, list[Finding]]:
    """The verdict, and the findings that are not ok."""
    reader = job.Reader()
    for number, text in enumerate(texts):
        reader.source(names[number] if names else "a.log")
        reader.feed(text.encode())
    reader.end()
    found = judge.judge(reader.log)
    said = render(reader.log, split(reader.log), found, 4000)
    return said.partition("verdict: ")[2].partition("\n")[0], [one for one in found if not one.ok]


def test_what_is_no_text_has_no_failure() -> None:
    hole = "\0\0\n"
    assert of("RuntimeError: x\n" + 2 * hole)[0] == "this is not a text: 2 of 3 lines hold zero bytes"
    # A hole in a log is none.
    assert "RuntimeError: x" in of("RuntimeError: x\n" + hole)[0]
    assert "no text" not in of(DUPLICATE + 3 * hole)[0]


DUPLICATE = "n1:71:81 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10\n"


LOGS = sorted((readings.FOLDER / "nccl_log.report.parse").glob("*.txt"))


# Where nothing stands between two words, or behind a colon.
EMPTY = re.compile(
    r"\b(?:as|on|of|by|says|at|to|from|is|and|with)  |\b(?:on|of|by|at|as) ?[;,)]| ,|: ?(?:;|$)|\(\)|^, |; ;"
)


QUOTED = re.compile(r"the program reports|line \d|\|")


SIGNED = re.compile(r"[\w.-]{1,80}:(\d{1,8}:\d{1,8} \[)")


def sentences(text: str) -> list[str]:
    log = job.read([text.encode()])
    said = [finding.have or "" for finding in judge.judge(log)]
    for number, one in enumerate(jobs.split(log)):
        said += shown.shown(log, one, number == 0) + shown.not_shown(log, one, number == 0)
    return [one for one in said if not QUOTED.search(one)]


CUTS: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: text,
    "host": lambda text: SIGNED.sub(r":\1", text),
    "some hosts": lambda text: "\n".join(
        SIGNED.sub(r":\1", line) if n % 2 else line for n, line in enumerate(text.split("\n"))
    ),
    "process": lambda text: re.sub(r"[\w.-]{1,80}:\d{1,8}:\d{1,8} \[", "[", text),
    "ends": lambda text: "\n".join(line[: 3 * len(line) // 4] for line in text.split("\n")),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_no_part_of_a_sentence_is_empty(log: Path, cut: str) -> None:
    assert [one for one in sentences(CUTS[cut](log.read_text(errors="replace"))) if EMPTY.search(one)] == []


_PARSER: Any = getattr(re, "_parser", None) or importlib.import_module("sre_parse")


def _needs(parsed: Any) -> tuple[str, ...] | None:
    """Strings of which every text that a parsed expression matches has one; None where it needs none."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in [*parsed, (None, None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if run:
            found.append((run,))
            run = ""
        parts: list[tuple[str, ...] | None] = []
        if name == "SUBPATTERN":
            parts = [_needs(argument[3])]
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] >= 1:
            parts = [_needs(argument[2])]
        elif name == "BRANCH":
            parts = [_needs(one) for one in argument[1]]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts):
            found.append(tuple(dict.fromkeys(text for part in known for text in part)))
    return max(found, key=lambda texts: (min(map(len, texts)), -len(texts)), default=None)


def test_marks_of_classes_follow_from_their_expressions() -> None:
    wanted = [_needs(_PARSER.parse(pattern)) for _kind, pattern, _about in signals.ROWS]
    table = "".join("    %r,\n" % (one,) for one in wanted)
    assert list(signal_marks.MARKS) == wanted, "what module_utils/nccl_log/signal_marks.py has to hold:\n%s" % table
