# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install the service that watches running jobs: options and work of the module ``watch``."""

from __future__ import annotations

from typing import Dict, Mapping

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Plan, merge
from . import service
from .program import Settings

SPEC: module.Spec = {
    "enabled": {"type": "bool", "default": False},
    "interval": {"type": "float", "default": 5},
    "patience": {"type": "float", "default": 300},
    "window": {"type": "float", "default": 60},
    "inspector": {"type": "path", "default": ""},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, object], check_mode: bool) -> Dict[str, object]:
    enabled = bool(given["enabled"])
    interval, patience, window = (float(str(given[name])) for name in ("interval", "patience", "window"))
    settings = Settings(interval, patience, window, inspector=str(given["inspector"]))
    texts = service.render(settings) if enabled else {}

    def judge() -> Plan:
        others = effective_unit.overrides(host, service.FILES, service.OWN) if enabled else Plan()
        return merge(service.plan(service.read(host, enabled), texts), others)

    return apply.converge(host, check_mode, judge, apply.execute_service)
