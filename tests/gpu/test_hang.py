"""RAS of a real job: two ranks on two GPUs, or, where there is one, on that as two hosts (NCCL_HOSTID, sockets).

    pytest -s tests/gpu/test_hang.py      as root, with ansible-runner, pytest and libnccl 2.24 or later

BUSBAR_NCCL_LIBRARY names the library (else: of the package nvidia-nccl), BUSBAR_KEEP a folder for RAS's answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from .conftest import ROOT, Show, gpus, packaged_library

RANK = Path(__file__).with_name("rank.py")


@contextlib.contextmanager
def job(folder: Path, late: int = -1, **environment: str) -> Iterator[list[int]]:
    """Pids of the ranks, once both have all-reduced (the late one: once it launches nothing more)."""
    library = os.environ.get("BUSBAR_NCCL_LIBRARY") or packaged_library()
    own = gpus() >= 2
    ranks = []
    for rank in range(2):
        more = {"NCCL_NVLS_ENABLE": "0", **({} if own else {"NCCL_HOSTID": f"host{rank}"}), **environment}
        argv = [sys.executable, str(RANK), library, str(folder), str(rank), "2", str(rank if own else 0)]
        argv += [str(late)] if rank == 1 and late >= 0 else []
        ranks.append(subprocess.Popen(argv, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True))
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("rank "), "NCCL_DEBUG=WARN says why"
        assert late < 0 or "waits for data" in str(ranks[1].stdout and ranks[1].stdout.readline())
        yield [process.pid for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


Hang = Callable[..., tuple[int, str]]


@pytest.fixture
def hang(tmp_path: Path, show: Show) -> Hang:
    inventory = tmp_path / "inventory.yml"
    host = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": {"node01": host}}}))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "ansible")}

    def ask(what: str, *arguments: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "busbar", "hang", "node01", "-i", str(inventory), "--interval", "5", *arguments]
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        show(f"\n== {what}\n{done.stdout}{done.stderr}(exit code {done.returncode})")
        keep(what)
        return done.returncode, done.stdout

    return ask


def keep(name: str) -> None:
    """RAS's own answers, as they are, for parsers."""
    folder = os.environ.get("BUSBAR_KEEP")
    for form, commands in (("json", b"set format json\nstatus\n"), ("text", b"verbose status\n")) if folder else ():
        chunks = []
        # One that is stopped takes the connection, and says nothing: another try may meet the other one.
        for _attempt in range(8):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 28028), timeout=15) as talk:
                talk.settimeout(3)
                talk.sendall(b"client protocol 2\n")
                chunks = [talk.recv(100)]
                talk.settimeout(30)
                talk.sendall(commands)
                while data := talk.recv(65536):
                    chunks.append(data)
                break
        (Path(str(folder)) / f"ras-{name.replace(' ', '-')}.{form}.txt").write_bytes(b"".join(chunks))


def test_a_job_that_moves(hang: Hang, tmp_path: Path) -> None:
    with job(tmp_path):
        code, said = hang("two ranks all-reduce")
    assert code == 0, said
    assert "VERDICT MOVES" in said


def test_a_rank_whose_data_is_late_is_named(hang: Hang, tmp_path: Path) -> None:
    with job(tmp_path, late=100) as pids:
        code, said = hang("rank 1 waits for data")
    assert code == 2, said
    assert "nccl_hang.behind" in said
    assert f"process {pids[1]} GPU" in said
    assert re.search(r"AllReduce: rank 1 \(.*\) has launched \d+, 1 of 2 ranks \d+; 5 s later the same", said)


def test_a_stopped_rank_is_named_and_is_no_hang_any_more_when_it_goes_on(hang: Hang, tmp_path: Path) -> None:
    with job(tmp_path) as pids:
        os.kill(pids[1], signal.SIGSTOP)
        code, said = hang("rank 1 is stopped")
        _code, report = hang("rank 1 is stopped for longer", "--json")
        os.kill(pids[1], signal.SIGCONT)
        after, then = hang("rank 1 goes on")
    assert code == 2, said
    assert f"process {pids[1]} GPU" in said
    assert "rank 1 of 2" in said
    assert "it is stopped (a signal)" in said
    [missing] = [one for one in json.loads(report)["findings"] if one["check"] == "nccl_hang.missing"]
    assert f"kill -CONT {pids[1]}" in missing["fix"]
    assert after == 0, then


def test_a_job_without_ras_is_told_what_to_set(hang: Hang, tmp_path: Path) -> None:
    with job(tmp_path, NCCL_RAS_ENABLE="0"):
        code, said = hang("NCCL_RAS_ENABLE is 0")
    assert code == 3, said
    assert "start the job without NCCL_RAS_ENABLE=0" in said
