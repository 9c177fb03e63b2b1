# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the calls of a campaign as tasks of Ansible: connection, become method and variables are those of any task.

One action plays a whole campaign, and its worker runs the tasks of all nodes in threads, so that the campaign's state
stays in memory. The call of a task differs between releases of Ansible: plugin_utils/ansible_core.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader

from .. import ansible_core, codec, output_limit, result_schema, worker_threads
from ..plain_data import Plain, PlainView
from .engine import Call, Result

COLLECTION = "busbar.fabric."
STATUS = "ansible.builtin.async_status"
# Seconds that a task may take on a node, and between two polls of those in the background.
STEP, PAUSE = 300.0, 2.0


class Nodes:
    """Run calls on nodes for an action. Instances are an ``engine.Run``.

    variables: of the action's task. Raises AnsibleError where this ansible-core runs tasks in another way.
    """

    def __init__(self, action: ActionBase, variables: PlainView) -> None:
        run, worker = ansible_core.worker_runs_tasks(), ansible_core.this_worker()
        if run is None or worker is None:
            raise AnsibleError(
                f"{action._task.action} does not support ansible-core {ansible_core.INSTALLED}: nothing was measured"
            )
        self._run, self._worker, self._hostvars = run, worker, variables["hostvars"]
        first = self._hostvars.raw_get(variables["inventory_hostname"])
        self._of_play = worker_threads.play_variables(worker._task_vars, first)
        task = action._task.copy()
        task.register, task.run_once, task.timeout, task.when = None, False, 0, []
        # Blocks and the play are evaluated once, and not by the copy for each host.
        task.squash()
        self._task = task
        self._made = threading.Event()
        self._late = False
        worker_threads.bind_to_parent()

    def __call__(self, calls: Sequence[Call]) -> list[Result]:
        ends = {number: time.monotonic() + call.seconds for number, call in enumerate(calls) if call.seconds}
        found = self._each([(call, f"{COLLECTION}{call.module}", call.arguments) for call in calls])
        results = dict(enumerate(found))
        jobs = {number: str(results[number].get("ansible_job_id", "")) for number in ends}
        waiting = {number: jid for number, jid in jobs.items() if jid and not results[number].get("failed")}
        while waiting:
            time.sleep(PAUSE)
            polled = self._each([(calls[number], STATUS, {"jid": jid}) for number, jid in waiting.items()])
            for number, result in zip([*waiting], polled, strict=True):
                late = time.monotonic() > ends[number]
                if late or any(result.get(name) for name in ("finished", "failed", "unreachable")):
                    del waiting[number]
                    said = f"no end within {calls[number].seconds:g} s"
                    results[number] = result if result.get("finished") or not late else {"failed": True, "msg": said}
        done = [number for number in jobs if results[number].get("finished")]
        self._each([(calls[number], STATUS, {"jid": jobs[number], "mode": "cleanup"}) for number in done])
        return [results[number] for number in range(len(calls))]

    def close(self) -> None:
        """End connections to nodes that did not respond in time."""
        if self._late:
            worker_threads.end_connections()

    def _each(self, tasks: Sequence[tuple[Call, str, PlainView]]) -> list[Result]:
        """Run a task for each of the calls, as many at a time as Ansible has forks."""
        for action in {action for _call, action, _arguments in tasks}:
            # Of two threads that load a plugin, the second may get it half made.
            action_loader.get(action, class_only=True)
        bounds: dict[int, output_limit.OutputLimit] = {}
        results: dict[int, Result] = {}

        def work(number: int) -> Plain:
            call, action, arguments = tasks[number]
            try:
                with output_limit.limit_output() as bounds[number]:
                    given = self._run_task(call, action, arguments)
                return checked(call, given, polled=action == STATUS)
            except AnsibleError as error:
                return {"failed": True, "msg": str(error)}
            except (AttributeError, TypeError) as error:
                return {"failed": True, "msg": f"ansible-core {ansible_core.INSTALLED} within a campaign: {error}"}

        def leave(number: int) -> None:
            self._late = True
            if number in bounds:
                bounds[number].end()

        width = context.CLIARGS["forks"]
        for number, result in worker_threads.run_each(range(len(tasks)), work, leave, width, STEP, self._made):
            results[number] = result
        return [results[number] for number in range(len(tasks))]

    def _run_task(self, call: Call, action: str, arguments: PlainView) -> PlainView:
        task = self._task.copy(exclude_tasks=True)
        task.action, task.args = action, dict(arguments)
        task.async_val, task.poll = (0 if action == STATUS else int(call.seconds)), 0
        variables = {**self._hostvars.raw_get(call.host), **self._of_play, "hostvars": self._hostvars}
        host = self._worker._variable_manager._inventory.get_host(call.host)
        return self._run(self._worker, host, task, variables)


def checked(call: Call, given: PlainView, polled: bool = False) -> Plain:
    """Return a result's valid keys: no key of a node is an order to this machine, and no value is too large.

    polled: it is that of a poll of the call, which may be still running.
    """
    if given.get("unreachable") or (polled and not given.get("finished")):
        said = {name: True for name in ("unreachable", "failed") if given.get(name)}
        return {**said, "msg": str(given.get("msg") or "")[: codec.LINE]}
    try:
        # Without a job there is nothing to poll: this is the module's own result, and has to be whole.
        kept = result_schema.check(call.module, given, background=polled or bool(given.get("ansible_job_id")))
    except codec.Invalid as error:
        return {"failed": True, "msg": f"{result_schema.SAID}{error}"}
    return kept or {"failed": True, "msg": f"{result_schema.SAID}it is empty"}
