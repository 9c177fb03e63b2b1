# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All that leans on the inside of ansible-core, with a line for each of its releases.

fleet_audit does for each host what a worker of Ansible does for a task, and no public name of Ansible's says how. Where
a release is not in the table, or is not made as its line says, hosts are asked by an ordinary task: slower, and right.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.executor.process import worker
from ansible.executor.task_executor import TaskExecutor
from ansible.playbook.task import Task
from ansible.release import __version__

try:
    from ansible._internal._task import TaskContext
except ImportError:  # before 2.19, or moved
    TaskContext = None
try:
    from ansible._internal._json._profiles import _inventory_legacy
except ImportError:
    _inventory_legacy = None

# What all playbooks need, first and last; constraints.txt has the oldest and `make newest` the newest.
OLDEST, NEWEST = (2, 19), (2, 22)
INSTALLED: str = __version__
Run = Callable[[Any, Any, Task, dict[str, Any]], Mapping[str, Any]]


def _until_2_20(here: Any, host: Any, task: Task, variables: dict[str, Any]) -> Mapping[str, Any]:
    with TaskContext(task):
        executor = TaskExecutor(host, task, variables, here._play_context, *_shared(here))
        result: dict[str, Any] = executor.run()
    return result


def _since_2_21(here: Any, host: Any, task: Task, variables: dict[str, Any]) -> Mapping[str, Any]:
    with TaskContext.create(task=task, task_vars=variables, host_name=host.name):
        result: dict[str, Any] = TaskExecutor(host, here._play_context, *_shared(here)).run().as_result_dict()
    return result


def _shared(here: Any) -> tuple[Any, ...]:
    return here._loader, here._shared_loader_obj, here._final_q, here._variable_manager


_LAST = ("play_context", "loader", "shared_loader_obj", "final_q", "variable_manager")


@dataclass(frozen=True)
class Release:
    """What TaskExecutor is made of, and how a task is run by it."""

    made_of: tuple[str, ...]
    run: Run


RELEASES = {
    (2, 19): Release(("host", "task", "job_vars", *_LAST), _until_2_20),
    (2, 20): Release(("host", "task", "job_vars", *_LAST), _until_2_20),
    (2, 21): Release(("host", *_LAST), _since_2_21),
    (2, 22): Release(("host", *_LAST), _since_2_21),
}


def release(version: str = INSTALLED) -> tuple[int, int]:
    """Major and minor: 2.21.3rc1 is (2, 21)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def unsupported(version: str = INSTALLED) -> str | None:
    """Why no playbook of ours runs on this ansible-core, and the way out; None where it does."""
    if OLDEST <= release(version) <= NEWEST:
        return None
    first, last, after = ("%d.%d" % of for of in (OLDEST, NEWEST, (NEWEST[0], NEWEST[1] + 1)))
    return (
        f"ansible-core {version} is not supported: Busbar needs {first} to {last}, and nothing was done. "
        f"Install one with: pip install 'ansible-core>={first},<{after}'"
    )


def worker_runs_tasks() -> Run | None:
    """How a worker of this ansible-core runs a task for a host; None where that is not known."""
    known = RELEASES.get(release())
    made_of = tuple(inspect.signature(TaskExecutor.__init__).parameters)[1:]
    if known is None or TaskContext is None or known.made_of != made_of or not hasattr(worker, "current_worker"):
        return None
    return known.run


def as_inventory(host: str, variables: Mapping[str, object]) -> object:
    """Return variables of a host as ``ansible-inventory --list`` prints them; None where it is not known how."""
    if _inventory_legacy is None:
        return None
    text = json.dumps({"_meta": {"hostvars": {host: variables}}}, cls=_inventory_legacy.Encoder)
    return json.loads(text)["_meta"]["hostvars"][host]


def this_worker() -> Any:
    """The WorkerProcess that this is, None in any other process."""
    return worker.current_worker


def printing_lock(display: Any) -> threading.RLock:
    """What Display holds while it prints, and whoever starts a worker: a thread that holds it is in no worker's way."""
    lock = getattr(display, "_lock", None)
    return lock if lock is not None else threading.RLock()
