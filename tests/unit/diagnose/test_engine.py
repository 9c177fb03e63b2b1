# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The root of a log, its confidence, and which event follows from which."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import (
    details,
    engine,
    events,
    facts,
    log_reader,
    nccl_events,
    outside_events,
    program_events,
    table,
)
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.engine import LIKELY, PROVEN
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import _table, formats
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge

from tests import goldens
from tests.unit.diagnose.job_log import HEALTHY, ranks
from tests.unit.test_nccl_formats import CONVERSION

WARN = "%s:%d:%d [0] net_ib.cc:1 NCCL WARN "
A, B = WARN % ("node0", 100, 100), WARN % ("node1", 101, 101)
PORT = B + "NET/IB : mlx5_0:1 Got async event : port error"
BACK = B + "NET/IB : mlx5_0:1 Got async event : port active"
COMPLETION = (
    A + "NET/IB : Got completion from peer 10.0.0.%d<40000> with status=12 opcode=1 len=0 vendor err 129 (Send)"
)
CLOSED = A + "socketProgress: Connection closed by remote peer 10.0.0.1<40000>"
OOM = "kernel: Out of memory: Killed process 101 (python)"
KILLED = "[rank1]: failed (exitcode: -9) local_rank: 1 (pid: 101) of binary: python"
LOST = "srun: error: node1: task 1: Exited with exit code %d"
ENDED = "[rank1]: failed (exitcode: 1) local_rank: 1 (pid: 101) of binary: python"
ORDER = "srun: forcing job termination"
WATCHDOG = (
    "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=4,"
    " Timeout(ms)=600000) ran for 600001 milliseconds before timing out."
)
RAISED = "[rank1]:\x00Traceback (most recent call last):\n[rank1]: ValueError: no".replace("\x00", " ")
CRASHED = KILLED.replace("-9", "-11")
GPU_LOST = "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"
LINK = "mlx5_core 0000:0c:00.0 rdma0: Link down"
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON node0 CANCELLED AT 2026-11-24T03:20:21 ***"
STORE = "[rank1]: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
STORE_PORT = "The server socket has failed to listen on any local network address. port: 29500"
CUDA_GROUP = "cuda unspecified launch failure"
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid=100, GPU has fallen off the bus."
CUDA = A + "Cuda failure 'unspecified launch failure'"


def root(*lines: str) -> tuple[str, str, dict[str, tuple[str, str]]]:
    """Return root, confidence, and each other event's cause and link."""
    result = judge(log_reader.read((ranks(*HEALTHY) + "\n".join(lines) + "\n").encode()))
    follows = {
        _name(group.event.id, group.code): (_name(group.because.event.id, group.because.code), group.link)
        for group in result.diagnosis.groups
        if group.because is not None and group.tier <= 6
    }
    if result.root is None:
        return "", "", follows
    return _name(result.root.event, result.root.code), result.root.confidence, follows


def _name(event: str, code: str) -> str:
    # Exceptions have their text as code.
    return f"{event} {code}" if code and event != "exception" else event


CASES: list[tuple[tuple[str, ...], str, str, dict[str, tuple[str, str]]]] = [
    ((), "", "", {}),
    # A port that went down: the peer's before the completion explains it, another one's does so less.
    ((PORT, COMPLETION % 1), "port port error", PROVEN, {"completion 12": ("port port error", PROVEN)}),
    ((PORT, COMPLETION % 7), "port port error", PROVEN, {"completion 12": ("port port error", LIKELY)}),
    ((COMPLETION % 1, PORT), "port port error", PROVEN, {}),
    ((COMPLETION % 1, CLOSED), "completion 12", "reported", {"closed": ("completion 12", LIKELY)}),
    # A port that came back is no failure, unless something else failed.
    ((PORT, BACK), "", "", {}),
    ((PORT, BACK, PORT), "port port error", PROVEN, {}),
    ((PORT, BACK, COMPLETION % 1), "port port error", PROVEN, {"completion 12": ("port port error", PROVEN)}),
    # A process that was killed, reported late.
    ((CLOSED, KILLED), "exit signal 9", "reported", {"closed": ("exit signal 9", LIKELY)}),
    ((KILLED, OOM), "oom", PROVEN, {"exit signal 9": ("oom", LIKELY)}),
    ((XID, CUDA), "xid 79", PROVEN, {"cuda unspecified launch failure": ("xid 79", LIKELY)}),
    ((XID, CRASHED), "xid 79", PROVEN, {"exit signal 11": ("xid 79", LIKELY)}),
    ((CUDA, CRASHED), CUDA_GROUP, LIKELY, {"exit signal 11": (CUDA_GROUP, LIKELY)}),
    ((CUDA, GPU_LOST), "gpu_lost", PROVEN, {CUDA_GROUP: ("gpu_lost", LIKELY)}),
    ((LINK, COMPLETION % 7), "link_down", PROVEN, {"completion 12": ("link_down", LIKELY)}),
    ((CANCELLED, WATCHDOG % 30), "cancelled", PROVEN, {"watchdog": ("cancelled", LIKELY)}),
    ((STORE, STORE_PORT), "store_port", LIKELY, {"store": ("store_port", LIKELY)}),
    # A peer that ended itself (abort) did so after its connection was lost; one that exited was lost.
    ((CLOSED, LOST % 134), "closed", "reported", {"exit signal 6": ("closed", LIKELY)}),
    ((CLOSED, LOST % 1), "exit exit code 1", "reported", {"closed": ("exit exit code 1", LIKELY)}),
    # An order to end is the root if nothing failed before it.
    ((ORDER, WATCHDOG % 30), "order", PROVEN, {"watchdog": ("order", PROVEN)}),
    ((WATCHDOG % 30, ORDER), "watchdog", "reported", {"order": ("watchdog", LIKELY)}),
    # The program's own exception is upstream of the wait of others, before or after it.
    ((RAISED, WATCHDOG % 30), "exception", PROVEN, {"watchdog": ("exception", LIKELY)}),
    ((WATCHDOG % 30, RAISED), "exception", PROVEN, {"watchdog": ("exception", LIKELY)}),
    ((RAISED, ENDED), "exception", PROVEN, {"exit exit code 1": ("exception", LIKELY)}),
    ((ENDED,), "exit exit code 1", "reported", {}),
]


@pytest.mark.parametrize(("lines", "event", "confidence", "follows"), CASES)
def test_the_root(lines: tuple[str, ...], event: str, confidence: str, follows: dict[str, tuple[str, str]]) -> None:
    assert root(*lines) == (event, confidence, follows)


def test_relations_name_known_events_and_conditions() -> None:
    named = {relation.effect.split(" ")[0] for relation in engine.RELATIONS}
    named |= {relation.cause.split(" ")[0] for relation in engine.RELATIONS}
    assert named - events.BY_ID.keys() - outside_events.OUTSIDE_NCCL.keys() == set()
    conditions = {relation.condition for relation in engine.RELATIONS}
    assert conditions == {"any", "before", "lost", "other", "own", "peer"}
    assert {relation.link for relation in engine.RELATIONS} == {PROVEN, LIKELY}


def test_each_pattern_names_a_known_event() -> None:
    rows = (*program_events.SPECIFIC, *program_events.GENERAL)
    names = {name for _marks, name, _pattern in rows} | {
        name for name, _pattern in (*nccl_events.PATTERNS, *nccl_events.OTHERS)
    }
    names |= {detail.event for detail in details.DETAILS}
    assert names - events.BY_ID.keys() - outside_events.OUTSIDE_NCCL.keys() == set()


def message(text: str) -> str:
    """Return a message of a format, with a number or a name in the place of each conversion."""
    values = {"s": "eth0", "m": "Invalid argument", "p": "0x7f00aa", "f": "2.5", "g": "2.5", "%": "%", "c": "x"}
    return CONVERSION.sub(lambda match: values.get(match.group(1), "7"), text.partition("\\n")[0])


@pytest.mark.golden
def test_each_format_of_nccl_is_an_event_or_a_fact() -> None:
    found: Counter[str] = Counter()
    for row in formats():
        if row.level == "WARN":
            event, fields = nccl_events.classify(message(row.text))
            found[_name(event.id, fields.get("code", ""))] += 1
        else:
            fact = facts.read(message(row.text))
            found[f"fact {fact.name}" if fact is not None else "not read"] += 1
    goldens.check("diagnose", "formats of NCCL", sorted(found.items()))


def test_warnings_are_known_on_a_node_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible sends no data files: there is no table of formats."""
    monkeypatch.setattr("pkgutil.get_data", lambda _package, _name: None)
    _table.cache_clear()
    found = [nccl_events.classify(text)[0].id for text in ("No transport found for rank 0", "something new")]
    assert found == ["no_transport", "warning"]


@pytest.mark.parametrize("line", Path(__file__).with_name("reports.txt").read_text().splitlines())
def test_a_report_of_others_is_an_event_or_none(line: str) -> None:
    found = program_events.classify(line[30:])
    assert (_name(found[0].id, found[1]["code"]) if found else "") == line[:30].rstrip()


@pytest.mark.parametrize(
    "text", ["init.cc:9 -> 2 [Async thread]", "init.cc:9 (ncclCommInitRankFunc) -> 2 [Async thread]"]
)
def test_a_call_that_returned_an_error_is_read_in_the_forms_of_all_releases(text: str) -> None:
    fact = facts.read(text)
    assert fact is not None
    assert (fact.name, fact.fields["place"], fact.fields["result"]) == ("returned", "init.cc:9", 2)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("1024 256 float sum -1 10.00 0.10 0.19 0 20.00 0.05 0.10 0", (1024, 0.19, 0.10, 10.0, 0)),
        ("1024 256 float sum -1 10.00 0.10 0.19 0", (1024, 0.19, None, 10.0, 0)),
        ("1024 256 float sum 10.00 0.10 0.19 0 20.00 0.05 0.10 3", (1024, 0.19, 0.10, 10.0, 3)),
        ("1024 256 float none 2 10.00 0.10 0.00 N/A 20.00 0.05 0.00 N/A", (1024, 0.0, 0.0, 10.0, None)),
        ("0 0 float sum -1 0.00 0.00 0.00 0 0.00 0.00 0.00 0", (0, 0.0, 0.0, 0.0, 0)),
        ("1024 256 float sum -1 10.00 0.10", None),
        ("1024 256 float sum -1 1.0.0 0.10 0.19 0", None),
        ("1024 tokens float by", None),
    ],
)
def test_a_row_of_nccl_tests(line: str, row: tuple[float, ...] | None) -> None:
    assert table.read_row(line.encode()) == (table.Row(*row) if row is not None else None)  # type: ignore[arg-type]
