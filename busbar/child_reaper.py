# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a program of ``busbar`` and end all of its descendants, whichever of the two ends first.

    python3 -I -S child_reaper.py PARENT APART COLLECTIONS PROGRAM ARGUMENTS...

Each worker of Ansible leads a session and ssh's masters are daemons: no signal to a process group reaches them.
The reaper adopts all orphans below it, and ends everything once the program has ended or the parent
has, by whatever signal. PARENT: pid that has to be alive. APART: 1 adds a second reaper, in its own session,
below the first: ansible-runner ends a run by SIGKILL to the group of what it has started. COLLECTIONS: folder from
which the collection is imported: the user's environment is ignored. Processes with ENDS_ITSELF=1 in their
environment end after us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

# SIGHUP: the terminal has gone.
AWAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# Seconds for Ansible to remove its temporary files; ansible-runner waits five for the end of the output.
GRACE = 2.0


def main() -> int:
    parent, apart, folder, *argv = sys.argv[1:]
    sys.path.insert(0, folder)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    first = os.getpid()

    def second() -> NoReturn:
        os.setsid()
        keeper = os.getpid()
        os._exit(_supervise(lambda: _become(argv, keeper), first))

    return _supervise(second if apart == "1" else lambda: _become(argv, first), int(parent))


def _supervise(start: Callable[[], NoReturn], parent: int) -> int:
    """Run ``start`` in a child, end all that is left of it, and return its exit code as a shell does."""
    from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans, process_group

    orphans.set_subreaper(1)
    if not process_group.end_with(parent, signal.SIGTERM):
        return 128 + signal.SIGTERM
    child = os.fork()
    if child == 0:
        start()
    code = None
    while code is None:
        number = signal.sigwait(AWAITED)
        code = _reaped(child) if number == signal.SIGCHLD else 128 + number
    process_group.end_all(GRACE, process_group.ENDS_ITSELF)
    return code


def _reaped(child: int) -> int | None:
    """Reap ended children. Return the exit code of ``child``, if it was among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                number = os.waitstatus_to_exitcode(ended[1])
                code = number if number >= 0 else 128 - number
    return code


def _become(argv: list[str], keeper: int) -> NoReturn:
    from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group

    if not process_group.end_with(keeper, signal.SIGKILL):
        os._exit(1)
    # Python ignores it, and the program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main())
