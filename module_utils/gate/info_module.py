# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the gate's last verdict: options and work of the module ``gate_info``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import module
from ..core.host import Host, ReadError
from ..core.plan import Plan
from . import plan as gate
from .read import PROGRAM, state

SPEC: module.Spec = {"run": {"type": "bool", "default": False}, **module.ROOTS}


def work(host: Host, given: Mapping[str, object], check_mode: bool) -> Dict[str, Any]:
    if host.mode_system(PROGRAM) is None:
        raise ReadError(PROGRAM, "is not there: set gate_stages, then run site.yml --tags gate for this host")
    commands = [gate.run(host)] if given["run"] and not check_mode else []
    return dict(Plan().result(), commands=commands, state=state(host))
