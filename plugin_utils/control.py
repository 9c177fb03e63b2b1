# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Frame the actions that work on the control node, always or in a phase: checked options in, a result out."""

from __future__ import annotations

from typing import ClassVar

from ansible.plugins.action import ActionBase

from . import validated_action
from .plain_data import Plain

Spec = dict[str, Plain]
Values = Plain


class ControlAction(ActionBase):
    """Act for one host. SPEC: the options, each as the argument spec of a module describes it."""

    _requires_connection = False
    SPEC: ClassVar[Spec] = {}

    def run(self, tmp: str | None = None, task_vars: Values | None = None) -> Values:
        result: Values = super().run(tmp, task_vars)
        _validation, given = self.validate_argument_spec(argument_spec=self.SPEC)
        return {**result, **self.act(task_vars or {}, given)}

    def act(self, variables: Values, given: Values) -> Values:
        """Return the result. variables: of the host.   given: the options, checked and with their defaults."""
        raise NotImplementedError


class FleetAction(ControlAction):
    """Act once for all hosts of the play, whatever ``run_once`` says; variables are those of the first of them."""

    BYPASS_HOST_LOOP = True


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
