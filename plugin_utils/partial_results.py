# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Log of audit results, written as they arrive: Ansible returns them only once all of them are there.

It allows a verdict on an interrupted run. The file lies in a private folder of the run.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from .plain_data import Plain

_SIZE = struct.Struct(">I")


class PartialResults:
    """An append-only file of results; what was added can be read after a kill."""

    def __init__(self, path: Path) -> None:
        # A full disk must not cost a run its verdict.
        with contextlib.suppress(OSError):
            path.write_bytes(b"")
        self._path = path

    def add(self, host: str, answer: Mapping[str, object]) -> None:
        data = zlib.compress(json.dumps([host, answer]).encode(), 1)
        with contextlib.suppress(OSError), self._path.open("ab") as stream:
            stream.write(_SIZE.pack(len(data)) + data)


def of_this_run() -> Path:
    """Return the file of this ansible-playbook, the same in its workers."""
    from ansible import constants  # here: the busbar command starts without Ansible

    return Path(constants.DEFAULT_LOCAL_TMP) / "busbar-heard"


def read(path: Path) -> dict[str, Plain]:
    """Return host -> result; {} without a file. A result that was cut off by the end of the run is left out."""
    found = {}
    with contextlib.suppress(OSError), path.open("rb") as stream:
        while len(head := stream.read(_SIZE.size)) == _SIZE.size:
            (size,) = _SIZE.unpack(head)
            data = stream.read(size)
            if len(data) == size:
                host, answer = json.loads(zlib.decompress(data))
                found[host] = answer
    return found
