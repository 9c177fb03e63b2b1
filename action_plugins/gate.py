# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Add the gate's program and intent, which the control node builds. Documented in library/gate.py."""

from __future__ import annotations

import json

from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.plugin_utils import gate_files, validated_action
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain


class ActionModule(ActionBase):
    def run(self, tmp: str | None = None, task_vars: Plain | None = None) -> Plain:
        result: Plain = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        variables = dict(task_vars or {})
        if arguments.get("stages"):
            texts = host_audit.gate_texts(variables, self._templar, arguments)
            arguments |= {"sums": gate_files.sums(texts), "texts": bundle.pack(json.dumps(texts))}
        return {**result, **validated_action.run_module(self, "gate", arguments, task_vars)}
