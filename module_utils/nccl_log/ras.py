# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report of NCCL's RAS subsystem (ncclras, 2.24 and later), as text: what ranks of a running job have launched."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Set, Tuple

from ..core.number import whole

# Lines of a report that are read, and processes of a sentence that are kept.
LINES, NAMED = 20_000, 64
BEGIN = (b"Job summary", b"Communicators...", b"Group     Comms")
_STATES = r"(?:NOCOMM|INIT|RUNNING|FINALIZE|ABORT)"
_ERRORS = r"(?:OK|INCOMPLETE|ERROR|MISMATCH)(?:,(?:INCOMPLETE|ERROR|MISMATCH))*"
_GROUP = re.compile(
    r"\s*(?P<group>\d{1,7})\s+(?P<comms>\d{1,9})\s+(?P<nodes>\d{1,7})\s+[\d-]{1,15}\s+(?P<size>\d{1,9})\s+"
    r"(?P<there>\d{1,9})\s+(?P<state>" + _STATES + r"(?:,\w+)*|MISMATCH)\s+(?P<errors>" + _ERRORS + r")\s*$"
)
BLOCK = re.compile(
    r"(?:#(?P<comm>\d{1,7}-\d{1,7}) \([0-9a-f]{1,16}\) )?(?P<what>INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)\s*$"
)
_WHO = re.compile(
    r"\s+(?:Rank (?P<rank>\d{1,9})(?P<said> (?:has|reported) .{1,80}?)? -- )?(?:GPU \S{1,20} managed by )?"
    r"[Pp]rocess (?P<pid>\d{1,10}) on node (?P<node>\S{1,255}?)(?: managing GPUs? (?P<gpus>[\d,]{1,40}))?\s*$"
)
_UNKNOWN = re.compile(r"\s+Rank (?P<rank>\d{1,9})(?P<said> .{1,80}?)? -- \[process information not found\]")
_TOTAL = re.compile(r"\s*\d{1,9}(?:\s+\d{1,9}){2,4}\s*$")
_COUNT = re.compile(r"(?P<ranks>\d{1,9}) ranks? ha(?:ve|s) launched up to operation (?P<number>\d{1,18})")
_ALONE = re.compile(r" has launched up to operation (?P<number>\d{1,18})")


class Who(NamedTuple):
    """rank: None of a process.   said: what the line says of it alone."""

    rank: Optional[int]
    pid: Optional[int]
    node: str
    said: str = ""

    def __str__(self) -> str:
        who = "" if self.rank is None else "rank %d" % self.rank
        place = "" if self.pid is None else "process %d on %s" % (self.pid, self.node)
        return "%s (%s)" % (who, place) if who and place else who or place or "a process that is not named"


@dataclass
class Block:
    """comm: ``0-0``, group and number; "" of the job.   said: its sentences, each with those that it names."""

    what: str
    comm: str
    said: List[Tuple[str, List[Who]]] = field(default_factory=list)


class Group(NamedTuple):
    """Communicators that are alike. size: ranks each has.   there: ranks of all that answered."""

    number: int
    comms: int
    nodes: int
    size: int
    there: int
    state: str
    errors: str


@dataclass
class Report:
    """gpus: of the whole job; None where it is not said.   lines: that were read.

    headings: of its lists of errors and of warnings, which are empty without blocks.
    """

    gpus: Optional[int] = None
    groups: List[Group] = field(default_factory=list)
    blocks: List[Block] = field(default_factory=list)
    order: int = 0
    lines: int = 0
    headings: Set[str] = field(default_factory=set)
    _totals: bool = False

    def line(self, text: str) -> bool:
        """Takes a line in; whether it is one of the report's."""
        self.lines += 1
        if text.strip() in ("Errors", "Warnings"):
            self.headings.add(text.strip())
        elif "(total)" in text:
            self._totals = True
        elif self._totals and _TOTAL.match(text):
            self.gpus, self._totals = int(text.split()[-1]), False
            return True
        group = _GROUP.match(text)
        if group is not None:
            said = group.groupdict()
            numbers = (int(said[key]) for key in ("group", "comms", "nodes", "size", "there"))
            self.groups.append(Group(*numbers, said["state"], said["errors"]))
            return True
        block = BLOCK.match(text)
        if block is not None:
            self.blocks.append(Block(block.group("what"), block.group("comm") or ""))
            return True
        if not self.blocks or not text.startswith("  "):
            return False
        block_now = self.blocks[-1]
        who = _WHO.match(text)
        lost = _UNKNOWN.match(text) if who is None else None
        if who is not None or lost is not None:
            said = (who or lost).groupdict()  # type: ignore[union-attr]
            pid = said.get("pid")
            one = Who(
                int(said["rank"]) if said["rank"] else None,
                int(pid) if pid else None,
                said.get("node") or "",
                (said.get("said") or "").strip(),
            )
            if not block_now.said:
                block_now.said.append(("", []))
            if len(block_now.said[-1][1]) < NAMED:
                block_now.said[-1][1].append(one)
        elif len(block_now.said) < NAMED:
            block_now.said.append((text.strip()[:200], []))
        return True


class Count(NamedTuple):
    """Ranks that have launched as many operations. named: those among them that the report names."""

    number: int
    ranks: int
    named: Tuple[Who, ...]


def counts(block: Block) -> List[Count]:
    """Of a mismatch of operations, the least first."""
    found = []
    for text, named in block.said:
        match = _COUNT.search(text)
        if match is not None:
            found.append(Count(int(match.group("number")), int(match.group("ranks")), tuple(named)))
            named = [one for one in named if one.said]
        elif "not launched any" in text and whole(text.partition(" ")[0]) is not None:
            found.append(Count(0, whole(text.partition(" ")[0]) or 0, tuple(named)))
            continue
        for one in named:
            alone = _ALONE.search(" " + one.said)
            if alone is not None:
                found.append(Count(int(alone.group("number")), 1, (one,)))
            elif "not launched any" in one.said:
                found.append(Count(0, 1, (one,)))
    return sorted(found)
