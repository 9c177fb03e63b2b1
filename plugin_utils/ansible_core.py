# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Everything that depends on the inside of ansible-core, with a line for each release.

fleet_audit does for each host what a worker of Ansible does for a task, without a public API. If a release is not in
the table, or differs from its line, hosts are audited by an ordinary task: slower, with the same result.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ansible.executor.process import worker
from ansible.executor.task_executor import TaskExecutor
from ansible.inventory.host import Host
from ansible.playbook.task import Task
from ansible.plugins.action import ActionBase
from ansible.release import __version__

from .plain_data import Plain, PlainView

try:
    from ansible._internal._task import TaskContext
except ImportError:  # before 2.19, or moved
    TaskContext = None

# Supported releases, oldest and newest; constraints.txt has the oldest and `make newest` the newest.
OLDEST, NEWEST = (2, 19), (2, 22)
INSTALLED: str = __version__
Run = Callable[[ActionBase, Host, Task, Plain], PlainView]


def _until_2_20(here: ActionBase, host: Host, task: Task, variables: Plain) -> PlainView:
    with TaskContext(task):
        executor = TaskExecutor(host, task, variables, here._play_context, *_shared(here))
        result: Plain = executor.run()
    return result


def _since_2_21(here: ActionBase, host: Host, task: Task, variables: Plain) -> PlainView:
    with TaskContext.create(task=task, task_vars=variables, host_name=host.name):
        result: Plain = TaskExecutor(host, here._play_context, *_shared(here)).run().as_result_dict()
    return result


def _shared(here: ActionBase) -> tuple[object, ...]:
    return here._loader, here._shared_loader_obj, here._final_q, here._variable_manager


_LAST = ("play_context", "loader", "shared_loader_obj", "final_q", "variable_manager")


@dataclass(frozen=True)
class Release:
    """The parameters of TaskExecutor in a release, and how it runs a task."""

    made_of: tuple[str, ...]
    run: Run


RELEASES = {
    (2, 19): Release(("host", "task", "job_vars", *_LAST), _until_2_20),
    (2, 20): Release(("host", "task", "job_vars", *_LAST), _until_2_20),
    (2, 21): Release(("host", *_LAST), _since_2_21),
    (2, 22): Release(("host", *_LAST), _since_2_21),
}


def release(version: str = INSTALLED) -> tuple[int, int]:
    """Return major and minor: 2.21.3rc1 is (2, 21)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def unsupported(version: str = INSTALLED) -> str | None:
    """Return why no playbook of ours runs on this ansible-core, and the way out; None where it does."""
    if OLDEST <= release(version) <= NEWEST:
        return None
    first, last, after = ("%d.%d" % of for of in (OLDEST, NEWEST, (NEWEST[0], NEWEST[1] + 1)))
    way = f"Install one with: pip install 'ansible-core>={first},<{after}'"
    return f"ansible-core {version} is not supported: Busbar needs {first} to {last}, and nothing was done. {way}"


def worker_runs_tasks() -> Run | None:
    """Return how a worker of this ansible-core runs a task for a host; None where that is unknown."""
    known = RELEASES.get(release())
    made_of = tuple(inspect.signature(TaskExecutor.__init__).parameters)[1:]
    if known is None or TaskContext is None or known.made_of != made_of or not hasattr(worker, "current_worker"):
        return None
    return known.run


def this_worker() -> worker.WorkerProcess | None:
    """Return the current WorkerProcess, None in any other process."""
    return worker.current_worker


def printing_lock(display: object) -> threading.RLock:
    """Return the lock that Display holds while it prints, and Ansible while it starts a worker."""
    lock = getattr(display, "_lock", None)
    return lock if lock is not None else threading.RLock()
