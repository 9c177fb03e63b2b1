# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stands between ``busbar`` and a program that it starts, and leaves nothing of either behind.

    python3 -I -S keeper.py PARENT APART COLLECTIONS PROGRAM ARGUMENTS...

Ansible's workers lead sessions of their own and ssh's masters are daemons: no signal to a process group reaches them.
So all that is orphaned below the keeper is given to it, and it ends everything once the program has ended or the parent
has, by whatever signal. PARENT: pid of who has to be alive. APART: 1 puts a second keeper, in its own session,
below the first: ansible-runner ends a run by SIGKILL to the group of what it has started. COLLECTIONS: folder from
which the collection is imported, since nothing of the user's environment counts here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

# A terminal that has gone is the end of who was at it.
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
        os._exit(_keep(lambda: _become(argv, keeper), first))

    return _keep(second if apart == "1" else lambda: _become(argv, first), int(parent))


def _keep(start: Callable[[], NoReturn], parent: int) -> int:
    """The exit code of what ``start`` has become, as a shell gives it. Nothing below is left."""
    from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group

    process_group.adopt_orphans()
    if not process_group.end_with(parent, signal.SIGTERM):
        return 128 + signal.SIGTERM
    child = os.fork()
    if child == 0:
        start()
    code = None
    while code is None:
        number = signal.sigwait(AWAITED)
        code = _reaped(child) if number == signal.SIGCHLD else 128 + number
    process_group.end_all(GRACE)
    return code


def _reaped(child: int) -> int | None:
    """Takes in whoever has ended. The exit code of the child, if it was among them."""
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
