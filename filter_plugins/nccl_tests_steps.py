# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose which hosts build nccl-tests and which get a copy. Documented in nccl_tests_steps.yml."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from ansible import constants
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars, Plain, PlainView


def nccl_tests_steps(hosts: Iterable[str], hostvars: HostVars) -> Plain:
    """Return the steps of the hosts, and the directory on the control node for builds on their way.

    hosts: with ``serial``, those of this batch: the others have no build yet, or no longer need one.
    """
    results = {host: hostvars.raw_get(host).get("nccl_tests_result") for host in hosts}
    # Ansible removes its own temporary directory when it ends, however it ends.
    return {"steps": steps(results), "directory": os.path.join(constants.DEFAULT_LOCAL_TMP, "nccl-tests")}


def steps(results: PlainView) -> dict[str, Plain]:
    """Return each host's step, with ``file``: the name on the control node of the build that it makes or gets."""
    given = {host: result_schema.given(result, "nccl_tests_build") for host, result in results.items()}
    # Named by position: no result of a node names a file of the control node.
    names = {host: str(place) for place, host in enumerate(given)}
    chosen = choose(given)
    return {host: {**step, "file": names[step["source"] or host]} for host, step in chosen.items()}


def choose(results: Mapping[str, PlainView]) -> dict[str, Plain]:
    """Return host -> {"source": host to copy from, or "" to build, "pack": for others}; no entry: nothing to do.

    results: each host's module result, in the inventory's order: ``class_id`` and ``share``. A host that was
    lost or has failed has neither.
    """
    classes: dict[str, list[str]] = {}
    for host, result in results.items():
        if result.get("share"):
            # A host that cannot be compared is alone.
            classes.setdefault(result.get("class_id") or f"host {host}", []).append(host)
    steps: dict[str, Plain] = {}
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


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Plain]]:
        return {"nccl_tests_steps": nccl_tests_steps}
