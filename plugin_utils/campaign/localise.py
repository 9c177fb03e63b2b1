# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Play the search for the slow node, rail, direction, GPU, leaf or uplink on real nodes, round by round.

Nodes of different kinds, of other profiles or values, are searched side by side, and never with each other. Bars are
the control node's; nodes only give figures. The record is written after each round, so that a killed run leaves it.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf

from .. import codec, due_roles, host_variables, rail_pairs, result_schema, slowdown_causes, suite
from ..plain_data import Plain, PlainView
from . import cluster_judge, engine, localise_judge, localise_record, localise_table, trials
from .cluster_wanted import Kinds
from .engine import Passes
from .localise_record import GPUS, RAILS, HostFinding, Record, Result, Test
from .members import Site

RECORD = Check(
    "localise.record",
    severity="minor",
    why="what a search found some time ago, or without this node, does not show the node's current state",
    fix="run ansible-playbook playbooks/localise.yml -i INVENTORY, not in check mode, while the nodes are idle",
)
"With `--check`: is there a complete, recent search that included this node"

_DAY = 86400
# The role whose findings explain a slow node, GPU or rail.
HEALTH = "node_health"
_RUNS = codec.many(result_schema.a_run)


# A slow node, rail or rank explains a slow job, but not wrong sums, or none.
EXPLAINED = (perf.BUSBW.id, perf.SPREAD.id, cluster_judge.SCALING.id, cluster_judge.LATENCY.id)
# Findings on one node, which its health explains; the likeliest first.
_OF_NODE = (localise_judge.RAIL.id, localise_judge.RANK.id, localise_judge.NODE.id, localise_judge.ALONE.id)
# Then findings that several nodes share.
ROOTS = (*_OF_NODE, localise_judge.LEAF.id, localise_judge.UPLINK.id, localise_judge.CLUSTER.id)


@dataclass
class Outcome:
    """hosts: host -> its result for the verdict.   cluster: host -> that of the benchmark, with its causes.

    folder: of the record; "" where none is stored.
    """

    record: Record
    hosts: dict[str, Plain]
    cluster: dict[str, Plain]
    folder: str


def play(site: Site, kinds: Kinds, judged: PlainView, path: str) -> Outcome:
    """Search among all hosts of the site. judged: host -> its result of the benchmark between nodes.

    path: nccl_benchmark_results_path. Raises OSError; ParseError where the inventory or the record is wrong.
    """
    search = Search(site, kinds, path)
    fit = [host for group in search.groups for host in group.search.screened]
    for line in localise_table.began(search.record.nodes, fit):
        site.say(line)
    search.write(complete=False)
    while search.play_round():
        search.write(complete=False)
    search.write(complete=True)
    health = search.query_health()
    search.write(complete=True, health=health)
    record = search.record
    results = link_results(record.findings, health)
    hosts = {host: Plan(tuple(results.get(host, ()))).result() for host in site.variables}
    # A job follows from the search's finding, and that from the node's health.
    explained_jobs = explained(judged, localise_judge.findings(record.findings))
    return Outcome(record, hosts, explained_jobs, str(search.folder or ""))


@dataclass(frozen=True)
class Health:
    """Findings of slow hosts. found: from right after the load, else known ones.   known: the verdict has them anyway.

    rails: host -> rail number -> PCI address of the NIC.
    """

    found: Mapping[str, Sequence[Finding]]
    known: Mapping[str, Sequence[Finding]]
    rails: Mapping[str, Mapping[int, str]]


class Search:
    """The searches among all hosts of a site, and their record."""

    def __init__(self, site: Site, kinds: Kinds, path: str) -> None:
        """Query the nodes. Raises ParseError where the inventory is wrong."""
        self._site = site
        self._path = path
        self.folder: Path | None = None
        members = kinds.members(site.query_members(site.ready), site.variables)
        self._infos = site.query_rails()
        screens = {
            host: trials.screen(runs_of(of_host), site.intent(host).get("benchmark_runs") or [])
            for host, of_host in site.variables.items()
        }
        launchers = (str(site.values(host).get("nccl_benchmark_launcher", "")) for host in site.variables)
        launcher, now = next(filter(None, launchers), ""), time.time()
        self.record = Record(
            simulated=False, begun=now, finished=now, launcher=launcher, nodes=trials.nodes(members, screens)
        )
        self.groups = [
            trials.Group(group, self.record.nodes, functools.partial(kinds.of_scope, settings))
            for settings, group in trials.groups(members).items()
        ]

    # -- rounds --------------------------------------------------------------------------------------------------------

    def play_round(self) -> bool:
        """Measure the next round of all groups, and print its result; False where there is none."""
        done = trials.play_round([group.search for group in self.groups], self._measure, self._lost)
        self.record = replace(self.record, tests=(*self.record.tests, *done))
        for line in localise_table.round_lines(done):
            self._site.say(line)
        return bool(done)

    def _measure(self, tests: Sequence[Test]) -> list[Result]:
        group_of = {host: group for group in self.groups for host in group.members}
        planned = [(group := group_of[test.hosts[0]], test, *self._passes(group, test)) for test in tests]
        measured = engine.measure([passes for _group, _test, passes, _why in planned], self._site.run)
        simulated = any(one.get("simulated") is True for of_test in measured for of_pass in of_test for one in of_pass)
        self.record = replace(self.record, simulated=self.record.simulated or simulated)
        return [trials.result_of(*each, results) for each, results in zip(planned, measured, strict=True)]

    def _lost(self, silent: Sequence[str]) -> dict[str, str]:
        read = self._site.query_members(silent)
        return {host: why[0] for host in silent if (why := self._site.unfit(host, read.get(host, {}))) is not None}

    def _passes(self, group: trials.Group, test: Test) -> tuple[Passes, str]:
        """Return the passes of a test; and why its rails cannot be tested, "" where they can."""
        values = self._site.values(test.hosts[0])
        if test.kind == GPUS:
            return [[*group.gpu_calls(test, values)]], ""
        if test.kind != RAILS:
            return [[group.job(test).call(values)]], ""
        return trials.rail_calls(test, {host: self._candidate(host) for host in test.hosts}, self._site.values)

    def _candidate(self, host: str) -> rail_pairs.Candidate:
        known = {"rail_info_result": self._infos.get(host, {}), "ansible_host": self._site.name_of(host)}
        return rail_pairs.candidate(host, {**self._site.variables[host], "rail_ping_result": {}, **known}, True, False)

    # -- findings ------------------------------------------------------------------------------------------------------

    def write(self, complete: bool, health: Health | None = None) -> None:
        """Judge what was measured so far, and write the record. Raises OSError, ParseError."""
        found = [one for group in self.groups for one in localise_judge.verdicts(group.search)]
        if self.record.simulated:
            found = [
                replace(one, finding=replace(one.finding, source=f"simulated: {one.finding.source}")) for one in found
            ]
        if health is not None:
            found = with_causes(found, health)
        self.record = replace(self.record, findings=tuple(found), complete=complete, finished=time.time())
        if self._path:
            self.folder = localise_record.write(self._path, self.record, self.folder)

    def query_health(self) -> Health:
        """Query the nodes that are slow, or have a slow GPU or rail, right after the load: what throttled has grown."""
        slow = slow_hosts(self.record.findings)
        read = self._site.query(HEALTH, slow, self._health_options) if slow else {}
        variables = {host: due_roles.results(self._site.variables[host], [HEALTH], "", nightly=False) for host in slow}
        known = {host: health_of(result_schema.given(of_host.get(HEALTH))) for host, of_host in variables.items()}
        found = {host: health_of(read.get(host, {})) or known[host] for host in slow}
        infos = {host: host_variables.of_host({"rail_info_result": self._infos.get(host)}) for host in slow}
        rails = {host: {rail.number: rail.pci for rail in info.rails} for host, info in infos.items() if info}
        return Health(found, known, rails)

    def _health_options(self, host: str) -> Plain:
        # The next night is held to the last one, not to this.
        return {"power_limit": self._site.values(host)["node_health_power_limit"], "record": False}


def runs_of(of_host: PlainView) -> Sequence[PlainView]:
    """Return the runs of the node's own benchmark, measured now or before; [] without a valid result."""
    role = due_roles.results(of_host, [suite.BENCHMARK], "", nightly=False).get(suite.BENCHMARK)
    runs = due_roles.mapping(role).get("runs") or []
    return runs if codec.is_valid(_RUNS, runs) else []


def health_of(read: engine.Result) -> list[Finding]:
    """Return the findings of node_health; none where it was not queried or has no valid result."""
    return [from_dict(dict(item)) for item in result_schema.findings_of(read)]


def judge_record(
    path: str, hosts: Sequence[str], most_days: float, now: float
) -> tuple[Record | None, dict[str, Plain]]:
    """Judge the last search and its age, for check mode, which measures none. Return it, and host -> its result.

    path: nccl_benchmark_results_path, "" where no record is stored.   most_days: how old the record may be.
    now: seconds since 1970.
    """
    want = "a complete search, at most %g days old" % most_days
    source = str(localise_record.folder(path)) if path else "the inventory"
    record, state = None, "unknown"
    try:
        have = "nccl_benchmark_results_path is empty: no record is stored"
        record = localise_record.read(localise_record.folder(path)) if path else None
    except FileNotFoundError:
        have = "never searched"
    except (OSError, ParseError) as error:
        have = f"the last record cannot be read: {error_text(error)}"
    if record is not None:
        days = (now - record.finished) / _DAY
        state = "ok" if record.complete and -1 / 24 <= days <= most_days else "unknown"
        have = "%.1f days %s" % (abs(days), "in the future" if days < -1 / 24 else "ago")
        have += "" if record.complete else f", cut off after round {record.rounds}"
    found = localise_judge.findings(record.findings) if record is not None and state == "ok" else {}
    known = {node.host for node in record.nodes} if record is not None else {*hosts}
    other = RECORD.judge("host", "unknown", want, "it was none of the nodes of the last search", source)
    # Nodes of another run are not reported; an unfinished or old search gives no finding.
    judged = RECORD.judge("host", state, want, have, source)
    plans = {host: (judged, *found.get(host, ())) if host in known else (other,) for host in hosts}
    return record, {host: Plan(each).result() for host, each in plans.items()}


# -- causes ----------------------------------------------------------------------------------------------------------


def explained(judged: PlainView, found: Mapping[str, Sequence[Finding]]) -> dict[str, Plain]:
    """Return host -> its result of nccl_cluster, with ``because`` for explained findings.

    judged: host -> that result.   found: host -> findings of the search. A job is a finding of each of its hosts,
    of the same id: where one of them has the cause, it follows from that on the others, too, and names it.
    """
    roots = {host: root for host, of_host in found.items() if (root := root_of(of_host)) is not None}
    whose: dict[str, list[str]] = {}
    for host in roots:
        for item in result_schema.findings_of(judged.get(host)):
            whose.setdefault(item["id"], []).append(host)
    results: dict[str, Plain] = {}
    for host, result in judged.items():
        told = [from_dict(dict(item)) for item in result_schema.findings_of(result)]
        changed = [_followed(one, host, roots, whose.get(one.id, ())) for one in told]
        results[host] = {**result, "findings": Plan(tuple(changed)).result()["findings"]} if told else dict(result)
    return results


def root_of(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that explains a slow job."""
    slow = [one for one in findings if one.state == "drift" and one.because is None]
    return next((one for check in ROOTS for one in slow if one.check == check), None)


def _followed(finding: Finding, host: str, roots: Mapping[str, Finding], others: Sequence[str]) -> Finding:
    if finding.check not in EXPLAINED or finding.because is not None or finding.state != "drift":
        return finding
    if host in roots:
        return replace(finding, because=roots[host].id)
    if not others:
        return finding
    have = f"{finding.have or 'nothing'}; the search found {cluster_judge.named(others, roots)}"
    return replace(finding, have=have, because=roots[others[0]].id)


def slow_hosts(found: Sequence[HostFinding]) -> list[str]:
    """Return the hosts with findings that their health may explain."""
    return list(dict.fromkeys(one.hosts[0] for one in found if _may_follow(one.finding)))


def with_causes(found: Sequence[HostFinding], health: Health) -> list[HostFinding]:
    """Return the findings for record and table, with the cause in the node's health."""
    return [
        replace(one, finding=_named(one.finding, cause)) if (cause := _cause(one, health)) is not None else one
        for one in found
    ]


def _named(finding: Finding, cause: Finding) -> Finding:
    have = f"{finding.have or 'nothing'}; because {cause.check} of {cause.subject}: {cause.have or 'nothing'}"
    return replace(finding, have=have)


def link_results(found: Sequence[HostFinding], health: Health) -> dict[str, list[Finding]]:
    """Return host -> findings of the search, linked to its node's health; causes that the verdict lacks are added."""
    of_host: dict[str, dict[str, Finding]] = {}
    for one in found:
        cause = _cause(one, health)
        for host in one.hosts:
            mine = of_host.setdefault(host, {})
            if cause is not None and cause.id not in {known.id for known in health.known.get(host, ())}:
                mine.setdefault(cause.id, cause)
            mine[one.finding.id] = one.finding if cause is None else replace(one.finding, because=cause.id)
    return {host: [*mine.values()] for host, mine in of_host.items()}


def _may_follow(finding: Finding) -> bool:
    return finding.check in _OF_NODE and finding.state == "drift" and finding.because is None


def _cause(found: HostFinding, health: Health) -> Finding | None:
    if not _may_follow(found.finding):
        return None
    [host] = found.hosts
    of_host = health.found.get(host, ())
    kind, _blank, digits = found.finding.subject.partition(" ")
    number = whole(digits)
    if kind == "gpu" and number is not None:
        return slowdown_causes.of_gpu(of_host, number)
    if kind == "rail" and number is not None:
        return slowdown_causes.of_rail(of_host, number, health.rails.get(host, {}).get(number, ""))
    return slowdown_causes.of_node(of_host)
