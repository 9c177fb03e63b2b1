# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The answers of the first question in a file, as they come: Ansible hands them on only once all of them are there.

A run that is ended meanwhile is judged by what stands in it. The file lies in a folder of the run alone.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SIZE = struct.Struct(">I")


class Heard:
    """What is added is there for whoever reads the file, also after a kill."""

    def __init__(self, path: Path) -> None:
        # A disk that is full costs nobody the verdict of a run that comes to its end.
        with contextlib.suppress(OSError):
            path.write_bytes(b"")
        self._path = path

    def add(self, host: str, answer: Mapping[str, object]) -> None:
        data = zlib.compress(json.dumps([host, answer]).encode(), 1)
        with contextlib.suppress(OSError), self._path.open("ab") as stream:
            stream.write(_SIZE.pack(len(data)) + data)


def of_this_run() -> Path:
    """The file of this ansible-playbook, the same in its workers."""
    from ansible import constants  # here: the busbar command starts without Ansible

    return Path(constants.DEFAULT_LOCAL_TMP) / "busbar-heard"


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Host -> answer; {} where nothing was heard. What was being written when the run was ended is left out."""
    found = {}
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    place = 0
    while len(data) - place >= _SIZE.size:
        (size,) = _SIZE.unpack_from(data, place)
        place += _SIZE.size
        if len(data) - place < size:
            break
        host, answer = json.loads(zlib.decompress(data[place : place + size]))
        found[host] = answer
        place += size
    return found
