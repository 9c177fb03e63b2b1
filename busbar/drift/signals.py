# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who tells a run to end: it ends Ansible, writes down that it was interrupted, and tells people."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(RuntimeError):
    """Somebody ended the run; the message says by which signal. table: what had been heard until then."""

    def __init__(self, number: int, table: str = "") -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.table = table


@contextmanager
def raised() -> Iterator[None]:
    """Each raises Interrupted where the program is."""

    def give_up(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(give_up):
        yield


@contextmanager
def collected() -> Iterator[list[int]]:
    """None breaks into what is done meanwhile; those that came are in the list."""
    got: list[int] = []
    with _handled(lambda number, _frame: got.append(number)):
        yield got


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # nohup ignores SIGHUP, and it is to stay so.
    before = {number: signal.getsignal(number) for number in NUMBERS}
    mine = [number for number in NUMBERS if before[number] is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
