# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a node's state in Slurm, and plan how to drain and resume it.

A drain by Busbar has its name in the reason. Nodes that others have drained or set down are never touched.
Read with ``scontrol -o``: every version has it, --json came to ``show node`` with 23.02.
Sources: scontrol(1), squeue(1); Slurm src/api/node_info.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .change import apply, module
from .core.check import Check
from .core.finding import Finding
from .core.host import Host, ParseError, Problem, ReadError, problem_of
from .core.plan import Command, Plan

PREFIX = "busbar: "
# Reason of a node that Busbar leaves drained because of a fault.
KEPT = PREFIX + "not resumed, "
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_STATE = re.compile(r" State=([A-Z_+]+)[*~#!%$@^-]*((?:\+[A-Z_]+)*) ")
# Who has set it, and when, comes after it. A reason may hold anything.
_REASON = re.compile(r" Reason=(.*?)(?: \[([^\s\[\]]+@(?:\d{4}-[\dT:-]+|Unknown))\](?= |$)|$)")
_PARTITIONS = re.compile(r" Partitions=(\S+) ")
_OUT = ("DOWN", "ERROR", "FAIL", "FAILING")
_USED = ("ALLOCATED", "MIXED", "COMPLETING")
_RUN = re.compile(r" \([^()]*\)$")

_WHY = "a node is drained before a disruptive change, and returned to service after it has passed its checks"
STATE = Check("drain.state", why=_WHY)
"Does Slurm respond for the node, and accept commands"
IDLE = Check("drain.idle", why=_WHY, severity="minor")
"Is a node that is to be drained free of jobs"
LEFT_OVER = Check("drain.left_over", why=_WHY)
"Did no run leave the node drained; the reason names its cause"


@dataclass(frozen=True)
class Node:
    """states: the base state, then flags: ("IDLE", "DRAIN").   set_by: ``root@2026-11-21T13:03:06``."""

    name: str
    states: Tuple[str, ...]
    reason: Optional[str] = None
    set_by: Optional[str] = None
    partitions: Tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        """No new job starts on it; those that are there go on."""
        return "DRAIN" in self.states or any(state in _OUT for state in self.states)

    @property
    def ours(self) -> bool:
        return self.drained and (self.reason or "").startswith(PREFIX)

    def __str__(self) -> str:
        text = "+".join(self.states)
        return text if not self.reason else "%s by %s: %s" % (text, self.set_by or "?", self.reason)


@dataclass(frozen=True)
class SlurmState:
    """jobs: on the node, a line each.   node is None if it could not be read; then problem has the reason."""

    node: Optional[Node]
    jobs: Tuple[str, ...] = ()
    problem: Optional[Problem] = None


def parse_node(text: str, name: str) -> Node:
    """Parse ``scontrol -o show node NAME``: one line, unless a free text has line breaks. Raises ParseError."""
    line = text.strip().replace("\n", " ")
    if not line.startswith("NodeName=%s " % name) or " NodeName=" in line:
        raise ParseError("%r, expected a line that begins with NodeName=%s" % (text[:80], name))
    state = _STATE.search(line)
    if state is None:
        raise ParseError("%r holds no State=" % line[:400])
    states = tuple(part for part in (state.group(1) + state.group(2)).split("+") if part)
    reason, partitions = _REASON.search(line), _PARTITIONS.search(line)
    why, who = reason.groups() if reason else (None, None)
    return Node(name, states, why, who, tuple(partitions.group(1).split(",")) if partitions else ())


def parse_jobs(text: str) -> Tuple[str, ...]:
    """Describe the jobs of ``squeue --noheader --format=%i|%u|%T|%j``. Raises ParseError.

    A line that is none of them continues the name of the job before it.
    """
    jobs: List[str] = []
    for line in text.splitlines():
        words = line.strip().split("|", 3)
        if len(words) != 4 and jobs:
            continue
        if len(words) != 4:
            raise ParseError("%r is not a line of squeue's" % line[:160])
        jobs.append("Slurm job %s of %s (%s, %s)" % (words[0], words[1], words[2].lower(), words[3]))
    return tuple(jobs)


def read(host: Host, name: str) -> SlurmState:
    show = ("scontrol", "-o", "show", "node", name)
    try:
        # It would be taken for a list, or for an option.
        if _NAME.fullmatch(name) is None:
            raise ReadError("drain_slurm_node", "%r is not a name of a node" % name)
        node = parse_node(host.query(show), name)
        jobs = parse_jobs(host.query(("squeue", "--noheader", "--nodelist=" + name, "--format=%i|%u|%T|%j")))
    except (ReadError, ParseError) as error:
        return SlurmState(None, problem=problem_of(error, " ".join(show)))
    if not jobs and any(state in _USED for state in node.states):
        jobs = ("a Slurm job that this user is not shown (the node is %s)" % "+".join(node.states),)
    return SlurmState(node, jobs)


def plan(have: SlurmState, name: str, state: str, reason: str = "", run: str = "", wait: bool = False) -> Plan:
    """Plan a wanted state.

    state: "drained", for ``reason``, followed by ``run``; with ``wait`` also while jobs are on the node.
    "resumed": if there is a ``reason`` against it, Busbar keeps it drained for that. "undone": as before Busbar drained
    it, but a faulty node stays drained. "reported": only report.
    """
    node = have.node
    if node is None:
        problem = have.problem or Problem("scontrol", "was not queried")
        # Without its name, forty nodes of a controller that is down are one row.
        said = problem.message.replace(name, "it")
        fix = "make scontrol and squeue work for it (drain_slurm_host, drain_slurm_node), or set busbar_drain: none"
        return Plan((STATE.judge("the node", "unknown", "a response of Slurm", said, problem.source, fix),))
    commands: List[Command] = []
    if state == "drained":
        if node.ours or not (node.drained or (have.jobs and not wait)):
            commands += _drain(node, PREFIX + reason, run)
    elif state == "resumed" and reason and node.ours:
        commands += _drain(node, KEPT + reason, run)
    elif node.ours and (state == "resumed" or (state == "undone" and not (node.reason or "").startswith(KEPT))):
        argv = ("scontrol", "update", "NodeName=" + name, "State=RESUME")
        commands.append(Command(argv, "Busbar has drained it, and has finished its work there", timeout=60.0))
    return Plan((_judge(have, node, state),), commands=tuple(commands))


def _drain(node: Node, reason: str, run: str) -> List[Command]:
    """Nothing where it is drained for that already, by this run or one before."""
    # One line without special characters of scontrol or a terminal.
    text = re.sub(r"[^\x20-\x7e]|[\"'\\]", " ", reason)[:300].strip()
    if node.ours and _RUN.sub("", node.reason or "") == text:
        return []
    argv = ("scontrol", "update", "NodeName=" + node.name, "State=DRAIN", "Reason=%s (%s)" % (text, run))
    return [Command(argv, text, timeout=60.0)]


def _judge(have: SlurmState, node: Node, state: str) -> Finding:
    source = "scontrol show node %s, squeue" % node.name
    if state == "drained":
        want = "no job on the node"
        if have.jobs:
            fix = "wait for the job, or give it time with drain_timeout (seconds); then run site.yml again"
            return IDLE.judge("the node", "withheld", want, "busy: %s" % have.jobs[0], source, fix)
        return IDLE.judge("the node", "ok", want, "no job", source)
    want = "not left drained by Busbar"
    if node.ours:
        fix = (
            "repair what the reason names; site.yml resumes a node that is in order, or: scontrol update nodename=%s"
            " state=resume" % node.name
        )
        return LEFT_OVER.judge("the node", "drift", want, str(node), source, fix)
    return LEFT_OVER.judge("the node", "ok", want, str(node), source)


# -- the module ------------------------------------------------------------------------------------------------------

SPEC: module.Spec = {
    "scheduler": {"type": "str", "choices": ["none", "slurm"], "default": "slurm"},
    "node": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["drained", "resumed", "undone", "reported"], "default": "reported"},
    "reason": {"type": "str", "default": ""},
    "run": {"type": "str", "default": ""},
    "wait": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 30},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Bring the node to the wanted state; the result of module ``slurm_node``."""
    if given["scheduler"] == "none":
        return dict(Plan().result(), drained=False, jobs=[], ours=False, repaired=[])
    host = Host(host.hardware_root, host.system_root, timeout=float(given["timeout"]))
    wanted = (given["node"], given["state"], given["reason"], given["run"], given["wait"])
    have = read(host, given["node"])
    planned = after = plan(have, *wanted)
    if planned.commands and not check_mode:
        try:
            apply.execute(host, planned)
            have = read(host, given["node"])
        except ReadError as error:
            have = SlurmState(None, problem=error.problem)
        after = plan(have, *wanted)
        if after.commands:
            have = SlurmState(None, problem=Problem(str(after.commands[0]), "ended with 0 and is not done"))
            after = plan(have, *wanted)
    node = have.node
    left_alone = node is not None and node.drained and not node.ours
    return dict(
        apply.result(planned, after),
        # What a command did not do is not done; what it would do in check mode is foreseen.
        drained=node is not None and not have.jobs and (node.drained or bool(check_mode and planned.commands)),
        jobs=list(have.jobs),
        ours=node is not None and node.ours,
        notes=["Slurm has %s %s; Busbar leaves that as it is" % (node.name, node)] if node and left_alone else [],
        repaired=[],
    )
