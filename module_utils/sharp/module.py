# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what a node needs for SHARP: options and work of the module ``sharp``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import module
from ..core.host import Host, ParseError
from ..core.plan import Plan
from ..machine import profile
from . import plan as sharp
from .read import SharpState, SharpWanted

SPEC: module.Spec = {
    **module.PROFILE,
    "directories": {"type": "list", "elements": "path", "default": []},
    "manager": {"type": "str", "default": ""},
    "nodes": {"type": "int", "default": 0},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    for path in given["directories"]:
        if not path.startswith("/") or not path.isprintable():
            raise ParseError("sharp_directories: %r is not an absolute path" % path[:200])
    want = SharpWanted(profile.from_options(given), tuple(given["directories"]), given["manager"], given["nodes"])
    impossible = sharp.impossible(want.profile)
    if impossible is not None:
        return Plan((impossible,)).result()
    return dict(sharp.plan(SharpState(host, want), want).result(), notes=[sharp.UNPROVEN])
