# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the text that NCCL's RAS prints from 2.24 on (``verbose status``).

It counts equal ranks and names only a few of them. Source: NCCL 2.24.3 to 2.30.7, src/ras/client_support.cc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Sequence, Union

from ..core.host import ParseError
from .answer import (
    HOST,
    LARGEST,
    MOST_COMMUNICATORS,
    MOST_RANKS,
    Absent,
    Communicator,
    Group,
    Missing,
    Place,
    RasStatus,
    Row,
)

_LIBRARY = re.compile(r"NCCL version (\d[\w.+-]{0,40}) compiled with CUDA .*")
_ROW = re.compile(r"\s*\d{1,20}\s+(\d{1,20})\s+\d+\s+\d+(?:-\d+)?\s+(\d{1,20})\s+\d+\s+([A-Z]+)\s+([A-Z,]+)")
_TOTALS = re.compile(r"\s*\d+\s+\d+\s+\d+\s+(\d{1,20})\s+\d+|\s*\d{1,20}\s+(\d{1,20})\s+\d+")
_HEADING = re.compile(r"#(\d{1,20})-(\d{1,20}) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)")
_GPU = r"GPU (\d{1,20})(?: \(NVML (\d{1,20})\))?"
_AT = _GPU + r" managed by process (\d{1,20}) on node (\S+)"
_PROCESS = re.compile(
    r"  Process (\d{1,20}) on node (\S+) managing GPUs? (\d{1,3}[\d,]{0,150}(?: \(NVML \d{1,3}[\d,]{0,150}\))?)"
)
_MEMBER = re.compile(r"  Rank (\d{1,20})(?: (has|reported) (.+?))? -- (?:%s|\[process information not found\])" % _AT)
_OF_TYPE = re.compile(r"  Communicator ranks have different (\w+) operation counts")
_MANY_LAUNCHED = re.compile(
    r"  (\d{1,20}) ranks have (?:launched up to operation (\d{1,20})|not launched any operations)"
)
_LAUNCHED = re.compile(r"launched up to operation (\d{1,20})|not launched any operations")
_MANY_STATUS = re.compile(r"  (\d{1,20}) ranks have status ([A-Z]+)")
_ONE_STATUS = re.compile(r"status ([A-Z]+)")
_MANY_REPORTED = re.compile(r"  (\d{1,20}) ranks reported (.+)")
_KIND = re.compile(r"  (Initialization|Asynchronous) errors? on (\d{1,20}) ranks?")
_NO_DATA = re.compile(r"  Missing communicator data from (\d{1,20}) ranks?")
# Before 2.26 without process or GPU.
_OLD_LIST = re.compile(
    r"  (?:The missing ranks?|The unknown ranks|Ranks?)?:? ?(\d{1,10}(?:,\d{1,10})*,?)(?: has status ([A-Z]+))?"
)
# What counts or names ranks must not be passed over: the rest would look as if all were alike.
_OF_RANKS = re.compile(r"  (Rank |\d)")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,20}) communication timeouts? while gathering communicator data")


@dataclass
class _Draft:
    """A communicator that lines are being read for."""

    name: str
    size: int = 0
    places: Dict[int, Place] = field(default_factory=dict)
    counts: Dict[str, List[Group]] = field(default_factory=dict)
    statuses: List[Group] = field(default_factory=list)
    errors: List[Group] = field(default_factory=list)
    missing: Dict[int, Missing] = field(default_factory=dict)
    missing_number: int = 0

    def finished(self) -> Communicator:
        return Communicator(
            name=self.name,
            size=self.size,
            places=self.places,
            counts={name: tuple(groups) for name, groups in self.counts.items() if groups},
            statuses=tuple(self.statuses),
            errors=tuple(self.errors),
            missing=tuple(self.missing[rank] for rank in sorted(self.missing)),
            missing_number=max(self.missing_number, len(self.missing)),
            whole=False,
        )


def parse_text(text: str) -> RasStatus:
    """Parse the output of ``verbose status``. Raises ParseError."""
    if not text.endswith("\n"):
        raise ParseError("RAS's text breaks off after %r" % text[-60:])
    lines = text.split("\n")
    parts = _parts(lines)
    version = next((match.group(1) for match in map(_LIBRARY.fullmatch, lines[:4]) if match), None)
    if version is None:
        raise ParseError("%r, expected 'NCCL version X.Y.Z compiled with CUDA ...'" % text[:60])
    rows = _rows(parts["Communicators"])
    drafts: Dict[str, _Draft] = {}
    absent: List[Absent] = []
    timeouts = 0
    for block in [*_blocks(parts["Errors"]), *_blocks(parts["Warnings"])]:
        heading = _HEADING.fullmatch(block[0])
        if heading:
            draft = drafts.setdefault(heading.group(3), _Draft("0x" + heading.group(3).lstrip("0")))
            group = int(heading.group(1))
            if group >= len(rows):
                raise ParseError("%r, and the table has %d groups" % (block[0], len(rows)))
            draft.size = rows[group].size
            _block(draft, heading.group(4), block[1:])
        elif block[0] in ("INCOMPLETE", "DEAD"):
            for each in filter(None, map(_PROCESS.fullmatch, block[1:])):
                host = _node(each.group(2), each.group(0))
                absent.append(Absent(host, int(each.group(1)), each.group(3), block[0] == "DEAD"))
        elif block[0] == "TIMEOUT":
            timeouts = next((int(match.group(1)) for match in map(_TIMEOUTS.fullmatch, block[1:]) if match), 1)
        else:
            raise ParseError("%r, which is not known of RAS" % block[0][:80])
    for draft in drafts.values():
        _check_bounds(draft)
    communicators = tuple(draft.finished() for draft in drafts.values())
    processes = _processes(parts["Job summary"])
    return RasStatus("text", version, communicators, tuple(rows), tuple(absent), processes, timeouts)


def _parts(lines: Sequence[str]) -> Dict[str, List[str]]:
    """Return heading -> lines below it. Raises ParseError if one is missing: the output breaks off."""
    found: Dict[str, List[str]] = {}
    current: Optional[List[str]] = None
    for number, line in enumerate(lines):
        name = line.split("...")[0]
        if number + 1 < len(lines) and lines[number + 1].startswith("======") and name in _PARTS:
            current = found.setdefault(name, [])
        elif current is not None:
            current.append(line)
    for name in _PARTS:
        if name not in found:
            raise ParseError("RAS's text has no part %r: it breaks off, or is of a release that is not known" % name)
    return found


_PARTS = ("Job summary", "Communicators", "Errors", "Warnings")


def _rows(lines: Sequence[str]) -> List[Row]:
    found = []
    for match in filter(None, map(_ROW.fullmatch, lines)):
        number, size = int(match.group(1)), int(match.group(2))
        if not 0 < size <= MOST_RANKS or number > MOST_COMMUNICATORS:
            raise ParseError("%r, which no job has" % match.group(0)[:100])
        found.append(Row(number, size, match.group(3), match.group(4)))
    return found


def _processes(lines: Sequence[str]) -> Optional[int]:
    totals = [match.group(1) or match.group(2) for match in map(_TOTALS.fullmatch, lines) if match]
    return int(totals[-1]) if totals else None


def _blocks(lines: Sequence[str]) -> Iterator[List[str]]:
    """Each begins with a line that is not indented; empty lines may stand within."""
    block: List[str] = []
    for line in lines:
        if not line or line.startswith("==="):
            continue
        if not line.startswith(" "):
            if block:
                yield block
            block = []
        elif not block:
            raise ParseError("%r, expected what it is about before it" % line[:80])
        block.append(line)
    if block:
        yield block


def _block(draft: _Draft, kind: str, lines: Sequence[str]) -> None:
    """Lines below ``#0-0 (hash) KIND``. Others are passed over, unless they are about ranks."""
    collective, of_error, group = "", "", None
    groups: List[Group] = []
    for line in lines:
        different = _OF_TYPE.fullmatch(line)
        if different:
            # Before 2.26 they are counted together, which reads "collective".
            collective, group = different.group(1), None
            groups = draft.counts.setdefault(collective, [])
            continue
        if line == "  Communicator ranks have different status":
            collective, groups, group = "", draft.statuses, None
            continue
        error = _KIND.fullmatch(line)
        if error:
            of_error, groups, group = error.group(1).lower(), draft.errors, None
            continue
        number = _NO_DATA.fullmatch(line)
        if number:
            draft.missing_number = int(number.group(1))
            continue
        head = _many(line, of_error)
        if head is not None:
            groups.append(head)
            group = len(groups) - 1
            continue
        member = _MEMBER.fullmatch(line)
        if member is not None:
            rank, place = int(member.group(1)), _member_place(member)
            if place is not None:
                draft.places[rank] = place
            if kind == "INCOMPLETE":
                draft.missing[rank] = Missing(rank, place, reachable=False)
            elif member.group(2):
                groups.append(Group(_state_of(member.group(3), of_error), 1, (rank,)))
                group = None
            elif group is not None:
                groups[group] = Group(groups[group].value, groups[group].number, groups[group].ranks + (rank,))
            continue
        _old_lines(draft, kind, line, groups)


def _old_lines(draft: _Draft, kind: str, line: str, groups: List[Group]) -> None:
    old = _OLD_LIST.fullmatch(line)
    if old is None:
        if _OF_RANKS.match(line):
            raise ParseError("%r, which is not known of RAS" % line[:80])
        return
    ranks = [int(each) for each in old.group(1).split(",") if each]
    if kind == "INCOMPLETE":
        draft.missing.update({rank: Missing(rank, None) for rank in ranks})
    elif old.group(2):
        groups.append(Group(old.group(2), len(ranks), tuple(ranks)))
    elif groups:
        last = groups[-1]
        groups[-1] = Group(last.value, last.number, last.ranks + tuple(ranks))


def _many(line: str, of_error: str) -> Optional[Group]:
    """Parse a line on several ranks, which the lines below it may name; None for another line."""
    launched = _MANY_LAUNCHED.fullmatch(line)
    if launched:
        return Group(int(launched.group(2) or 0), int(launched.group(1)), ())
    status = _MANY_STATUS.fullmatch(line)
    if status:
        return Group(status.group(2), int(status.group(1)), ())
    reported = _MANY_REPORTED.fullmatch(line)
    if reported:
        return Group("%s: %s" % (of_error, reported.group(2).lower()), int(reported.group(1)), ())
    return None


def _state_of(text: str, of_error: str) -> Union[int, str]:
    """Return what one rank has launched, its status, or its error."""
    launched = _LAUNCHED.fullmatch(text)
    if launched:
        return int(launched.group(1) or 0)
    status = _ONE_STATUS.fullmatch(text)
    return status.group(1) if status else "%s: %s" % (of_error, text.lower())


def _member_place(member: re.Match[str]) -> Optional[Place]:
    if member.group(4) is None:
        return None
    gpu = int(member.group(4))
    nvml = gpu if member.group(5) is None else int(member.group(5))
    return Place(_node(member.group(7), member.group(0)), int(member.group(6)), gpu, nvml)


def _node(host: str, line: str) -> str:
    if HOST.fullmatch(host) is None:
        raise ParseError("%r, expected an IP address in it" % line[:100])
    return host


def _check_bounds(draft: _Draft) -> None:
    """Raise ParseError for ranks and numbers that a communicator of this size cannot have."""
    named = [*draft.places, *draft.missing]
    for groups in (draft.statuses, draft.errors, *draft.counts.values()):
        named += [rank for group in groups for rank in group.ranks]
        for group in groups:
            if group.number < len(group.ranks) or group.number > draft.size:
                raise ParseError(
                    "communicator %s: %d ranks are alike, of which %d are named, in a communicator of %d"
                    % (draft.name, group.number, len(group.ranks), draft.size)
                )
            if isinstance(group.value, int) and group.value > LARGEST:
                raise ParseError("communicator %s: an operation count has more than 64 bits" % draft.name)
    if any(rank >= draft.size for rank in named):
        raise ParseError("communicator %s of %d ranks: there is no rank %d" % (draft.name, draft.size, max(named)))
    if draft.missing_number > draft.size:
        raise ParseError("communicator %s of %d ranks: %d are missing" % (draft.name, draft.size, draft.missing_number))
