# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run host_audit for every host of the play in threads of one worker. Documented in library/fleet_audit.py.

Ansible forks a worker for each task on each host; with the memory that each fork copies, that costs five times
the query itself. Here a thread per host does what its worker would do, by Ansible's own
TaskExecutor: connection, become method and variables are those of any task. The call differs between releases
of Ansible: plugin_utils/ansible_core.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ansible import context
from ansible.errors import AnsibleError
from ansible.utils.display import Display

# Loaded before the fork, so that what all hosts share is built once.
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    ansible_core,
    findings_file,
    intent,
    manifest,
    partial_results,
    slurm_audit,
    worker_threads,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.output_limit import OutputLimit, limit_output
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

display = Display()
MODULE = f"{host_audit.COLLECTION}host_audit"
# Keys of a host's result that are kept: Ansible walks through each value of the result of thousands of hosts.
KEPT = (
    *("roles", "evidence", "off", "intent", "verify", "scope", "sharp", "due", "drain", "cabling", "compare"),
    *("failed", "unreachable", "timedout", "wrong_inventory", "msg"),
)
Answers = dict[str, Plain]


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {
        "host_timeout": {"type": "float", "default": 300},
        "collect": {"type": "bool", "default": False},
        "engine": {"type": "str", "choices": ["ssh", "slurm"], "default": "ssh"},
        "heard": {"type": "path", "default": ""},
        "manifest": {"type": "path", "default": ""},
    }

    def act(self, variables: Values, given: Values) -> Values:
        begun = findings_file.now()
        file = Path(given["heard"]) if given["heard"] else partial_results.of_this_run()
        hosts = list(variables["ansible_play_hosts"])
        hostvars = variables["hostvars"]
        if given["manifest"]:
            nodes, chosen = variables["groups"][findings_file.GROUP], {*variables["ansible_play_hosts_all"]}
            of_hosts = ((host, hostvars.raw_get(host)) for host in hostvars)
            manifest.build(nodes, chosen, of_hosts).write(given["manifest"])
        if given["collect"]:
            begun = (variables.get("fleet_audit_result") or {}).get("begun") or begun
            answers = {host: _task_result(hostvars.raw_get(host).get("host_audit_result")) for host in hosts}
        elif given["engine"] == "slurm":
            try:
                answers = self._audit_by_slurm(hosts, variables, given["host_timeout"], file)
            except SlurmError as error:
                return {"changed": False, "failed": True, "msg": f"--engine slurm: {error}"}
        else:
            run = ansible_core.worker_runs_tasks()
            asked = run and self._audit(run, hosts, variables, given["host_timeout"], file)
            if asked is None:
                display.warning(
                    f"fleet_audit does not support ansible-core {ansible_core.INSTALLED}: every host is audited by a"
                    f" separate task, which finds the same but takes several times as long"
                )
                return {"changed": False, "hosts": {}, "begun": begun, "by_task": True}
            answers = asked
        wrong = {host: answer["wrong_inventory"] for host, answer in answers.items() if answer.get("wrong_inventory")}
        if wrong:
            # Without the results, all of which Ansible would print.
            return {"changed": False, "failed": True, "msg": intent.summarise_errors(wrong)}
        return {"changed": False, "hosts": answers, "begun": begun}

    def _audit_by_slurm(self, hosts: list[str], variables: PlainView, limit: float, file: Path) -> Answers:
        """Return host -> result, by one step of Slurm. Raises SlurmError."""
        here, hostvars = ansible_core.this_worker(), variables["hostvars"]
        own = hostvars.raw_get(variables["inventory_hostname"])
        of_play = worker_threads.play_variables(here._task_vars if here else variables, own)

        def variables_of(host: str) -> Plain:
            return {**hostvars.raw_get(host), **of_play, "hostvars": hostvars}

        worker_threads.bind_to_parent()
        keep = partial_results.PartialResults(file).add
        return slurm_audit.audit(hosts, variables_of, self._templar, limit, display.display, keep)

    def _audit(
        self, run: ansible_core.Run, hosts: list[str], variables: PlainView, limit: float, file: Path
    ) -> Answers | None:
        """Return host -> result; None where this ansible-core runs tasks differently than ``run`` expects."""
        here = ansible_core.this_worker()
        if here is None:
            raise AnsibleError("fleet_audit runs in a worker of ansible-playbook only")
        hostvars = variables["hostvars"]
        of_play = worker_threads.play_variables(here._task_vars, hostvars.raw_get(variables["inventory_hostname"]))
        task = self._task.copy()
        task.action, task.args, task.register, task.run_once, task.timeout = MODULE, {}, None, False, 0
        # Blocks and the play are evaluated once, and not by the copy for each host.
        task.squash()
        bounds: dict[str, OutputLimit] = {}
        strange: list[str] = []

        def audit_host(host: str) -> Plain:
            try:
                of_host = {**hostvars.raw_get(host), **of_play, "hostvars": hostvars}
                machine = here._variable_manager._inventory.get_host(host)
                with limit_output(host_audit.LIMIT) as bounds[host]:
                    # The play context, as it was before this task made it the first host's.
                    done = run(here, machine, task.copy(exclude_tasks=True), of_host)
                return {name: done[name] for name in KEPT if name in done}
            except AnsibleError as error:
                return {"failed": True, "msg": str(error)}
            except (AttributeError, TypeError) as error:
                strange.append(host)
                return {"failed": True, "msg": f"ansible-core {ansible_core.INSTALLED} within fleet_audit: {error}"}

        def leave(host: str) -> None:
            if host in bounds:
                bounds[host].end()

        worker_threads.bind_to_parent()
        kept, answers = partial_results.PartialResults(file), Answers()
        width, made = context.CLIARGS["forks"], host_audit.MADE
        for host, answer in worker_threads.run_each(hosts, audit_host, leave, width, limit, made):
            kept.add(host, answer)
            answers[host] = answer
            if len(answers) % max(1, len(hosts) // 20) == 0 or len(answers) == len(hosts):
                display.display(f"{len(answers)} of {len(hosts)} hosts have responded")
        if any(answer.get("timedout") for answer in answers.values()):
            worker_threads.end_connections()
        return None if hosts and len(strange) == len(hosts) else answers


def _task_result(result: PlainView | None) -> Plain:
    """Return what host_audit would register as an ordinary task, whose failure does not end the play."""
    given = {name: value for name, value in (result or {}).items() if name in KEPT}
    return given if "roles" in given else {"msg": "it was not queried", **given, "failed": True}
