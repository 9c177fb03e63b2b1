# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a preflight: roll call, each node alone, then the search for slow nodes, within one time limit.

The runner of steps is passed in (steps.Steps), so that a simulation can replace it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ansible_collections.busbar.fabric.plugins.module_utils.nccl import roll_call
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import engine, localise_table, preflight, trials
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    MeasuredTest,
    Node,
    Record,
    Result,
    Test,
    Unfit,
    judge_figure,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_search import Localisation
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.pairwise_search import PASS
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.preflight import (
    Observations,
    Outcome,
    RollCallResult,
)

from . import steps
from .site import ALONE, Site
from .steps import StepResult

# Shares of the limit for each query of the roll call and any one step; seconds below which no step is begun; and the
# time that ending a step takes beyond its limit.
ROLL_CALL, STEP = 1 / 8, 1 / 4
LEAST, END = 3.0, 6.0
# A step hangs that takes FACTOR times as long as the slowest good one of its kind, plus BIT seconds.
FACTOR, BIT = 3.0, 5.0
# Seconds that every node gets to respond: a busy slurmctld must not cost a good node its place.
STILL_THERE = 10.0
_ROOM = 60


class Runs(Protocol):
    """The interface of steps.Steps."""

    def query(self, nodes: Sequence[str], limit: float) -> tuple[dict[str, RollCallResult], dict[str, str]]: ...

    def __call__(self, calls: Sequence[Call]) -> Sequence[engine.Result]: ...


class Preflight:
    """One preflight. search: its current state, also for a caller that interrupts it."""

    def __init__(
        self,
        nodes: Sequence[str],
        leaves: Mapping[str, str],
        site: Site,
        runs: Runs,
        limit: float,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """leaves: {} where none are known.   limit: seconds for all of it.   say: gets lines for people."""
        self.nodes = tuple(nodes)
        self.leaves = leaves
        self.site = site
        self.runs = runs
        self.limit = limit
        self.say = say
        self.clock = clock
        self.end = clock() + limit
        self.seen = Observations(cut="it was ended before the first result")
        self.search = self._searched(dict.fromkeys(self.nodes, (None, "not queried yet")))
        self.names: dict[str, str] = {}
        self.simulated = False
        self.begun = time.time()
        self._longest: dict[str, float] = {}
        self.tests: list[MeasuredTest] = []

    def run(self) -> Outcome:
        there = self._roll_call()
        if there:
            self._measure_alone(there)
        if not self.seen.cut and len(self.nodes) > 1:
            self._between()
        return self.judge()

    def judge(self) -> Outcome:
        return preflight.judge(self.search, self.seen)

    def record(self, complete: bool) -> Record:
        """Return the record for ``--record``."""
        return Record(
            simulated=self.simulated,
            begun=self.begun,
            finished=time.time(),
            launcher="srun",
            nodes=tuple(self.search.nodes.values()),
            tests=tuple(self.tests),
            findings=tuple(self.judge().verdicts),
            complete=complete and not self.seen.cut,
        )

    # -- time ----------------------------------------------------------------------------------------------------------

    def _seconds_left(self) -> float:
        return self.end - END - self.clock()

    def _granted(self, kind: str) -> float:
        """Return seconds for a step of this kind, less than LEAST where none is to be begun any more."""
        share = STEP * self.limit
        if kind in self._longest:
            share = min(share, FACTOR * self._longest[kind] + BIT)
        return min(share, self._seconds_left())

    def _out_of_time(self, what: str) -> None:
        self.seen.cut = f"{self.limit:g} s were over before {what}"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _roll_call(self) -> list[str]:
        begin = self.clock()
        answers, missing = self.runs.query(self.nodes, max(STILL_THERE, ROLL_CALL * self.limit))
        self.seen.cut = ""
        gates = {node: answer for node, answer in answers.items() if answer.gate is not None}
        critical = {node: answer.said for node, answer in gates.items() if answer.gate == roll_call.CRITICAL}
        self.seen.add(preflight.ANSWERS, "drift", missing)
        self.seen.add(preflight.GATE, "drift", critical)
        text = f"responses: {len(answers)} of {terminal.counted(len(self.nodes), 'node')} responded"
        if gates:
            text += f", {len(critical)} of {len(gates)} gates found something critical"
        mute = nodeset.grouped((gates[node].said, node) for node in gates if gates[node].gate == roll_call.NO_VERDICT)
        silent = {f"the gate has no verdict on {nodeset.brief(nodes, _ROOM)}": why for why, nodes in mute.items()}
        self._report_step(text, begin, {**missing, **critical, **silent})
        self.names = {node: answer.host.partition(".")[0] for node, answer in answers.items()}
        there = [node for node in self.nodes if node in answers and node not in critical]
        self.search = self._searched(dict.fromkeys(there, (None, "not measured yet")))
        return there

    def _measure_alone(self, there: Sequence[str]) -> None:
        begin, granted = self.clock(), self._granted(ALONE)
        if granted < LEAST:
            self._out_of_time("each node was measured alone")
            return
        taken = dict(zip(there, self._measure([(node,) for node in there], ALONE, granted), strict=True))
        silent = {node: one.said for node, one in taken.items() if one.figure is None}
        # Where no node has a figure, none of them is the cause.
        self.seen.add(preflight.ALONE, "drift" if len(silent) < len(taken) else "unknown", silent)
        self.search = self._searched({node: (one.figure, one.said) for node, one in taken.items()})
        bar = self.site.node_bar()
        slow = {
            node: one.said or f"{one.figure or 0:.4g} GB/s"
            for node, one in taken.items()
            if judge_figure(one.figure, bar) != PASS
        }
        fast = (
            f"{len(taken) - len(slow)} of {terminal.counted(len(taken), 'node')} at {bar.value or 0:.4g} GB/s or more"
        )
        self._report_step(f"alone: {fast}", begin, slow)

    def _between(self) -> None:
        while tests := self.search.next_round():
            granted = self._granted(tests[0].kind)
            if granted < LEAST:
                self._out_of_time(f"round {tests[0].number} ({tests[0].kind}) was started")
                return
            done = trials.play_round([self.search], functools.partial(self._measure_tests, granted), self._lost)
            self.tests += done
            for line in localise_table.round_lines(done):
                self.say(line)

    def _measure_tests(self, granted: float, tests: Sequence[Test]) -> list[Result]:
        taken = self._measure([test.hosts for test in tests], tests[0].kind, granted)
        return [Result(test, one.figure, one.said) for test, one in zip(tests, taken, strict=True)]

    def _measure(self, teams: Sequence[Sequence[str]], kind: str, granted: float) -> list[StepResult]:
        jobs = [self.site.job(team, self.names, kind) for team in teams]
        taken = [steps.taken(result) for result in self.runs([job.call(self.site.values(granted)) for job in jobs])]
        good = [one.seconds for one in taken if one.figure is not None]
        if good:
            self._longest[kind] = max(good)
        self.simulated |= any(one.simulated for one in taken)
        return taken

    def _lost(self, silent: Sequence[str]) -> dict[str, str]:
        if self._seconds_left() < LEAST:
            return {}
        return self.runs.query(silent, STILL_THERE)[1]

    def _searched(self, alone: Mapping[str, tuple[float | None, str]]) -> Localisation:
        """Return the search at its start. alone: figure of each node alone, and why there is none."""
        bar = self.site.node_bar()
        nodes = []
        for node in self.nodes:
            own = self.seen.own.get(node)
            figure, said = alone.get(node, (None, own.have if own is not None else ""))
            unfit = None if figure is not None else Unfit(said or "no result alone", preflight.ALONE.fix)
            nodes.append(Node(node, self.leaves.get(node, ""), (), figure, bar.value, unfit=unfit))
        return Localisation(nodes, self.site.bar)

    def _report_step(self, text: str, begin: float, details: Mapping[str, str]) -> None:
        self.say(f"{text} ({self.clock() - begin:.1f} s)")
        for name, why in details.items():
            self.say(f"  {nodeset.cut(name, _ROOM)}: {why}")
