# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A simulated NCCL job whose processes have a RAS that answers, and that can be made to hang.

``python3 lab/ras.py JOB.json`` starts a process for each rank of this host; each maps a file named libnccl.so.2,
and all listen at one port, as processes of one user do. A rank that the job file makes late launches nothing more; one
that is stopped (SIGSTOP, by whoever wants it) is found silent by the others, as RAS finds it.
Written from NCCL's documentation (troubleshooting/ras.rst) and src/ras of 2.24 to 2.30.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

# In the order of NCCL's functions.
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_OK = {"async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def example(ranks: int = 4, port: int = 28028, **more: Any) -> dict[str, Any]:
    """Describe a job of one communicator on this host.

    late: rank -> how many collectives it launches less than the others, who then wait. Without it the job moves.
    misbehaves: garbage, drip, endless, closes, silent, types, beyond; see ``_send``.
    """
    communicator = {
        "hash": "0xa982ee6e1e529f6",
        "secondary_hash": "0x90e9d0da766ec128:0x11ceca577eb9ce4a",
        "ranks": [{"host": "127.0.0.1", "gpu": rank} for rank in range(ranks)],
    }
    job = {"version": "2.28.9", "port": port, "communicators": [communicator], "late": {}, "misbehaves": ""}
    return {**job, **more}


def _release(job: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, job["version"].split(".")))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def seen(job: dict[str, Any], pids: list[int], seconds: float) -> list[dict[str, Any]]:
    """Return the communicators as RAS has them so long after the start: ranks that answer, and those that do not."""
    found: list[dict[str, Any]] = []
    for communicator in job["communicators"]:
        ranks, missing = [], []
        for rank, each in enumerate(communicator["ranks"]):
            pid = int(each.get("pid") or pids[rank % len(pids)])
            state = each.get("state", "S") if "pid" in each else _state(pid)
            entry: dict[str, Any] = {"rank": rank, "host": each["host"], "pid": pid, "gpu": each["gpu"]}
            if state in "TtXZ":
                missing.append({**entry, "dead": state in "XZ"})
            else:
                launched = 100 - int(job["late"].get(str(rank), 0)) if job["late"] else int(seconds * 50)
                ranks.append({**entry, "launched": launched})
        for waiting in ranks if missing else ():
            waiting["launched"] = 100
        found.append({**communicator, "ranks": ranks, "missing": missing, "size": len(communicator["ranks"])})
    return found


def as_json(job: dict[str, Any], communicators: list[dict[str, Any]]) -> str:
    """Return the status after SET FORMAT json, of 2.28.7 and later."""

    def known(rank: dict[str, Any]) -> dict[str, Any]:
        entry = {key: rank[key] for key in ("rank", "host", "pid")} | {"cuda_dev": rank["gpu"], "nvml_dev": rank["gpu"]}
        if "launched" in rank:
            counts = {**dict.fromkeys(COLLECTIVES, 0), "AllReduce": rank["launched"]}
            return {**entry, "status": {"init_state": 0, **_OK}, "collective_counts": counts}
        silent = {"status": {"unresponsive": True, "considered_dead": rank["dead"]}}
        return entry | (silent if _release(job) >= (2, 28, 9) else {})

    status = {
        "nccl_version": job["version"],
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": time.strftime("%Y-%m-%d %H:%M:%S"),
        "communicators_count": len(communicators),
        "communicators": [
            {
                **{key: communicator[key] for key in ("hash", "secondary_hash", "size")},
                "ranks_count": len(communicator["ranks"]),
                "missing_ranks_count": len(communicator["missing"]),
                "ranks": [known(rank) for rank in communicator["ranks"]],
                "missing_ranks": [known(rank) for rank in communicator["missing"]],
            }
            for communicator in communicators
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    text = json.dumps(status, indent=2) + "\n"
    # As a real 2.28.9 answers (two H200, one rank stopped): a comma is missing before the status of a missing rank.
    whole = _release(job) >= (2, 29, 0)
    return text if whole else re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", text)


def _send(how: str, connection: socket.socket, status: str) -> None:
    """Send a status, or what the job is made to send instead."""
    if how == "silent":
        time.sleep(3600)
    while how == "endless":
        connection.sendall(b" " * 65536)
    for letter in status if how == "drip" else ():
        connection.sendall(letter.encode())
        time.sleep(0.5)
    wrong = {"types": '"rank": "one",', "beyond": '"rank": 4711,'}
    if how in wrong:
        status = status.replace('"rank": 1,', wrong[how])
    data = b"\x00\xff{]" * 100 if how == "garbage" else status.encode()
    connection.sendall(data[: len(data) // 2] if how == "closes" else data)


def converse(connection: socket.socket, job: dict[str, Any], pids: list[int], started: float) -> None:
    """Do the commands of one client, until a status is sent."""
    with connection, connection.makefile("r", encoding="ascii", errors="replace") as lines:
        for line in lines:
            command = line.strip().lower()
            if command.startswith("client protocol "):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif (command == "set format json" and _release(job) >= (2, 28, 7)) or command.startswith("timeout "):
                connection.sendall(b"OK\n")
            elif command == "status":
                communicators = seen(job, pids, time.monotonic() - started)
                _send(job["misbehaves"], connection, as_json(job, communicators))
                return
            else:
                connection.sendall(f"ERROR: Unknown command {line.strip()}\n".encode())


def _rank(job: dict[str, Any], server: socket.socket, told: int) -> None:
    """Answer for ever."""
    pids, started = json.loads(os.read(told, 1 << 16)), time.monotonic()
    while True:
        connection, _peer = server.accept()
        # The client may have gone.
        with suppress(OSError):
            converse(connection, job, pids, started)


def start(job: dict[str, Any], folder: Path) -> list[int]:
    """Start a process for each rank of the first communicator without a pid. Return their pids.

    All listen, and have the library mapped: they inherit it.
    """
    library = folder / "libnccl.so.2"
    library.write_bytes(b"simulated: no library\n" * 200)
    with library.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    pids, pipes = [], []
    for _ in [rank for rank in job["communicators"][0]["ranks"] if "pid" not in rank]:
        pipes.append(os.pipe())
        server = socket.create_server(("127.0.0.1", job["port"]), backlog=64, reuse_port=True)
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _rank(job, server, pipes[-1][0])
            finally:
                os._exit(1)
        server.close()
        pids.append(pid)
    for _, told_in in pipes:
        os.write(told_in, json.dumps(pids).encode())
    mapped.close()
    return pids


def main(path: str) -> int:
    # What a shell starts in the background is born deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    pids = start(job, Path(path).resolve().parent)
    print(f"simulated: ranks in processes {' '.join(map(str, pids))}, RAS at port {job['port']}", flush=True)
    try:
        for pid in pids:
            os.waitpid(pid, 0)
    except KeyboardInterrupt:
        pass
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
