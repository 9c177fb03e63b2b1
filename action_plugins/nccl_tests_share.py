# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose which hosts build nccl-tests, and fetch a build to copy. Documented in library/nccl_tests_share.py.

Of the hosts of one class, one builds and the others copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import fetch
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import archive
from ansible_collections.busbar.fabric.plugins.plugin_utils import output_limit, result_schema


class ActionModule(fetch.ActionModule):
    _supports_async = False
    _VALID_ARGS = frozenset({"src", "dest", "flat"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        if self._task.args:
            return self._fetch(tmp, variables)
        hostvars = variables["hostvars"]
        # With `serial`, the hosts of this batch: the others have no build yet, or no longer need one.
        results = {host: hostvars[host].get("nccl_tests_result") for host in variables["ansible_play_batch"]}
        # Ansible removes its own temporary directory when it ends, however it ends.
        directory = os.path.join(constants.DEFAULT_LOCAL_TMP, "nccl-tests")
        return {"changed": False, "steps": steps(results), "directory": directory}

    def _fetch(self, tmp: str | None, variables: dict[str, Any]) -> dict[str, Any]:
        path = Path(self._task.args["dest"])
        self._task.args = {**self._task.args, "flat": True}
        limit = archive.LIMIT
        try:
            # Under a become method the file travels as text, a third larger and in a module's result.
            with output_limit.limit_output(2 * limit), _no_file_larger_than(limit):
                done = super().run(tmp, variables)
            # No text of the node goes further than this.
            if done.get("failed") or done.get("skipped"):
                return {"failed": bool(done.get("failed")), "msg": str(done.get("msg"))[:1000], "changed": False}
            return {"changed": False, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        except output_limit.TooMuchError as error:
            return {"failed": True, "msg": str(error)}
        except OSError as error:
            return {"failed": True, "msg": f"{result_schema.SAID}{error.strerror}, of at most {limit >> 20} MiB"}


def steps(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each host's step, with ``file``: the name on the control node of the build that it makes or gets."""
    given = {host: result_schema.given(result, "nccl_tests_build") for host, result in results.items()}
    # Named by position: no result of a node names a file of the control node.
    names = {host: str(place) for place, host in enumerate(given)}
    chosen = choose(given)
    return {host: {**step, "file": names[step["source"] or host]} for host, step in chosen.items()}


def choose(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return host -> {"source": host to copy from, or "" to build, "pack": for others}; no entry: nothing to do.

    results: each host's module result, in the inventory's order: ``class_id`` and ``share``. A host that was
    lost or has failed has neither.
    """
    classes: dict[str, list[str]] = {}
    for host, result in results.items():
        if result.get("share"):
            # A host that cannot be compared is alone.
            classes.setdefault(result.get("class_id") or f"host {host}", []).append(host)
    steps: dict[str, dict[str, Any]] = {}
    for hosts in classes.values():
        able = [host for way in ("has", "can_build") for host in hosts if results[host]["share"][way]]
        if not able:
            continue
        source = able[0]
        copies = [host for host in hosts if host != source and results[host]["share"]["can_copy"]]
        if copies or results[source]["share"]["can_build"]:
            steps[source] = {"source": "", "pack": bool(copies)}
        steps.update((host, {"source": source, "pack": False}) for host in copies)
    return steps


@contextlib.contextmanager
def _no_file_larger_than(size: int) -> Iterator[None]:
    """Limit files that this worker and its children, such as sftp, write: a node may send a file without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
