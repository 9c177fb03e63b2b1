# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sort the results of the audit into findings with their basis, and decisions. Pure.

Nothing is judged a second time. A rail that differs from its siblings is a finding where most of them pass the same
check. What most of them fail is the site's to decide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import plan as gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge import AER
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform_checks import RAIL_FIRMWARE
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult, role_results

from . import classes
from .infer import MAJORITY, Assumed, describe_rails
from .question import Data

# Nouns with values of the inventory, and the variable.
_SET_BY = {"netdev_mtu": "busbar_mtu", "multirail": "multirail_policy", RAIL_FIRMWARE.id: "busbar_firmware"}
_SET_BY |= dict.fromkeys(("roce_qos", "lldp"), "busbar_roce")
# Check of persisted settings -> the check of the live effect, where that has another name.
_LIVE = {gpudirect.PERSISTED.id: gpudirect.PATH.id}
_DENIED = ("Permission denied", "Operation not permitted", "needs root")
_NO_GPU = "nothing to judge: no NVIDIA GPU on the PCI bus"
_NO_BUS = "nothing to judge: the PCI bus cannot be seen, as in a container without the host's /sys"


@dataclass(frozen=True)
class Row:
    """A finding and its basis: a word of classes.py.   reference: source of the expected value, for people."""

    finding: Finding
    basis: str
    reference: str = ""


@dataclass
class Verdict:
    """The verdict on one host.

    assumed: None where the host gave no result.   passed: number of checks that are ok.
    undecided: decisions of the site.   empty: it has no GPU, and nothing else matters.
    need_root: number of checks that need root.   results: role -> result.
    """

    host: str
    assumed: Assumed | None = None
    rows: list[Row] = field(default_factory=list)
    passed: int = 0
    undecided: list[str] = field(default_factory=list)
    empty: bool = False
    need_root: int = 0
    results: Mapping[str, RoleResult] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """Return the exit code: a minor finding alone is good."""
        if any(row.finding.severity != "minor" and not _is_unknown(row.finding) for row in self.rows):
            return exit_code.FINDINGS
        whole = self.assumed is not None and not self.assumed.undecided
        unknown = any(_is_unknown(row.finding) for row in self.rows)
        return exit_code.GOOD if whole and not unknown else exit_code.UNKNOWN


def _is_unknown(finding: Finding) -> bool:
    return finding.state == "unknown" and finding.check not in classes.BROKEN


def unreachable(host: str, message: object) -> Verdict:
    """Return the verdict on a host that gave no result."""
    gone = {"unreachable": True, "msg": str(message or "no result")}
    [judged] = verdict.judge({host: role_results({"host": gone})}, ["host"], False).hosts
    return Verdict(host, rows=[Row(finding, classes.FACT) for finding in judged.findings])


def judge(host: str, assumed: Data, roles: Sequence[str], results: Sequence[Data]) -> Verdict:
    """Return the verdict on one host. assumed, roles, results: of infer.query."""
    known = Assumed(**assumed)
    found = Verdict(host, known, results=role_results(dict(zip(roles, results, strict=True))))
    facts = known.facts
    found.empty = not facts["gpus"] and not known.platform and not facts["nvswitches"]
    if found.empty:
        found.undecided = [_NO_GPU if facts["bus"] else _NO_BUS]
        return found
    ethernet = [rail for rail in facts["rails"] if "mtu" in rail]
    looked_at = len(ethernet) > 1 and not {"busbar_roce", "busbar_mtu"} <= {*known.given}
    doubts = [known.undecided if known.platform else "", describe_rails(ethernet) if looked_at else ""]
    found.undecided = [*filter(None, doubts)]
    [judged] = verdict.judge({found.host: found.results}, [*found.results], False).hosts
    names = [name.partition("@")[0] for name in judged.passed_ids]
    passed = Counter(names)
    found.passed = sum(classes.class_of(name.partition("[")[0]) != classes.OWN for name in names)
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in judged.findings:
        groups[finding.check, finding.aspect].append(finding)
    for (check, aspect), group in groups.items():
        live = (_LIVE.get(check, check), "live")
        right_now = aspect == "persisted" and live not in groups and passed["{}[{}]".format(*live)] > 0
        _sort(found, known, group, passed[f"{check}[{aspect}]"], right_now)
    return found


def _sort(found: Verdict, assumed: Assumed, group: Sequence[Finding], agree: int, right_now: bool) -> None:
    """Add the findings of one check and aspect where they belong.

    agree: subjects that pass it.   right_now: it passes live, so that what is not persisted is a minor risk.
    """
    first, basis = group[0], _basis(group[0].check, assumed)
    if basis in (classes.OWN, classes.OTHER):
        return
    alike = basis == classes.SIBLINGS and agree - len(group) < MAJORITY
    if basis == classes.UNDECIDED or alike or (right_now and not agree):
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        found.undecided.append(f"{first.check} ({first.subject}{more}): {first.have or 'nothing'}")
        return
    # Devices lose single requests while the bus is set up: these were counted since the boot.
    right_now = right_now or (first.check == AER.id and all(one.severity != "critical" for one in group))
    reference = {classes.PLATFORM: assumed.platform, classes.SIBLINGS: f"{agree} others"}.get(basis, "")
    for finding in group:
        if not assumed.facts["root"] and _is_unknown(finding) and any(word in (finding.have or "") for word in _DENIED):
            found.need_root += 1
        else:
            found.rows.append(Row(replace(finding, severity="minor") if right_now else finding, basis, reference))


def _basis(check: str, assumed: Assumed) -> str:
    kind = classes.class_of(check)
    setter = _SET_BY.get(check) or _SET_BY.get(check.partition(".")[0])
    if kind in (classes.PLATFORM, classes.SIBLINGS) and setter in assumed.given:
        return classes.INTENT
    if kind == classes.PLATFORM:
        of_rail = check.startswith(("platform.rail_", "nic_firmware.", "nccl_conf."))
        if "busbar_platform" in assumed.given:
            return classes.INTENT
        if not assumed.platform or (of_rail and assumed.undecided):
            # Compared with most of the machine's parts, which proves nothing about their number.
            return classes.SIBLINGS if of_rail else classes.OWN
    return kind
