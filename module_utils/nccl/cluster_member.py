# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store on a node the state of its last multi-node benchmark, and judge whether that still counts.

The audit reads it: all figures are on the control node that measured, which may be another one.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Sequence

from ..core.check import Check
from ..core.finding import STATES
from ..core.host import Host, ParseError, ReadError
from ..core.plan import Plan
from ..nccl_perf import fingerprint as perf_depends

# Below the system root, for each scope: tested pairs prove nothing of the cluster.
STORE = "/var/lib/busbar/nccl_cluster/%s.json"
NVLINK_DOMAIN = "nvlink_domain"
_OVER = {
    "pair": "a pair",
    "rail": "a pair, rail by rail",
    "leaf": "the leaf",
    NVLINK_DOMAIN: "the trays of its NVLink domain",
    "cluster": "the cluster",
}
SCOPES: Sequence[str] = tuple(_OVER)
_FORMAT = 1
_SHAPE = {"format": int, "finished": float, "over": str, "state": str, "said": str, "depends": dict}

RECORD = Check(
    "nccl_cluster.record",
    why="nodes that are each fast alone may be slow together: a link, a leaf or a setting of one slows all",
    fix="run ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_scope=SCOPE, not in check mode,"
    " while the nodes are idle",
)
"""Is the last benchmark between this node and others good, recent, and of the node as it is now (driver, kernel \
and its arguments, firmware, GPUs); checked where `nccl_benchmark_scope` is above `node`"""


def render(measured: Mapping[str, Any], host: Host) -> str:
    """The file's text. measured: ``finished``, ``over``, ``state`` and ``said`` of what was measured just now.

    over: among whom, ``16 nodes``.   state: the worst of its findings.   said: what that finding says.
    """
    given = {name: kind(measured[name]) for name, kind in _SHAPE.items() if name in measured}
    return json.dumps({"format": _FORMAT, "depends": perf_depends.read(host), **given}, indent=1) + "\n"


def parse(text: str) -> Dict[str, Any]:
    """Parse what ``render`` wrote. Raises ParseError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("is not a record of a benchmark: %s" % error) from None
    if not isinstance(data, dict) or data.get("format") != _FORMAT or set(data) != set(_SHAPE):
        raise ParseError("is not a record of a benchmark, or one of another release")
    wrong = [name for name, kind in _SHAPE.items() if not isinstance(data[name], kind)]
    texts = isinstance(data["depends"], dict) and all(isinstance(part, dict) for part in data["depends"].values())
    if wrong or not texts or data["state"] not in STATES:
        raise ParseError("is not a record of a benchmark: %s is invalid" % (wrong or ["state"])[0])
    return data


def judge(host: Host, scope: str, most_days: float, now: float) -> Plan:
    """scope: what the inventory asks for.   most_days: how old a record may be.   now: seconds since 1970."""
    path = STORE % scope
    fix = RECORD.fix.replace("SCOPE", scope)
    want = "measured over %s, ok, at most %g days ago" % (_OVER[scope], most_days)
    state = "unknown"
    try:
        text = host.read_system(path)
        data = parse(text) if text is not None else None
    except (ReadError, ParseError) as error:
        said = str(error) if isinstance(error, ReadError) else "%s %s" % (path, error)
        return Plan((RECORD.judge("scope " + scope, "unknown", want, said, path, fix),))
    if data is None:
        return Plan((RECORD.judge("scope " + scope, "unknown", want, "never measured", path, fix),))
    days = (now - data["finished"]) / 86400
    changed = perf_depends.changes(data["depends"], perf_depends.read(host))
    have = "over %s" % data["over"]
    # An hour for clocks that differ.
    if not -1 / 24 <= days <= most_days:
        have = "%s, %.0f days %s" % (have, abs(days), "ago" if days > 0 else "in the future")
    elif changed:
        have = "%s, with %s" % (have, "; ".join(change.text for change in changed))
    else:
        state = data["state"]
        have = have if state == "ok" else "%s: %s" % (have, data["said"])
    return Plan((RECORD.judge("scope " + scope, state, want, have, path, fix),))
