"""RAS of jobs: who is missing, who is behind, who only waits; invalid responses; and which port is not contacted."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import nccl_hang, nccl_ras
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import processes, ras_answer, ras_client, ras_views
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.processes import Listener, Node, Process
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.ras_answer import Answer
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.ras_views import View

from busbar.lab import ras as emulator

NAMES = {"192.0.2.1": "node01", "192.0.2.2": "node02", "192.0.2.3": "node03"}
KNOWN = nccl_hang.Known(NAMES)
Ranks = dict[int, dict[str, Any]]


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


def answer(*communicators: dict[str, Any]) -> Answer:
    return ras_answer.parse_json(json.dumps(document(*communicators)))


def still(*communicators: dict[str, Any]) -> View:
    """Twice the same."""
    return View("RAS at 127.0.0.1:28028", ("alice",), answer(*communicators), answer(*communicators), 10.0)


def judged(*views: View, known: nccl_hang.Known = KNOWN) -> dict[str, Finding]:
    found = nccl_hang.judge(views, (), known)
    assert len({finding.id for finding in found}) == len(found)
    return {f"{finding.check.partition('.')[2]} {finding.subject}": finding for finding in found}


def test_a_job_that_moves_is_fine_also_where_a_rank_is_a_step_behind() -> None:
    before = answer(communicator("0xa", [rank(0, 10), rank(1, 9)]))
    now = answer(communicator("0xa", [rank(0, 30), rank(1, 29)]))
    [(name, finding)] = judged(View("RAS", ("alice",), before, now, 10.0)).items()
    assert name == "progress job of alice with communicator 0xa"
    assert finding.ok
    assert finding.have == "in 10 s communicator 0xa: AllReduce 10 to 30"


def test_the_rank_that_has_launched_the_fewest_is_named_with_host_process_and_gpu() -> None:
    found = judged(still(communicator("0xa", [rank(0, 10), rank(1, 10, host=2), rank(2, 9, host=2), rank(3, 10)])))
    behind = found["behind communicator 0xa"]
    assert behind.state == "drift"
    assert behind.have == (
        "AllReduce: rank 2 (node02 process 4002 GPU 2) has launched 9, 3 of 4 ranks 10; 10 s later the same"
    )
    assert "on node02 run py-spy dump --pid 4002" in behind.fix
    assert found["progress job of alice with communicator 0xa"].because == behind.id


def test_who_is_behind_because_it_waits_elsewhere_is_not_the_cause() -> None:
    """Tensor parallel 0-1, data parallel 0-2: process 1 sleeps, 0 waits for it, and 2 waits for 0."""
    found = judged(
        still(
            communicator("0xd", [rank(0, 5, pid=1), rank(1, 6, pid=3)]),
            communicator("0xe", [rank(0, 9, pid=1), rank(1, 8, pid=2)]),
        )
    )
    assert found["behind communicator 0xe"].because is None
    assert found["behind communicator 0xd"].because == found["behind communicator 0xe"].id


def test_a_ring_of_communicators_has_no_single_cause_and_comes_to_an_end() -> None:
    found = judged(
        still(
            communicator("0xd", [rank(0, 5, pid=1), rank(1, 6, pid=2)]),
            communicator("0xe", [rank(0, 5, pid=2), rank(1, 6, pid=1)]),
        )
    )
    assert {"behind communicator 0xd", "behind communicator 0xe"} < set(found)


def test_a_silent_process_is_one_finding_of_its_host_and_the_cause_of_what_waits_for_it() -> None:
    found = judged(
        still(
            communicator("0xa", [rank(0, 5, pid=1)], gone(1, host=2, pid=2, dead=True)),
            communicator("0xb", [rank(0, 5)], gone(1, host=2, pid=2, dead=True)),
            communicator("0xc", [rank(0, 5, pid=1), rank(1, 6, pid=9)]),
        )
    )
    missing = found["missing host node02"]
    assert missing.state == "drift"
    assert missing.severity == "critical"
    assert str(missing.have).startswith("node02 process 2 GPU 1: rank 1 of 2 of communicator 0xa (silent for a minute")
    assert "communicator 0xb" in str(missing.have)
    assert found["behind communicator 0xc"].because == missing.id


def test_what_its_own_node_says_of_a_silent_process_is_part_of_the_finding() -> None:
    job = still(communicator("0xa", [rank(0, 5)], gone(1, host=2, pid=2), gone(2, host=3, pid=3)))
    stopped = nccl_hang.Seen(2002, "T", "alice", "python")
    known = nccl_hang.Known(NAMES, frozenset(["node02", "node03"]), {("node02", 2): stopped})
    found = judged(job, known=known)
    assert "node02 process 2002 GPU 1" in str(found["missing host node02"].have)
    assert "it is stopped (a signal)" in str(found["missing host node02"].have)
    assert "kill -CONT 2002 lets it continue" in found["missing host node02"].fix
    assert "it is not there any more" in str(found["missing host node03"].have)


def test_a_rank_that_is_missing_here_and_answers_there_is_cut_off() -> None:
    views = (
        still(communicator("0xa", [rank(0, 5)], gone(1, host=2))),
        still(communicator("0xa", [rank(1, 5, host=2)], gone(0))),
    )
    assert "it responds to others: the network between is cut" in str(judged(*views)["missing host node02"].have)


def test_views_of_one_job_are_one_job() -> None:
    one = communicator("0xa", [rank(0, 5), rank(1, 4)])
    assert len(judged(still(one), still(one, communicator("0xb", [rank(0, 5)])), still(one))) == 2


def test_the_same_number_of_other_collectives_is_the_program() -> None:
    other = rank(1, 5)
    other["collective_counts"] = {"AllReduce": 6, "AllGather": 6}
    found = judged(still(communicator("0xa", [rank(0, 5), other])))
    assert found["order communicator 0xa"].have == (
        "AllGather: 6 by rank 1, 7 by rank 0; AllReduce: 5 by rank 0, 6 by rank 1; 10 s later the same"
    )


def test_nothing_that_moves_and_all_alike_is_not_known() -> None:
    finding = judged(still(communicator("0xa", [rank(0, 5), rank(1, 5)])))[
        "progress job of alice with communicator 0xa"
    ]
    assert finding.state == "unknown"
    assert "look below Python" in finding.fix


def test_counts_that_go_back_are_no_progress() -> None:
    before = answer(communicator("0xa", [rank(0, 30), rank(1, 30)]))
    now = answer(communicator("0xa", [rank(0, 20), rank(1, 30)]))
    found = judged(View("RAS", ("alice",), before, now, 10.0))
    assert found["answer communicator 0xa"].have == "rank 0 had launched more 10 s before"
    assert {finding.state for finding in found.values()} == {"unknown"}


def test_errors_initialization_and_ends() -> None:
    found = judged(
        still(
            communicator("0xa", [rank(0, 5, async_error=6), rank(1, 5)]),
            communicator("0xb", [rank(0, 0, init_state=7), rank(2, 0, init_state=7)], size=4),
            communicator("0xc", [rank(0, 5, finalize_called=True), rank(1, 5)]),
            communicator("0xd", [rank(0, 5)], gone(1, silent=False)),
        )
    )
    assert (
        found["error communicator 0xa"].have
        == "asynchronous: remote process error on rank 0 (node01 process 4000 GPU 0)"
    )
    assert str(found["init communicator 0xb"].have).endswith("initialize it; missing: rank 1,3; 10 s later the same")
    assert found["status communicator 0xc"].state == "drift"
    assert "NOCOMM: rank 1" in str(found["status communicator 0xd"].have)
    assert not any(name.startswith("missing") for name in found)


def test_asked_once_nothing_is_said_with_certainty() -> None:
    view = View("RAS", ("alice",), None, answer(communicator("0xa", [rank(0, 5), rank(1, 4)])), 0.0)
    assert {finding.state for finding in judged(view).values()} == {"unknown"}


def test_text_of_old_releases_names_the_rank_and_does_not_say_more_than_it_knows() -> None:
    folder = Path(__file__).parent / "readings" / "nccl.ras_answer.parse_text"
    late, fine = ((folder / f"synthetic-2.2{name}.txt").read_text() for name in ("6.2-behind", "7.7-moves"))
    parsed = ras_answer.parse_text(late)
    found = judged(View("RAS", ("alice",), parsed, parsed, 10.0))
    assert "rank 2 (node02 process 4002 GPU 0) has launched 99" in str(
        found["behind communicator 0xa982ee6e1e529f6"].have
    )
    parsed = ras_answer.parse_text(fine)
    [finding] = judged(View("RAS", ("alice",), parsed, parsed, 10.0)).values()
    assert finding.state == "unknown"
    assert "2.28.7" in finding.fix


# -- bad input ---------------------------------------------------------------------------------------------------------


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    data = document(communicator("0xa", [rank(0, 5), rank(1, 5)], gone(2)))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cut off or is not JSON"),
        (changed(lambda _: None)[:-40], "cut off or is not JSON"),
        ("[" * 100000, "cut off or is not JSON"),
        ('{"nccl_version": NaN}', "NaN is not a number"),
        ("[]", "the response is list"),
        (changed(lambda d: d.update(communicators_count=2)), "communicators_count is 2, and there are 1"),
        (changed(lambda d: d["communicators"][0].update(ranks={})), "ranks is dict"),
        (changed(lambda d: d["communicators"][0].update(ranks_count=3)), "ranks_count is 3, and there are 2"),
        (changed(lambda d: d["communicators"][0].update(size=2)), "missing_ranks[0].rank is 2, in a communicator of 2"),
        (changed(lambda d: d["communicators"][0].update(size=10**9)), "size is a number out of bounds"),
        (changed(lambda d: d["communicators"][0].update(hash="0xa\x1b[2J")), "hash is"),
        (changed(lambda d: d["communicators"][0]["ranks"][1].update(rank=0)), "rank is 0, which is there twice"),
        (changed(lambda d: d["communicators"][0]["ranks"][1].update(rank=-1)), "rank is a number out of bounds"),
        (changed(lambda d: d["communicators"][0]["ranks"][1].update(rank="1")), "rank is '1'"),
        (changed(lambda d: d["communicators"][0]["ranks"][1].update(rank=True)), "rank is True"),
        (changed(lambda d: d["communicators"][0]["ranks"][0].update(host="{{ 7 }}")), "host is '{{ 7 }}'"),
        (
            changed(lambda d: d["communicators"][0]["ranks"][0]["collective_counts"].update(AllReduce=-1)),
            "AllReduce is",
        ),
        (
            changed(lambda d: d["communicators"][0]["ranks"][0]["collective_counts"].update(AllReduce=1e9)),
            "AllReduce is",
        ),
        (changed(lambda d: d["communicators"][0]["ranks"][0]["status"].update(abort_flag=0)), "abort_flag is 0"),
        (changed(lambda d: d["communicators"][0]["missing_ranks"][0].update(rank=0)), "which is there and missing"),
        (changed(lambda d: d["communicators"].append(d["communicators"][0])), "communicators_count is 1"),
    ],
)
def test_json_that_is_no_answer_is_refused(text: str, said: str) -> None:
    with pytest.raises(ParseError) as error:
        ras_answer.parse_json(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Rank 2 has", "Rank 4 has", "there is no rank 4"),
        ("3 ranks have", "5 ranks have", "5 ranks are alike"),
        ("#0-0 (", "#7-0 (", "the table has 1 groups"),
        ("node 192.0.2.2", "node $(reboot)", "expected an IP address"),
        ("Warnings\n========\n", "", "has no part 'Warnings'"),
        ("NCCL version", "Some version", "expected 'NCCL version"),
        ("operation 100\n", "operation 1" + "0" * 5000 + "\n", "which is not known of RAS"),
        ("Errors\n======\n", "Errors\n======\nBOOM\n", "'BOOM', which is not known"),
    ],
)
def test_text_that_is_no_answer_is_refused(old: str, new: str, said: str) -> None:
    folder = Path(__file__).parent / "readings" / "nccl.ras_answer.parse_text"
    text = (folder / "synthetic-2.26.2-behind.txt").read_text()
    assert old in text
    with pytest.raises(ParseError) as error:
        ras_answer.parse_text(text.replace(old, new))
    assert said in str(error.value)


# -- processes ---------------------------------------------------------------------------------------------------------


HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "00000000:0000 {} 00000000:00000000 00:00000000 00000000  {}        0 {} 1 0000000000000000 100 0 0 10 0"


def test_listeners_of_both_families() -> None:
    rows = [
        "   0: 0100007F:6D7C " + REST.format("0A", 1000, 4711),
        "   1: 0100007F:0016 " + REST.format("01", 0, 99),
        "   2: 00000000000000000000000001000000:6D7C " + "0" * 24 + REST.format("0A", 1001, 12),
    ]
    assert processes.parse_tcp(HEADING + "\n".join(rows)) == [
        Listener("127.0.0.1", 28028, 1000, 4711),
        Listener("::1", 28028, 1001, 12),
    ]
    for text in ("", "rubbish", HEADING + "   0: 0100007F:XYZ"):
        with pytest.raises(ParseError):
            processes.parse_tcp(text)


@pytest.mark.parametrize(
    ("value", "port"),
    [(None, 28028), ("localhost:5000", 5000), ("[::1]:5001", 5001), ("x", 28028), (":0", 28028), (":²", 28028)],
)
def test_the_port_that_a_job_has_set(value: str | None, port: int) -> None:
    assert processes.ras_port(value) == port


def process(pid: int, **more: Any) -> Process:
    given: dict[str, Any] = {
        "pid": pid,
        "inner": pid,
        "parent": 1,
        "user": "alice",
        "name": "python",
        "state": "S",
        "ras": (),
        "library": "/opt/libnccl.so.2",
        "port": 28028,
        "apart": False,
        "gpu": True,
        "told": {},
    }
    return Process(**{**given, **more})


OTHERS = Listener("127.0.0.1", 28028, 1001, 77)


@pytest.mark.parametrize(
    ("of", "version", "strangers", "have", "fix"),
    [
        ([process(5)], (2, 21, 5), (), "NCCL 2.21.5 has no RAS (process 5)", "start the job with NCCL 2.24 or later"),
        ([process(5, told={"NCCL_RAS_ENABLE": "0"})], (2, 27, 7), (), "NCCL_RAS_ENABLE=0", "without NCCL_RAS_ENABLE=0"),
        ([process(5, apart=True)], (2, 27, 7), (), "separate network", "nsenter --target 5 --net bash -c"),
        ([process(5)], (2, 27, 7), (OTHERS,), "held by bob", "NCCL_RAS_ADDR=localhost:28029"),
        ([process(5), process(6, user="bob", ras=(OTHERS,))], (2, 27, 7), (), "held by bob", "NCCL_RAS_ADDR="),
        ([process(5), process(6)], None, (), "no RAS of it listens at port 28028 (process 5, 6)", "NCCL_DEBUG=INFO"),
        ([], None, (), "no process has libnccl mapped", "ncclras -v"),
    ],
)
def test_a_job_without_ras_is_told_what_to_set(
    of: list[Process], version: tuple[int, int, int] | None, strangers: tuple[Listener, ...], have: str, fix: str
) -> None:
    reading = nccl_ras.Reading(Node(tuple(of), strangers, {1001: "bob"}, ()), (), (), (), ())
    finding = nccl_ras.unasked(reading, lambda _process: version)[-1]
    assert finding.state == "unknown"
    assert have in str(finding.have)
    assert fix in finding.fix


def test_launchers_and_loaders_of_a_job_that_answers_are_no_jobs_of_their_own() -> None:
    rank_of_job = process(5, ras=(OTHERS,), parent=4)
    node = Node((process(4), rank_of_job, process(6, parent=5), process(7, parent=6), process(99)), (), {}, ())
    [finding] = nccl_ras.unasked(nccl_ras.Reading(node, (), (), (), ()), lambda _process: None)
    assert "(process 99)" in str(finding.have)


def test_a_port_is_asked_until_every_process_was_heard_of_and_not_for_ever() -> None:
    one, two = answer(communicator("0xa", [rank(0, 1, pid=5)])), answer(communicator("0xb", [rank(0, 1, pid=6)]))
    of = [process(5, ras=(OTHERS,)), process(6, ras=(Listener("127.0.0.1", 28028, 1001, 78),))]
    answers: list[Any] = [ReadError("x", "stopped"), one, one, two]

    def ask(_address: str, _port: int) -> Answer:
        given = answers.pop(0)
        if isinstance(given, Answer):
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
    return {
        finding.check: finding for finding in nccl_ras.judge(host, reading) if finding.check != "nccl_hang.readable"
    }


@pytest.mark.parametrize("version", ["2.24.3", "2.28.9", "2.30.7"])
def test_a_late_rank_of_a_job_that_really_listens(start: Start, version: str) -> None:
    _port, pids, host = start(version=version, late={"2": 3})
    found = found_on(host)
    assert f"rank 2 ({platform.node()} process {pids[2]} GPU 2) has launched 97" in str(found["nccl_hang.behind"].have)
    assert found["nccl_hang.ras"].ok


@pytest.mark.parametrize("version", ["2.26.2", "2.28.9"])
def test_a_stopped_rank_takes_connections_and_is_found_all_the_same(start: Start, version: str) -> None:
    _port, pids, host = start(ranks=3, version=version)
    os.kill(pids[1], signal.SIGSTOP)
    found = found_on(host)
    assert f"process {pids[1]} GPU 1: rank 1 of 3" in str(found["nccl_hang.missing"].have)
    assert "it is stopped (a signal)" in str(found["nccl_hang.missing"].have)


def test_a_job_all_of_whose_processes_are_stopped_says_nothing_and_that_is_said(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _port, pids, host = start(ranks=1)
    os.kill(pids[0], signal.SIGSTOP)
    ask = lambda address, port: ras_client.ask(address, port, greeting=0.2)  # noqa: E731
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
        ("endless", "its status has more than 0 MiB"),
    ],
)
def test_what_is_no_answer_ends_in_time_and_in_bytes(
    start: Start, how: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ras_client, "ANSWER_LIMIT", 1 << 19)
    port, _pids, _host = start(misbehaves=how)
    with pytest.raises((ReadError, ParseError)) as error:
        ras_client.ask("127.0.0.1", port, status=0.9 if how in ("silent", "drip") else ras_client.STATUS)
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
        node = processes.read(host)
        assert os.getpid() not in [each.pid for each in node.processes]
        assert [each.port for each in node.strangers] == [port]
        assert [where[1] for where in ras_views.endpoints(node.processes)] == [of_job]


def test_of_a_process_only_its_ras_and_what_is_about_hangs_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"AWS_SECRET_ACCESS_KEY=hunter2\0NCCL_DEBUG=INFO\0NCCL_RAS_ADDR=localhost:9\0")
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
    [found] = processes.read(Host(str(tmp_path), str(tmp_path))).processes
    assert found.told == {"NCCL_DEBUG": "INFO", "NCCL_RAS_ADDR": "localhost:9"}
    assert (found.pid, found.inner, found.user, found.state, found.port) == (7, 3, "uid 1000", "T", 9)
    assert found.ras == (Listener("127.0.0.1", 9, 0, 4711),)
    assert found.library == "/opt/nccl/lib/libnccl.so.2.28.9"
