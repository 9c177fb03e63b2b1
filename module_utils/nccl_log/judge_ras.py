# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings on a report of NCCL's RAS: who is behind, who did not answer. It is of one moment, and proves no hang."""

from __future__ import annotations

from typing import List, Sequence

from ..core.finding import Finding
from ..core.number import whole
from .failure_checks import RANKS, WATCHDOG
from .jobs import names
from .ras import Block, Count, Report, counts

_AGAIN = "query RAS again (`ncclras`) some seconds later: if the same numbers do not change, the job hangs; then run"
_AGAIN += " `busbar hang HOST` on the nodes of the ranks that are behind"
_MOMENT = "RAS counts what ranks have launched at one moment, not what has ended: ranks of a healthy job differ, too"


def judge(report: Report) -> List[Finding]:
    if not report.groups and not report.blocks:
        return []
    found = [one for block in report.blocks for one in _of_block(report, block)]
    for group in report.groups:
        told = any(block.comm.startswith("%d-" % group.number) for block in report.blocks)
        if group.state in ("ABORT", "FINALIZE", "NOCOMM", "INIT") and not told:
            have = "RAS: group %d, %d communicator%s of %d ranks: %s, %s" % (
                group.number, group.comms, "" if group.comms == 1 else "s", group.size, group.state, group.errors,
            )  # fmt: skip
            found.append(
                RANKS.judge(
                    "ras group %d" % group.number, "unknown", "RUNNING", have, "RAS", _AGAIN, why=_MOMENT,
                    severity="minor",
                )
            )  # fmt: skip
    if not found:
        ranks = sum(group.there for group in report.groups)
        have = "RAS reports OK for %d ranks in %d group%s of communicators" % (
            ranks, len(report.groups), "" if len(report.groups) == 1 else "s",
        )  # fmt: skip
        have += ", and lists no error and no warning" if report.headings == {"Errors", "Warnings"} else ""
        have += ": all have launched as many operations, which excludes no hang within one of them"
        return [RANKS.judge("ras", "ok", "as many operations on all ranks", have, "RAS")]
    return found[:8]


def _of_block(report: Report, block: Block) -> List[Finding]:
    subject = "ras %s %s" % (block.comm or "job", block.what)
    of = "communicator #%s" % block.comm if block.comm else "the job"
    sentences = [text for text, _named in block.said if text]
    named = [str(one) for _text, who in block.said for one in who]
    if block.what == "MISMATCH":
        have = "RAS, %s: %s" % (of, "; ".join(sentences[:1]))
        numbers = counts(block)
        have += "; %s" % _behind(numbers) if len(numbers) > 1 else ""
        if len(numbers) < 2:
            rest = [*sentences[1:6], *named[:4]]
            have += "; %s" % "; ".join(rest) if rest else ""
        have += "; one moment only: no hang is proven"
        return [
            WATCHDOG.judge(
                subject, "unknown", "as many operations on all ranks", have, "RAS", _AGAIN, why=_MOMENT,
                severity="major",
            )
        ]  # fmt: skip
    have = "RAS, %s: %s: %s" % (of, block.what, "; ".join(sentences[:4]))
    have += "; %s" % names(named, 6) if named else ""
    numbers = (whole(word) for text in sentences for word in text.split())
    missing = next((number for number in numbers if number is not None), 0)
    if block.what == "INCOMPLETE":
        if report.gpus is not None and missing > report.gpus:
            have += "; that is not plausible: the job has %d GPUs" % report.gpus
        have += "; RAS does not report that they are dead: they did not respond"
    if block.what == "TIMEOUT":
        return [RANKS.judge(subject, "unknown", "all respond", have, "RAS", _AGAIN, why=_MOMENT, severity="minor")]
    why = {
        "INCOMPLETE": "a process that does not respond to RAS has ended, has not started, is stopped, or is not"
        " reached over TCP",
        "DEAD": "RAS reaches these processes no more: they have ended, or the TCP network to them is broken",
        "ERROR": "these ranks have reported an error to RAS: it names the result, and their log the cause",
    }[block.what]
    fix = "see whether these processes run on their nodes (`ps -p PID`), and their own last lines; then query RAS again"
    state = "drift" if block.what in ("DEAD", "ERROR") else "unknown"
    severity = "critical" if state == "drift" else "major"
    return [RANKS.judge(subject, state, "all respond", have, "RAS", fix, why=why, severity=severity)]


def _behind(numbers: Sequence[Count]) -> str:
    least, most = numbers[0], numbers[-1]
    said = ["%d rank%s up to %d" % (one.ranks, "" if one.ranks == 1 else "s", one.number) for one in numbers[:4]]
    text = ", ".join(said)
    if least.named:
        text += "; behind, so look there first: %s" % names(map(str, least.named), 6)
    else:
        many = "is 1 rank" if least.ranks == 1 else "are the %d ranks" % least.ranks
        text += "; behind %s at %d, which RAS does not name: look there" % (many, least.number)
    if most.named:
        text += "; ahead, and so not shown to be at fault: %s" % names(map(str, most.named), 6)
    return text
