# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and judge a report of NCCL's RAS client as text (``ncclras``, NCCL 2.24; src/ras/client_support.cc)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional

from ..core.finding import Finding
from .checks import RANKS, WATCHDOG
from .names import names

# Lines of a report that are read; names that are stored of a sentence.
LINES, NAMED = 20_000, 64
BEGIN = (b"Job summary", b"Communicators...", b"Group     Comms")
_GROUP = re.compile(
    r"\s{0,12}(?P<group>\d{1,7})\s{1,12}(?P<comms>\d{1,9})\s{1,12}(?P<nodes>\d{1,7})\s{1,12}[\d-]{1,15}\s{1,12}(?P<size>\d{1,9})\s{1,12}"
    r"(?P<there>\d{1,9})\s{1,12}(?P<state>[A-Z,]{2,40})\s{1,12}(?P<errors>[A-Z,]{2,60})\s{0,12}$"
)
BLOCK = re.compile(
    r"(?:#(?P<comm>\d{1,7}-\d{1,7}) \([0-9a-f]{1,16}\) )?(?P<what>INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)\s{0,8}$"
)
_WHO = re.compile(
    r"\s{1,12}(?:Rank (?P<rank>\d{1,9})(?P<text> (?:has|reported) .{1,80}?)? -- )?(?:GPU \S{1,20} managed by )?"
    r"[Pp]rocess (?P<pid>\d{1,10}) on node (?P<node>\S{1,255})"
)
_COUNT = re.compile(r"(?:(?P<ranks>\d{1,9}) ranks? )?ha(?:ve|s) launched up to operation (?P<number>\d{1,18})")
_AGAIN = (
    "query RAS again (`ncclras`) some seconds later: if the same numbers do not change, the job hangs; then run `busbar"
    " hang HOST` on the nodes of the ranks that are behind"
)
_MOMENT = "RAS counts what ranks have launched at one moment, not what has ended: ranks of a healthy job differ, too"
_WHY = {
    "INCOMPLETE": "a process that does not respond to RAS has ended, has not started, is stopped, or out of reach",
    "DEAD": "RAS does not reach these processes: they have ended, or the TCP network to them is broken",
    "ERROR": "these ranks have reported an error to RAS: it names the result, and their log the cause",
    "TIMEOUT": _MOMENT,
}


class Who(NamedTuple):
    """A rank or process of a report."""

    rank: Optional[int]
    place: str
    number: Optional[int] = None


@dataclass
class Block:
    """One error or warning. comm: ``0-0``, group and number; "" of the job.   counts: operation -> ranks."""

    what: str
    comm: str
    text: List[str] = field(default_factory=list)
    who: List[Who] = field(default_factory=list)
    counts: Dict[int, int] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Take a line below its heading in."""
        who, count = _WHO.match(text), _COUNT.search(text)
        if who is not None and len(self.who) < NAMED:
            number = int(count.group("number")) if count else 0 if "not launched" in (who.group("text") or "") else None
            rank = int(who.group("rank")) if who.group("rank") else None
            self.who.append(Who(rank, "process %s on %s" % who.group("pid", "node"), number))
            if number is not None:
                self.counts[number] = self.counts.get(number, 0) + 1
        elif who is None and len(self.text) < NAMED:
            self.text.append(text.strip()[:200])
            if count and count.group("ranks"):
                self.counts[int(count.group("number"))] = int(count.group("ranks"))


@dataclass
class Report:
    """groups: communicators that are alike, with their state and errors.   ranks: that responded."""

    groups: List[Dict[str, str]] = field(default_factory=list)
    blocks: List[Block] = field(default_factory=list)

    def line(self, text: str) -> bool:
        """Take a line in; return whether it is one of the report's."""
        text = text[:400]
        group, block = _GROUP.match(text), BLOCK.match(text)
        if group is not None:
            self.groups.append(group.groupdict())
        elif block is not None:
            self.blocks.append(Block(block.group("what"), block.group("comm") or ""))
        elif self.blocks and text.startswith("  "):
            self.blocks[-1].line(text)
        else:
            return False
        return True


def judge(report: Report) -> List[Finding]:
    """Return findings on a report; an ok one where it lists no error and no warning."""
    if report.groups and not report.blocks:
        ranks = sum(int(group["there"]) for group in report.groups)
        have = "RAS reports OK for %d ranks: all have launched as many operations, which excludes no hang" % ranks
        return [RANKS.judge("ras", "ok", "as many operations on all ranks", have, "RAS")]
    return list(map(_judge, report.blocks[:8]))


def _judge(block: Block) -> Finding:
    subject = "ras %s %s" % (block.comm or "job", block.what)
    of = "communicator #%s" % block.comm if block.comm else "the job"
    have = "RAS, %s: %s" % (of, "; ".join(block.text[:3]) or block.what)
    if block.what == "MISMATCH":
        numbers = sorted(block.counts)
        behind = ["rank %s (%s)" % who[:2] for who in block.who if numbers and who.number == numbers[0]]
        if len(numbers) > 1:
            have += "; %s" % ", ".join("%d ranks up to %d" % (block.counts[number], number) for number in numbers[:4])
            have += "; behind: %s" % names(behind, 6) if behind else ""
        want = "as many operations on all ranks"
        return WATCHDOG.judge(subject, "unknown", want, have, "RAS", _AGAIN, why=_MOMENT, severity="major")
    have += "; %s" % names((who.place for who in block.who), 6) if block.who else ""
    fix = "see whether these processes run on their nodes (`ps -p PID`), and their last lines; then query RAS again"
    state = "drift" if block.what in ("DEAD", "ERROR") else "unknown"
    severity = "critical" if state == "drift" else "minor" if block.what == "TIMEOUT" else "major"
    return RANKS.judge(subject, state, "all respond", have, "RAS", fix, why=_WHY[block.what], severity=severity)
