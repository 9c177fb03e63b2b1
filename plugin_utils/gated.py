# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way in for what a node answers to an ordinary task: read up to a limit, checked, reduced to what is known.

Each module of the suite that runs on nodes has this as its action plugin, under its own name (a link in
action_plugins/): redirecting them all to one name would give each of them the module_defaults of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, bounded

display = Display()
# Tracebacks of modules, as Ansible has read them: printed as they are, so only for somebody who asks with -vvv.
DEBUG = 3


class ActionModule(ActionBase):
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        started = bool(self._task.async_val and not self._connection.has_native_async)
        name = self._task.action.rpartition(".")[2]
        result.update(valid(self, name, lambda: self._execute_module(task_vars=task_vars, wrap_async=started), started))
        if not started:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result


def valid(action: Any, module: str, ask: Callable[[], Mapping[str, Any]], background: bool = False) -> dict[str, Any]:
    """What module has answered to an action plugin; or a failure that says what of it is not valid."""
    try:
        with bounded.bounded(bounded.OF_MODULE.get(module, bounded.LIMIT)):
            given = ask()
        kept = answer.check(module, given, background)
        if kept.get("failed") and not kept.get("msg"):
            kept["msg"] = f"the module itself failed: {_error(given)}; run it again for this host with -vvv"
        if display.verbosity >= DEBUG:
            kept.update(redaction.scrub_all({key: given[key] for key in ("invocation", "exception") if key in given}))
    except bounded.TooMuchError as error:
        return {"failed": True, "msg": str(error)}
    except (answer.Invalid, RecursionError) as error:
        what = str(error) if isinstance(error, answer.Invalid) else "it is nested too deeply"
        return {"failed": True, "msg": answer.SAID + what}
    # Found out by the control node, and not by the module.
    found = getattr(action, "_discovered_interpreter_key", None)
    if found:
        kept["ansible_facts"] = {found: action._discovered_interpreter}
    return kept


def asked(action: Any, module: str, arguments: Mapping[str, object], variables: object) -> dict[str, Any]:
    """Return what a module of the suite answers to an action plugin that gives it these arguments."""
    run = functools.partial(action._execute_module, f"busbar.fabric.{module}", arguments, task_vars=variables)
    return valid(action, module, run)


def _error(given: Mapping[str, object]) -> str:
    """What Python said of a module that broke off, without its traceback: ansible-core 2.19 has no message of it."""
    error = given.get("exception")
    said = str(getattr(getattr(error, "event", None), "msg", error or "")).strip().splitlines()
    return redaction.scrub(printable((said or ["it gives no reason"])[-1])[:300], ())
