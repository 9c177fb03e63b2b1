# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make programs of the tests of a search for slow nodes, and results of their output. Pure."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf

from .. import prediction, rail_pairs
from ..plain_data import Plain, PlainView
from . import cluster_plan, engine
from .cluster import judged_result
from .cluster_plan import Measure
from .cluster_wanted import Kind
from .engine import SPARE, Call, Job, Passes, perf_arguments
from .localise_record import (
    CLUSTER,
    GPUS,
    LEAF,
    LEAVES,
    PAIR,
    RAILS,
    Bar,
    GpuPair,
    MeasuredTest,
    Node,
    Result,
    Test,
    Unfit,
    Way,
    judge_figure,
)
from .localise_search import Localisation
from .members import Member, Settings, sort_out
from .pairwise_search import FAIL, PASS, SILENT

# Scope of a test's bar (nccl_benchmark_scope).
SCOPES = {PAIR: "pair", LEAF: "leaf", LEAVES: "cluster", CLUSTER: "cluster"}
COLLECTIVE = "all_reduce"
# Hosts that write over each rail at once: the first to the second, then back, then both.
PASSES = ((0,), (1,), (0, 1))
# Characters of the reason why a test has no figure.
_SAID = 200


# GB/s of a node alone in the run closest to its bar, or furthest below, and the bar; None without one.
Screen = tuple[float | None, float | None]


def screen(runs: Sequence[PlainView], wanted: Sequence[PlainView] = ()) -> Screen:
    """Screen a node by its own benchmark. runs: as result_schema.a_run; if one lacks a figure the node is not measured.

    wanted: the runs of the intent, where the node has no result.
    """
    judged = [run for run in runs or wanted if run["bar"]]
    silent = next((run for run in judged if not run.get("busbw")), None)
    if silent is not None:
        return None, silent["bar"]
    worst = min(judged, key=lambda run: run["busbw"] / run["bar"], default=None)
    return (None, None) if worst is None else (worst["busbw"], worst["bar"])


def nodes(members: Sequence[Member], screens: Mapping[str, Screen]) -> tuple[Node, ...]:
    """Return the nodes, with the reason why some take no part: busy, not reached, ambiguous name, other build."""
    _groups, left = sort_out(members, kind_of)
    found = []
    for one in members:
        alone, bar = screens.get(one.host, (None, None))
        unfit = Unfit(*left[one.host]) if one.host in left else None
        found.append(Node(one.host, one.leaf, one.settings.rails, alone, bar, tuple(range(one.settings.gpus)), unfit))
    return tuple(found)


def kind_of(member: Member) -> Settings:
    """Return what hosts that are measured with each other have alike, independent of the configured scope."""
    return replace(member.settings, scope=SCOPES[PAIR])


def groups(members: Sequence[Member]) -> dict[Settings, list[Member]]:
    """Return the hosts of each kind, also those that take no part."""
    found: dict[Settings, list[Member]] = {}
    for one in members:
        found.setdefault(kind_of(one), []).append(one)
    return found


class Group:
    """Hosts of one kind and the search among them.

    kind_of: scope -> its settings; raises ParseError.   nodes: of the record; only those of this group count.
    """

    def __init__(self, members: Sequence[Member], nodes: Sequence[Node], kind_of: Callable[[str], Kind]) -> None:
        self.members = {one.host: one for one in members}
        self._kind_of = kind_of
        self._expected: dict[tuple[str, int], tuple[Measure, cluster_plan.Expected]] = {}
        self.search = Localisation([one for one in nodes if one.host in self.members], self.bar)

    def bar(self, test: Test) -> Bar:
        if test.kind == RAILS:
            return self.rail_bar(test)
        if test.kind == GPUS:
            return self.gpu_bar()
        _measure, wanted = self.wanted(test)
        return Bar(wanted.bar, wanted.bar_source)

    def wanted(self, test: Test) -> tuple[Measure, cluster_plan.Expected]:
        """Return the measurement, as the benchmark of that scope makes it, at its largest size; and its bar."""
        key = (test.kind, len(test.hosts))
        if key not in self._expected:
            kind = self._kind_of(SCOPES[test.kind])
            measure = kind.one_size(kind.settings.sizes[1])
            self._expected[key] = (measure, kind.expected(measure, len(test.hosts)))
        return self._expected[key]

    def rail_bar(self, test: Test) -> Bar:
        """Return the bar of the slowest of its rails, by the profile: what each way has to carry."""
        kind = self._kind_of(SCOPES[PAIR])
        share = kind.values["perftest_share"]
        mtu = rail_pairs.rdma_mtu(kind.values.get("busbar_mtu"))
        rates = [
            (one.rate_gbps * mtu / (mtu + perftest.HEADERS[one.link_layers[0]]), one.rate_gbps)
            for one in kind.profile.rails
            if one.number in test.rails
        ]
        if not rates:
            return Bar(None, "the profile has no such rail")
        carried, rate = min(rates)
        return Bar(share * carried / 8, "%g of what %g Gb/s carries in packets of %d bytes" % (share, rate, mtu))

    def gpu_bar(self) -> Bar:
        """Return the bar of two GPUs of one node: a share of what their NVLinks carry, by the profile."""
        found = prediction.predict(self._kind_of(SCOPES[PAIR]).profile, COLLECTIVE, False, 2)
        if found.busbw is None:
            return Bar(None, found.rule)
        share = prediction.SHARES["node"]
        source = "derived: %g of the prediction %.4g GB/s (%s)" % (share, found.busbw, found.rule)
        return Bar(round(share * found.busbw, 1), source)

    # -- programs ------------------------------------------------------------------------------------------------------

    def job(self, test: Test) -> Job:
        team = tuple(self.members[host] for host in test.hosts)
        return cluster_plan.job_of(
            *(team, *self.wanted(test)),
            name="localise %d %s %s" % (test.number, test.kind, test.hosts[0]),
            scope=SCOPES[test.kind],
            environment=team[0].settings.environment,
            repeats=1,
            directory=f"localise/{test.kind}",
        )

    def gpu_calls(self, test: Test, values: PlainView) -> Iterator[Call]:
        """Yield the programs of one node, one for each pair of its GPUs. values: of its intent."""
        most, least = self._kind_of(SCOPES[PAIR]).settings.sizes[1], self.gpu_bar().value
        for pair in test.pairs:
            # CUDA numbers GPUs by speed unless it is told otherwise.
            visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "%d,%d" % pair}
            directory = "localise/gpus-%d-%d" % pair
            arguments = {
                **perf_arguments(values, COLLECTIVE, visible, directory),
                "gpus": 2,
                "min_bytes": most,
                "max_bytes": most,
                "bar_busbw": least,
                # It would find the other pairs' programs.
                "require_idle": False,
            }
            yield Call(test.hosts[0], "nccl_perf", arguments, values["nccl_benchmark_timeout"] + SPARE)


def rail_calls(
    test: Test, candidates: Mapping[str, rail_pairs.Candidate], values: Callable[[str], PlainView]
) -> tuple[Passes, str]:
    """Return the calls of each of PASSES; and why there are none, "" where there are.

    candidates: host -> its rails.   values: host -> values of its intent.
    """
    for host in test.hosts:
        if candidates[host].info is None:
            return [], f"{host}: {candidates[host].absent}"
    passes = []
    for senders in PASSES:
        sessions: dict[tuple[str, str], list[Plain]] = {}
        for number in senders:
            sender, receiver = test.hosts[number], test.hosts[1 - number]
            for sent, served in rail_pairs.sessions(candidates[sender], candidates[receiver]):
                if sent.rail in test.rails:
                    sessions.setdefault((receiver, perftest.SERVER), []).append(dict(served.__dict__))
                    sessions.setdefault((sender, perftest.CLIENT), []).append(dict(sent.__dict__))
        # What verify.yml has measured of all rails stays stored. With both directions at once, one end would find the
        # other on the node.
        options = {"tests": ["bw"], "store_result": False, "require_idle": len(senders) < 2}
        passes.append(
            [rail_pairs.call(host, values(host), mine, **options) for (host, _role), mine in sessions.items()]
        )
    if any(passes):
        return passes, ""
    infos = [(host, info) for host in test.hosts if (info := candidates[host].info) is not None]
    said = [f"rail {rail} of {host}: {why}" for host, info in infos for rail, why in sorted(info.missing.items())]
    return [], "; ".join(said) or "they have none of these rails in common"


def result_of(
    group: Group, test: Test, passes: Passes, untested: str, measured: Sequence[Sequence[engine.Result]]
) -> Result:
    """Return the result of a test. untested: why its rails were not tested.   measured: of each pass and call."""
    if test.kind == GPUS:
        return of_gpus(test, dict(zip(test.pairs, measured[0], strict=True)))
    if test.kind == RAILS:
        return of_rails(test, passes, measured, untested)
    one = judged_result(group.job(test), measured[0][0])
    figure, said = busbw_of(one.result) if one.result else (None, one.failure[:_SAID])
    return Result(test, figure, said)


def of_gpus(test: Test, results: Mapping[tuple[int, int], PlainView]) -> Result:
    """Return the result. results: GPU pair -> result of nccl_perf."""
    pairs: dict[tuple[int, int], float | None] = {}
    said = []
    for pair, given in results.items():
        valid = "findings" in given and not given.get("failed")
        pairs[pair], why = busbw_of(given) if valid else (None, str(given.get("msg") or "no response"))
        said += ["gpus %d and %d: %s" % (*pair, why)] if pairs[pair] is None else []
    return Result(test, said="; ".join(said)[:_SAID], pairs=pairs)


def busbw_of(given: PlainView) -> tuple[float | None, str]:
    """Return GB/s of a result of nccl_perf; why there is none, or its other findings.

    A figure counts where the module has judged it against its bar, which it does of one job over all of its hosts, over
    a transport that is proven.
    """
    drifted = [one for one in given["findings"] if one["check"] == perf.BUSBW.id and one["state"] == "drift"]
    judged = drifted or any(name.startswith(perf.BUSBW.id) for name in given["passed"])
    roots = [one for one in given["findings"] if one["because"] is None and one["state"] != "ok"]
    first = next((one for one in roots if one["check"] != perf.BUSBW.id), None)
    said = "" if first is None else "%s: %s" % (first["check"], first["have"] or "nothing")
    if not judged or given["busbw"] is None:
        return None, (said or "no figure that was judged")[:_SAID]
    return float(given["busbw"]), said[:_SAID]


def of_rails(test: Test, passes: Passes, measured: Sequence[Sequence[engine.Result]], untested: str) -> Result:
    """Return the result, from the sending ends."""
    ways, said = [], [untested] if untested else []
    for calls, results in zip(passes, measured, strict=True):
        for call, result in zip(calls, results, strict=True):
            for session in call.arguments["sessions"]:
                if session["role"] == perftest.CLIENT:
                    figure, why = _figure(result, session["rail"])
                    ways.append(Way(session["rail"], call.host, figure, not call.arguments["require_idle"]))
                    said += [f"rail {session['rail']} from {call.host}: {why}"] if why else []
    return Result(test, said="; ".join(said)[:_SAID], ways=tuple(ways))


def _figure(given: PlainView, rail: int) -> tuple[float | None, str]:
    """Return GB/s of a rail, from its sending end; and why there is none."""
    for one in given.get("sessions") or []:
        if one["session"]["role"] == perftest.CLIENT and one["session"]["rail"] == rail:
            done = next((each for each in one["results"] if each["test"] == perftest.BANDWIDTH), None)
            if done is not None and done["figure"] is not None:
                return done["figure"] / 8, ""
            return None, done["reason"] if done is not None else "it was not run"
    bad = next((one["have"] for one in given.get("findings") or [] if one["state"] != "ok"), None)
    return None, str(bad or given.get("msg") or "no response")


def play_round(
    searches: Sequence[Localisation],
    measure: Callable[[Sequence[Test]], Sequence[Result]],
    lost_of: Callable[[Sequence[str]], Mapping[str, str]],
) -> list[MeasuredTest]:
    """Measure the next tests of all searches at the same time, and give each search its results; [] at the end.

    lost_of: hosts of tests without a figure -> why each of the lost ones takes no more part.
    """
    search_of = {test: search for search in searches for test in search.next_round()}
    results = measure([*search_of]) if search_of else []
    silent = [host for result in results if is_silent(result) for host in result.test.hosts]
    lost = lost_of(silent) if silent else {}
    results = [replace(one, lost={host: lost[host] for host in one.test.hosts if host in lost}) for one in results]
    for search in searches:
        mine = [result for result in results if search_of[result.test] is search]
        if mine:
            search.take(mine)
    return [measured_test(result, search_of[result.test].bar_of(result.test)) for result in results]


def measured_test(result: Result, bar: Bar) -> MeasuredTest:
    test = result.test
    outcome = judge_figure(result.figure, bar)
    if test.kind in (RAILS, GPUS):
        figures = (*(way.figure for way in result.ways), *result.pairs.values())
        each = {judge_figure(figure, bar) for figure in figures}
        outcome = FAIL if FAIL in each else SILENT if SILENT in each or is_silent(result) else PASS
    return MeasuredTest(
        **{name: getattr(test, name) for name in ("number", "kind", "hosts", "rails", "about")},
        **{name: getattr(result, name) for name in ("figure", "said", "ways", "lost")},
        pairs=tuple(GpuPair(*pair, figure) for pair, figure in result.pairs.items()),
        bar=bar.value,
        bar_source=bar.source,
        outcome=outcome,
    )


def is_silent(result: Result) -> bool:
    """Return whether a result lacks its figure, or one of those of rails and GPUs."""
    if result.test.kind == GPUS:
        return any(result.pairs.get(pair) is None for pair in result.test.pairs)
    if result.test.kind == RAILS:
        each_way = len(result.test.rails) * sum(map(len, PASSES))
        return sum(way.figure is not None for way in result.ways) < each_way
    return result.figure is None
