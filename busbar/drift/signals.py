# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Handle signals that end a run: Ansible is ended, the interruption is stored and notified."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(RuntimeError):
    """A signal ended the run; the message names it. table: the results so far."""

    def __init__(self, number: int, table: str = "") -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.table = table


@contextmanager
def raised() -> Iterator[None]:
    """Raise Interrupted where the program is, for each signal."""

    def give_up(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(give_up):
        yield


@contextmanager
def collected() -> Iterator[list[int]]:
    """Yield the list of signals; none interrupts the body."""
    got: list[int] = []
    with _handled(lambda number, _frame: got.append(number)):
        yield got


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # nohup ignores SIGHUP, which has to stay so.
    before = {number: signal.getsignal(number) for number in NUMBERS}
    mine = [number for number in NUMBERS if before[number] is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
