# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Schemas of what NCCL's RAS subsystem reports of the jobs on a node."""

from __future__ import annotations

import re

from .codec import LINE, Check, each, flag, many, maybe, number, one_of, record, row_of, table, text, whole
from .result_fields import count, line

# Ranks as ranges, ``0-3,7``; a count, a status or an error; number of ranks, and those that are named.
_RANKS = re.compile(r"([0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*)?")
HOSTNAME = re.compile(r"[0-9A-Za-z:.%_-]{0,64}")
_most_ranks = whole(0, 1 << 17)
_pid = whole(-1, 1 << 31)
_gpu = whole(-1, 1 << 10)


def groups(of: Check) -> Check:
    return many(row_of(of, _most_ranks, text(1 << 20, _RANKS)))


communicator = record(
    name=text(64, re.compile(r"0x[0-9a-f]{0,16}(:0x[0-9a-f]{1,16}){0,2}")),
    size=_most_ranks,
    places=many(row_of(_most_ranks, _most_ranks, _pid, _gpu, _gpu), 1 << 17),
    counts=table(groups(count), text(32, re.compile(r"[A-Za-z][A-Za-z0-9_]*")), 64),
    statuses=groups(text(32, re.compile("[A-Z]+"))),
    errors=groups(line),
    missing=many(row_of(_most_ranks, maybe(row_of(_most_ranks, _pid, _gpu, _gpu)), maybe(flag), flag), 1 << 17),
    missing_number=_most_ranks,
    whole=flag,
)
answer = record(
    form=one_of("json", "text"),
    version=text(64, line=True),
    communicators=many(communicator, 1 << 14),
    hosts=many(text(64, HOSTNAME)),
    rows=many(row_of(whole(0, 1 << 14), _most_ranks, text(32, line=True), text(64, line=True))),
    absent=many(
        row_of(text(64, HOSTNAME), _pid, text(200, re.compile(r"[0-9][0-9,]*( \(NVML [0-9][0-9,]*\))?")), flag)
    ),
    processes=maybe(whole(0, 1 << 31)),
    timeouts=whole(0, 1 << 31),
)
view = record(
    source=text(128, line=True),
    users=many(text(64, line=True), 1000),
    seconds=number(0, 1e6),
    before=maybe(answer),
    now=answer,
)
process = record(
    **each(("pid", "inner"), _pid),
    user=text(64, line=True),
    name=text(64),
    state=text(8, re.compile("[A-Za-z?]?")),
    library=text(4096),
    **each(("apart", "gpu"), flag),
    told=table(text(LINE), text(64), 20),
)
silence = record(
    source=text(128, line=True), message=text(LINE), users=many(text(64, line=True), 1000), pids=many(_pid)
)
