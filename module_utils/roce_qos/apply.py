# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Execute a plan of plan.py port by port, and read each write back."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Set, Tuple

from ..change import apply
from ..core.host import Host, ReadError
from ..core.plan import Plan
from .attributes import CONFIGFS
from .config import PortConfig
from .plan import Step, plan
from .read import QosState, read_port


def execute(
    host: Host, have: QosState, wanted: PortConfig, permit: Callable[[Plan], Plan]
) -> Tuple[List[Step], Dict[Tuple[str, str], str]]:
    """Port by port and setting by setting, each planned anew from what is there: trust, for one, rewrites the map.

    permit: leaves out of a plan what may not be done. Returns the steps done, and (port, setting) -> what went wrong;
    nothing more is written to that port then.
    """
    done: List[Step] = []
    failed: Dict[Tuple[str, str], str] = {}
    for state in have.ports:
        tried: Set[str] = set()
        while True:
            planned = permit(plan(QosState(have.lldpad, (state,)), wanted))
            steps = [step for step in planned.commands if isinstance(step, Step)]
            for step in steps:
                if step.setting in tried:
                    failed[(step.port, step.setting)] = "%s succeeded, but the value has not changed" % step
            if not steps or failed.keys() & {(step.port, step.setting) for step in steps}:
                break
            # Files have nothing to do with each other: they are written in one go.
            steps = [step for step in steps if step.setting == steps[0].setting or (step.path and steps[0].path)]
            try:
                for step in steps:
                    tried.add(step.setting)
                    _write(host, step.path, step.value) if step.path else apply.run(host, step)
                    done.append(step)
            except ReadError as error:
                failed[(step.port, step.setting)] = str(error)
                break
            state = read_port(host, state.port, wanted)
    return done, failed


def _write(host: Host, path: str, value: str) -> None:
    """Write an existing attribute: an absent one is an error. Raises ReadError."""
    try:
        if path.startswith(CONFIGFS):
            # So rdma_cm shows the device. The directory stays, since no check makes one; the unit's stop removes it.
            os.makedirs(host.hardware("/".join(path.split("/")[: CONFIGFS.count("/") + 2])), exist_ok=True)
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(host.hardware(path), flags), "w", encoding="ascii") as stream:
            stream.write(value)
    except OSError as error:
        raise ReadError(path, "cannot be written: %s" % error.strerror) from error
