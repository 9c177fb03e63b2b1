# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Action plugin of every node module: limits, validates and filters its result.

Each module of the suite that runs on nodes has a link to this file in action_plugins/, under its own name: redirecting
all to one name would give each of them the module_defaults of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, output_limit, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView

display = Display()
# Verbosity (-vvv) from which tracebacks of modules are printed, as Ansible has read them.
DEBUG = 3


class ActionModule(ActionBase):
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: Plain | None = None) -> Plain:
        result: Plain = super().run(tmp, task_vars)
        started = bool(self._task.async_val and not self._connection.has_native_async)
        name = self._task.action.rpartition(".")[2]
        result.update(
            validate(self, name, lambda: self._execute_module(task_vars=task_vars, wrap_async=started), started)
        )
        if not started:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result


def validate(action: ActionBase, module: str, ask: Callable[[], PlainView], background: bool = False) -> Plain:
    """Return the valid part of a module's result; or a failure that names what is not valid. ask: runs the module."""
    try:
        with output_limit.limit_output(output_limit.OF_MODULE.get(module, output_limit.LIMIT)):
            given = ask()
        kept = result_schema.check(module, given, background)
        if kept.get("failed") and not kept.get("msg"):
            kept["msg"] = f"the module itself failed: {_error(given)}; run it again for this host with -vvv"
        if display.verbosity >= DEBUG:
            kept.update(redaction.scrub_all({key: given[key] for key in ("invocation", "exception") if key in given}))
    except output_limit.TooMuchError as error:
        return {"failed": True, "msg": str(error)}
    except (codec.Invalid, RecursionError) as error:
        what = str(error) if isinstance(error, codec.Invalid) else "it is nested too deeply"
        return {"failed": True, "msg": result_schema.SAID + what}
    # Discovered by the control node, and not by the module.
    found = getattr(action, "_discovered_interpreter_key", None)
    if found:
        kept["ansible_facts"] = {found: action._discovered_interpreter}
    return kept


def run_module(action: ActionBase, module: str, arguments: Mapping[str, object], variables: object) -> Plain:
    """Run a module of the suite for an action plugin with these arguments, and return its valid result."""
    run = functools.partial(action._execute_module, f"busbar.fabric.{module}", arguments, task_vars=variables)
    return validate(action, module, run)


def _error(given: Mapping[str, object]) -> str:
    """Return Python's error of a crashed module, without its traceback: ansible-core 2.19 has no message of it."""
    error = given.get("exception")
    said = str(getattr(getattr(error, "event", None), "msg", error or "")).strip().splitlines()
    return redaction.scrub(printable((said or ["it gives no reason"])[-1])[:300], ())
