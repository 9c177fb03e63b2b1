# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install the gate, or report its last verdict: options and work of the module ``gate``."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core import bundle, effective_unit
from ..core.host import Host, ReadError
from ..core.plan import Plan, merge
from . import plan as gate
from .read import INTENT, PROGRAM, STAGES, GateWanted, is_foreign, named, read, state

SPEC: module.Spec = {
    "stages": {"type": "list", "elements": "str", "choices": list(STAGES)},
    "fail": {"type": "str", "choices": ["open", "closed"], "default": "open"},
    "budget": {"type": "float", "default": 10},
    "max_share": {"type": "float", "default": 0.1},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "scontrol": {"type": "str", "default": "scontrol"},
    "nhc": {"type": "bool", "default": False},
    "sums": {"type": "dict", "default": {}},
    "texts": {"type": "str", "default": ""},
    "report": {"type": "str", "choices": ["stored", "new"]},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    if given["report"]:
        return _report(host, given["report"] == "new" and not check_mode)
    texts = json.loads(bundle.unpack(given["texts"])) if given["texts"] else {}
    node = str(named(texts[INTENT])) if texts else ""
    stages = None if given["stages"] is None else tuple(given["stages"])
    want = GateWanted(stages, given["budget"], given["sums"], given["scontrol"], texts, node)

    def judge() -> Plan:
        have = read(host, want)
        ours = [path for path, text in have.files.items() if not is_foreign(path, text)]
        others = effective_unit.owned_by_others(host, gate.FILES, ours)
        return merge(gate.plan(have, want), Plan(tuple(others)))

    return apply.converge(host, check_mode, judge, gate.execute)


def _report(host: Host, new: bool) -> Dict[str, object]:
    if host.mode_system(PROGRAM) is None:
        raise ReadError(PROGRAM, "is not there: set gate_stages, then run site.yml --tags gate for this host")
    commands = [gate.run(host)] if new else []
    return dict(Plan().result(), commands=commands, state=state(host))
