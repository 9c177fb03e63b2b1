# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Drives the search for slow nodes, round by round. Documented in library/localise_round.py."""

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
    answer,
    host_variables,
    localise_because,
    localise_drive,
    localise_record,
    localise_stored,
    localise_table,
    screen,
    suite,
    terminal,
    work,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.host_variables import values
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import GPUS, RAILS, Result, Test
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Record

display = Display()
_RUNS = answer.many(answer.a_run)
# The role whose findings say why a node, a GPU or a rail is slow.
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
            ask = [] if tests else search.to_ask()
            made = Path(search.path) if search.path else None
            folder = localise_record.write(path, record, made) if path else None
        except (OSError, ParseError) as error:
            return {**result, "failed": True, "msg": f"the search for slow nodes: {error_text(error)}"}
        result.update(record=localise_record.to_dict(record), path=str(folder or ""), **search.asked(variables))
        if tests or ask:
            return {**result, "more": True, "ask": ask}
        text, more = localise_table.render(record, terminal.COLUMNS), f"-v, or {folder or 'the record'}"
        display.display(f"\n{screen.cut(text, terminal.COLUMNS, more, display.verbosity > 0)}\n")
        if folder is not None:
            display.display(f"results: {folder}")
        found = search.findings()
        told = localise_because.rooted(found, search.health, search.rails, search.known)
        result["hosts"] = {host: Plan(tuple(told.get(host, ()))).result() for host in hosts}
        result["cluster"] = localise_because.explained(search.judged, found)
        return result


class Search:
    """The searches among all hosts of the play, as far as they have come. Raises ParseError.

    raw: host -> what the run has registered for it.   judged: host -> what nccl_cluster has found there, before.
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
            localise_drive.Group(group, self.record.nodes, self._kind_of(settings))
            for settings, group in localise_drive.groups([*self.members.values()]).items()
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
            screens[host] = localise_drive.screen(runs_of(of_host), asked)
        now = time.time()
        launchers = [str(values(of_host).get("nccl_benchmark_launcher", "")) for of_host in self.raw.values()]
        nodes = localise_drive.nodes([*self.members.values()], screens)
        launcher = next(filter(None, launchers), "")
        return Record(simulated=False, begun=now, finished=now, launcher=launcher, nodes=nodes)

    # -- what was measured ---------------------------------------------------------------------------------------------

    def take(self) -> list[str]:
        """Takes what the last round has measured. What is to be said of it; of a search that begins who takes part."""
        if not self.goes_on:
            fit = [host for group in self.groups for host in group.search.screened]
            return localise_table.began(self.record.nodes, fit)
        tests = []
        for group, results in self.results(lost=True):
            tests += [localise_drive.measured(result, group.bar(result.test)) for result in results]
            if results:
                group.search.take(results)
        simulated = self.record.simulated or self._is_simulated()
        self.record = replace(self.record, tests=(*self.record.tests, *tests), simulated=simulated)
        return localise_table.round_lines(tests)

    def results(self, lost: bool) -> list[tuple[localise_drive.Group, list[Result]]]:
        """What came of each test of the round. lost: of one without a figure it is asked which of its hosts is gone."""
        found = []
        for group in self.groups:
            tests = group.search.next_round()
            jobs = [group.job(test) for test in tests if test.kind not in (RAILS, GPUS)]
            answers, failures = nccl_cluster.answers(jobs, self.raw)
            results = []
            for test in tests:
                one = self._result(test, answers, failures, {})
                if lost and is_silent(one):
                    one = self._result(test, answers, failures, self._gone(test))
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
            return localise_drive.of_gpus(test, gpus_of(self.raw[test.hosts[0]], test.number), lost)
        if test.kind != RAILS:
            name = localise_drive.job_name(test)
            return localise_drive.of_job(test, answers.get(name), failures.get(name, ""), lost)
        passes = {host: passes_of(self.raw[host], test.number) for host in test.hosts}
        return localise_drive.of_rails(test, passes, self.untested.get(test.hosts[0], ""), lost)

    def _gone(self, test: Test) -> dict[str, str]:
        """Host -> why it can take part no more, as it was asked just now."""
        found = {}
        for host in test.hosts:
            asked = answer.given(self.raw[host].get("localise_asked"), "nccl_cluster_member")
            # Each host of such a test was to be asked: one without an answer has left the play.
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

    # -- what is next --------------------------------------------------------------------------------------------------

    def next(self) -> list[Test]:
        return [test for group in self.groups for test in group.search.next_round()]

    def asked(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """What the tasks need of the next round."""
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
                of_hosts, why = localise_drive.sessions(test, candidates)
                untested.update(dict.fromkeys(test.hosts, why) if why else {})
                for host, passes in of_hosts.items() if not why else ():
                    more = rail_pairs_action.classes(variables["hostvars"][host])
                    sessions[host] = {"passes": passes, **more}
        number = tests[0].number if tests else 0
        asked = {"jobs": jobs, "sessions": sessions, "gpus": gpus, "untested": untested}
        return {"more": bool(tests), "number": number, **asked}

    def _candidate(self, host: str, variables: Mapping[str, Any]) -> Any:
        return rail_pairs_action.candidate(host, variables["hostvars"][host], True, False)

    # -- what was found ------------------------------------------------------------------------------------------------

    def recorded(self, complete: bool) -> Record:
        self.record = localise_drive.recorded(self.record, self.groups, complete, time.time())
        if complete:
            found = localise_because.named(self.record.findings, self.health, self.rails)
            self.record = replace(self.record, findings=found)
        return self.record

    def to_ask(self) -> list[str]:
        """Of the hosts that are slow, once at the end: those whose health is to be asked, right after the load."""
        asked = () if self.asked_health else localise_because.slow(self.record.findings)
        return [host for host in asked if host in self.there]

    def findings(self) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for one in self.record.findings:
            for host in one.hosts:
                found.setdefault(host, []).append(one.finding)
        return found

    @cached_property
    def known(self) -> dict[str, list[Finding]]:
        """Host that is slow -> findings of its health that the verdict has from the role itself."""
        slow = localise_because.slow(self.record.findings)
        results = {host: work.results(self.raw[host], [HEALTH], "", nightly=False) for host in slow}
        return {host: health_of(of_host.get(HEALTH)) for host, of_host in results.items()}

    @cached_property
    def health(self) -> dict[str, list[Finding]]:
        """Host that is slow -> findings of its health: what it said right after the load, where the search asked."""
        asked = {host: health_of(self.raw[host].get("localise_health")) for host in self.known}
        return {host: asked[host] or known for host, known in self.known.items() if asked[host] or known}

    @cached_property
    def rails(self) -> dict[str, dict[int, str]]:
        """Host -> number of each of its rails -> PCI address of the NIC, of the hosts that have findings."""
        infos = {host: host_variables.of_host(self.raw[host]) for host in self.health}
        return {host: {rail.number: rail.pci for rail in info.rails} for host, info in infos.items() if info}


def runs_of(of_host: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the node's own benchmark has measured now or before; [] where it said nothing that is valid."""
    role = work.results(of_host, [suite.BENCHMARK], "", nightly=False).get(suite.BENCHMARK)
    runs = work.mapping(role).get("runs") or []
    return runs if answer.is_valid(_RUNS, runs) else []


def health_of(registered: Any) -> list[Finding]:
    """Findings of node_health; none where it was not queried, or gave no valid answer."""
    return [from_dict(dict(item)) for item in answer.findings_of(answer.given(registered))]


def passes_of(of_host: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """What perftest answered in each pass of a round; {} where it did not."""
    found: list[dict[str, Any]] = [{} for _each in localise_drive.PASSES]
    for one in of_host.get("localise_rails_measured") or []:
        if one["number"] == number:
            found[one["pass"]] = answer.given(one["result"], "perftest")
    return found


def gpus_of(of_host: Mapping[str, Any], number: int) -> dict[tuple[int, int], dict[str, Any]]:
    """Two GPUs -> what nccl_perf answered in a round."""
    found = {}
    for one in of_host.get("localise_gpus_measured") or []:
        for each in one["results"] if one["number"] == number else ():
            # The loop's own: the pair that this run has asked for.
            first, second = each["localise_gpu_job"]["localise_gpu_pair"]
            found[int(first), int(second)] = answer.given(each, "nccl_perf")
    return found


def is_silent(result: Result) -> bool:
    """Whether it gave no figure, or, of rails and GPUs, not all of them."""
    if result.test.kind == GPUS:
        return any(result.pairs.get(pair) is None for pair in result.test.pairs)
    if result.test.kind == RAILS:
        return not result.ways or any(way.figure is None for way in result.ways)
    return result.figure is None
