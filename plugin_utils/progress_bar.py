# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Draw a moving line at the bottom of a terminal, below the program's other output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TextIO

# Seconds between two updates.
STEP = 0.2
_CLEAR = "\r\x1b[K"


def terminal(stream: TextIO) -> bool:
    """Return whether a line can move there."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class MovingLine:
    """Replace sys.stdout and sys.stderr, so that other output appears above the line, undamaged.

    drawn: the line for so many columns; None where no line can move. lock: held to print, or to start a
    process that will. heard: called with every printed text. tick: called some times a second, where no line can move.
    """

    def __init__(
        self,
        lock: threading.RLock,
        drawn: Callable[[int], str] | None,
        heard: Callable[[str], None],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._lock = lock
        self._drawn = drawn
        self._heard = heard
        self._tick = tick
        self._shown = ""
        # An unfinished line is a prompt: nothing is drawn over it.
        self._ended = True
        self._real: tuple[TextIO, TextIO] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        self._real = (sys.stdout, sys.stderr)
        sys.stdout = _Above(sys.stdout, self)
        if sys.stderr.isatty():
            sys.stderr = _Above(sys.stderr, self)
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            if self._real is not None:
                self._clear(self._real[0])
                sys.stdout, sys.stderr = self._real
                self._real = None

    def _run(self) -> None:
        while not self._stopped.wait(STEP):
            with self._lock:
                if not self._stopped.is_set():
                    (self._tick if self._drawn is None else self.step)()

    def step(self) -> None:
        """Draw the line as it is now."""
        with self._lock:
            if self._real is None or self._drawn is None or not self._ended:
                return
            stream = self._real[0]
            with contextlib.suppress(OSError):
                # The last column would begin a new line on some terminals.
                line = self._drawn(os.get_terminal_size(stream.fileno()).columns - 1)
                if line != self._shown:
                    stream.write(_CLEAR + line)
                    stream.flush()
                    self._shown = line

    def write(self, stream: TextIO, text: str) -> int:
        with self._lock:
            if self._real is not None:
                self._clear(self._real[0])
            count = stream.write(text)
            if text:
                self._ended = text.endswith("\n")
                self._heard(text)
            return count

    def _clear(self, stream: TextIO) -> None:
        if self._shown:
            stream.write(_CLEAR)
            stream.flush()
            self._shown = ""


class _Above:
    """A stream whose texts appear above the moving line; everything else is the stream's own."""

    def __init__(self, stream: TextIO, line: MovingLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write(self._stream, text)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def fileno(self) -> int:
        # input() would print its prompt past us.
        raise io.UnsupportedOperation("fileno")

    def __getattr__(self, name: str) -> Any:
        # Also flush, without the lock: a caller about to start a process holds it already.
        return getattr(self._stream, name)
