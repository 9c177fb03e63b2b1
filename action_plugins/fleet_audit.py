# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""host_audit of every host of the play, by threads of one worker. Documented in library/fleet_audit.py.

Ansible forks a worker for each task on each host, and that, with the memory that each fork copies, costs five times
what the question itself does. Here every host has a thread that does what its worker would do, by Ansible's own
TaskExecutor: connection, become method and variables are those of any task. How that is called differs between releases
of Ansible: plugin_utils/ansible_core.py.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible import context
from ansible.errors import AnsibleError
from ansible.utils.display import Display

# Loaded before the fork, so that what is the same for all hosts is made once.
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    ansible_core,
    findings_file,
    heard,
    intent,
    manifest,
    slurm_audit,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.bounded import Bound, bounded
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

display = Display()
MODULE = f"{host_audit.COLLECTION}host_audit"
# Of a host's result; a result of thousands of hosts is walked through value by value.
KEPT = (
    *("roles", "evidence", "off", "intent", "verify", "scope", "sharp", "due", "drain", "cabling", "compare"),
    *("failed", "unreachable", "timedout", "wrong_inventory", "msg"),
)
# Seconds in which the first host alone makes what all need, which threads would do all at once.
ALONE = 2.0
# Seconds after which a worker that waits looks whether it has to end.
WAKE = 0.5
Answer = dict[str, Any]
Answers = dict[str, Answer]
PR_SET_PDEATHSIG = 1
LAST = "trap '' HUP INT TERM; read -r _; kill -s KILL -- -$1"
# The other end of that shell's input: open as long as this process lives.
_watch: list[subprocess.Popen[bytes]] = []


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {
        "host_timeout": {"type": "float", "default": 300},
        "collect": {"type": "bool", "default": False},
        "engine": {"type": "str", "choices": ["ssh", "slurm"], "default": "ssh"},
        "overlap": {"type": "bool", "default": False},
        "heard": {"type": "path", "default": ""},
        "manifest": {"type": "path", "default": ""},
    }

    def act(self, variables: Values, given: Values) -> Values:
        begun = findings_file.now()
        file = Path(given["heard"]) if given["heard"] else heard.of_this_run()
        hosts = list(variables["ansible_play_hosts"])
        hostvars = variables["hostvars"]
        if given["manifest"]:
            nodes, chosen = variables["groups"][findings_file.GROUP], {*variables["ansible_play_hosts_all"]}
            of_hosts = ((host, hostvars.raw_get(host)) for host in hostvars)
            manifest.build(nodes, chosen, of_hosts, ansible_core.as_inventory).write(given["manifest"])
        if given["collect"]:
            begun = (variables.get("fleet_audit_result") or {}).get("begun") or begun
            answers = {host: _of_task(hostvars.raw_get(host).get("host_audit_result")) for host in hosts}
        elif given["engine"] == "slurm":
            try:
                answers = self._ask_slurm(hosts, variables, given["host_timeout"], given["overlap"], file)
            except SlurmError as error:
                return {"changed": False, "failed": True, "msg": f"--engine slurm: {error}"}
        else:
            run = ansible_core.worker_runs_tasks()
            asked = run and self._ask(run, hosts, variables, given["host_timeout"], file)
            if asked is None:
                display.warning(
                    f"fleet_audit does not support ansible-core {ansible_core.INSTALLED}: every host is audited by a"
                    f" separate task, which finds the same but takes several times as long"
                )
                return {"changed": False, "hosts": {}, "begun": begun, "by_task": True}
            answers = asked
        wrong = {host: answer["wrong_inventory"] for host, answer in answers.items() if answer.get("wrong_inventory")}
        if wrong:
            # Without the answers, of which Ansible would print all.
            return {"changed": False, "failed": True, "msg": intent.told(wrong)}
        return {"changed": False, "hosts": answers, "begun": begun}

    def _ask_slurm(
        self, hosts: list[str], variables: Mapping[str, Any], limit: float, overlap: bool, file: Path
    ) -> Answers:
        """Raises SlurmError."""
        here = ansible_core.this_worker()
        hostvars = variables["hostvars"]
        of_play = _of_play(here._task_vars if here else variables, hostvars.raw_get(variables["inventory_hostname"]))

        def variables_of(host: str) -> dict[str, Any]:
            return {**hostvars.raw_get(host), **of_play, "hostvars": hostvars}

        _end_as_a_whole()
        keep = heard.Heard(file).add
        return slurm_audit.ask(hosts, variables_of, self._templar, limit, overlap, display.display, keep)

    def _ask(
        self, run: ansible_core.Run, hosts: list[str], variables: Mapping[str, Any], limit: float, file: Path
    ) -> Answers | None:
        """None where a worker of this Ansible does not run tasks in the way that run thinks."""
        here = ansible_core.this_worker()
        if here is None:
            raise AnsibleError("fleet_audit runs in a worker of ansible-playbook only")
        hostvars = variables["hostvars"]
        of_play = _of_play(here._task_vars, hostvars.raw_get(variables["inventory_hostname"]))
        task = self._task.copy()
        task.action, task.args, task.register, task.run_once, task.timeout = MODULE, {}, None, False, 0
        # What blocks and the play say of it is read once, and not by the copy for each host.
        task.squash()
        bounds: dict[str, Bound] = {}
        strange: list[str] = []

        def ask(host: str) -> Answer:
            try:
                of_host = {**hostvars.raw_get(host), **of_play, "hostvars": hostvars}
                machine = here._variable_manager._inventory.get_host(host)
                with bounded(host_audit.LIMIT) as bounds[host]:
                    # The play context is as it was before this task made it the first host's.
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

        _end_as_a_whole()
        kept, answers = heard.Heard(file), Answers()
        for host, answer in _ask_all(hosts, ask, leave, context.CLIARGS["forks"], limit, host_audit.MADE):
            kept.add(host, answer)
            answers[host] = answer
        if any(answer.get("timedout") for answer in answers.values()):
            _end_what_is_left()
        return None if hosts and len(strange) == len(hosts) else answers


def _of_play(of_task: Mapping[str, Any], of_host: Mapping[str, Any]) -> dict[str, Any]:
    """What the play and the task add to the variables that a host has by itself, or put in front of them.

    Nothing of Ansible's own: the first host's ``ansible_host`` is there, and all others would be asked in its place.
    """
    own = {name: value for name, value in of_task.items() if not name.startswith("ansible_")}
    return {name: value for name, value in own.items() if name not in of_host or of_host[name] != value}


def _of_task(result: Mapping[str, Any] | None) -> Answer:
    """What host_audit has registered as its own task, whose failure does not end the play."""
    given = {name: value for name, value in (result or {}).items() if name in KEPT}
    return given if "roles" in given else {"msg": "it was not queried", **given, "failed": True}


def _ask_all(
    hosts: Sequence[str],
    ask: Callable[[str], Answer],
    leave: Callable[[str], None],
    width: int,
    limit: float,
    made: threading.Event,
) -> Iterator[tuple[str, Answer]]:
    """Host and answer, in the order in which they come. limit: seconds for a host; what takes longer is left behind.

    made: set by ask, once the first host has made what it needs and waits for its answer.
    """
    answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
    waiting, ends = deque(hosts), dict[str, float]()
    count = 0

    def work(host: str) -> None:
        answer: Answer = {"failed": True, "msg": "the query ended without a result, see above"}
        try:
            answer = ask(host)
        finally:
            answers.put((host, answer))
            made.set()

    while waiting or ends:
        while waiting and len(ends) < width:
            host = waiting.popleft()
            ends[host] = time.monotonic() + limit
            # A thread begins with an empty context: what Ansible keeps in ours is one object, and no two may change it.
            threading.Thread(target=work, args=(host,), daemon=True).start()
            if host == hosts[0]:
                made.wait(ALONE)
        try:
            # Not longer at a time: what ends this worker may reach another thread, and is heard only between two waits.
            given = [answers.get(timeout=max(min(min(ends.values()) - time.monotonic(), WAKE), 0))]
        except queue.Empty:
            late = [host for host, end in ends.items() if end <= time.monotonic()]
            for host in late:
                leave(host)
            said = f"did not respond within {limit:g} s and was left behind"
            given = [(host, {"failed": True, "timedout": True, "msg": said}) for host in late]
        for host, answer in given:
            # One that was left behind may still answer.
            if ends.pop(host, None) is not None:
                # Kept by whoever reads us before it is reported.
                yield host, answer
                count += 1
                if count % max(1, len(hosts) // 20) == 0 or count == len(hosts):
                    display.display(f"{count} of {len(hosts)} hosts have responded")


def _end_as_a_whole() -> None:
    """What this worker starts ends with it, and it with ansible-playbook, however either ends."""
    if not _leads():
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell in our group waits for the end of its input, whose other end nobody has but us.
    _watch.append(subprocess.Popen(["/bin/sh", "-c", LAST, "sh", str(os.getpid())], stdin=subprocess.PIPE))


def _end_what_is_left() -> None:
    """Connections to hosts that were left behind."""
    if _leads():
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


def _leads() -> bool:
    """A worker leads a process group of its own."""
    return os.getpgrp() == os.getpid()
