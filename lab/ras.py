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
from pathlib import Path
from typing import Any

# In the order of NCCL's functions.
COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
SIMULATED = "simulated"


def example(ranks: int = 4, port: int = 28028, **more: Any) -> dict[str, Any]:
    """A job of one communicator on this host.

    late: rank -> how many collectives it launches less than the others, who then wait. Without it the job moves.
    misbehaves: garbage, drip, endless, closes, silent, types, beyond, back; see ``_misbehave``.
    """
    return {
        "version": "2.28.9",
        "address": "127.0.0.1",
        "port": port,
        "communicators": [
            {
                "hash": "0xa982ee6e1e529f6",
                "secondary": "0x90e9d0da766ec128:0x11ceca577eb9ce4a",
                "ranks": [{"host": "127.0.0.1", "gpu": rank} for rank in range(ranks)],
            }
        ],
        "late": {},
        "rate": 50.0,
        "misbehaves": "",
        **more,
    }


def launched(job: dict[str, Any], rank: int, seconds: float) -> int:
    """How many AllReduce a rank has launched so many seconds after the start."""
    if job["late"]:
        return max(0, 100 - int(job["late"].get(str(rank), 0)))
    return int(seconds * float(job["rate"]))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def seen(job: dict[str, Any], pids: list[int], seconds: float) -> list[dict[str, Any]]:
    """The communicators as RAS has them: ranks that answer, and those that do not."""
    found: list[dict[str, Any]] = []
    for communicator in job["communicators"]:
        ranks: list[dict[str, Any]] = []
        missing: list[dict[str, Any]] = []
        for rank, each in enumerate(communicator["ranks"]):
            pid = int(each.get("pid") or pids[rank % len(pids)])
            entry: dict[str, Any] = {"rank": rank, "host": each["host"], "pid": pid, "gpu": each["gpu"]}
            state = _state(pid) if "pid" not in each else each.get("state", "S")
            if state in "TtXZ":
                missing.append({**entry, "dead": state in "XZ"})
            else:
                ranks.append({**entry, "launched": launched(job, rank, seconds), "init": int(each.get("init", 0))})
        for waiting in ranks if missing else ():
            waiting["launched"] = 100
        found.append({**communicator, "ranks": ranks, "missing": missing, "size": len(communicator["ranks"])})
    return found


def as_json(job: dict[str, Any], communicators: list[dict[str, Any]]) -> str:
    """SET FORMAT json, 2.28.7 and later."""
    version = tuple(map(int, job["version"].split(".")))
    told = version >= (2, 28, 9)

    def missing(rank: dict[str, Any]) -> dict[str, Any]:
        entry = {key: rank[key] for key in ("rank", "host", "pid")} | {"cuda_dev": rank["gpu"], "nvml_dev": rank["gpu"]}
        return {**entry, "status": {"unresponsive": True, "considered_dead": rank["dead"]}} if told else entry

    answer = {
        "nccl_version": job["version"],
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": time.strftime("%Y-%m-%d %H:%M:%S"),
        "communicators_count": len(communicators),
        "communicators": [
            {
                "hash": one["hash"],
                "secondary_hash": one["secondary"],
                "size": one["size"],
                "ranks_count": len(one["ranks"]),
                "missing_ranks_count": len(one["missing"]),
                "ranks": [
                    {
                        **{key: rank[key] for key in ("rank", "host", "pid")},
                        "cuda_dev": rank["gpu"],
                        "nvml_dev": rank["gpu"],
                        "status": {
                            "init_state": rank["init"],
                            "async_error": 0,
                            "finalize_called": False,
                            "destroy_flag": False,
                            "abort_flag": False,
                        },
                        "collective_counts": {**dict.fromkeys(COLLECTIVES, 0), "AllReduce": rank["launched"]},
                    }
                    for rank in one["ranks"]
                ],
                "missing_ranks": [missing(rank) for rank in one["missing"]],
            }
            for one in communicators
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    text = json.dumps(answer, indent=2) + "\n"
    # As a real 2.28.9 answers (two H200, one rank stopped): a comma is missing before the status of a missing rank.
    return (
        text
        if version >= (2, 29, 0)
        else re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", text)
    )


def as_text(job: dict[str, Any], communicators: list[dict[str, Any]]) -> str:
    """VERBOSE STATUS, in the words of 2.26 and later, or those of 2.24 and 2.25."""
    old = tuple(map(int, job["version"].split("."))) < (2, 26, 0)
    total = max(one["size"] for one in communicators)
    lines = [
        f"NCCL version {job['version']} compiled with CUDA 12.4",
        "CUDA runtime version 12040, driver version 12040",
    ]
    lines += ["", "Job summary", "===========", "", "  Nodes  Processes         GPUs  Processes     GPUs"]
    lines += ["(total)   per node  per process    (total)  (total)", f"{1:7}  {total:9}  {1:11}  {total:9}  {total:7}"]
    lines += ["", "Communicators... (0.000s)", "=============", ""]
    lines += ["Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"]
    lines += ["    #  in group  per comm  per node  per comm  in group"]
    errors, warnings = ["", "Errors", "======", ""], ["Warnings", "========", ""]
    for number, one in enumerate(communicators):
        counts = sorted({rank["launched"] for rank in one["ranks"]})
        wrong = ["INCOMPLETE"] if one["missing"] else []
        wrong += ["MISMATCH"] if len(counts) > 1 else []
        alive, shown = len(one["ranks"]), ",".join(wrong) or "OK"
        lines.append(f"{number:5}  {1:8}  {1:8}  {alive:8}  {one['size']:8}  {alive:8}   RUNNING  {shown:>6}")
        name = f"#{number}-0 ({int(one['hash'], 16):016x})"
        count = len(one["missing"])
        if one["missing"]:
            errors += ["INCOMPLETE", f"  Missing communicator data from {count} job process{'es' if count > 1 else ''}"]
            errors += [
                f"  Process {rank['pid']} on node {rank['host']} managing GPU {rank['gpu']}" for rank in one["missing"]
            ]
            errors += [
                "",
                f"{name} INCOMPLETE",
                f"  Missing communicator data from {count} rank{'s' if count > 1 else ''}",
            ]
            if old:
                ranks = ",".join(str(rank["rank"]) for rank in one["missing"])
                errors.append(f"  The missing rank{'s' if count > 1 else ''}: {ranks}")
            else:
                errors += [f"  Rank {rank['rank']} -- {_at(rank)}" for rank in one["missing"]]
            errors.append("")
        if len(counts) > 1:
            kind = "collective" if old else "AllReduce"
            warnings += [f"{name} MISMATCH", f"  Communicator ranks have different {kind} operation counts"]
            groups = [[rank for rank in one["ranks"] if rank["launched"] == count] for count in counts]
            for group in sorted(groups, key=len, reverse=True):
                warnings += _group(group, one["size"])
            warnings.append("")
    return "\n".join([*lines, *errors, *warnings]) + "\n"


def _at(rank: dict[str, Any]) -> str:
    return f"GPU {rank['gpu']} managed by process {rank['pid']} on node {rank['host']}"


def _group(group: list[dict[str, Any]], size: int) -> list[str]:
    said = f"launched up to operation {group[0]['launched']}" if group[0]["launched"] else "not launched any operations"
    if len(group) == 1:
        return [f"  Rank {group[0]['rank']} has {said} -- {_at(group[0])}"]
    # Verbose: more than half of all ranks are no outliers, and are not named.
    named = [f"  Rank {rank['rank']} -- {_at(rank)}" for rank in group] if len(group) < size * 0.5 else []
    return [f"  {len(group)} ranks have {said}", *named]


def _misbehave(how: str, connection: socket.socket, answer: str) -> str:
    """What is sent instead; some are sent here."""
    if how == "garbage":
        return "\x00\xff{]" * 100
    if how == "closes":
        return answer[: len(answer) // 2]
    if how == "types":
        return answer.replace('"rank": 1,', '"rank": "one",')
    if how == "beyond":
        return answer.replace('"rank": 1,', '"rank": 4711,')
    if how == "silent":
        time.sleep(3600)
    while how == "endless":
        connection.sendall(b" " * 65536)
    if how == "drip":
        for letter in answer:
            connection.sendall(letter.encode())
            time.sleep(0.5)
    return answer


def converse(connection: socket.socket, job: dict[str, Any], pids: list[int], started: float, asked: int) -> None:
    """Commands of one client, until a status is sent."""
    has_json = tuple(map(int, job["version"].split("."))) >= (2, 28, 7)
    form = "text"
    with connection, connection.makefile("r", encoding="ascii", errors="replace") as lines:
        for line in lines:
            command = line.strip().lower()
            if command.startswith("client protocol "):
                connection.sendall(b"SERVER PROTOCOL 2\n")
            elif command.startswith("set format ") and has_json:
                form = command.split()[-1]
                connection.sendall(b"OK\n")
            elif command.startswith("timeout "):
                connection.sendall(b"OK\n")
            elif command in ("status", "verbose status"):
                seconds = time.monotonic() - started
                # A counter that goes back between two questions.
                seconds = 100.0 - asked if job["misbehaves"] == "back" else seconds
                communicators = seen(job, pids, seconds)
                answer = (as_json if form == "json" else as_text)(job, communicators)
                sent = _misbehave(job["misbehaves"], connection, answer)
                connection.sendall(sent.encode("latin-1" if job["misbehaves"] == "garbage" else "utf-8"))
                return
            else:
                connection.sendall(f"ERROR: Unknown command {line.strip()}\n".encode())


def _listen(job: dict[str, Any]) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((job["address"], job["port"]))
    server.listen(64)
    return server


def _rank(job: dict[str, Any], library: Path, ready: int, told: int) -> None:
    with library.open("rb") as stream:
        held = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    server = _listen(job)
    os.write(ready, b"1")
    pids = json.loads(os.read(told, 1 << 16))
    started = time.monotonic()
    asked = 0
    while True:
        connection, _peer = server.accept()
        asked += 1
        try:
            converse(connection, job, pids, started, asked)
        except OSError:
            continue  # the client has gone
    del held


def start(job: dict[str, Any], folder: Path) -> list[int]:
    """A process for each rank of the first communicator without a pid of its own. Their pids, when all listen."""
    library = folder / "libnccl.so.2"
    library.write_bytes(b"simulated: no library\n" * 200)
    local = [rank for rank in job["communicators"][0]["ranks"] if "pid" not in rank]
    pids, pipes = [], []
    for _rank_of in local:
        ready, ready_in = os.pipe()
        told, told_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _rank(job, library, ready_in, told)
            finally:
                os._exit(1)
        pids.append(pid)
        pipes.append((ready, told_in))
        os.close(ready_in)
        os.close(told)
    for ready, told in pipes:
        os.read(ready, 1)
        os.write(told, json.dumps(pids).encode())
        os.close(ready)
        os.close(told)
    return pids


def main(path: str) -> int:
    # What a shell starts in the background is born deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    pids = start(job, Path(path).resolve().parent)
    print(f"{SIMULATED}: ranks in processes {' '.join(map(str, pids))}, RAS at port {job['port']}", flush=True)
    try:
        for pid in pids:
            os.waitpid(pid, 0)
    except KeyboardInterrupt:
        pass
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
