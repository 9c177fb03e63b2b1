# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Flight recorder dumps as PyTorch writes them, of a few words for each rank."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any

SECOND = 1_000_000_000
START = 1_795_842_279 * SECOND
# GROUP NUMBER [!] [:OPERATION]: "A5!" is unfinished, "A5!:broadcast/64/Float" names operation, elements and type.
_WORD = re.compile(r"(?P<group>[A-Z])(?P<number>\d+)(?P<open>!?)(?::(?P<what>\S+))?")
_PAIR = re.compile(r"(?P<group>[A-Z])(?P<number>\d+)!(?P<kind>send|recv)(?P<first>\d+)-(?P<second>\d+)")


def entry(word: str, record: int, members: Sequence[int]) -> dict[str, Any]:
    pair = _PAIR.fullmatch(word)
    match = pair or _WORD.fullmatch(word)
    assert match is not None, word
    group = match["group"]
    name, size, kind = "all_reduce", "1024", "Float"
    if pair:
        arrow = "->" if pair["kind"] == "send" else "<-"
        name = f"{pair['kind']} {pair['first']}{arrow}{pair['second']}"
    elif match["what"]:
        parts = str(match["what"]).split("/")
        name, size, kind = [*parts, *(name, size, kind)[len(parts) :]]
    is_open = bool(pair) or match["open"] == "!"
    frames = [
        {"name": name, "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 3068},
        {"name": "step", "filename": "train.py", "line": 8},
    ]
    return {
        "frames": frames,
        "record_id": record,
        "pg_id": ord(group) - ord("A"),
        "process_group": (group, "default_pg" if group == "W" else "undefined"),
        "thread_name": "python",
        "thread_id": "139813565673792",
        "collective_seq_id": 0 if pair else int(match["number"]),
        "p2p_seq_id": int(match["number"]) if pair else 0,
        "op_id": int(match["number"]),
        "profiling_name": f"nccl:{name}",
        "time_created_ns": START + record * SECOND,
        "input_sizes": [[int(size)]],
        "input_dtypes": [kind],
        "output_sizes": [[int(size)]],
        "output_dtypes": [kind],
        "state": "scheduled" if is_open else "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None if is_open else START + record * SECOND + 1,
        "retired": not is_open,
        "timeout_ms": 45000,
        "is_p2p": bool(pair),
    }


def dump(words: str, groups: Mapping[str, Sequence[int]], rank: int, first: int = 0) -> dict[str, Any]:
    """Return a dump of a rank.   first: number of its first record; PyTorch's buffer lost those before."""
    entries = [entry(word, first + place, ()) for place, word in enumerate(words.split())]
    of_rank = {name: ranks for name, ranks in groups.items() if rank in ranks}
    status: dict[str, dict[str, int]] = {}
    for one in entries:
        last = status.setdefault(str(one["pg_id"]), {"last_enqueued_collective": -1, "last_started_collective": -1})
        number = one["p2p_seq_id"] or one["collective_seq_id"]
        last["last_enqueued_collective"] = max(last["last_enqueued_collective"], number)
        before = last.setdefault("last_completed_collective", number - 1)
        last["last_completed_collective"] = number if one["state"] == "completed" else before
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "default_pg" if name == "W" else "undefined", "ranks": str([*ranks])}
            for name, ranks in of_rank.items()
        },
        "comm_lib_version": "2.30.7",
        "pg_status": status,
        "entries": entries,
    }


def pickled(data: object, protocol: int = 2) -> bytes:
    return pickle.dumps(data, protocol)


def as_json(data: dict[str, Any]) -> bytes:
    """Return the form of PyTorch's dump_json: numbers of pg_status are texts, and no empty list is written."""
    status = {name: {key: str(number) for key, number in of.items()} for name, of in data["pg_status"].items()}
    changed = {**data, "pg_status": status}
    if not data["entries"]:
        del changed["entries"]
    return json.dumps(changed).encode()
