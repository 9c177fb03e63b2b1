# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What programs and launchers print of a job beside its failures: how large it is, where it meets, who has come."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Optional, Set

from ..core.number import whole
from .failures import Failure

# Of each set.
_MOST = 4096
# One of these is in every line that says something of it.
COARSE = (
    b"world_size",
    b"WORLD_SIZE",
    b"world size",
    b"_endpoint",
    b"MASTER_",
    b"init_method",
    b"Process name:",
    b"nnodes",
)
COARSE += (b"Exit code:", b"NCCL_", b"min_nodes", b"endezvous", b"onnection from", b"starting workers")
COARSE += (b"world-size", b"--nranks", b"--n_ranks", b"ocal rank size")
COARSE += (b"Root Cause", b"host  ", b"rank  ", b"time  ", b"exitcode  ")

_WORDS = (*(mark.decode() for mark in COARSE), "worker_count", "num_workers", "World size", "World_size")
_VARIABLE = re.compile(
    r"(?<!with )(?<![(\w])(NCCL_[A-Z0-9_]{2,60})(?:['\"]?\s?=\s?['\"]?| was set to )([\w.:,^=/+-]{1,80})"
)
_START = re.compile(r"min_nodes|Rendezvous'ing|starting workers|[Cc]onnection from|rendezvous (?:complete|joined)")
_WORLD = re.compile(r"(?:(?<!local.)world[_ -]size|--n_?ranks)['\"]?\s*[=:]?\s*(\d{1,8})\b", re.IGNORECASE)
_LOCAL = re.compile(r"local[_ -](?:rank|world)[_ -]size['\"]?\s*[=:]?\s*(\d{1,8})\b", re.IGNORECASE)
_OWN_RANK = re.compile(r"(?:--rank[= ]|(?<![\w-])(?:global_)?rank['\"]?\s*[=:])\s*(\d{1,8})\b", re.IGNORECASE)
_LABEL = re.compile(r"\W{0,3}rank[ :=]{0,2}(\d{1,8})\b", re.IGNORECASE)
# A rank of torchrun's blocks.
_ENDED = re.compile(r"^[\s|]{0,8}rank {1,8}: (\d{1,8}) \(local_rank")
_HOST = re.compile(r"\bhost(?:name)?['\"]?\s*[=:]\s*['\"]?([A-Za-z][\w.-]{1,200})", re.IGNORECASE)
# What Ray puts before lines of its workers.
_RAY = re.compile(r"\(\w{1,60} pid=\d{1,10}, ip=([\d.]{7,15})\)")
_HOSTS = 64
_MEETING = re.compile(
    r"(?:rdzv_endpoint|init_method|MASTER_ADDR|MASTER_PORT)['\"]?\s*[=:]\s*['\"]?(?P<where>[A-Za-z0-9][\w.:/%\[\]-]{1,200})"
)
_BACKEND = re.compile(r"\bbackend['\"]?\s*[=:]\s*['\"]?(\w{2,20})")
_BARRIER = re.compile(
    r"store based barrier.{0,80}?rank: (?P<rank>\d{1,8}).{0,120}?world_size=(?P<world>\d{1,8}), "
    r"(?:worker|num_workers_joined|worker_count)\w*=(?P<came>\d{1,8})"
)
_NAME = re.compile(r"Process name: \[?\[(?P<job>[\w.@-]{1,120})(?:,\d{1,8})?\],(?P<rank>\d{1,8})\]|"
                   r"Process name: \[(?P<prte>[\w.@-]{1,120},)?(?P<other>\d{1,8})\]")  # fmt: skip
_ROOT = re.compile(
    r"(?:^|[\s|:])(?P<key>time|host|rank|exitcode) {1,8}: (?P<value>[\w.:-]{1,200}(?: \(pid: \d{1,10}\))?)"
)
# Programs of training and inference by the directories of their files.
PROGRAMS = {
    "accelerate": "Accelerate", "axolotl": "Axolotl", "colossalai": "Colossal-AI", "composer": "Composer",
    "deepspeed": "DeepSpeed", "fairseq": "fairseq", "horovod": "Horovod", "jax": "JAX", "lightning": "Lightning",
    "llamafactory": "LLaMA-Factory", "lmdeploy": "LMDeploy", "megatron": "Megatron", "mmengine": "MMEngine",
    "nanotron": "Nanotron", "nemo": "NeMo", "openrlhf": "OpenRLHF", "pytorch_lightning": "Lightning", "ray": "Ray",
    "sglang": "SGLang", "tensorflow": "TensorFlow", "tensorrt_llm": "TensorRT-LLM", "torchtitan": "torchtitan",
    "transformers": "Transformers", "trl": "TRL", "unsloth": "Unsloth", "verl": "verl", "vllm": "vLLM",
}  # fmt: skip
_FILE = re.compile(r'File "[^"]{0,300}?(?<!/home)/(%s)/[^"]{1,200}", line ' % "|".join(sorted(PROGRAMS)), re.IGNORECASE)
_CODE = re.compile(r"(?P<code>-?\d{1,5}) \(pid: (?P<pid>\d{1,10})\)")
_SPOKE = re.compile(rb"\[rank ?(\d{1,8})\]")
_EXIT = re.compile(r"^\s*Exit code: {1,8}(?P<code>-?\d{1,5})\s*$")


@dataclass
class Programs:
    """worlds: sizes that programs say.   named: ranks that write lines, or that a launcher tells of.
    local: how many ranks a node has, as they say.   ranks: which say so.
    hosts: on which ranks say that they are.

    meeting: where processes find each other, as printed.
    backends: of PyTorch.   waiting: ranks at a barrier of PyTorch's store -> how many had come, as each last said.
    expected: how many that barrier waits for.   variables: of NCCL's, as programs and commands print them.
    ends: of torchrun's list rank -> exit code.
    starting: lines of a launcher's start are there.   files: programs whose files are in tracebacks.
    """

    worlds: Set[int] = field(default_factory=set)
    named: Set[int] = field(default_factory=set)
    local: Set[int] = field(default_factory=set)
    ranks: Set[int] = field(default_factory=set)
    hosts: Dict[int, str] = field(default_factory=dict)
    meeting: Set[str] = field(default_factory=set)
    backends: Set[str] = field(default_factory=set)
    waiting: Dict[int, int] = field(default_factory=dict)
    expected: int = 0
    variables: Dict[str, str] = field(default_factory=dict)
    starting: bool = False
    files: Set[str] = field(default_factory=set)
    ends: Dict[int, str] = field(default_factory=dict)
    # Of that list the rank whose entry it is.
    _entry: str = ""
    # Of Open MPI's block on who ended first: the rank that it names.
    _first: Optional[int] = None
    # Of torchrun's block on the first failure: host and rank; None outside of it.
    _root: Optional[Dict[str, str]] = None
    # The times of all of its entries.
    _times: Set[str] = field(default_factory=set)

    def line(self, text: str) -> Optional[Failure]:
        """Takes a line; a failure where it ends Open MPI's block on the first process that ended."""
        if not speaks(text):
            return None
        barrier = _BARRIER.search(text)
        if barrier is not None:
            self.expected = max(self.expected, int(barrier.group("world")))
            if len(self.waiting) < _MOST:
                self.waiting[int(barrier.group("rank"))] = int(barrier.group("came"))
            return None
        name = _NAME.search(text)
        if name is not None:
            self._first = int(name.group("rank") or name.group("other"))
            return None
        ended = _EXIT.match(text) if self._first is not None else None
        if ended is not None:
            rank, self._first = self._first, None
            said = "the launcher reports that the first process to end was rank %s, with exit code %s"
            return Failure(
                "exit", said % (rank, ended.group("code")), "exit code %s" % ended.group("code"), "", "", rank
            )
        ended_rank = _ENDED.match(text)
        if ended_rank is not None:
            _note(self.named, int(ended_rank.group(1)))
        root = self._torchrun(text)
        if root is not None:
            return root
        self.starting = self.starting or _START.search(text) is not None
        for name, value in _VARIABLE.findall(text[:1000]):
            if len(self.variables) < 40:
                self.variables.setdefault(name, value[:80].rstrip(".,"))
        world = _WORLD.search(text)
        if world is not None:
            _note(self.worlds, int(world.group(1)))
            rank_of = _OWN_RANK.search(text)
            if rank_of is not None:
                _note(self.ranks, int(rank_of.group(1)))
            rank_of = rank_of or _LABEL.match(text)
            host = _HOST.search(text) or _RAY.match(text)
            if host is not None and rank_of is not None and len(self.hosts) < _HOSTS:
                self.hosts[int(rank_of.group(1))] = host.group(1)
        local = _LOCAL.search(text)
        if local is not None:
            _note(self.local, int(local.group(1)))
        for match in _MEETING.finditer(text[:1000]):
            _note(self.meeting, match.group("where"))
        backend = _BACKEND.search(text) if world is not None else None
        if backend is not None:
            _note(self.backends, backend.group(1))
        return None

    def spoke(self, line: bytes) -> None:
        """Takes a line that begins with ``[rank``: torchrun's or PyTorch's label."""
        match = _SPOKE.match(line)
        if match is not None:
            _note(self.named, int(match.group(1)))

    def frame(self, text: str) -> None:
        """Takes a line of a traceback that names a file."""
        match = _FILE.search(text)
        if match is not None:
            self.files.add(PROGRAMS[match.group(1).lower()])

    def _torchrun(self, text: str) -> Optional[Failure]:
        """Takes a line of torchrun's block on the first failure; that failure where the block names its end."""
        if "Root Cause (first observed failure)" in text:
            self._root = {}
            return None
        said = _ROOT.search(text)
        if said is None:
            return None
        if said.group("key") == "time":
            _note(self._times, said.group("value"))
            return None
        if said.group("key") == "rank":
            self._entry = said.group("value")
        elif said.group("key") == "exitcode":
            rank, self._entry, code = self._entry, "", _CODE.match(said.group("value"))
            number = whole(rank)
            if number is not None and code is not None and len(self.ends) < _MOST:
                self.ends[number] = code.group("code")
        if self._root is None:
            return None
        if said.group("key") != "exitcode":
            self._root[said.group("key")] = said.group("value")
            return None
        ended = _CODE.match(said.group("value"))
        rank, host = self._root.get("rank", ""), self._root.get("host", "")
        self._root = None
        if ended is None or whole(rank) is None:
            return None
        text = "the first failure that torchrun observed was of rank %s on %s, with exit code %s" % (
            rank, host or "a host that is not named", ended.group("code"),
        )  # fmt: skip
        if ended.group("code") == "1":
            text += "; 1 is not a signal: usually an exception of the program, with its text before this or in that"
            text += " rank's own log"
        # A signal tells more than a time does.
        if len(self.ends) > 1 and len(self._times) == 1 and set(self.ends.values()) == {"1"}:
            text += "; all %d in its list have one time: which was first is unknown" % len(self.ends)
        where = "%s pid %s" % (host, ended.group("pid"))
        return Failure("exit", text, ended.group("code"), where.strip(), rank=int(rank))


def speaks(text: str) -> bool:
    """Whether a line may be one that ``Programs.line`` takes something of."""
    return any(word in text for word in _WORDS)


def _note(values: Set, value: object) -> None:  # type: ignore[type-arg]
    if len(values) < _MOST:
        values.add(value)
