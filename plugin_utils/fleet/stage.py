# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the comparisons between hosts, made between their results and the verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ansible_collections.busbar.fabric.plugins.module_utils import rail_info
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from .. import codec, findings_file, host_variables, result_schema, suite
from ..plain_data import Plain, PlainView
from ..role_result import VALID, RoleResult
from . import imex, lldp, ports
from .compare import Comparisons, compare
from .table import FIRMWARE, MTU, PSID, QOS, TABLE, Member, Results

ROLE = "fleet"
_NOUN = "consistency."
# Roles whose results hold facts.
_WITH_FACTS = ("platform", "mofed", "node_health", "nccl_conf")
_ROLES = {row.check.id: row.role for row in TABLE}
_CAUSES = {(row.check.id, row.subject): row.causes for row in TABLE}


def declaration(intent: PlainView) -> Plain:
    """Return a host's intent for the comparison: its kind, and check -> declared values."""
    values = intent.get("values") or {}
    if not values:
        return {}
    chain = host_variables.chain(values)
    found: dict[str, list[str]] = {}
    if chain.dscp is not None and chain.trust and chain.pfc is not None and chain.priority is not None:
        found[QOS.id] = [rail_info.summary(chain.trust, chain.pfc, chain.dscp, chain.priority)]
    if values.get("busbar_mtu") is not None:
        found[MTU.id] = [str(values["busbar_mtu"])]
    firmware: Mapping[str, str] = values.get("busbar_firmware") or {}
    found |= {FIRMWARE.id: sorted(set(firmware.values())), PSID.id: sorted(firmware)} if firmware else {}
    return {"kind": host_variables.kind({"busbar_intent": intent}), "declared": found}


@dataclass
class Fleet:
    """The inputs of the stage, besides the results of the roles.

    declared: host -> declaration(). rails: host -> its rails, read by verify. plans: host -> path of its cabling plan.
    """

    declared: dict[str, PlainView] = field(default_factory=dict)
    rails: dict[str, rail_info.HostInfo] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)

    def add(self, host: str, registered: PlainView, audit: PlainView) -> None:
        """Add a host. registered: its registered results. audit: its result in fleet_audit."""
        intent = registered.get("busbar_intent") or {}
        self.declared[host] = audit.get("compare") or declaration(intent)
        self.plans[host] = audit.get("cabling") or intent.get("values", {}).get("busbar_fabric_plan") or ""
        info = host_variables.of_host(registered)
        if info is not None:
            self.rails[host] = info

    def join(
        self,
        results: Results,
        roles: Sequence[str],
        variables: PlainView,
        off: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> list[str]:
        """Add what the comparisons find to the results. Return the roles, and ROLE where hosts were compared.

        results: host -> role -> result. roles: those that tags leave in. variables: of the run. off: host -> roles that
        its own values turn off.
        """
        if lldp.ROLE in roles:
            lldp.join(results, self.plans)
        for comparison in (ports, imex):
            if comparison.ROLE in roles:
                comparison.join(results)
        groups: Mapping[str, Sequence[str]] = variables.get("groups") or {}
        check_mode = bool(variables.get("ansible_check_mode"))
        by_tags = {row.role for row in TABLE} - {*roles}
        members = [
            self.member(host, one, check_mode, by_tags.union(off.get(host, ()))) for host, one in results.items()
        ]
        there = {member.host for member in members if member.info is not None}
        if len(there) < 2 or not {"platform", suite.VERIFY}.intersection(roles):
            return [*roles]
        inner = {name: of for name, of in groups.items() if name not in ("all", "ungrouped", findings_file.GROUP)}
        found = compare([member for member in members if member.host in there], inner)
        expected = set(groups.get(findings_file.GROUP) or results) | there
        for host, of_host in results.items():
            # The verdict reports a host without any result.
            if not of_host:
                continue
            verified = of_host.get(suite.VERIFY)
            if verified is not None:
                # Without the comparison made for its own tests.
                rest = tuple(one for one in verified.findings if not one.check.startswith(_NOUN))
                passed = [name for name in verified.passed if not name.startswith(_NOUN)]
                of_host[suite.VERIFY] = replace(verified, findings=rest, passed=passed)
            of_host[ROLE] = _result(host, of_host, found, there, len(expected))
        return [*roles, ROLE]

    def member(
        self, host: str, of_host: Mapping[str, RoleResult], check_mode: bool, left_out: Collection[str] = ()
    ) -> Member:
        """Return the host as it is compared. of_host: role -> result. In check mode no role has changed anything.

        left_out: roles that are not to work on it: their declarations are not judged, and hosts are compared as
        they are.
        """
        valid = {role: one for role, one in of_host.items() if one.state == VALID}
        read = valid["platform"].part("rail_info", result_schema.info) if "platform" in valid else None
        info = self.rails.get(host) or (codec.build(rail_info.HostInfo, read) if read else None)
        facts: dict[str, str | None] = {}
        for role in _WITH_FACTS:
            facts |= (valid[role].part("facts", result_schema.facts) if role in valid else None) or {}
        declared = self.declared.get(host) or {}
        judged = {key: of for key, of in declared.get("declared", {}).items() if _ROLES.get(key) not in left_out}
        changed = frozenset(role for role, one in valid.items() if one.changed and not check_mode)
        return Member(host, declared.get("kind", ""), info, facts, judged, frozenset(valid), changed)


def _result(
    host: str, of_host: Mapping[str, RoleResult], found: Comparisons, there: set[str], expected: int
) -> RoleResult:
    judged = found.judged.get(host, [])
    own = [one for role, result in of_host.items() if role != ROLE for one in result.findings if one.because is None]
    notes = [*found.notes.get(host, [])]
    if host in there and len(there) < expected:
        notes.append(f"compared with each other: {len(there)} of {expected} hosts of {findings_file.GROUP}")
    if host in there and not judged:
        notes.append("compared with no other host: none of its platform, fabric and product was read")
    return RoleResult().adding([_explained(one.finding, own) for one in judged], notes)


def _explained(finding: Finding, own: Sequence[Finding]) -> Finding:
    """Return the finding, caused by that of the host itself which explains its different value."""
    causes = _CAUSES.get((finding.check, finding.subject), ())
    cause = next((one.id for one in own if causes and one.check.startswith(causes)), None)
    return finding if finding.ok or finding.because or cause is None else replace(finding, because=cause)
