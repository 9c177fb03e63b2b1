# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a program to its end, or to the end of its time: one that hangs in the driver is killed and left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import List, Mapping, Optional, Sequence, Tuple


def run(
    argv: Sequence[str], environment: Mapping[str, str], deadline: float, most: int
) -> Tuple[List[bytes], Optional[int]]:
    """Run a program. Return its output and exit code; None if it did not end in time or printed too much.

    Raises OSError if it could not be started.
    """
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=none, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)
    if process.stdout is None or process.stderr is None:
        raise AssertionError("Popen was asked for pipes")
    with process.stdout as out, process.stderr as err:
        chunks, complete = _drain([out.fileno(), err.fileno()], deadline, most)
        rc = reap(process, deadline) if complete else None
        if rc is None:
            kill_group(process.pid)
            reap(process, time.monotonic() + 0.5)
    return chunks, rc


def _drain(streams: Sequence[int], deadline: float, limit: int) -> Tuple[List[bytes], bool]:
    """Read each stream until all are closed (complete), or until the deadline or the size limit."""
    buffers = {stream: bytearray() for stream in streams}
    waiting = set(streams)
    while waiting and max(map(len, buffers.values())) <= limit:
        left = deadline - time.monotonic()
        ready = select.select(list(waiting), [], [], left)[0] if left > 0 else []
        if not ready:
            break
        for stream in ready:
            data = os.read(stream, 65536)
            buffers[stream] += data
            if not data:
                waiting.discard(stream)
    return [bytes(data) for data in buffers.values()], not waiting


def reap(process: subprocess.Popen[bytes], deadline: float) -> Optional[int]:
    """Return the exit code if the process ends in time, else None. With a timeout, wait polls: a child may be in D."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(deadline - time.monotonic())
    return None


def kill_group(pid: int) -> None:
    """Kill a process that leads a group, and the group; it may have ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
