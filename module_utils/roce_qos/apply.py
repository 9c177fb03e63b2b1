# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Execute a plan of plan.py port by port, and read each write back."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Set, Tuple

from ..change import apply
from ..core.host import Host, ReadError
from ..core.plan import Plan
from .config import Want
from .plan import Have, Step, plan, read_port
from .settings import CONFIGFS


def execute(
    host: Host, have: Have, wanted: Want, permit: Callable[[Plan], Plan]
) -> Tuple[List[Step], Dict[Tuple[str, str], str]]:
    """Port by port and noun by noun, each planned anew from what is there: trust, for one, rewrites the map.

    permit: leaves out of a plan what may not be done. Returns the steps done, and (port, noun) -> what went wrong;
    nothing more is written to that port then.
    """
    done: List[Step] = []
    failed: Dict[Tuple[str, str], str] = {}
    for state in have.ports:
        tried: Set[str] = set()
        while True:
            planned = permit(plan(Have(have.lldpad, (state,)), wanted))
            steps = [step for step in planned.commands if isinstance(step, Step)]
            for step in steps:
                if step.noun in tried:
                    failed[(step.port, step.noun)] = "%s succeeded, but the value has not changed" % step
            if not steps or failed.keys() & {(step.port, step.noun) for step in steps}:
                break
            # Files have nothing to do with each other: they are written in one go.
            steps = [step for step in steps if step.noun == steps[0].noun or (step.path and steps[0].path)]
            try:
                for step in steps:
                    tried.add(step.noun)
                    _do(host, step)
                    done.append(step)
            except ReadError as error:
                failed[(step.port, step.noun)] = str(error)
                break
            state = read_port(host, state.port, wanted)
    return done, failed


def _do(host: Host, step: Step) -> None:
    """Execute one step. Raises ReadError."""
    if not step.path:
        apply.run(host, step)
    else:
        _write(host, step.path, step.value)


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
