# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose which hosts build nccl-tests and which get a copy. Documented in library/nccl_tests_share.py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible import constants
from ansible_collections.busbar.fabric.plugins.plugin_utils import nccl_tests_share, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Values


class ActionModule(ControlAction):
    def act(self, variables: Values, _given: Values) -> Values:
        hostvars = variables["hostvars"]
        # With `serial`, the hosts of this batch: the others have no build yet, or no longer need one.
        results = {host: hostvars[host].get("nccl_tests_result") for host in variables["ansible_play_batch"]}
        # Ansible removes its own temporary directory when it ends, however it ends.
        directory = os.path.join(constants.DEFAULT_LOCAL_TMP, "nccl-tests")
        return {"changed": False, "steps": steps(results), "directory": directory}


def steps(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each host's step, with ``file``: the name on the control node of the build that it makes or gets."""
    given = {host: result_schema.given(result, "nccl_tests_build") for host, result in results.items()}
    # Named by position: no result of a node names a file of the control node.
    names = {host: str(place) for place, host in enumerate(given)}
    chosen = nccl_tests_share.choose(given)
    return {host: {**step, "file": names[step["source"] or host]} for host, step in chosen.items()}
