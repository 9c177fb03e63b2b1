# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stacks of C++ that PyTorch prints with its exceptions: in which thread, and at what, an error was met."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Tuple

MARK = b"frame #"
# Stacks that are open at one time, kinds that are kept, names of each, and characters of a name.
_OPEN, _KEPT, _NAMES, _LONGEST = 64, 8, 12, 100
_FRAME = re.compile(r"frame #(?P<number>\d{1,4}): (?P<name>[^\s(+][^(+]{0,300})")
# What every stack has.
_DULL = re.compile(
    r"<unknown|c10::(?:Error|detail)|c10::cuda::c10_cuda_check|std::|clone\b|__|start_thread|_start|Py|_Py|main\b"
)
# What a frame tells of its thread.
_THREADS = (
    ("autograd::Engine", "in a thread of the backward pass (autograd)"),
    ("atchdog", "in PyTorch's watchdog thread, which only looks at the work of others"),
    ("eartbeatMonitor", "in PyTorch's thread that looks after the watchdog"),
    ("~TensorImpl", "as tensors are freed"),
)
# A stack of a wait that was given up has the watchdog's frames alone, and tells no more than its line.
_OF_A_WAIT = "checkTimeout"


@dataclass
class Stack:
    """names: the innermost first.   order: line of its first frame.   count: how many are the same."""

    order: int
    names: List[str] = field(default_factory=list)
    count: int = 1


@dataclass
class Stacks:
    """``line`` for each line that has MARK; ``told`` after the last one."""

    # What stands before a frame -> the stack.
    _open: Dict[str, Stack] = field(default_factory=dict)
    _kept: Dict[Tuple[str, ...], Stack] = field(default_factory=dict)

    def line(self, text: str, order: int) -> None:
        match = _FRAME.search(text)
        if match is None:
            return
        prefix = text[: match.start()]
        if int(match.group("number")) == 0:
            self._close(prefix)
            if len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            self._open[prefix] = Stack(order)
        one = self._open.get(prefix)
        name = match.group("name").strip()[:_LONGEST]
        if one is not None and len(one.names) < _NAMES and not _DULL.match(name):
            one.names.append(name)

    def _close(self, prefix: str) -> None:
        one = self._open.pop(prefix, None)
        if one is None or not one.names:
            return
        known = self._kept.get(tuple(one.names))
        if known is not None:
            known.count += 1
        elif len(self._kept) < _KEPT:
            self._kept[tuple(one.names)] = one

    def told(self) -> List[str]:
        """What the stacks tell, in sentences."""
        for prefix in list(self._open):
            self._close(prefix)
        return [_told(one) for one in self._kept.values() if not any(_OF_A_WAIT in name for name in one.names)]


def _told(one: Stack) -> str:
    found = [said for mark, said in _THREADS if any(mark in name for name in one.names)]
    text = "a stack of C++ (line %d%s): %s" % (
        one.order,
        "; %d of them" % one.count if one.count > 1 else "",
        " < ".join(one.names),
    )
    return text + (
        " (%s: where the error was met, which need not be where it arose)" % ", ".join(found) if found else ""
    )
