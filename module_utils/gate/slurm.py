# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Drain the gate's node in Slurm, and resume a node that the gate has drained; nothing else.

A reason belongs to the gate if it ends with the hash of its text: an administrator has edited or typed any other.
Many nodes may fail at once, and each sees the others only once they are drained: so a drained node reads them again,
and if more are out than allowed, all but the first of them resume. slurmctld's single clock decides the order, and a
second later it cannot have set an earlier time.
Sources: scontrol(1); Slurm src/api/node_info.c.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

from .. import slurm
from ..core.host import Host, ParseError, ReadError

PREFIX = "busbar gate: "
# Seconds after which all drains of the same second are seen.
SETTLE = 1.3
_SIGNED = re.compile(r"(busbar gate: .*) #([0-9a-f]{8})")
_RECORD = re.compile(r"NodeName=(\S+) ")
# States of a node in service, or before it was drained; any other was set by an administrator for a reason.
_PLAIN = {"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "RESERVED", "MAINTENANCE", "CLOUD", "DYNAMIC_NORM"}
_PLAIN |= {"NOT_RESPONDING", "DRAIN", "BLOCKED", "DYNAMIC_FUTURE"}


@dataclass(frozen=True)
class Done:
    """action: of gate.ACTIONS.   said: why, for people.   reason: of the gate's drain, else None.

    out: drained by anyone: a Prolog that fails changes no reason there.
    """

    action: str
    said: str = ""
    reason: Optional[str] = None
    out: bool = False


def signed(why: str) -> str:
    """The reason for a drain. One line of plain text, in which nothing looks like Slurm's signature."""
    text = PREFIX + re.sub(r"[^\x20-\x7e]|[\"'\\\[\]]", " ", why)[:200].strip()
    return "%s #%s" % (text, _sum(text))


def is_own(node: slurm.Node) -> bool:
    found = _SIGNED.fullmatch(node.reason or "")
    return node.drained and found is not None and _sum(found.group(1)) == found.group(2)


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def parse(text: str) -> List[slurm.Node]:
    """Parse ``scontrol -o show node``. Raises ParseError where it lists no node.

    A free text, such as Comment or Extra, may hold line breaks: what does not begin a record continues the one before.
    A record that cannot be read, and a name that two records have, is left out: that costs this node alone.
    """
    records: List[str] = []
    for line in text.split("\n"):
        if _RECORD.match(line) or not records:
            records.append(line)
        else:
            records[-1] += " " + line
    found: List[slurm.Node] = []
    for record in records:
        name = _RECORD.match(record)
        with suppress(ParseError):
            found += [slurm.parse_node(record, name.group(1))] if name is not None else []
    if not found:
        raise ParseError("%r, expected a line that begins with NodeName=" % text[:80])
    times = Counter(node.name for node in found)
    return [node for node in found if times[node.name] == 1]


def too_many(nodes: Sequence[slurm.Node], name: str, share: float) -> str:
    """Why the node ``name`` may not be out, too; "" where it may.

    Of each of its partitions: at least one node may be out, never more than the share, and never the last one. Nodes
    that the gate took out count, even if their reason was edited since, in the order of slurmctld's clock.
    """
    own = next(node for node in nodes if node.name == name)
    members = {partition: [one for one in nodes if partition in one.partitions] for partition in own.partitions}
    # A partition with only this node does not count if there is a larger one.
    larger = {partition: of for partition, of in members.items() if len(of) > 1} or members
    if not larger:
        return "it is in no partition, so the number of nodes that may be out is unknown"
    for partition, of in larger.items():
        most = min(max(1, int(len(of) * share)) if share > 0 else 0, len(of) - 1)
        out = [node for node in of if node.drained and (node.reason or "").startswith(PREFIX)]
        out.sort(key=lambda node: ((node.set_by or "").rpartition("@")[2], node.name))
        first = [node.name for node in out]
        if name in first[most:] or (name not in first and len(first) >= most):
            others = len([one for one in first if one != name])
            return "the gate has %d of %d nodes of partition %s out of service, its limit is %d" % (
                *(others, len(of), partition, most),
            )
    return ""


class Slurm:
    """Slurm's tools on the node.   name: the node's, in Slurm.   end: until when they may take, time.monotonic."""

    def __init__(self, host: Host, scontrol: str, name: str, end: float) -> None:
        self._host = host
        self._scontrol = scontrol
        self.name = name
        self._end = end

    def nodes(self, name: str = "") -> List[slurm.Node]:
        """Raises ReadError, ParseError; also where the node is not among them."""
        found = parse(self._query("-o", "show", "node", *([name] if name else [])))
        if all(node.name != self.name for node in found):
            raise ParseError("Slurm knows no node %s" % self.name)
        return found

    def drain(self, reason: str) -> None:
        self._query("update", "NodeName=" + self.name, "State=DRAIN", "Reason=" + reason)

    def resume(self) -> None:
        self._query("update", "NodeName=" + self.name, "State=RESUME")

    def this_node(self, nodes: Sequence[slurm.Node]) -> slurm.Node:
        return next(node for node in nodes if node.name == self.name)

    def _query(self, *words: str) -> str:
        left = self._end - time.monotonic()
        if left <= 0:
            raise ReadError(self._scontrol, "was not queried: the gate's time is over")
        return self._host.query((self._scontrol, *words), timeout=min(left, 4.0))


def keep_out(slurmctld: Slurm, why: str, share: float, note: Callable[[str], object]) -> Done:
    """Drain the node. note: called with the reason before that. Raises ReadError, ParseError."""
    nodes = slurmctld.nodes()
    node = slurmctld.this_node(nodes)
    if is_own(node) and _plain(node):
        return _yield(slurmctld, nodes, share) or Done("none", "it is out already", node.reason, out=True)
    theirs = _theirs(node)
    if theirs:
        return Done("left_alone", theirs, out=node.drained)
    many = too_many(nodes, slurmctld.name, share)
    if many:
        return Done("held_by_breaker", many)
    reason = signed(why)
    # If this process is killed between the two, the next one knows the reason.
    note(reason)
    slurmctld.drain(reason)
    time.sleep(SETTLE)
    return _yield(slurmctld, slurmctld.nodes(), share) or Done("drained", why, reason, out=True)


def _yield(slurmctld: Slurm, nodes: Sequence[slurm.Node], share: float) -> Optional[Done]:
    """Gives the node back where others were before it, and no more may be out."""
    node = slurmctld.this_node(nodes)
    many = too_many(nodes, slurmctld.name, share)
    if not many:
        return None
    # A node that was changed since belongs to its administrator.
    if is_own(node) and _plain(node):
        slurmctld.resume()
    return Done("held_by_breaker", many)


def give_back(slurmctld: Slurm) -> Done:
    """After a check that passed. Raises ReadError, ParseError."""
    node = slurmctld.this_node(slurmctld.nodes(slurmctld.name))
    if not is_own(node):
        return Done("left_alone", _theirs(node)) if node.drained else Done("none")
    if not _plain(node):
        return Done("left_alone", _theirs(node), node.reason)
    slurmctld.resume()
    return Done("resumed", "it was out for: %s" % node.reason)


def _plain(node: slurm.Node) -> bool:
    return all(state in _PLAIN for state in node.states)


def _theirs(node: slurm.Node) -> str:
    """Return another administrator's decision on the node; "" for none. A node in service may have a reason, too."""
    if node.drained or not _plain(node) or (node.reason and not _SIGNED.fullmatch(node.reason)):
        return "the node is not the gate's to drain or resume: %s" % node
    return ""
