# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run one of Ansible's actions on a node, without the orders in its result. Documented in library/on_node.py."""

from __future__ import annotations

import contextlib
import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import archive
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit, result_schema

# Keys of such a result that a task of the suite, or a user, reads.
KEPT = ("changed", "failed", "msg", "rc", "skipped", "diff", "stat")
FETCH = "ansible.builtin.fetch"
# Bytes of a fetched file, the largest of which is a build.
LARGEST = archive.LIMIT


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset({"action", "arguments"})

    def run(self, tmp: str | None = None, task_vars: dict[str, object] | None = None) -> dict[str, object]:
        result: dict[str, object] = super().run(tmp, task_vars)
        task = self._task.copy()
        task.action, task.args = self._task.args["action"], dict(self._task.args["arguments"])
        load = self._shared_loader_obj.action_loader
        names = ("connection", "play_context", "loader", "templar", "shared_loader_obj")
        of_worker = {name: getattr(self, f"_{name}") for name in names}
        plugin = task.action if load.has_plugin(task.action) else "ansible.legacy.normal"
        action = load.get(plugin, task=task, **of_worker)
        try:
            with _limits(task.action):
                done = action.run(task_vars=task_vars)
                if task.action == FETCH and not done.get("failed") and not done.get("skipped"):
                    result["sha256"] = hashlib.sha256(Path(task.args["dest"]).read_bytes()).hexdigest()
        except output_limit.TooMuchError as error:
            done = {"failed": True, "msg": str(error)}
        finally:
            action.cleanup()
        result.update({key: done[key] for key in KEPT if key in done})
        return result


@contextlib.contextmanager
def _limits(action: str) -> Iterator[None]:
    """Limit the output of an action, and the files that a fetch writes: a node may send a file without end."""
    if action != FETCH:
        with output_limit.limit_output():
            yield
        return
    # Of this worker and its children, such as sftp.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST if hard == resource.RLIM_INFINITY else min(LARGEST, hard), hard))
    try:
        # Under a become method the file travels as text, a third larger and in a module's result.
        with output_limit.limit_output(2 * LARGEST):
            yield
    except OSError as error:
        said = f"{result_schema.SAID}{error.strerror}, of at most {LARGEST >> 20} MiB"
        raise output_limit.TooMuchError(said) from error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
