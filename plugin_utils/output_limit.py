# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limit the output that is read from a node, with any connection plugin.

A node may send output without end, and connection plugins read all of it. Plugins that reach a node by a command (ssh,
local, podman, docker, kubectl) start it with subprocess.Popen: in a thread inside limit_output() its output is counted,
and beyond the limit the command is ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ansible.errors import AnsibleError

from .result_schema import SAID

MIB = 1 << 20
# Bytes of a module's result. The largest of the suite's own are some 100 KB.
LIMIT = 8 * MIB
# A fabric of 4,096 HCA ports and 600 switches is 16 MB.
OF_MODULE = {"ib_fabric_info": 64 * MIB}


class TooMuchError(AnsibleError):
    """A node sent more output than the limit."""


class OutputLimit:
    """The limit of one thread for each command that it starts, and the commands."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.exceeded = False
        self.ended = False
        self._commands: list[Popen] = []
        self._lock = threading.Lock()

    def error(self) -> TooMuchError:
        said = f"{self.limit // MIB} MiB" if self.limit >= MIB else f"{self.limit} bytes"
        return TooMuchError(f"{SAID}more than {said}")

    def watch(self, command: Popen) -> None:
        with self._lock:
            self._commands.append(command)
        if self.ended:
            _kill(command)

    def end(self) -> None:
        """End the commands; from any thread. Their readers see the end of the output."""
        self.ended = True
        with self._lock:
            commands = list(self._commands)
        for command in commands:
            _kill(command)


_bound: ContextVar[OutputLimit | None] = ContextVar("bound", default=None)


@contextlib.contextmanager
def limit_output(limit: int = LIMIT) -> Iterator[OutputLimit]:
    """Limit the output of any command that this thread starts inside. Raises TooMuchError.

    Nested, the outer limit counts.
    """
    # A worker lives for one task, and outside limit_output() the class acts as its parent: it is not restored.
    subprocess.Popen = Popen  # type: ignore[misc]
    bound = _bound.get() or OutputLimit(limit)
    before = _bound.set(bound)
    try:
        yield bound
    except BaseException:
        # Including Ansible's time limit for a task: the rest of the output has no reader.
        bound.end()
        raise
    finally:
        _bound.reset(before)
        if bound.exceeded:
            # Whichever error a plugin has made of it.
            raise bound.error()


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """subprocess.Popen whose output is counted, if it is started inside limit_output()."""

    _said: dict[Any, bytearray] | None = None
    _unsent = memoryview(b"")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bound = _bound.get()
        self._read = 0
        if self._bound is not None:
            self.stdout, self.stderr = self._counting(self.stdout), self._counting(self.stderr)
            self._bound.watch(self)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Communicate as subprocess does, which reads from the pipes' descriptors and so past the count."""
        if self._bound is None:
            return super().communicate(input, timeout)
        end = None if timeout is None else time.monotonic() + timeout
        if self._said is None:
            self._said = {stream: bytearray() for stream in (self.stdout, self.stderr) if stream}
            self._unsent = memoryview(input.encode() if isinstance(input, str) else input or b"")
        try:
            self._exchange(self._said, end)
        except TooMuchError:
            # Children of the command that still write get SIGPIPE.
            for stream in self._said:
                stream.close()
            raise
        self.wait(_seconds_left(end))
        return self._text(self.stdout), self._text(self.stderr)

    def _exchange(self, said: dict[Any, bytearray], end: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            for stream in said:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ)
            if self.stdin and not self.stdin.closed:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                ready = selector.select(_seconds_left(end))
                if not ready and _seconds_left(end) == 0:
                    raise subprocess.TimeoutExpired(self.args, end or 0)
                for key, _events in ready:
                    if key.fileobj is self.stdin:
                        done = not self._send(key.fd)
                    else:
                        piece = os.read(key.fd, select.PIPE_BUF * 8)
                        self._count(len(piece))
                        said[key.fileobj] += piece
                        done = not piece
                    if done:
                        selector.unregister(key.fileobj)
                        # A pipe whose reader has gone.
                        with contextlib.suppress(BrokenPipeError):
                            key.fileobj.close()  # type: ignore[union-attr]

    def _send(self, descriptor: int) -> bool:
        """Write input. Return whether more is to be written."""
        try:
            self._unsent = self._unsent[os.write(descriptor, self._unsent[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            return False
        return bool(self._unsent)

    def _text(self, stream: Any) -> Any:
        if stream is None or self._said is None:
            return None
        said = bytes(self._said[stream])
        if isinstance(stream, io.TextIOWrapper):
            return io.TextIOWrapper(io.BytesIO(said), encoding=stream.encoding, errors=stream.errors).read()
        return said

    def _counting(self, stream: Any) -> Any:
        if stream is None:
            return None
        if isinstance(stream, io.TextIOWrapper):
            encoding, errors = stream.encoding, stream.errors
            return io.TextIOWrapper(self._counting(stream.detach()), encoding=encoding, errors=errors)
        if isinstance(stream, io.BufferedReader):
            return io.BufferedReader(_CountingReader(stream.detach(), self._count))
        return _CountingReader(stream, self._count)

    def _count(self, size: int) -> None:
        bound = self._bound
        self._read += size
        if bound is not None and self._read > bound.limit:
            bound.exceeded = True
            bound.end()
            raise bound.error()


class _CountingReader(io.RawIOBase):
    """The reading end of a pipe, which counts what is read."""

    def __init__(self, raw: io.RawIOBase, count: Callable[[int], None]) -> None:
        self._raw = raw
        self._count = count

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def readinto(self, buffer: Any) -> int | None:
        size: int | None = self._raw.readinto(buffer)
        self._count(size or 0)
        return size

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _kill(command: Popen) -> None:
    # sudo's child may belong to another user.
    with contextlib.suppress(OSError):
        command.kill()


def _seconds_left(end: float | None) -> float | None:
    return None if end is None else max(end - time.monotonic(), 0)
