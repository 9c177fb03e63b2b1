# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Frame the actions of node modules that have phases on the control node."""

from __future__ import annotations

from typing import ClassVar

from . import validated_action
from .control import Spec, Values


class PhasedAction(validated_action.ActionModule):
    """Run the module on the node, or act on the control node for a phase of PHASES: phase -> its other options."""

    PHASES: ClassVar[dict[str, Spec]] = {}

    def run(self, tmp: str | None = None, task_vars: Values | None = None) -> Values:
        phase = self._task.args.get("phase")
        if phase not in self.PHASES:
            return super().run(tmp, task_vars)
        spec = {"phase": {"type": "str"}, **self.PHASES[phase]}
        _validation, given = self.validate_argument_spec(argument_spec=spec)
        return self.act(task_vars or {}, given)

    def act(self, variables: Values, given: Values) -> Values:
        """Return the result of the phase. variables: of the host.   given: the options, with their defaults."""
        raise NotImplementedError
