# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take the output of a run over several nodes apart: NCCL's own log, and the rest, which has the table.

All programs of a run write into one pipe: NCCL's lines of every rank, those of the rank guards, the table of rank 0 and
the launcher's labels. NCCL's lines, which are most of it (130 MB at 8,000 ranks), are read as they pass and never kept.

mpirun passes on blocks of 4 KB, not lines: a line of one rank goes on behind lines of others. With --tag-output each
block, and each line in it, begins with the rank's tag, and so every rank's lines are put together again.
"""

from __future__ import annotations

import re
from typing import BinaryIO, Dict, List

from ..diagnose.reader import StateLog, StateReader

BLOCK = 1 << 20
# Of one line that is none of NCCL's; the rest of it is cut off.
LONGEST = 1 << 16
# Bytes of all that is none of NCCL's: the head, a few tables, and for each rank its line in the device list and the two
# lines of its guard.
ROOM, ROOM_OF_RANK = 8 << 20, 4 << 10
GUARD = b"#busbar-rank "
# ``[1,3]<stdout>:`` of Open MPI 4, ``[prterun-node01-4242@1,3]<stdout>: `` of Open MPI 5.
_TAG = re.compile(
    rb"\[(\d{1,10},\d{1,8})\]<std(?:out|err|diag)>:|\[([\w.-]{1,120}@\d{1,10},\d{1,8})\]<std(?:out|err|diag)>: "
)
_LONGEST_TAG = 160
# Of a line whose end has not come.
_OPEN = 16 << 10
# A line that is NCCL's from its begin: what stands before the head is srun's label, or the time of a warning.
_WHOLE = re.compile(
    rb" {0,7}(?:\d{1,7}: )?(?:\[\d{4}-\d\d-\d\d[ T][\d:.]{8,18}\] ?)?[\w.-]{1,255}:\d{1,10}:\d{1,10} \[-?\d{1,10}\]"
    rb" (?:\S{1,120}:\d{1,7} (?:\([^)]{0,120}\) )?)?NCCL (?:INFO|WARN|TRACE|VERSION|ATTN|ABORT|CALL)\b"
)


class Streams:
    """``take`` for each stream of a run; then ``log`` has what NCCL printed in all of them.

    cut: whether a stream had more that is none of NCCL's than there is room for; what was beyond is lost.
    ended: process id whose lines in Open MPI's form, ``[node02:00060] Signal: ...``, do not count.
    """

    def __init__(self, ranks: int, ended: int = 0) -> None:
        self._reader = StateReader()
        self._room = ROOM + ROOM_OF_RANK * ranks
        self._kept: List[bytes] = []
        self._torn: Dict[bytes, bytes] = {}
        self._ended = re.compile(rb"\[[^]\s]{1,255}:0*%d\] " % ended if ended else rb"(?!)")
        self.cut = False

    @property
    def log(self) -> StateLog:
        return self._reader.log

    def take(self, stream: BinaryIO, name: str) -> str:
        """Read a stream to its end. Return what of it is not NCCL's, in its order. Raises OSError."""
        self._reader.source(name)
        self._kept = []
        rest, rank = b"", b""
        while True:
            block = stream.read(BLOCK)
            data, rest = rest + block, b""
            at = data.rfind(b"[", max(len(data) - _LONGEST_TAG, 0))
            if block and at >= 0 and _TAG.match(data, at) is None:
                # It may be the begin of a tag.
                data, rest = data[:at], data[at:]
            lines: List[bytes] = []
            at = 0
            for tag in _TAG.finditer(data):
                self._piece(rank, data[at : tag.start()], lines)
                rank, at = tag.group(1) or tag.group(2), tag.end()
            self._piece(rank, data[at:], lines)
            if not block:
                lines += [line for line in self._torn.values() if line]
                self._torn = {}
            lines = [line for line in lines if self._ended.match(line) is None]
            if lines:
                self._reader.feed(b"\n".join(lines) + b"\n")
                self._keep(lines)
            if not block:
                break
        self._reader.end()
        return b"\n".join(self._kept).decode("utf-8", "replace")

    def _piece(self, rank: bytes, piece: bytes, lines: List[bytes]) -> None:
        """Add to ``lines`` those that end in what a rank has printed next."""
        if not piece:
            return
        *whole, last = (self._torn.get(rank, b"") + piece).split(b"\n")
        if len(last) > _OPEN:
            # A line without end: its parts are their own lines.
            whole.append(last)
            last = b""
        self._torn[rank] = last
        lines += whole

    def _keep(self, lines: List[bytes]) -> None:
        for line in lines:
            if b" NCCL " in line and _WHOLE.match(line):
                # A guard that began to write in the middle of another rank's line has ended that line, too.
                at = line.find(GUARD)
                if at < 0:
                    continue
                line = line[at:]
            if len(line) + 1 > self._room:
                self.cut = True
                continue
            line = line[:LONGEST]
            self._room -= len(line) + 1
            self._kept.append(line)
