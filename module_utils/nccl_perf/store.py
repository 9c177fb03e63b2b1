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
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            doubt = trusted.doubt(self.directory, self.root)
            if doubt:
                raise untrusted(self.directory, doubt)
            lock = locks.open_file(path)
        except OSError as error:
            raise ReadError(path, "cannot be written: %s" % error.strerror) from error
        try:
            locks.take(lock)
        except BlockingIOError:
            yield "another benchmark run (%s is locked)" % path
        else:
            yield ""
        finally:
            os.close(lock)

    def begin(self) -> str:
        """Makes a run's directory. That it has begun is on the disk before it can hang the node. Raises ReadError."""
        path = os.path.join(self.directory, UNFINISHED)
        try:
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ReadError(path, "cannot be written: %s" % error.strerror) from error
        try:
            return tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%S-"), dir=self.directory)
        except OSError as error:
            raise ReadError(self.directory, "cannot be written: %s" % error.strerror) from error

    def tidy(self) -> None:
        """Make room for a run: remove all but the newest. Raises ReadError.

        Killed runs of earlier releases may have left the program's JSON, which holds the environment.
        """
        runs = [name for name in os.listdir(self.directory) if _RUN.fullmatch(name)]
        # Two runs of one second have the same time in their names.
        runs.sort(key=lambda name: os.stat(os.path.join(self.directory, name)).st_mtime_ns, reverse=True)
        last = os.path.basename(os.path.realpath(os.path.join(self.directory, "latest")))
        for number, name in enumerate(runs):
            directory = os.path.join(self.directory, name)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, "result.json"))
                if number >= RUNS - 1 and name != last:
                    shutil.rmtree(directory)
            except OSError as error:
                raise ReadError(directory, "cannot be removed: %s" % error.strerror) from error

    def save(self, run: perf_run.Run, directory: str) -> None:
        """Write the record of a run, and point ``latest`` to it. Raises ReadError."""
        link = os.path.join(self.directory, "latest")
        try:
            with open(record_path(directory), "x", encoding="utf-8") as stream:
                stream.write(perf_run.record(run))
            new = os.path.join(directory, "latest")
            os.symlink(os.path.basename(directory), new)
            os.replace(new, link)
            with contextlib.suppress(FileNotFoundError):  # the result is stored; another process may have removed this
                os.unlink(os.path.join(self.directory, UNFINISHED))
        except OSError as error:
            raise ReadError(link, "cannot be written: %s" % error.strerror) from error


def text_of(path: str) -> str:
    """The text of a file, up to OUTPUT_LIMIT; "" where there is none. Raises ReadError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(process_group.OUTPUT_LIMIT)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def output(path: str) -> str:
    """Return the part of a program's output file that is judged and stored. Raises ReadError."""
    return perf_output.without_log(text_of(path))[:KEPT]
