# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Drive the search for slow nodes, round by round. Documented in library/localise_round.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import nccl_cluster, nccl_cluster_plan
from ansible_collections.busbar.fabric.plugins.action import rail_pairs as rail_pairs_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    codec,
    due_roles,
    host_variables,
    localise_record,
    localise_root_cause,
    localise_runs,
    localise_stored,
    localise_table,
    result_schema,
    screen,
    suite,
    terminal,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import values
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import GPUS, RAILS, Result, Test
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Record

display = Display()
_RUNS = codec.many(result_schema.a_run)
# The role whose findings explain a slow node, GPU or rail.
HEALTH = "node_health"


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {
        "path": {"type": "path", "default": ""},
        "max_age_days": {"type": "float", "default": 30.0},
    }

    def act(self, variables: Values, given: Values) -> Values:
        hosts, path = variables["ansible_play_hosts_all"], given["path"]
        result: Values = {"changed": False, "more": False, "number": 0, "record": {}, "path": "", "ask": []}
        result.update({name: {} for name in ("jobs", "sessions", "gpus", "hosts", "cluster")})
        if self._task.check_mode:
            text, result["hosts"] = localise_stored.judged(path, hosts, given["max_age_days"], time.time())
            display.display(text)
            return result
        try:
            search = Search(variables)
            lines = [] if search.goes_on else localise_stored.cut_off(path)
            for line in [*lines, *search.take()]:
                display.display(line)
            tests = search.next()
            record = search.recorded(complete=not tests)
            ask = [] if tests else search.health_queries()
            made = Path(search.path) if search.path else None
            folder = localise_record.write(path, record, made) if path else None
        except (OSError, ParseError) as error:
            return {**result, "failed": True, "msg": f"the search for slow nodes: {error_text(error)}"}
        result.update(record=localise_record.to_dict(record), path=str(folder or ""), **search.next_tasks(variables))
        if tests or ask:
            return {**result, "more": True, "ask": ask}
        text, more = localise_table.render(record, terminal.COLUMNS), f"-v, or {folder or 'the record'}"
        display.display(f"\n{screen.cut(text, terminal.COLUMNS, more, display.verbosity > 0)}\n")
        if folder is not None:
            display.display(f"results: {folder}")
        found = search.findings()
        told = localise_root_cause.rooted(found, search.health, search.rails, search.known)
        result["hosts"] = {host: Plan(tuple(told.get(host, ()))).result() for host in hosts}
        result["cluster"] = localise_root_cause.explained(search.judged, found)
        return result


class Search:
    """The searches among all hosts of the play, with their state. Raises ParseError.

    raw: host -> its registered results.   judged: host -> earlier findings of nccl_cluster.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        hostvars = variables["hostvars"]
        self.there = set(variables["ansible_play_hosts"])
        self.raw = {host: hostvars.raw_get(host) for host in variables["ansible_play_hosts_all"]}
        own = self.raw[variables["inventory_hostname"]]
        before = own.get("localise_round_result") or {}
        self.untested: Mapping[str, str] = before.get("untested") or {}
        self.judged: Mapping[str, Any] = (own.get("nccl_cluster_judged") or {}).get("hosts") or {}
        self.kinds = nccl_cluster_plan.Kinds()
        self.members = {
            host: self.kinds.member(host, of_host, host in self.there) for host, of_host in self.raw.items()
        }
        goes_on = bool(before.get("more"))
        self.path = str(before.get("path") or "") if goes_on else ""
        self.record = localise_record.from_dict(before["record"]) if goes_on else self._begun()
        self.groups = [
            localise_runs.Group(group, self.record.nodes, self._kind_of(settings))
            for settings, group in localise_runs.groups([*self.members.values()]).items()
        ]
        for group in self.groups:
            group.replay(self.record.tests)
        self.goes_on = goes_on
        self.asked_health = bool(before.get("ask"))

    def _kind_of(self, settings: Any) -> Any:
        return lambda scope: self.kinds.of_scope(settings, scope)

    def _begun(self) -> Record:
        screens = {}
        for host, of_host in self.raw.items():
            asked = (of_host.get("busbar_intent") or {}).get("benchmark_runs") or []
            screens[host] = localise_runs.screen(runs_of(of_host), asked)
        now = time.time()
        launchers = [str(values(of_host).get("nccl_benchmark_launcher", "")) for of_host in self.raw.values()]
        nodes = localise_runs.nodes([*self.members.values()], screens)
        launcher = next(filter(None, launchers), "")
        return Record(simulated=False, begun=now, finished=now, launcher=launcher, nodes=nodes)

    # -- results -------------------------------------------------------------------------------------------------------

    def take(self) -> list[str]:
        """Take the results of the last round. Return lines for the user; the first time also which nodes take part."""
        if not self.goes_on:
            fit = [host for group in self.groups for host in group.search.screened]
            return localise_table.began(self.record.nodes, fit)
        tests = []
        for group, results in self.results(lost=True):
            tests += [localise_runs.measured(result, group.bar(result.test)) for result in results]
            if results:
                group.search.take(results)
        simulated = self.record.simulated or self._is_simulated()
        self.record = replace(self.record, tests=(*self.record.tests, *tests), simulated=simulated)
        return localise_table.round_lines(tests)

    def results(self, lost: bool) -> list[tuple[localise_runs.Group, list[Result]]]:
        """Return the result of each test of the round. lost: query which hosts of a test without a figure are gone."""
        found = []
        for group in self.groups:
            tests = group.search.next_round()
            jobs = [group.job(test) for test in tests if test.kind not in (RAILS, GPUS)]
            answers, failures = nccl_cluster.answers(jobs, self.raw)
            results = []
            for test in tests:
                one = self._result(test, answers, failures, {})
                if lost and is_silent(one):
                    one = self._result(test, answers, failures, self._lost_hosts(test))
                results.append(one)
            found.append((group, results))
        return found

    def _result(
        self,
        test: Test,
        answers: Mapping[str, Any],
        failures: Mapping[str, str],
        lost: Mapping[str, str],
    ) -> Result:
        if test.kind == GPUS:
            return localise_runs.of_gpus(test, gpus_of(self.raw[test.hosts[0]], test.number), lost)
        if test.kind != RAILS:
            name = localise_runs.job_name(test)
            return localise_runs.of_job(test, answers.get(name), failures.get(name, ""), lost)
        passes = {host: passes_of(self.raw[host], test.number) for host in test.hosts}
        return localise_runs.of_rails(test, passes, self.untested.get(test.hosts[0], ""), lost)

    def _lost_hosts(self, test: Test) -> dict[str, str]:
        """Return host -> why it can no longer take part, according to a query just now."""
        found = {}
        for host in test.hosts:
            asked = result_schema.given(self.raw[host].get("localise_asked"), "nccl_cluster_member")
            # Every host of such a test was to be queried: one without a result has left the play.
            unfit = nccl_cluster_plan.unfit(self.raw[host], asked, self.members[host].address, host in self.there)
            found.update({host: unfit[0]} if unfit is not None else {})
        return found

    def _is_simulated(self) -> bool:
        said = []
        for of_host in self.raw.values():
            said += [one.get("result") for one in of_host.get("nccl_cluster_measured") or []]
            said += [one.get("result") for one in of_host.get("localise_rails_measured") or []]
            said += [each for one in of_host.get("localise_gpus_measured") or [] for each in one["results"]]
        return any(isinstance(one, dict) and one.get("simulated") is True for one in said)

    # -- next round ----------------------------------------------------------------------------------------------------

    def next(self) -> list[Test]:
        return [test for group in self.groups for test in group.search.next_round()]

    def next_tasks(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables that the tasks of the next round read."""
        jobs: dict[str, Any] = {}
        sessions: dict[str, Any] = {}
        gpus: dict[str, Any] = {}
        untested: dict[str, str] = {}
        tests = self.next()
        for group in self.groups:
            for test in group.search.next_round():
                if test.kind == GPUS:
                    gpus[test.hosts[0]] = group.gpu_job(test)
                    continue
                if test.kind != RAILS:
                    jobs[test.hosts[0]] = group.job(test)
                    continue
                candidates = {host: self._candidate(host, variables) for host in test.hosts}
                of_hosts, why = localise_runs.sessions(test, candidates)
                untested.update(dict.fromkeys(test.hosts, why) if why else {})
                for host, passes in of_hosts.items() if not why else ():
                    more = rail_pairs_action.classes(variables["hostvars"][host])
                    sessions[host] = {"passes": passes, **more}
        number = tests[0].number if tests else 0
        asked = {"jobs": jobs, "sessions": sessions, "gpus": gpus, "untested": untested}
        return {"more": bool(tests), "number": number, **asked}

    def _candidate(self, host: str, variables: Mapping[str, Any]) -> Any:
        return rail_pairs_action.candidate(host, variables["hostvars"][host], True, False)

    # -- findings ------------------------------------------------------------------------------------------------------

    def recorded(self, complete: bool) -> Record:
        self.record = localise_runs.recorded(self.record, self.groups, complete, time.time())
        if complete:
            found = localise_root_cause.named(self.record.findings, self.health, self.rails)
            self.record = replace(self.record, findings=found)
        return self.record

    def health_queries(self) -> list[str]:
        """Return the slow hosts whose health is to be audited, once at the end, right after the load."""
        asked = () if self.asked_health else localise_root_cause.slow(self.record.findings)
        return [host for host in asked if host in self.there]

    def findings(self) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for one in self.record.findings:
            for host in one.hosts:
                found.setdefault(host, []).append(one.finding)
        return found

    @cached_property
    def known(self) -> dict[str, list[Finding]]:
        """Return slow host -> findings of its health that the verdict has from the role itself."""
        slow = localise_root_cause.slow(self.record.findings)
        results = {host: due_roles.results(self.raw[host], [HEALTH], "", nightly=False) for host in slow}
        return {host: health_of(of_host.get(HEALTH)) for host, of_host in results.items()}

    @cached_property
    def health(self) -> dict[str, list[Finding]]:
        """Return slow host -> findings of its health, those from right after the load where they were audited."""
        asked = {host: health_of(self.raw[host].get("localise_health")) for host in self.known}
        return {host: asked[host] or known for host, known in self.known.items() if asked[host] or known}

    @cached_property
    def rails(self) -> dict[str, dict[int, str]]:
        """Return host -> rail number -> PCI address of the NIC, of the hosts that have findings."""
        infos = {host: host_variables.of_host(self.raw[host]) for host in self.health}
        return {host: {rail.number: rail.pci for rail in info.rails} for host, info in infos.items() if info}


def runs_of(of_host: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs of the node's own benchmark, measured now or before; [] without a valid result."""
    role = due_roles.results(of_host, [suite.BENCHMARK], "", nightly=False).get(suite.BENCHMARK)
    runs = due_roles.mapping(role).get("runs") or []
    return runs if codec.is_valid(_RUNS, runs) else []


def health_of(registered: Any) -> list[Finding]:
    """Return the findings of node_health; none where it was not queried or has no valid result."""
    return [from_dict(dict(item)) for item in result_schema.findings_of(result_schema.given(registered))]


def passes_of(of_host: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return perftest's result of each pass of a round; {} for a pass without one."""
    found: list[dict[str, Any]] = [{} for _each in localise_runs.PASSES]
    for one in of_host.get("localise_rails_measured") or []:
        if one["number"] == number:
            found[one["pass"]] = result_schema.given(one["result"], "perftest")
    return found


def gpus_of(of_host: Mapping[str, Any], number: int) -> dict[tuple[int, int], dict[str, Any]]:
    """Return GPU pair -> result of nccl_perf in a round."""
    found = {}
    for one in of_host.get("localise_gpus_measured") or []:
        for each in one["results"] if one["number"] == number else ():
            # The loop's variable: the pair of this run.
            first, second = each["localise_gpu_job"]["localise_gpu_pair"]
            found[int(first), int(second)] = result_schema.given(each, "nccl_perf")
    return found


def is_silent(result: Result) -> bool:
    """Return whether a result lacks its figure, or one of those of rails and GPUs."""
    if result.test.kind == GPUS:
        return any(result.pairs.get(pair) is None for pair in result.test.pairs)
    if result.test.kind == RAILS:
        return not result.ways or any(way.figure is None for way in result.ways)
    return result.figure is None
