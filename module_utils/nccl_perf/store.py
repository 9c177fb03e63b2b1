# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store records of nccl-tests runs: one directory for each run, and ``latest``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from typing import Iterator

from ..core import locks, process_group, trusted
from ..core.host import ReadError, untrusted
from . import output as perf_output
from . import record as perf_run
from .record import UNFINISHED, record_path

# Characters of the output, without NCCL's lines, that are judged and stored: 10,000 ranks print half of it.
KEPT = 2_000_000
# Runs whose files stay.
RUNS = 5
_RUN = re.compile(r"[0-9]{8}T[0-9]{6}-[a-z0-9_]{8}")


class Store:
    """root: the system root, whose files' owners and permissions are checked."""

    def __init__(self, directory: str, root: str) -> None:
        self.directory = directory
        self.root = root

    @contextlib.contextmanager
    def hold(self) -> Iterator[str]:
        """Hold the lock of the result directory. Yield its other holder, "" if it is ours. Raises ReadError."""
        # Another name than in earlier releases, whose file others could open, and may still lock.
        path = os.path.join(self.directory, ".run.lock")
        with _errors(path):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            doubt = trusted.doubt(self.directory, self.root)
            if doubt:
                raise untrusted(self.directory, doubt)
            lock = locks.open_file(path)
        try:
            locks.take(lock)
        except BlockingIOError:
            yield "another benchmark run (%s is locked)" % path
        else:
            yield ""
        finally:
            os.close(lock)

    def begin(self) -> str:
        """Make a run's directory. That it has begun is on the disk before it can hang the node. Raises ReadError."""
        path = os.path.join(self.directory, UNFINISHED)
        with _errors(path), open(path, "w", encoding="utf-8") as stream:
            stream.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
            stream.flush()
            os.fsync(stream.fileno())
        with _errors(self.directory):
            return tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%S-"), dir=self.directory)

    def tidy(self) -> None:
        """Make room for a run: remove all but the newest. Raises ReadError."""
        runs = [name for name in os.listdir(self.directory) if _RUN.fullmatch(name)]
        # Two runs of one second have the same time in their names.
        runs.sort(key=lambda name: os.stat(os.path.join(self.directory, name)).st_mtime_ns, reverse=True)
        last = os.path.basename(os.path.realpath(os.path.join(self.directory, "latest")))
        for directory in (os.path.join(self.directory, name) for name in runs[RUNS - 1 :] if name != last):
            with _errors(directory, "cannot be removed"):
                shutil.rmtree(directory)

    def save(self, run: perf_run.Run, directory: str) -> None:
        """Write the record of a run, and point ``latest`` to it. Raises ReadError."""
        link = os.path.join(self.directory, "latest")
        with _errors(link):
            with open(record_path(directory), "x", encoding="utf-8") as stream:
                stream.write(perf_run.record(run))
            new = os.path.join(directory, "latest")
            os.symlink(os.path.basename(directory), new)
            os.replace(new, link)
            with contextlib.suppress(FileNotFoundError):  # the result is stored; another process may have removed this
                os.unlink(os.path.join(self.directory, UNFINISHED))


@contextlib.contextmanager
def _errors(path: str, what: str = "cannot be written") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReadError(path, "%s: %s" % (what, error.strerror)) from error


def output(path: str) -> str:
    """Return the part of a program's output file that is judged and stored; "" for no file. Raises ReadError."""
    if os.path.exists(path):
        with _errors(path, "cannot be read"), open(path, encoding="utf-8", errors="replace") as stream:
            return perf_output.without_log(stream.read(process_group.OUTPUT_LIMIT))[:KEPT]
    return ""
