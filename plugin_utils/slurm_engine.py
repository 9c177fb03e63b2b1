# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the audit's query as a step of Slurm: nodes that can be queried, the script for all, results by node.

Nothing here runs a program: plugin_utils/slurm_step.py does. Sources: sinfo(1), srun(1), scontrol(1); Slurm 22.05
src/common/write_labelled_message.c.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import nodeset, result_schema
from .output_limit import MIB
from .plain_data import Plain

JOB = "busbar-drift"
# Bytes of one host: what it sends, packed, and unpacked.
LIMIT = MIB
# Bytes of incomplete results of all hosts: packed, that of a node has some 5 KB.
WHOLE, WHOLE_EACH = 64 * MIB, 64 << 10
# A line as srun prints it holds 1,024 bytes of a task's and its label.
LINE = 8 << 10
# Seconds that the job may last beyond the query; Slurm counts in minutes.
GRACE = 30
# Seconds in which Slurm gives a job its nodes, or none.
IMMEDIATE = 10
# A failing node ends none of the others, whatever slurm.conf sets for a step of MPI.
APART = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--label", "--mpi=none", "--chdir=/", "--propagate=NONE")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
OVER_SSH = "audit this host over ssh: busbar drift -i INVENTORY --engine ssh --limit HOST"


class SlurmError(Exception):
    """No host can be queried by Slurm; the message has the reason, and the way out."""


# -- which nodes -------------------------------------------------------------------------------------------------------

SINFO = ("sinfo", "--all", "--Node", "--noheader", "--format=%N|%T|%R|%a|%E")
# Suffixes of sinfo's states: no response; powered down, up or off; reserved; to be rebooted; planned for a job.
_FLAGS = "*~#!%$@^-+"
_IDLE = ("idle", "planned")
_BUSY = ("allocated", "mixed", "completing", "blocked")
_DRAINED = ("drained", "draining", "drain")
_RESERVED = ("reserved", "maint")


@dataclass
class Node:
    """state: sinfo's, as ``idle`` or ``down*``.   partitions: those that start jobs."""

    state: str
    reason: str
    partitions: list[str] = field(default_factory=list)


def nodes_of(text: str) -> dict[str, Node]:
    """Return the nodes in SINFO's output: a line for each node in each of its partitions. Raises SlurmError."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        words = line.split("|", 4)
        if len(words) != 5 and not found:
            raise SlurmError(f"{' '.join(SINFO)} printed {printable(line[:200])!r}, which is not a node")
        if len(words) == 5:  # Any other line continues a reason.
            name, state, partition, available, reason = words
            node = found.setdefault(name, Node(state, printable(reason.strip())[:200]))
            node.partitions += [partition] * (available == "up")
    return found


def refused(node: Node | None) -> Plain | None:
    """Return a host's result where Slurm gives no job its node; None where it does."""
    if node is None:
        fix = f"set drain_slurm_node to the node's name in Slurm (sinfo --Node), or {OVER_SSH}"
        return not_asked("Slurm has no node of its name", fix)
    base = node.state.rstrip(_FLAGS)
    flags = set(node.state[len(base) :])
    state = f"{node.state} in Slurm" + ("" if node.reason in ("", "none") else f" ({node.reason})")
    if base in _DRAINED:
        return not_asked(f"{state}, which starts nothing there", OVER_SSH)
    if base in _RESERVED or "$" in flags:
        return not_asked(f"{state}: it is held for a reservation", OVER_SSH)
    known = base in (*_IDLE, *_BUSY) and "*" not in flags
    if base.startswith("power") or (known and flags & set("~#!%")):
        way = "power it up (scontrol update nodename=NODE state=power_up), and audit it again when it is idle"
        return not_asked(f"{state}: Slurm powers it down or up", way)
    if base.startswith("reboot") or (known and flags & set("@^")):
        return not_asked(f"{state}: it is about to be rebooted", OVER_SSH)
    if not known:
        return unreachable(state)
    if base in _BUSY:
        return busy(node.state)
    return None if node.partitions else not_asked("none of its partitions is up (sinfo --summarize)", OVER_SSH)


def unreachable(said: str) -> Plain:
    """Return the result of a node that Slurm has lost; ssh may still reach it."""
    fix = f"find out why Slurm has lost the node (scontrol show node, slurmd's log), then run it again; or {OVER_SSH}"
    return {"unreachable": True, "engine": "slurm", "msg": said, "fix": fix}


def busy(said: str) -> Plain:
    return not_asked(f"busy in Slurm: {said}", f"wait for its job and audit it again, or {OVER_SSH}")


def not_asked(said: str, fix: str) -> Plain:
    return {"failed": True, "not_run": True, "msg": f"{result_schema.NOT_QUERIED}{said}", "fix": fix}


def by_partition(names: Collection[str], nodes: Mapping[str, Node], preferred: str | None) -> dict[str, list[str]]:
    """Return partition -> nodes: a job is in one. As few as possible; the preferred one first."""
    left = set(names)
    found: dict[str, list[str]] = {}
    while left:
        counts = Counter(one for name in left for one in nodes[name].partitions)
        most = max(sorted(counts), key=lambda one: (one == preferred, counts[one]))
        found[most] = sorted(name for name in left if most in nodes[name].partitions)
        left -= set(found[most])
    return found


def root_jobs_refused(config: str) -> bool:
    """Return whether jobs of root are disabled. config: output of ``scontrol show config``."""
    return re.search(r"^DisableRootJobs\s*=\s*YES\s*$", config, re.MULTILINE | re.IGNORECASE) is not None


# -- script ------------------------------------------------------------------------------------------------------------

MAIN = f"""
import base64, glob, hashlib, json, os, signal, sys, zlib
from {bundle.PACKAGE} import audit
# Ends the audit where the caller is gone: all that Slurm has of the step ends with it.
signal.alarm(%d)
def withheld():
    for path in glob.glob("/dev/nvidia[0-9]*"):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except PermissionError:
            return path
        except OSError:
            pass
def said(results):
    data = base64.b64encode(zlib.compress(json.dumps(results, separators=(",", ":")).encode(), 6))
    lines = b"\\n".join(data[start:start + 900] for start in range(0, len(data), 900))
    head = "busbar-answer %%d %%s\\n" %% (len(data), hashlib.sha256(data).hexdigest())
    sys.stdout.flush()
    sys.stdout.buffer.write(head.encode() + lines + b"\\n")
    sys.stdout.buffer.flush()
    os._exit(0)
asked = json.loads(%r)
steps = asked["steps"][asked["nodes"].get(os.environ.get("SLURMD_NODENAME"), 0)]
path = withheld()
said({{"withheld": path}} if path else audit.run(steps, %r))
"""


def main_of(questions: Mapping[str, Sequence[Mapping[str, object]]], limit: float, seconds: float) -> str:
    """Return the script's last lines, the same for all nodes: each finds its own query in a table.

    questions: node -> steps. The most frequent one is the default, and its nodes are not in the table.
    limit: seconds for a step of the audit. seconds: for all of it.
    """
    texts = {node: json.dumps(steps, sort_keys=True) for node, steps in questions.items()}
    order = [text for text, _count in Counter(texts.values()).most_common()]
    number = {text: place for place, text in enumerate(order)}
    table = {node: number[text] for node, text in texts.items() if number[text]}
    asked = json.dumps({"steps": [json.loads(text) for text in order], "nodes": table})
    return MAIN % (math.ceil(seconds), asked, limit)


def command(job: str, partition: str, nodes: Collection[str], python: str, seconds: float) -> list[str]:
    """Return srun's command for one task on each node, with its own standard input. python: shell words."""
    where = [f"--partition={partition}", f"--nodelist={nodeset.fold(nodes)}"]
    tasks = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    limits = [f"--immediate={IMMEDIATE}", f"--time={math.ceil((seconds + GRACE) / 60)}"]
    return [
        *("srun", f"--job-name={job}", *where, *tasks, "--exclusive", "--mem=0", *limits, *APART, "/bin/sh", "-c"),
        # No exec: with a task that ends by a signal srun cuts off the last output of others. The input is read to its
        # end: srun ends the step on all nodes when it cannot send the rest of it to one.
        f'echo "busbar-node $SLURMD_NODENAME"; {python} -I -S -c "{bundle.RUN}"; code=$?; cat >/dev/null; exit $code',
    ]


# -- results -----------------------------------------------------------------------------------------------------------

_LABELLED = re.compile(rb" *(\d{1,7}): (.*)", re.DOTALL)
_NODE = re.compile(rb"busbar-node ([!-~]{1,255})")
_ANSWER = re.compile(rb"busbar-answer (\d{1,8}) ([0-9a-f]{64})")


@dataclass
class _Task:
    """Output of one label. size, digest: of the result that has begun, -1 before."""

    node: str = ""
    read: int = 0
    size: int = -1
    digest: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    held: int = 0
    words: bytes = b""
    done: bool = False
    # No more of it is read.
    over: bool = False


class NodeOutputs:
    """Join the nodes' output. A name that was not queried is dropped, and one that two tasks claim is trusted of
    neither: the label is srun's, the name is the node's.

    wrong: node -> why it has no valid result.
    """

    def __init__(self, asked: Collection[str], limit: int = LIMIT, whole: int = 0) -> None:
        self._asked = frozenset(asked)
        self._limit = limit
        self._whole = whole or WHOLE + WHOLE_EACH * len(self._asked)
        self._tasks: dict[int, _Task] = {}
        self._nodes: dict[str, int] = {}
        self._held = 0
        self._rest = b""
        self.wrong: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield node and result for each that is complete with this piece of output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE:
            self._rest = self._rest[:LINE]
        for line in lines:
            found = _LABELLED.fullmatch(line[:LINE])
            if found and int(found[1]) < len(self._asked):
                yield from self._line(int(found[1]), found[2])

    def begun(self, node: str) -> bool:
        return node in self._nodes

    def words(self, node: str) -> str:
        """Return a node's last output that was no result."""
        task = self._tasks.get(self._nodes.get(node, -1))
        return printable(task.words.decode("ascii", "replace").strip()) if task else ""

    def cut(self, node: str) -> str:
        """Return how much of an incomplete result is there; "" where none has begun."""
        task = self._tasks.get(self._nodes.get(node, -1))
        return f"{task.held} of {task.size} bytes" if task and task.size >= 0 and not task.done else ""

    def note_error(self, task: int, text: str) -> None:
        """Store a line of a task's standard error."""
        if task < len(self._asked) and text.strip():
            self._tasks.setdefault(task, _Task()).words = text.encode("ascii", "replace")[:300]

    def _line(self, label: int, text: bytes) -> Iterator[tuple[str, bytes]]:
        task = self._tasks.setdefault(label, _Task())
        task.read += len(text) + 1
        if task.over:
            return
        if task.read > self._limit:
            self._refuse(task, f"more than {self._limit} bytes")
        elif not task.node:
            self._greet(label, task, text)
        elif task.size < 0:
            head = _ANSWER.fullmatch(text)
            if head:
                task.size, task.digest = int(head[1]), head[2]
            elif text.strip():
                task.words = text[:300]
        elif task.done:
            self._refuse(task, "something follows its end")
        else:
            task.parts.append(text)
            task.held += len(text)
            self._held += len(text)
            if task.held >= task.size:
                yield from self._whole_of(task)
            elif self._held > self._whole:
                most = max(self._tasks.values(), key=lambda one: one.held)
                self._refuse(most, f"all results are more than {self._whole} bytes, and this is the largest")

    def _greet(self, label: int, task: _Task, text: bytes) -> None:
        said = _NODE.fullmatch(text)
        name = said[1].decode("ascii") if said else ""
        if not said:
            task.words = text[:300]
        elif name in self._nodes:
            self._refuse(self._tasks[self._nodes[name]], "two tasks of the step respond by its name")
            task.over = True
        elif name in self._asked:
            task.node = name
            self._nodes[name] = label

    def _whole_of(self, task: _Task) -> Iterator[tuple[str, bytes]]:
        data = b"".join(task.parts)
        self._held -= task.held
        task.parts, task.done = [], True
        if task.held != task.size or hashlib.sha256(data).hexdigest().encode() != task.digest:
            self._refuse(task, "it does not have the announced length, or was changed on its way")
            return
        unpacking = zlib.decompressobj()
        try:
            text = unpacking.decompress(base64.b64decode(data, validate=True), self._limit)
        except (ValueError, zlib.error):
            self._refuse(task, "it cannot be unpacked")
            return
        if unpacking.unconsumed_tail or not unpacking.eof:
            self._refuse(task, f"more than {self._limit} bytes once unpacked, or cut off")
            return
        yield task.node, text

    def _refuse(self, task: _Task, why: str) -> None:
        if task.parts:
            self._held -= task.held
        task.parts, task.over = [], True
        if task.node:
            self.wrong.setdefault(task.node, f"{result_schema.SAID}{why}")


_LAUNCH = re.compile(r"srun: error: Task launch for StepId=\S+ failed on node (\S+): (.*)")
_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (.*)")
_NOT_GIVEN = re.compile(r"srun: error: Unable to allocate resources: (.*)")
_IO_ERROR = re.compile(r"srun: error: .*\bio error\b")
_NOTHING = ("srun: job ", "srun: cluster configuration lacks support", "srun: Required node not available")


@dataclass
class SrunMessages:
    """Messages of srun itself: lines without a label, which no task can write.

    launch, lost, ended: node -> why. not_given: why there was no allocation. cut: srun has ended without reading on,
    since a task ended by a signal. io_error: srun has ended the step on all nodes, since it lost its connection to one.
    aborted: an administrator, or Slurm, has ended the step.
    """

    asked: frozenset[str]
    launch: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)
    not_given: str = ""
    cut: bool = False
    io_error: bool = False
    aborted: bool = False
    last: str = ""

    def read_line(self, line: str) -> None:
        line = printable(line[:1000])
        if found := _LAUNCH.match(line):
            self.launch.update(dict.fromkeys(self._among(found[1]), found[2]))
        elif found := _LOST.match(line):
            self.lost.update(self._among(found[1]))
        elif found := _ENDED.match(line):
            self.ended.update(dict.fromkeys(self._among(found[1]), found[2]))
        elif found := _NOT_GIVEN.match(line):
            self.not_given = found[1]
        elif line.strip() and not line.startswith(_NOTHING):
            self.cut = self.cut or line.startswith("srun: Force Terminated StepId")
            self.io_error = self.io_error or _IO_ERROR.match(line) is not None
            self.aborted = self.aborted or line.startswith("srun: Job step aborted")
            self.last = line.removeprefix("srun: ").removeprefix("error: ")[:300]

    def blameless(self, nodes: Collection[str]) -> set[str]:
        """Return nodes without a result because of another node: a step begins everywhere or nowhere."""
        if self.launch:
            return set(nodes) - set(self.launch)
        if self.io_error:
            return set(nodes) - self.lost
        return set(nodes) - set(self.ended) - self.lost if self.cut and not self.aborted else set()

    def _among(self, names: str) -> list[str]:
        try:
            return [name for name in nodeset.expand(names) if name in self.asked]
        except ParseError:
            return []


def label_of(line: bytes) -> tuple[int, str] | None:
    """Return the task of a line of standard error and its text; None for srun's own."""
    found = _LABELLED.fullmatch(line[:LINE])
    return (int(found[1]), found[2].decode("utf-8", "replace")) if found else None


def silent(node: str, answers: NodeOutputs, words: SrunMessages, limit: float, late: bool) -> Plain:
    """Return the result of a host whose node gave none. late: its time was over."""
    if node in answers.wrong:
        return {"failed": True, "msg": answers.wrong[node]}
    if node in words.launch:
        return unreachable(f"Slurm could not start the step on it: {words.launch[node]}")
    if node in words.lost:
        return unreachable("Slurm lost the node during the audit (node failure)")
    if late:
        return {"failed": True, "timedout": True, "msg": f"did not respond within {limit:g} s and was left behind"}
    cut = answers.cut(node)
    said = f"{result_schema.SAID}it is cut off, {cut}; " if cut else "ended without a result: "
    how = words.ended.get(node) or words.last or "the step ended"
    last = answers.words(node)
    more = f": {last}" if last else ""
    return {"failed": True, "msg": f"{said}Slurm reports: {how}{more}"}
