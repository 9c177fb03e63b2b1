# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limit the output that is read from a node, with any connection plugin.

A node may send output without end, and connection plugins read all of it. Plugins that reach a node by a command (ssh,
local, podman, docker, kubectl) start it with subprocess.Popen: in a thread inside limit_output() its output is counted,
and beyond the limit the command is ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextvars import ContextVar

from ansible.errors import AnsibleError

from .result_schema import SAID

MIB = 1 << 20
# Bytes of a module's result. The largest of the suite's own are some 100 KB.
LIMIT = 8 * MIB
# A fabric of 4,096 HCA ports and 600 switches is 16 MB.
OF_MODULE = {"ib_fabric_info": 64 * MIB}
# Bytes that are copied at once.
PIECE = 1 << 16


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
        return TooMuchError(
            f"{SAID}more than " + (f"{self.limit >> 20} MiB" if self.limit >= MIB else f"{self.limit} bytes")
        )

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
    """subprocess.Popen whose output is counted on its way to the reader, if it is started inside limit_output().

    Whatever reads them, the streams stay as they are: only their descriptors lead to a pipe of our own.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[call-overload]
        self._read = 0
        bound = _bound.get()
        if bound is None:
            return
        for stream in filter(None, (self.stdout, self.stderr)):
            source = os.dup(stream.fileno())
            reader, writer = os.pipe()
            os.dup2(reader, stream.fileno(), inheritable=False)
            os.close(reader)
            threading.Thread(target=self._pass_on, args=(bound, source, writer), daemon=True).start()
        bound.watch(self)

    def _pass_on(self, bound: OutputLimit, source: int, writer: int) -> None:
        """Copy output until its end, or until there is too much: children that still write then get SIGPIPE."""
        # The reader has gone.
        with contextlib.suppress(BrokenPipeError):
            while piece := os.read(source, PIECE):
                self._read += len(piece)
                if self._read > bound.limit:
                    bound.exceeded = True
                    bound.end()
                    break
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
        os.close(source)
        os.close(writer)


def _kill(command: Popen) -> None:
    # sudo's child may belong to another user.
    with contextlib.suppress(OSError):
        command.kill()
