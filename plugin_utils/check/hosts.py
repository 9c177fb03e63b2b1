# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Audit hosts over their connections, compare them, by the suite's comparison and numbers of parts, and report.

Of three or more hosts of a kind, those that differ from two thirds are accused; of fewer it is only reported.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.compare import compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.stage import Fleet
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.table import TABLE, Comparison
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import rendered

from . import infer, judge, render
from .classes import FLEET
from .judge import Row, Verdict
from .question import Values

# Name of a host's registered result; seconds for it, and for each call of a tool there.
RESULT, LIMIT, PATIENCE = "host_check_result", 30.0, 3.0

PARTS = Check(
    "consistency.parts",
    why="a part that most machines of the product have is missing, or was never there",
    fix="compare lspci of both hosts; look for the missing part in dmesg; reseat or replace it",
)
"`busbar check`: has the host as many GPUs and rails as most hosts of its kind, and rails of the same rate"
_ROWS = (
    *TABLE,
    Comparison(PARTS, lambda member, info: [(None, str(len(info.gpus)))], subject="number of GPUs"),
    Comparison(PARTS, lambda member, info: [(None, str(len(info.rails)))], subject="number of rails"),
    Comparison(PARTS, lambda member, info: [(one.number, f"{one.rate_gbps:g} Gbit/s") for one in info.rails]),
)
_RULES = {(row.check.id, row.subject): row.rule for row in _ROWS}


def query(call: Callable[..., Values], variables: Values, templar: Any) -> Values:
    """Return ``check``, as JSON. call: makes module calls on the host. Raises ParseError."""
    given = {name: rendered(variables[name], templar) for name in variables if intent.mine(name)}

    def call_modules(steps: list[Values]) -> list[Values]:
        result = call(steps, LIMIT, variables, PATIENCE)
        if "results" not in result:
            raise ParseError(str(result["msg"]))
        return list(result["results"])

    profiles = Path(variables.get("inventory_dir") or ".") / "profiles"
    return {"check": json.dumps(infer.query(call_modules, given, profiles, bool(variables.get("check_draft"))))}


def report(variables: Values) -> Values:
    """Print the verdict on all hosts, or write it where check_report_path says; fail unless all are good."""
    read = {host: variables["hostvars"].raw_get(host).get(RESULT) or {} for host in variables["ansible_play_hosts_all"]}
    verdicts = [
        judge.judge(host, **json.loads(of["check"])) if "check" in of else judge.unreachable(host, of.get("msg"))
        for host, of in read.items()
    ]
    groups = variables["groups"]
    join(verdicts, {name: of for name, of in groups.items() if name not in ("all", "ungrouped", "gpu_nodes")})
    seconds = time.time() - float(variables["check_started"]) if "check_started" in variables else 0.0
    found = render.report(verdicts, seconds, bool(variables.get("check_verbose")), terminal.WIDTH)
    if variables.get("check_report_path"):
        Path(variables["check_report_path"]).write_text(json.dumps(found), encoding="utf-8")
    else:
        Display().display(found["text"])
    return {"code": found["code"], "failed": bool(found["code"]), "msg": f"exit code {found['code']} of busbar check"}


def join(verdicts: Sequence[Verdict], groups: Mapping[str, Sequence[str]]) -> None:
    """Add to each verdict the findings of the comparison of all hosts. groups: of the inventory."""
    fleet, members, agree = Fleet(), {}, defaultdict(list)
    for one in verdicts:
        if one.assumed is not None:
            kind = f"{one.assumed.platform} {one.assumed.values.get('busbar_fabric', '')}"
            fleet.declared[one.host] = {"kind": kind, "declared": {}}
            members[one.host] = fleet.member(one.host, one.results, True)
    found = compare([one for one in members.values() if one.info is not None], groups, _ROWS).judged

    def key(host: str, check: str, subject: str) -> tuple[object, ...]:
        info = members[host].info
        return (check, subject, members[host].kind, info and info.product)

    for host, several in found.items():
        for judged in several:
            agree[key(host, judged.finding.check, judged.finding.subject)].append(judged.finding.ok)
    for one in verdicts:
        for finding in (judged.finding for judged in found.get(one.host, ())):
            same = agree[key(one.host, finding.check, finding.subject)]
            by_itself = _RULES.get((finding.check, finding.subject)) != "equal"
            one.passed += finding.ok
            if finding.state == "drift" and (by_itself or (len(same) > 2 and 3 * sum(same) >= 2 * len(same))):
                one.rows.append(Row(finding, FLEET, f"{sum(same)} of {len(same)} hosts"))
            elif finding.state == "drift":
                one.undecided.append(f"{finding.check} ({finding.subject}): {finding.have}; expected {finding.want}")
