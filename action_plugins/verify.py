# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the findings of the end-to-end tests on one host. Documented in library/verify.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as lldp
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    due_roles,
    host_variables,
    intent,
    rail_pairs,
    result_schema,
    slowdown_causes,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import table

OWN = ("consistency_result", "rail_info_result", "rail_pairs_result", "rail_ping_result", "verify_result")
# Possible causes of a slow rail, the likeliest first: checks of other roles, by prefix, of the same NIC.
CAUSES = (
    *("platform.", "netdev_mtu.", "roce_qos.", *lldp.SLOWING, *slowdown_causes.RAIL, "multirail.", "pcie_path."),
    "gpudirect.",
)
# Of these an unknown result explains nothing.
_SHOWN = (*lldp.SLOWING, *slowdown_causes.RAIL)
SLOWING = (table.MTU.id, table.QOS.id, table.ADDRESS.id)
EXPLAINED = ("perftest.", "counters.", "rail_ping.")
# Names under which the steps of a host's part in the tests are registered.
STEPS = ("verify_server", "verify_client", "verify_done")


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {"measured": {"type": "list", "elements": "dict", "default": []}}

    def act(self, variables: Values, given: Values) -> Values:
        names = {"busbar_intent", *OWN, *intent.REGISTERED}
        # Read raw: results registered for all hosts are large, and must not be walked for each.
        of_host = {name: variables[name] for name in names if name in variables}
        heard = due_roles.roles(due_roles.answer({**of_host, "inventory_hostname": variables["inventory_hostname"]}))
        of_host = {f"{role}_result": found for role, found in heard.items()} | of_host
        of_host["hostvars"] = variables["hostvars"]
        check_mode = bool(self._task.check_mode)
        measured = results(given["measured"])
        findings, good = join(variables["inventory_hostname"], of_host, measured, check_mode)
        return {
            **Plan(tuple(findings)).result(),
            **good,
            "sessions": [one for part in measured for one in part["sessions"]],
            "finished_at": min((one["finished_at"] for one in measured if one["finished_at"]), default=None),
            "simulated": any(one["simulated"] for one in measured),
            "stored": check_mode,
            "commands": [line for part in measured for line in part["commands"]],
            "notes": sorted({note for part in measured for note in part["notes"]}),
        }


def results(measured: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the valid results; a planned test that is in none of them has no result."""
    given = [result_schema.given(one, "perftest") for one in measured]
    return [one for one in given if one.get("sessions") is not None and not one.get("failed")]


def join(
    host: str, of_host: Mapping[str, Any], measured: Sequence[Mapping[str, Any]], check_mode: bool
) -> tuple[list[Finding], dict[str, object]]:
    """Return findings that are not ok, and ``passed`` and ``evidence``. of_host: the host's registered results."""
    of_all = [
        (of_host.get(name) or {}).get("hosts", {}).get(host) for name in ("consistency_result", "rail_pairs_result")
    ]
    parts = [*map(result_schema.given, [*of_all, of_host.get("rail_ping_result")]), *measured]
    findings = [from_dict(dict(item)) for part in parts for item in part.get("findings") or []]
    wrong = next((part["msg"] for part in parts if str(part.get("msg")).startswith(result_schema.SAID)), "")
    good: dict[str, object] = {
        "passed": [name for part in parts for name in part.get("passed") or []],
        "evidence": {name: pair for part in parts for name, pair in (part.get("evidence") or {}).items()},
    }
    passes = (of_all[1] or {}).get("passes", [])
    planned = [perftest.session_of(one) for sessions in passes for one in sessions]
    there = [one["session"] for part in measured for one in part["sessions"]]
    # In check mode the last result counts, with any peer.
    keys = ("role", "rail") if check_mode else ("role", "rail", "peer")
    done = {tuple(one[key] for key in keys) for one in there}
    missing: list[Finding] = []
    for session in planned:
        if tuple(getattr(session, key) for key in keys) not in done:
            why = "the test gave no result on this host: " + (failure(of_host, host) or "its task failed, see above")
            lost = perftest.unproven(session, why, "perftest", "run it again for both hosts with -vvv")
            missing.append(replace(lost, because=missing[0].id if missing else None))
    findings = without_partner(findings + missing, planned, of_host)
    if wrong or any(part is None for part in of_all):
        findings.append(nothing(of_host, wrong))
    earlier = [
        from_dict(dict(item))
        for name, role in of_host.items()
        if name in intent.REGISTERED and name not in OWN
        for item in result_schema.findings_of(role)
    ]
    earlier = [one for one in earlier if one.because is None]
    return because(findings, earlier, causes_of(of_host, of_all[0] or {}, earlier)), good


def failure(of_host: Mapping[str, Any], name: str) -> str:
    """Return why the named host did not finish its part in the tests; "" where it did."""
    registered = of_host.get("hostvars", {}).get(name) or {}
    for step in (registered.get(step) or {} for step in STEPS):
        if step.get("unreachable") or step.get("failed"):
            return "unreachable" if step.get("unreachable") else " ".join(str(step.get("msg")).split())[:200]
    return ""


def without_partner(
    findings: list[Finding], planned: Sequence[perftest.Session], of_host: Mapping[str, Any]
) -> list[Finding]:
    """Add a root for each partner that broke off. A figure that was measured does not follow from it."""
    unproven = [one for one in findings if one.check.startswith("perftest.") and one.state == "unknown"]
    for peer in sorted({one.peer for one in planned}):
        lost = {one.subject for one in unproven if one.subject.endswith(f" {peer}")}
        why = failure(of_host, peer) if lost else ""
        if why:
            root = rail_pairs.untested(f"{peer}: {why}", f"repair {peer}, then verify both hosts again", f"to {peer}")
            follows = [f for f in findings if f.subject in lost and (f in unproven or f.check[:9] != "perftest.")]
            findings = [root, *(replace(f, because=root.id) if f in follows else f for f in findings)]
    return findings


def nothing(of_host: Mapping[str, Any], wrong: str = "") -> Finding:
    failed = (
        [wrong] if wrong else [(of_host.get(name) or {}).get("msg") for name in ("busbar_intent", "rail_info_result")]
    )
    said = next((text for text in failed if text), "the comparison of the hosts did not run")
    return rail_pairs.PAIR.judge(
        "host",
        "unknown",
        want="compared with and tested against other hosts",
        have=" ".join(str(said).split())[:300],
        source="ansible-playbook",
        why="a host that was not tested is not proven",
        fix="set busbar_verify alike for all of gpu_nodes, or run it again for this host with -vvv",
    )


def because(findings: Sequence[Finding], earlier: Sequence[Finding], causes: Mapping[str, str]) -> list[Finding]:
    """Link each bad test to its cause. causes: rail -> id of the finding of this host that explains it.

    A test may name a finding of a role that did not run: that is none.
    """
    known = {one.id for one in (*findings, *earlier)}
    found = []
    for finding in findings:
        cause = None
        if finding.check.startswith(EXPLAINED):
            cause = causes.get(" ".join(finding.subject.split(" ")[:2]))
        found.append(replace(finding, because=cause) if cause and finding.because not in known else finding)
    return found


def causes_of(of_host: Mapping[str, Any], compared: Mapping[str, Any], earlier: Sequence[Finding]) -> dict[str, str]:
    """Return ``rail 3`` -> id of an earlier role's finding on its NIC, else of the comparison of all hosts."""
    found: dict[str, str] = {}
    for name, rails in sorted((compared.get("rails") or {}).items()):
        found.update((f"rail {rail}", name) for rail in rails if name.startswith(SLOWING))
    info = host_variables.of_host(of_host)
    rail_of = {rail.pci: f"rail {rail.number}" for rail in info.rails} if info else {}
    for prefix in reversed(CAUSES):
        found.update(
            (rail_of[one.identity], one.id)
            for one in earlier
            # A silent switch slows no rail.
            if one.check.startswith(prefix)
            and one.identity in rail_of
            and not (prefix in _SHOWN and one.state == "unknown")
        )
    return found
