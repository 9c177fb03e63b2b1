# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stored result of an earlier run of nccl-tests."""

from __future__ import annotations

import os

from ..core import trusted
from ..core.host import Host, ReadError
from .record import Run, parse_record

# In the result directory while a run has no result yet.
UNFINISHED = "unfinished"


def record_path(directory: str) -> str:
    return os.path.join(directory, "record.json")


def read(path: str, root: str) -> Run:
    """The record of an earlier run. root: the system root.

    Raises ParseError, and ReadError, also for a record that others than root may change.
    """
    text = Host().read_system(path)
    if text is None:
        raise ReadError(path, "there is no stored result")
    doubt = trusted.doubt(path, root)
    if doubt:
        raise ReadError(path, "is not trusted, because %s; %s" % (doubt, trusted.WAY_OUT))
    return parse_record(text)


def cut_off(directory: str) -> str:
    """When the run began that has left no result: one that was killed, hung with its node, or goes on right now.

    "" where there is none. Raises ReadError.
    """
    text = Host().read_system(os.path.join(directory, UNFINISHED))
    return "" if text is None else text.strip()[:40] or "at an unknown time"
