"""RAS of jobs: who is missing, who is behind, who only waits; invalid responses; and which port is not contacted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.ras import answer as ras_answer
from ansible_collections.busbar.fabric.plugins.module_utils.ras import client as ras_client
from ansible_collections.busbar.fabric.plugins.module_utils.ras import judge as nccl_hang
from ansible_collections.busbar.fabric.plugins.module_utils.ras import processes
from ansible_collections.busbar.fabric.plugins.module_utils.ras import read as nccl_ras
from ansible_collections.busbar.fabric.plugins.module_utils.ras import views as ras_views
from ansible_collections.busbar.fabric.plugins.module_utils.ras.answer import RasStatus
from ansible_collections.busbar.fabric.plugins.module_utils.ras.judge import Known, by_inner
from ansible_collections.busbar.fabric.plugins.module_utils.ras.processes import Listener, Process
from ansible_collections.busbar.fabric.plugins.module_utils.ras.views import View, compare

from busbar.cli import main
from lab import ras as emulator
from tests import goldens

NAMES = {"192.0.2.1": "node01", "192.0.2.2": "node02", "192.0.2.3": "node03"}
KNOWN = Known(NAMES)


def rank(number: int, counts: int, host: int = 1, pid: int = 0, **status: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "host": f"192.0.2.{host}",
        "pid": pid or 4000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
            **status,
        },
        "collective_counts": {"AllReduce": counts, "AllGather": 7},
    }


def gone(number: int, host: int = 1, pid: int = 0, dead: bool = False, silent: bool = True) -> dict[str, Any]:
    return {
        **{key: value for key, value in rank(number, 0, host, pid).items() if key != "collective_counts"},
        "status": {"unresponsive": silent, "considered_dead": dead},
    }


def communicator(name: str, ranks: list[dict[str, Any]], *missing: dict[str, Any], size: int = 0) -> dict[str, Any]:
    return {
        "hash": name,
        "size": size or len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": list(missing),
    }


def document(*communicators: dict[str, Any]) -> dict[str, Any]:
    return {
        "nccl_version": "2.29.7",
        "communicators_count": len(communicators),
        "communicators": list(communicators),
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }


def answer(*communicators: dict[str, Any]) -> RasStatus:
    return ras_answer.parse_json(json.dumps(document(*communicators)))


def still(*communicators: dict[str, Any]) -> View:
    """Twice the same."""
    given = answer(*communicators)
    return View("RAS at 127.0.0.1:28028", ("alice",), compare(given, given), 10.0)


Case = tuple[list[View], Known]


def case(*views: View, known: Known = KNOWN) -> Case:
    return list(views), known


def moved(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> View:
    """One communicator, 10 s before and now."""
    first, second = (answer(communicator("0xa", ranks)) for ranks in (before, now))
    return View("RAS", ("alice",), compare(first, second), 10.0)


PYTHON = Process(*(0, 0, 1, "alice", "S", "/opt/libnccl.so.2"), ras=(), port=28028, apart=False, gpu=True)


def process(pid: int, **more: Any) -> Process:
    return replace(PYTHON, **{"pid": pid, "inner": pid, **more})


BEHIND = communicator("0xa", [rank(0, 5), rank(1, 4)])
DEAD = gone(1, host=2, pid=2, dead=True)
STOPPED = process(2002, state="T")
CASES: dict[str, Case] = {
    "a job that moves, a rank a step behind": case(moved([rank(0, 10), rank(1, 9)], [rank(0, 30), rank(1, 29)])),
    "the fewest launched": case(
        still(communicator("0xa", [rank(0, 10), rank(1, 10, host=2), rank(2, 9, host=2), rank(3, 10)]))
    ),
    # Tensor parallel 0-1, data parallel 0-2: process 1 sleeps, 0 waits for it, and 2 waits for 0.
    "behind, since it waits elsewhere": case(
        still(
            communicator("0xd", [rank(0, 5, pid=1), rank(1, 6, pid=3)]),
            communicator("0xe", [rank(0, 9, pid=1), rank(1, 8, pid=2)]),
        )
    ),
    # It has no single cause, and comes to an end.
    "a ring of communicators": case(
        still(
            communicator("0xd", [rank(0, 5, pid=1), rank(1, 6, pid=2)]),
            communicator("0xe", [rank(0, 5, pid=2), rank(1, 6, pid=1)]),
        )
    ),
    "a silent process in three communicators": case(
        still(
            communicator("0xa", [rank(0, 5, pid=1)], DEAD),
            communicator("0xb", [rank(0, 5)], DEAD),
            communicator("0xc", [rank(0, 5, pid=1), rank(1, 6, pid=9)]),
        )
    ),
    "silent processes of which their nodes know": case(
        still(communicator("0xa", [rank(0, 5)], gone(1, host=2, pid=2), gone(2, host=3, pid=3))),
        known=Known(NAMES, frozenset(["node02", "node03"]), {("node02", 2): STOPPED}),
    ),
    "missing here, and it responds there": case(
        still(communicator("0xa", [rank(0, 5)], gone(1, host=2))),
        still(communicator("0xa", [rank(1, 5, host=2)], gone(0))),
    ),
    "three views of one job": case(still(BEHIND), still(BEHIND, communicator("0xb", [rank(0, 5)])), still(BEHIND)),
    "other collectives": case(
        still(communicator("0xa", [rank(0, 5), {**rank(1, 5), "collective_counts": {"AllReduce": 6, "AllGather": 6}}]))
    ),
    "all alike": case(still(communicator("0xa", [rank(0, 5), rank(1, 5)]))),
    "counts that go back": case(moved([rank(0, 30), rank(1, 30)], [rank(0, 20), rank(1, 30)])),
    "errors, initialization and ends": case(
        still(
            communicator("0xa", [rank(0, 5, async_error=6), rank(1, 5)]),
            communicator("0xb", [rank(0, 0, init_state=7), rank(2, 0, init_state=7)], size=4),
            communicator("0xc", [rank(0, 5, finalize_called=True), rank(1, 5)]),
            communicator("0xd", [rank(0, 5)], gone(1, silent=False)),
        )
    ),
    # Nothing is certain.
    "asked once": case(View("RAS", ("alice",), answer(BEHIND))),
}


def row(finding: Finding) -> list[Any]:
    return [finding.check.partition(".")[2], finding.subject, finding.state, finding.severity, finding.because]


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_what_is_found_of_jobs(name: str) -> None:
    views, known = CASES[name]
    found = nccl_hang.judge(views, known)
    assert len({finding.id for finding in found}) == len(found)
    goldens.check("hang", name, [row(finding) for finding in found])


# -- bad input ---------------------------------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    data = document(communicator("0xa", [rank(0, 5), rank(1, 5)], gone(2)))
    change(data)
    return json.dumps(data)


def of_rank(**change: Any) -> str:
    return changed(lambda data: data["communicators"][0]["ranks"][1].update(change))


def of_communicator(**change: Any) -> str:
    return changed(lambda data: data["communicators"][0].update(change))


JSON_REFUSED = [
    *("", changed(lambda _: None)[:-40], "[" * 100000, '{"nccl_version": NaN}', "[]"),
    changed(lambda d: d.update(communicators_count=2)),
    *(of_communicator(ranks={}), of_communicator(ranks_count=3), of_communicator(size=2), of_communicator(size=10**9)),
    of_communicator(hash="0xa\x1b[2J"),
    *(of_rank(rank=0), of_rank(rank=-1), of_rank(rank="1"), of_rank(rank=True), of_rank(host="{{ 7 }}")),
    *(of_rank(pid=-2), of_rank(pid=1 << 32), of_rank(cuda_dev=-2), of_rank(nvml_dev=1025)),
    *(of_rank(collective_counts={"AllReduce": -1}), of_rank(collective_counts={"AllReduce": 1e9})),
    changed(lambda d: d["communicators"][0]["ranks"][0]["status"].update(abort_flag=0)),
    changed(lambda d: d["communicators"][0]["missing_ranks"][0].update(rank=0)),
    changed(lambda d: d["communicators"].append(d["communicators"][0])),
]


@pytest.mark.parametrize("refused", JSON_REFUSED)
def test_a_report_that_cannot_be_is_refused(refused: str) -> None:
    with pytest.raises(ParseError):
        ras_answer.parse_json(refused)


# -- processes ---------------------------------------------------------------------------------------------------------


RAS = Listener("127.0.0.1", 28028, 77)


Release = tuple[int, int, int]


def unasked(of: list[Process], version: Release | None) -> list[Finding]:
    reading = nccl_ras.Reading(tuple(of), (), (), (), ())
    return nccl_ras.judge_unqueried(reading, lambda _process: version)[-1:]


# Jobs without RAS, whose finding names what to set.
WITHOUT_RAS: dict[str, tuple[list[Process], Release | None]] = {
    "a release without RAS": ([process(5)], (2, 21, 5)),
    "RAS is switched off": ([process(5, disabled=True)], (2, 27, 7)),
    "a network of its own": ([process(5, apart=True)], (2, 27, 7)),
    "another user has the port": ([process(5), process(6, user="bob", ras=(RAS,))], (2, 27, 7)),
    "none listens": ([process(5), process(6)], None),
    "no process": ([], None),
}


@pytest.mark.parametrize("name", WITHOUT_RAS)
def test_a_job_without_ras_is_unknown(name: str) -> None:
    assert [finding.state for finding in unasked(*WITHOUT_RAS[name])] == ["unknown"]


def test_launchers_and_loaders_of_a_job_that_answers_are_no_jobs_of_their_own() -> None:
    rank_of_job = process(5, ras=(RAS,), parent=4)
    of_node = (process(4), rank_of_job, process(6, parent=5), process(7, parent=6), process(99))
    [finding] = nccl_ras.judge_unqueried(nccl_ras.Reading(of_node, (), (), (), ()), lambda _process: None)
    assert "(process 99)" in str(finding.have)


def test_a_port_is_asked_until_every_process_was_heard_of_and_not_for_ever() -> None:
    one, two = answer(communicator("0xa", [rank(0, 1, pid=5)])), answer(communicator("0xb", [rank(0, 1, pid=6)]))
    of = [process(5, ras=(RAS,)), process(6, ras=(Listener("127.0.0.1", 28028, 78),))]
    answers: list[Any] = [ReadError("x", "stopped"), one, one, two]

    def ask(_address: str, _port: int) -> RasStatus:
        given = answers.pop(0)
        if isinstance(given, RasStatus):
            return given
        raise given

    views, silent = ras_views.read(of, 0, ask)
    assert [[each.name for each in view.now.communicators] for view in views] == [["0xa"], ["0xb"]]
    assert silent == []
    answers += [one] * ras_views.MOST_ATTEMPTS
    views, silent = ras_views.read(of, 0, ask)
    assert len(views) == 1
    assert answers, "gave up before"


# -- the conversation, with the lab's RAS ------------------------------------------------------------------------------

Start = Callable[..., tuple[int, list[int], Host]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a simulated job; its port, its processes, and a host on which there are no others."""
    running = []

    def of(**more: Any) -> tuple[int, list[int], Host]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = tmp_path / "job.json"
        file.write_text(json.dumps(emulator.example(port=port, **more)))
        environment = {**os.environ, "NCCL_RAS_ADDR": f"localhost:{port}"}
        job = subprocess.Popen(
            [sys.executable, emulator.__file__, str(file)], stdout=subprocess.PIPE, text=True, env=environment
        )
        running.append(job)
        assert job.stdout is not None
        line = job.stdout.readline()
        assert line.startswith("simulated: ")
        pids = [int(word.rstrip(",")) for word in line.split() if word.rstrip(",").isdigit()][:-1]
        tree = tmp_path / "machine"
        (tree / "proc").mkdir(parents=True, exist_ok=True)
        for pid in pids:
            (tree / "proc" / str(pid)).symlink_to(f"/proc/{pid}")
        (tree / "proc" / "net").symlink_to("/proc/net")
        return port, pids, Host(str(tree), str(tmp_path / "system"))

    yield of
    for job in running:
        # It ends its ranks, also those that are stopped.
        job.send_signal(signal.SIGINT)
        job.wait()
        assert job.stdout is not None
        job.stdout.close()


def found_on(host: Host) -> dict[str, Finding]:
    reading = nccl_ras.read(host, 0.2)
    known = Known({"127.0.0.1": "node01"}, processes=by_inner("node01", reading.processes))
    findings = [*nccl_ras.judge(host, reading), *nccl_hang.judge(reading.views, known)]
    return {finding.check: finding for finding in findings if finding.check != "nccl_hang.readable"}


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7"])
def test_a_late_rank_of_a_job_that_really_listens(start: Start, version: str) -> None:
    _port, pids, host = start(version=version, late={"2": 3})
    found = found_on(host)
    assert f"rank 2 (node01 process {pids[2]} GPU 2) has launched 97" in str(found["nccl_hang.behind"].have)
    assert found["nccl_hang.ras"].ok


def test_a_release_that_has_only_text_is_unknown_and_the_release_with_json_is_named(start: Start) -> None:
    _port, _pids, host = start(version="2.27.7")
    finding = found_on(host)["nccl_hang.answer"]
    assert finding.state == "unknown"
    assert "start the job with 2.28.7 or later" in str(finding.have)


def test_a_stopped_rank_takes_connections_and_is_found_all_the_same(start: Start) -> None:
    _port, pids, host = start(ranks=3)
    os.kill(pids[1], signal.SIGSTOP)
    found = found_on(host)
    assert f"process {pids[1]} GPU 1: rank 1 of 3" in str(found["nccl_hang.missing"].have)
    assert "it is stopped (a signal)" in str(found["nccl_hang.missing"].have)


def test_a_job_all_of_whose_processes_are_stopped_says_nothing_and_that_is_said(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _port, pids, host = start(ranks=1)
    os.kill(pids[0], signal.SIGSTOP)
    ask = lambda address, port: ras_client.query(address, port, greeting=0.2)  # noqa: E731
    reading = nccl_ras.read(host, 0.2, ask)
    [finding] = [each for each in nccl_ras.judge(host, reading) if each.check == "nccl_hang.answer"]
    assert f"process {pids[0]}: it is stopped (a signal)" in str(finding.have)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("garbage", "is not text"),
        ("closes", "cut off"),
        ("types", "rank is 'one'"),
        ("beyond", "rank is 4711, in a communicator of 4 ranks"),
        ("silent", "its status is not there within"),
        ("drip", "its status is not there within"),
        ("endless", "its status has more than"),
    ],
)
def test_what_is_no_answer_ends_in_time_and_in_bytes(
    start: Start, how: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ras_client, "ANSWER_LIMIT", 1 << 19)
    port, _pids, _host = start(misbehaves=how)
    with pytest.raises((ReadError, ParseError)) as error:
        ras_client.query("127.0.0.1", port, status=0.9 if how in ("silent", "drip") else ras_client.STATUS)
    assert said in str(error.value)


def test_who_has_no_libnccl_is_never_spoken_to(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at RAS's own port, in a process whose maps hold no libnccl."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        monkeypatch.setattr(processes, "PORT", port)
        of_job, _pids, host = start(ranks=1)
        (Path(host.hardware_root) / "proc" / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
        found, _problems = processes.read(host)
        assert os.getpid() not in [each.pid for each in found]
        assert [where[1] for where in ras_views.endpoints(found)] == [of_job]


HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "00000000:0000 {} 00000000:00000000 00:00000000 00000000  {}        0 {} 1 0000000000000000 100 0 0 10 0"


def test_of_a_process_only_its_ras_and_what_is_about_hangs_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"AWS_SECRET_ACCESS_KEY=hunter2\0NCCL_RAS_ENABLE=0\0NCCL_RAS_ADDR=localhost:9\0")
    (folder / "maps").write_bytes(b"7f00-7f01 r-xp 00000000 08:01 1 /opt/nccl/lib/libnccl.so.2.28.9 (deleted)\n")
    (folder / "status").write_text(
        "Name:\tpy\udcff\nState:\tT (stopped)\nPPid:\t1\nUid:\t1000\t1000\nNSpid:\t7\t3\n", errors="surrogateescape"
    )
    (folder / "fd").mkdir()
    # Its RAS, and what else it listens with; the other process at that port is of somebody else.
    for number, inode in enumerate((4711, 12)):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    (tmp_path / "proc" / "net").mkdir()
    rows = [f"   0: 0100007F:{port} {REST.format('0A', 0, inode)}" for port, inode in (("0009", 4711), ("0009", 99))]
    rows.append(f"   2: 00000000:1388 {REST.format('0A', 0, 12)}")
    (tmp_path / "proc" / "net" / "tcp").write_text(HEADING + "\n".join(rows) + "\n")
    [found], _problems = processes.read(Host(str(tmp_path), str(tmp_path)))
    assert found.disabled
    assert "hunter2" not in str(found)
    assert (found.pid, found.inner, found.user, found.state, found.port) == (7, 3, "uid 1000", "T", 9)
    assert found.ras == (Listener("127.0.0.1", 9, 4711),)
    assert found.library == "/opt/nccl/lib/libnccl.so.2.28.9"


REPORTS = Path(__file__).parent / "readings" / "ras.answer.parse_json"


@pytest.mark.parametrize(
    ("report", "code", "state", "check"),
    [
        ("h200x2-2.28.9-moves", 3, "cannot tell", "nccl_hang.progress"),
        ("h200x2-2.28.9-late", 3, "cannot tell", "nccl_hang.behind"),
        ("h200x2-2.28.9-stopped", 2, "failed", "nccl_hang.missing"),
    ],
)
def test_a_stored_report_is_diagnosed(
    report: str, code: int, state: str, check: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", str(REPORTS / f"{report}.txt")]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"]["state"], found["findings"][0]["check"]) == (state, check)
    assert found["jobs"][0]["nccl"] == ["2.28.9"]


def test_a_stored_report_that_is_cut_off_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text((REPORTS / "h200x2-2.28.9-late.txt").read_text()[:-40])
    assert main(["diagnose", str(tmp_path / "ras.json")]) == 1
    assert main(["diagnose", str(tmp_path / "ras.json"), str(REPORTS / "h200x2-2.28.9-moves.txt")]) == 3
