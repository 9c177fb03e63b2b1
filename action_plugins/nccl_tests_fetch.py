# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fetch a packed build from a node. Documented in library/nccl_tests_fetch.py."""

from __future__ import annotations

import contextlib
import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.plugins.action import fetch
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import archive
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils.result_schema import SAID


class ActionModule(fetch.ActionModule):
    _supports_check_mode = False
    _supports_async = False
    _VALID_ARGS = frozenset({"src", "dest", "flat"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        path = Path(self._task.args["dest"])
        self._task.args = {**self._task.args, "flat": True}
        limit = archive.LIMIT
        try:
            # Under a become method the file travels as text, a third larger and in a module's result.
            with output_limit.limit_output(2 * limit), _no_file_larger_than(limit):
                done = super().run(tmp, task_vars)
            # No text of the node goes further than this.
            if done.get("failed") or done.get("skipped"):
                return {"failed": bool(done.get("failed")), "msg": str(done.get("msg"))[:1000], "changed": False}
            return {"changed": False, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        except output_limit.TooMuchError as error:
            return {"failed": True, "msg": str(error)}
        except OSError as error:
            return {"failed": True, "msg": f"{SAID}{error.strerror}, of at most {limit >> 20} MiB"}


@contextlib.contextmanager
def _no_file_larger_than(size: int) -> Iterator[None]:
    """Limit files that this worker and its children, such as sftp, write: a node may send a file without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
