# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verify the network between the hosts of a play: compare their rails, ping them, and test them in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as lldp

from . import due_roles, host_variables, intent, rail_pairs, result_schema, slowdown_causes
from .campaign.engine import Call, Result, measure
from .campaign.members import Site
from .fleet import table
from .fleet.compare import Judged, compare
from .fleet.stage import Fleet
from .plain_data import Plain, PlainView

# Possible causes of a slow rail, the likeliest first: checks of other roles, by prefix, of the same NIC.
CAUSES = (
    *("platform.", "netdev_mtu.", "roce_qos.", *lldp.SLOWING, *slowdown_causes.RAIL, "multirail.", "pcie_path."),
    "gpudirect.",
)
# Of these an unknown result explains nothing.
_SHOWN = (*lldp.SLOWING, *slowdown_causes.RAIL)
_SLOWING = (table.MTU.id, table.QOS.id, table.ADDRESS.id)
_EXPLAINED = ("perftest.", "counters.", "rail_ping.")
_OWN = ("rail_info_result", "verify_result")


class Verification:
    """One verification.

    site: the variables of its hosts have the registered results of earlier roles.   check_mode: nothing is tested, and
    the last results are judged.
    """

    def __init__(self, site: Site, check_mode: bool = False) -> None:
        self._site = site
        self._check_mode = check_mode
        self.rails: dict[str, Result] = {}

    def run(self) -> dict[str, Plain]:
        """Return host -> its result."""
        site = self._site
        self.rails = site.query_rails()
        read = {
            host: {**of_host, "rail_info_result": self.rails.get(host) or _why_not(site.intent(host))}
            for host, of_host in site.variables.items()
        }
        compared = compare_rails(read)
        ready = [rail_pairs.candidate(host, read[host], True, self._check_mode) for host in site.ready]
        planned = rail_pairs.plan_pings([one for one in ready if one.info is not None])
        pinging = {host: [asdict(one) for one in pings] for host, (pings, _unpinged) in planned.items() if pings}
        pings = site.query("perftest", pinging, lambda host: {"pings": pinging[host]}, profile=False)
        pairs = rail_pairs.plan(
            [
                rail_pairs.candidate(
                    host, {**of, "rail_ping_result": pings.get(host, {})}, host in site.ready, self._check_mode
                )
                for host, of in read.items()
            ],
            max((site.values(host)["perftest_rounds"] for host in site.ready), default=1),
        )
        tested = self._test(pairs)
        failures = {host: why for host, results in tested.items() if (why := failure(results))}
        return {
            host: Proof(
                compared.get(host, ()),
                (*pairs.findings[host], *planned.get(host, ((), ()))[1]),
                tuple(session for one in pairs.passes for session in one.get(host, ())),
                pings.get(host, {}),
                tested.get(host, ()),
                failures,
                self._check_mode,
            ).result(host, of_host)
            for host, of_host in read.items()
        }

    def _test(self, pairs: rail_pairs.Pairs) -> dict[str, list[Result]]:
        """Run all pairs at once, pass by pass: in one pass a host has one role. Return host -> results."""
        passes: Sequence[Mapping[str, Sequence[perftest.Session]]] = pairs.passes
        if self._check_mode:
            # Judged only: of all passes together, without a limit of time.
            hosts = dict.fromkeys(host for one in passes for host in one)
            passes = [{host: [session for one in passes for session in one.get(host, ())] for host in hosts}]
        calls = [[self._call(host, sessions) for host, sessions in one.items() if sessions] for one in passes]
        results: dict[str, list[Result]] = {}
        [measured] = measure([calls], self._site.run)
        for of_pass, found in zip(calls, measured, strict=True):
            for call, result in zip(of_pass, found, strict=True):
                results.setdefault(call.host, []).append(result)
        return results

    def _call(self, host: str, sessions: Sequence[perftest.Session]) -> Call:
        values = self._site.values(host)
        call = rail_pairs.call(
            host,
            values,
            [dict(session.__dict__) for session in sessions],
            latency=values["perftest_latency"],
            priority=rail_pairs.classes(values)["priority"],
            max_age_days=values["busbar_baseline_max_age_days"],
        )
        return replace(call, seconds=0.0) if self._check_mode else call


def _why_not(intent: PlainView) -> Result:
    return {name: value for name, value in intent.items() if name in ("failed", "unreachable", "msg")}


def compare_rails(variables: Mapping[str, PlainView]) -> Mapping[str, Sequence[Judged]]:
    """Compare the rails of all hosts with what is declared, or with what most hosts have. Return those of each host."""
    fleet = Fleet()
    for host, of_host in variables.items():
        fleet.add(host, of_host, {})
    return compare([fleet.member(host, {}, True) for host in variables]).judged


def failure(results: Sequence[Result]) -> str:
    """Return why a host did not finish its part in the tests; "" where it did."""
    for result in results:
        if result.get("unreachable"):
            return "unreachable"
        if result.get("failed"):
            return " ".join(str(result.get("msg")).split())[:200]
    return ""


@dataclass(frozen=True)
class Proof:
    """All parts of the verification of one host.

    compared: with all other hosts.   untested: what has no partner.   planned: its tests.   ping: of its pings.
    tested: of its tests.   failures: host -> why it did not finish its part.
    """

    compared: Sequence[Judged]
    untested: tuple[Finding, ...]
    planned: tuple[perftest.Session, ...]
    ping: Result
    tested: Sequence[Result]
    failures: Mapping[str, str]
    check_mode: bool = False

    @property
    def measured(self) -> list[Result]:
        """Return the results of tests; a planned test that is in none of them has no result."""
        return [one for one in self.tested if one.get("sessions") is not None and not one.get("failed")]

    @property
    def _parts(self) -> list[Result]:
        compared = Plan(tuple(one.finding for one in self.compared))
        return [compared.result(), Plan(self.untested).result(), self.ping, *self.measured]

    def result(self, host: str, variables: PlainView) -> Plain:
        """Return what is registered as ``verify_result``. variables: of the host."""
        measured = self.measured
        parts = self._parts
        return {
            **Plan(tuple(self.findings(host, variables))).result(),
            "passed": [name for part in parts for name in part.get("passed") or []],
            "evidence": {name: pair for part in parts for name, pair in (part.get("evidence") or {}).items()},
            "sessions": [one for part in measured for one in part["sessions"]],
            "finished_at": min((one["finished_at"] for one in measured if one["finished_at"]), default=None),
            "simulated": any(one["simulated"] for one in measured),
            "stored": self.check_mode,
            "commands": [line for part in measured for line in part.get("commands") or ()],
            "notes": sorted({note for part in measured for note in part.get("notes") or ()}),
        }

    def findings(self, host: str, variables: PlainView) -> list[Finding]:
        """Return findings that are not ok, each bad test with its cause."""
        found = [from_dict(dict(item)) for part in self._parts for item in part.get("findings") or []]
        found = self._with_partners([*found, *self._missing(self.failures.get(host, ""))])
        texts = [" ".join(str(one.get("msg")).split())[:300] for one in (self.ping, *self.tested)]
        found += [_invalid(text) for text in texts if text.startswith(result_schema.SAID)][:1]
        earlier = _earlier(host, variables)
        return link_causes(found, earlier, self._causes(variables, earlier))

    def _missing(self, failed: str) -> list[Finding]:
        """Return a finding for each planned test without a result, all caused by the first."""
        # In check mode the last result counts, with any peer.
        keys = ("role", "rail") if self.check_mode else ("role", "rail", "peer")
        done = {tuple(one["session"][key] for key in keys) for part in self.measured for one in part["sessions"]}
        missing: list[Finding] = []
        for session in self.planned:
            if tuple(getattr(session, key) for key in keys) not in done:
                why = "the test gave no result on this host: " + (failed or "its task failed, see above")
                lost = perftest.unproven(session, why, "perftest", "run it again for both hosts with -vvv")
                missing.append(replace(lost, because=missing[0].id if missing else None))
        return missing

    def _with_partners(self, findings: list[Finding]) -> list[Finding]:
        """Add a root for each partner that broke off. A figure that was measured does not follow from it."""
        unproven = [one for one in findings if one.check.startswith("perftest.") and one.state == "unknown"]
        for peer in sorted({one.peer for one in self.planned if self.failures.get(one.peer)}):
            lost = {one.subject for one in unproven if one.subject.endswith(f" {peer}")}
            if lost:
                fix = f"repair {peer}, then verify both hosts again"
                root = rail_pairs.untested(f"{peer}: {self.failures[peer]}", fix, f"to {peer}")
                follows = [f for f in findings if f.subject in lost and (f in unproven or f.check[:9] != "perftest.")]
                findings = [root, *(replace(f, because=root.id) if f in follows else f for f in findings)]
        return findings

    def _causes(self, variables: PlainView, earlier: Sequence[Finding]) -> dict[str, str]:
        """Return ``rail 3`` -> id of an earlier role's finding on its NIC, else of the comparison of all hosts."""
        found: dict[str, str] = {}
        for one in sorted(self.compared, key=lambda one: one.finding.id):
            if one.finding.check in _SLOWING:
                found.update((f"rail {rail}", one.finding.id) for rail in one.rails)
        info = host_variables.of_host(variables)
        rail_of = {rail.pci: f"rail {rail.number}" for rail in info.rails} if info else {}
        on_rails = [one for one in earlier if one.identity in rail_of]
        for prefix in reversed(CAUSES):
            # A silent switch slows no rail.
            shown = [one for one in on_rails if not (prefix in _SHOWN and one.state == "unknown")]
            found.update((rail_of[one.identity], one.id) for one in shown if one.check.startswith(prefix))
        return found


def _invalid(have: str) -> Finding:
    want = "compared with and tested against other hosts"
    fix = "set busbar_verify alike for all of gpu_nodes, or run it again for this host with -vvv"
    return rail_pairs.PAIR.judge("host", "unknown", want, have, "ansible-playbook", fix)


def _earlier(host: str, variables: PlainView) -> list[Finding]:
    """Return the root findings of earlier roles of the run, else of the audit."""
    audited = due_roles.roles(due_roles.answer({**variables, "inventory_hostname": host}))
    results = {f"{role}_result": result for role, result in audited.items()} | dict(variables)
    names = [name for name in intent.REGISTERED if name not in _OWN]
    found = [from_dict(dict(item)) for name in names for item in result_schema.findings_of(results.get(name))]
    return [one for one in found if one.because is None]


def link_causes(findings: Sequence[Finding], earlier: Sequence[Finding], causes: Mapping[str, str]) -> list[Finding]:
    """Link each bad test to its cause. causes: rail -> id of the finding of this host that explains it.

    A test may name a finding of a role that did not run: that is none.
    """
    known = {one.id for one in (*findings, *earlier)}
    found = []
    for finding in findings:
        rail = " ".join(finding.subject.split(" ")[:2])
        cause = causes.get(rail) if finding.check.startswith(_EXPLAINED) and finding.because not in known else None
        found.append(replace(finding, because=cause) if cause else finding)
    return found
