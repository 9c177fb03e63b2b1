# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Schemas of what NCCL's RAS subsystem reports of the jobs on a node."""

from __future__ import annotations

import re

from ansible_collections.busbar.fabric.plugins.module_utils.ras.answer import MOST_RANKS
from ansible_collections.busbar.fabric.plugins.module_utils.ras.processes import Process
from ansible_collections.busbar.fabric.plugins.module_utils.ras.views import View

from .codec import Check, each, flag, number, of_class, text, whole
from .result_fields import count, line


def _of_group(value: object) -> None:
    """Check what ranks have in common: a count, a status or an error."""
    (line if isinstance(value, str) else count)(value)


address = text(64, re.compile(r"[0-9A-Za-z:.%_-]{0,64}"))
_values: dict[str, Check] = {
    **each(("rank", "ranks", "back", "size"), whole(0, MOST_RANKS)),
    **each(("pid", "inner", "parent"), whole(-1, 1 << 31)),
    **each(("gpu", "nvml"), whole(-1, 1 << 10)),
    **each(("host", "address"), address),
    **each(("source", "users", "user"), text(128, line=True)),
    "value": _of_group,
    "seconds": number(0, 1e6),
    "port": whole(0, 65535),
    "state": text(8, re.compile("[A-Za-z?]?")),
    "library": text(4096),
}
view = of_class(View, {**_values, "name": text(64, re.compile(r"0x[0-9a-f]{0,16}(:0x[0-9a-f]{1,16}){0,2}"))})
process = of_class(Process, {**_values, "gpu": flag})
