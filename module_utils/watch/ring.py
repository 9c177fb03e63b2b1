# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep one day of a watch: lines of JSON, a file for each hour. A line that a kill has torn is not read."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Dict, Iterator, List, Tuple

from ..core.host import Host

FOLDER = "/var/lib/busbar/watch"
HOURS = 25
# Bytes of a file, of a line, and of all files that are read: what one day has is a tenth of that.
FILE, LINE, MOST = 4 << 20, 64 << 10, 16 << 20
# Seconds since 1970: no record is of a later time.
_LATEST = 1 << 33
_NAME = re.compile(r"[0-9]{8}T[0-9]{2}\.jsonl")


class Ring:
    """Files below a folder that only its owner may write."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def add(self, at: float, record: Dict[str, object]) -> None:
        """Append a record. Raises OSError. A full hour takes no more: whatever floods it ends with the hour."""
        path = os.path.join(self.folder, _name(at))
        line = (json.dumps(dict(record, at=round(at, 1)), sort_keys=True) + "\n").encode()
        new = not os.path.exists(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size + len(line) <= FILE:
                os.write(handle, line)
        finally:
            os.close(handle)
        if new:
            for name in self._names()[:-HOURS]:
                os.unlink(os.path.join(self.folder, name))

    def _names(self) -> List[str]:
        return sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))


def read(host: Host, since: float = 0.0, folder: str = FOLDER) -> Iterator[Dict[str, object]]:
    """Yield the records from a time on, the oldest first; none where nothing was watched. Raises ReadError."""
    names = [name for name in host.listdir_system(folder) if _NAME.fullmatch(name) and name >= _name(since)]
    paths = ["%s/%s" % (folder, name) for name in names[-HOURS:]]
    # Of a flooded ring the last hours count.
    while sum(host.size_system(path) or 0 for path in paths) > MOST:
        del paths[0]
    for path in paths:
        # What follows the last line end is torn.
        lines = (host.read_system(path, "replace", FILE) or "").split("\n")[:-1]
        yield from (record for at, record in map(_record, lines) if record and at >= since)


def _name(at: float) -> str:
    return time.strftime("%Y%m%dT%H.jsonl", time.gmtime(at))


def _record(line: str) -> Tuple[float, Dict[str, object]]:
    """Return the time of a record, and the record; {} where the line is none."""
    if len(line) >= LINE:
        return 0.0, {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0.0, {}
    at = found.get("at") if isinstance(found, dict) else None
    return (at, found) if isinstance(at, (int, float)) and 0 <= at < _LATEST else (0.0, {})
