# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run tasks of many hosts in threads of one worker of Ansible.

Ansible forks a worker for each task on each host; with the memory that each fork copies, that costs five times a query
itself. Threads share what all hosts need, and the state of the action that starts them.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from .plain_data import Plain, PlainView

Key = TypeVar("Key")
Answer = Plain
# Seconds in which the first host alone builds what all need, which threads would otherwise build all at once.
ALONE = 2.0
# Seconds between two looks of a waiting worker whether it has to end.
WAKE = 0.5
PR_SET_PDEATHSIG = 1
LAST = "trap '' HUP INT TERM; read -r _; kill -s KILL -- -$1"
# The writing end of that shell's input: open as long as this process lives.
_watch: list[subprocess.Popen[bytes]] = []


def play_variables(of_task: PlainView, of_host: PlainView) -> Plain:
    """Return the variables that the play and the task add to a host's, or override.

    Variables of Ansible are left out: with the first host's ``ansible_host`` all other queries would go to it.
    """
    own = {name: value for name, value in of_task.items() if not name.startswith("ansible_")}
    return {name: value for name, value in own.items() if name not in of_host or of_host[name] != value}


def run_each(
    keys: Sequence[Key],
    work: Callable[[Key], Answer],
    leave: Callable[[Key], None],
    width: int,
    limit: float,
    made: threading.Event,
) -> Iterator[tuple[Key, Answer]]:
    """Yield key and result, in order of arrival. keys: hosts, or what stands for a call on one.

    width: threads at a time.   limit: seconds for each; slower ones are abandoned, and ``leave`` is called for them.
    made: set by work, once the first has built what all need and waits for its result.
    """
    answers: queue.SimpleQueue[tuple[Key, Answer]] = queue.SimpleQueue()
    waiting, ends = deque(keys), dict[Key, float]()

    def put(key: Key) -> None:
        answer: Answer = {"failed": True, "msg": "the query ended without a result, see above"}
        try:
            answer = work(key)
        finally:
            answers.put((key, answer))
            made.set()

    while waiting or ends:
        while waiting and len(ends) < width:
            key = waiting.popleft()
            ends[key] = time.monotonic() + limit
            # A thread begins with an empty context: Ansible's in ours is one object, which no two threads may change.
            threading.Thread(target=put, args=(key,), daemon=True).start()
            if key == keys[0]:
                made.wait(ALONE)
        try:
            # Short waits: a signal may reach another thread, and is handled here between two waits only.
            given = [answers.get(timeout=max(min(min(ends.values()) - time.monotonic(), WAKE), 0))]
        except queue.Empty:
            late = [key for key, end in ends.items() if end <= time.monotonic()]
            for key in late:
                leave(key)
            said = f"did not respond within {limit:g} s and was left behind"
            given = [(key, {"failed": True, "timedout": True, "msg": said}) for key in late]
        for key, answer in given:
            # An abandoned one may still respond.
            if ends.pop(key, None) is not None:
                yield key, answer


def bind_to_parent() -> None:
    """End everything this worker starts with it, and the worker with ansible-playbook, however either ends."""
    if not _leads_group():
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell in our group waits for the end of its input, whose other end only this process has.
    _watch.append(subprocess.Popen(["/bin/sh", "-c", LAST, "sh", str(os.getpid())], stdin=subprocess.PIPE))


def end_connections() -> None:
    """End what this worker has started, such as connections to hosts that were abandoned."""
    if _leads_group():
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


def _leads_group() -> bool:
    return os.getpgrp() == os.getpid()
