# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print one line a role. plugin_utils/progress.py has the texts."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: One line a role, with counts; failures at once, folded over hosts
version_added: 0.1.0
description:
  - Prints a line for each role with how many hosts it worked on, changed, failed or did not reach, and its time.
    A line every 30 seconds names the role that is still running, and the hosts that it waits for.
  - A failure is printed at once, with its message, the task, file and line, and the host. Hosts that fail alike are
    counted, and named as a folded list when the role ends. So are hosts with the same C(--diff), and those of which
    M(ansible.builtin.debug) prints the same.
  - A failure that a block rescues or that is ignored is printed as such and does not count as a failed host.
  - With C(-v), and where the environment variable E(CI) is set, all output is that of Ansible's C(default) callback,
    whose options this plugin has.
author:
  - Busbar contributors (@busbar)
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout in configuration
"""

import atexit
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING

from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    ansible_core,
    findings_file,
    partial_results,
    progress,
    terminal,
)

if TYPE_CHECKING:
    from ansible.executor.stats import AggregateStats
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.inventory.host import Host
    from ansible.parsing.dataloader import DataLoader
    from ansible.playbook import Playbook
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task
    from ansible.vars.hostvars import HostVars

_COLLECTION = "busbar.fabric."
_VERDICT = _COLLECTION + "verdict"
_QUESTION = _COLLECTION + "fleet_audit"
_DEBUG = ("debug", "ansible.builtin.debug", "ansible.legacy.debug")
_ORDERED = ("linear", "ansible.builtin.linear", "debug", "ansible.builtin.debug")
_COLOURS = {"ok": C.COLOR_OK, "changed": C.COLOR_CHANGED, "failed": C.COLOR_ERROR, "unreachable": C.COLOR_UNREACHABLE}
_COLOURS |= dict.fromkeys(("ignored", "rescued", "warn"), C.COLOR_WARN)


def _event(handle: Callable[..., None]) -> Callable[..., None]:
    """Handle an event under the lock, or leave it to Ansible's default callback where that prints the run."""

    @wraps(handle)
    def choose(self: CallbackModule, *given: object, **more: object) -> None:
        if self._run is None:
            getattr(super(CallbackModule, self), handle.__name__)(*given, **more)
            return
        with self._lock:
            handle(self, self._run, *given, **more)

    return choose


def _leave_out(name: str) -> Callable[..., None]:
    """Return an event whose text of Ansible's default callback is left out."""

    def handle(self: CallbackModule, run: progress.Run, *given: object, **more: object) -> None:
        pass

    handle.__name__ = name
    return _event(handle)


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "busbar.fabric.progress"

    def __init__(self) -> None:
        super().__init__()
        # Every text is printed, and every process started, under this lock of Ansible, so that no output is mixed.
        self._lock: threading.RLock = ansible_core.printing_lock(self._display)
        self._run: progress.Run | None = None
        self._over = threading.Event()
        self._process = os.getpid()
        # Tasks whose items have reported why they failed: (host, task).
        self._itemised: set[tuple[str, str]] = set()
        # Arguments of the playbook's task of verdict, None where it has none; and the results it would judge.
        self._judges: Mapping[str, object] | None = None
        self._hosts: dict[str, None] = {}
        self._hostvars: HostVars = None
        self._loader: DataLoader = None

    # The run.

    def v2_playbook_on_start(self, playbook: Playbook) -> None:
        ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        # ansible-runner derives its own from this one, and cuts what is printed into events.
        if self._display.verbosity or ci or self.__class__ is not CallbackModule:
            super().v2_playbook_on_start(playbook)
            return
        if self._run is not None:  # of several playbooks
            return
        self._judges = _judged(playbook)
        self._run = progress.Run(time.monotonic, bool(context.CLIARGS.get("check")), self._judges is not None)
        threading.Thread(target=self._report_each_second, args=(self._run,), name="progress", daemon=True).start()
        atexit.register(self._ended_early)

    @_event
    def v2_playbook_on_play_start(self, run: progress.Run, play: Play) -> None:
        variables = play.get_variable_manager().get_vars(play=play)
        nodes = set(variables.get("groups", {}).get(findings_file.GROUP) or ())
        self._hosts.update((host, None) for host in variables.get("ansible_play_hosts_all", ()) if host in nodes)
        self._hostvars, self._loader = variables.get("hostvars"), play.get_loader()
        hosts = len(variables.get("ansible_play_batch", ()))
        self._print(run.play(play.get_name().strip(), hosts, play.strategy in _ORDERED, bool(play.serial)))

    def v2_playbook_on_vars_prompt(self, varname: str, *given: object, **more: object) -> None:
        if self._run is None:
            super().v2_playbook_on_vars_prompt(varname, *given, **more)
            return
        # The lock is not held while the user is asked.
        with self._lock:
            self._print(self._run.close())

    @_event
    def v2_playbook_on_stats(self, run: progress.Run, stats: AggregateStats) -> None:
        self._stop()
        self._print(run.finished(stats.processed))

    @_event
    def v2_playbook_on_no_hosts_remaining(self, run: progress.Run) -> None:
        self._print(run.lost())

    v2_playbook_on_no_hosts_matched = _leave_out("v2_playbook_on_no_hosts_matched")
    v2_playbook_on_include = _leave_out("v2_playbook_on_include")
    v2_playbook_on_notify = _leave_out("v2_playbook_on_notify")
    v2_runner_retry = _leave_out("v2_runner_retry")
    v2_runner_on_async_poll = _leave_out("v2_runner_on_async_poll")
    v2_runner_on_async_ok = _leave_out("v2_runner_on_async_ok")
    v2_runner_on_async_failed = _leave_out("v2_runner_on_async_failed")

    # Tasks.

    @_event
    def v2_playbook_on_task_start(self, run: progress.Run, task: Task, is_conditional: bool) -> None:
        self._print(run.task(_name(task), _role(task), task.run_once is True))

    @_event
    def v2_playbook_on_handler_task_start(self, run: progress.Run, task: Task) -> None:
        self._print(run.task(_name(task), _role(task), task.run_once is True))

    @_event
    def v2_runner_on_start(self, run: progress.Run, host: Host, task: Task) -> None:
        run.started(host.get_name())

    # Results.

    @_event
    def v2_runner_on_ok(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._handle_warnings(result.result)
        self._ended(run, result, "changed" if result.result.get("changed") else "ok")
        if not result.task.loop:
            self._debug(run, result)
        if result.task.action == _QUESTION:
            self._unreached(run, result)

    @_event
    def v2_runner_on_skipped(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._handle_warnings(result.result)
        self._ended(run, result, "skipped")

    @_event
    # The decorator gives the run.
    # pylint: disable-next=arguments-renamed
    def v2_runner_on_failed(self, run: progress.Run, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        end, key = _bad_end(result, ignore_errors), (result.host.get_name(), result.task._uuid)
        if key in self._itemised:
            self._itemised.discard(key)
            self._handle_warnings(result.result)
        else:
            self._failed(run, result, end)
        self._ended(run, result, end)

    @_event
    def v2_runner_on_unreachable(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._failed(run, result, "unreachable")
        self._ended(run, result, "unreachable")

    @_event
    def v2_runner_item_on_ok(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._handle_warnings(result.result)
        self._debug(run, result)

    @_event
    def v2_runner_item_on_skipped(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._handle_warnings(result.result)

    @_event
    def v2_runner_item_on_failed(self, run: progress.Run, result: CallbackTaskResult) -> None:
        self._itemised.add((result.host.get_name(), result.task._uuid))
        given = result.task.ignore_errors
        # A template is one up to 2.20; since 2.21 the task has its value, and the fields are deprecated.
        ignored = bool(result.task_fields.get("ignore_errors") if isinstance(given, str) else given)
        end = _bad_end(result, ignored)
        self._failed(run, result, end, f" (item {self._get_item_label(result.result)})")

    @_event
    def v2_on_file_diff(self, run: progress.Run, result: CallbackTaskResult) -> None:
        given = result.result
        for each in given["results"] if result.task.loop and "results" in given else [given]:
            if isinstance(each, Mapping) and each.get("diff") and each.get("changed"):
                # Escaped first: what colours it is ours.
                text = self._get_diff(_escaped(each["diff"]))
                if text.strip():
                    self._print_message(run, "diff", result, text.rstrip("\n"))

    # Helpers.

    def _ended(self, run: progress.Run, result: CallbackTaskResult, end: str) -> None:
        # The verdict fails for all hosts, and not for the one on which it runs.
        counts = not _is_verdict(result.task)
        run.ended(result.host.get_name(), end, _role(result.task), counts)

    def _failed(self, run: progress.Run, result: CallbackTaskResult, end: str, item: str = "") -> None:
        self._handle_warnings(result.result)
        if _is_verdict(result.task):
            self._print(run.not_ok(str(result.result.get("msg"))))
        else:
            self._print_message(run, end, result, progress.failure(result.result), _where(result.task), item)

    def _unreached(self, run: progress.Run, result: CallbackTaskResult) -> None:
        """Count hosts that a task for all of them could not reach: the task has not failed for them."""
        for host, answer in (result.result.get("hosts") or {}).items():
            # A node that Slurm has lost is tried over its own connection, where roles are played.
            if answer.get("unreachable") and ("engine" not in answer or (self._judges or {}).get("nightly")):
                address = self._hostvars.raw_get(host).get("ansible_host")
                address = address if isinstance(address, str) else ""
                text = str(answer.get("msg"))
                self._print(run.message("unreachable", host, "", _name(result.task), text, "", address) or ())
                run.unreached(host)

    def _debug(self, run: progress.Run, result: CallbackTaskResult) -> None:
        if result.task.action not in _DEBUG or not result.result.get("_ansible_verbose_always"):
            return
        self._clean_results(result.result, result.task.action)
        message, more = result.result.get("msg"), progress.details(result.result)
        self._print_message(run, "says", result, "\n".join(more if message is None else [str(message), *more]))

    def _print_message(
        self, run: progress.Run, kind: str, result: CallbackTaskResult, text: str, where: str = "", item: str = ""
    ) -> None:
        address, host = result.host.vars.get("ansible_host"), result.host.get_name()
        address = address if isinstance(address, str) else ""
        self._print(run.message(kind, host, _role(result.task), _name(result.task) + item, text, where, address) or ())

    def _print(self, lines: Iterable[progress.Line]) -> None:
        # The reader has gone.
        with contextlib.suppress(BrokenPipeError):
            for line in lines:
                self._display.display(line.text, color=_COLOURS.get(line.kind))
            if lines:
                sys.stdout.flush()

    def _report_each_second(self, run: progress.Run) -> None:
        while not self._over.wait(1):
            with self._lock:
                self._print(run.tick() if not self._over.is_set() else ())

    def _stop(self) -> None:
        atexit.unregister(self._ended_early)
        self._over.set()

    def _ended_early(self) -> None:
        """Report the end of a run that Ansible ends without a callback: an interrupt, or its own mistake."""
        if self._run is None or os.getpid() != self._process:
            return
        with self._lock:
            self._stop()
            # Its handler has made way for the second Ctrl-C.
            interrupted = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
            why = "INTERRUPTED" if interrupted else "ENDED EARLY"
            self._print(self._run.ended_early(why))
            if not self._run.verdict_printed:
                self._print(self._until_now())
                said = "The run has not come to its end. What is there now is judged, and nothing written, by:"
                self._print([progress.Line(said), progress.Line(f"  {_question()}")])

    def _until_now(self) -> list[progress.Line]:
        """Return the verdict's table on the results so far. Those of an interrupted audit are in a file."""
        if self._judges is None or not self._hosts:
            return []
        # Imported here, since a whole run needs none of it. Where Ctrl-C ends Ansible's own import of an action plugin,
        # Ansible leaves the half of it that was loaded.
        name = "ansible_collections.busbar.fabric.plugins.action.verdict"
        if not hasattr(sys.modules.get(name), "until_now"):
            sys.modules.pop(name, None)
        from ansible_collections.busbar.fabric.plugins.action import verdict as verdict_action
        from ansible_collections.busbar.fabric.plugins.plugin_utils import verdict

        given = {"ansible_run_tags": context.CLIARGS.get("tags"), "ansible_skip_tags": context.CLIARGS.get("skip_tags")}
        answers = partial_results.read(partial_results.of_this_run())
        hosts = list(self._hosts)
        try:
            judged = verdict_action.until_now(hosts, self._hostvars, self._loader, given, self._judges, answers)
        except AnsibleError as error:
            return [progress.Line(f"What was done cannot be judged: {progress.printable_lines(str(error))}", "failed")]
        check_mode, verbose = bool(context.CLIARGS.get("check")), self._display.verbosity > 0
        text = verdict.render(judged, check_mode, terminal.WIDTH, verbose=verbose)
        return [progress.Line(line) for line in ("", *text.splitlines(), "")]


def _judged(playbook: Playbook) -> Mapping[str, object] | None:
    """Return the arguments of the playbook's task that is Busbar's verdict; None where it has none."""
    tasks = [task for play in playbook.get_plays() for task in play.get_tasks()]
    while tasks:
        task = tasks.pop()
        if isinstance(task, list):
            tasks += task
        elif _is_verdict(task):
            return dict(task.args)
        else:
            tasks += getattr(task, "block", None) or []
    return None


def _is_verdict(task: Task) -> bool:
    return getattr(task, "action", None) == _VERDICT and not _role(task)


def _name(task: Task) -> str:
    return str(task.name or task.action)


def _role(task: Task) -> str:
    role = getattr(task, "_role", None)
    return "" if role is None else str(role.get_name()).removeprefix(_COLLECTION)


def _where(task: Task) -> str:
    """Return file and line, from where the run was started if that is shorter."""
    path, _colon, line = (task.get_path() or "").rpartition(":")
    if not path:
        return ""
    path = os.path.realpath(path)
    near = os.path.relpath(path)
    return f"{path if near.startswith('..') else near}:{line}"


def _bad_end(result: CallbackTaskResult, ignore_errors: bool) -> str:
    return "ignored" if ignore_errors else "rescued" if _rescued(result.task) else "failed"


def _rescued(task: Task) -> bool:
    """Return whether a block around the task has a rescue for it; tasks in rescue or always have none."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if getattr(parent, "rescue", None) and any(part._uuid == child._uuid for part in parent.block):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


def _escaped(diff: object) -> object:
    if isinstance(diff, str):
        return progress.printable_lines(diff) + ("\n" if diff.endswith("\n") else "")
    if isinstance(diff, Mapping):
        return {key: _escaped(value) for key, value in diff.items()}
    if isinstance(diff, list | tuple):
        return [_escaped(value) for value in diff]
    return diff


def _question() -> str:
    """Return the command that judges the same hosts."""
    words = ["ansible-playbook", _COLLECTION + "drift", "--check"]
    for inventory in context.CLIARGS.get("inventory") or ():
        words += ["-i", inventory]
    if limit := context.CLIARGS.get("subset"):
        words += ["--limit", limit]
    return shlex.join(words)
