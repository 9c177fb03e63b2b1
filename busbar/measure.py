# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar measure``: benchmark idle nodes, those with the oldest results first, within a nightly budget."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    finding_groups,
    measure,
    nodeset,
    repair,
    screen,
    terminal,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import LOCKED, WORDS, of_states
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import PlainView

from . import ansible_process, private_tempdir
from .command_line import ANSIBLE, add_ansible, complain, not_installed, number
from .drift import inventory as inventories
from .drift import lock, runner, signals
from .drift.run import HostResult

PLAYBOOK = "busbar.fabric.benchmark"
# No task has this tag: a play with it takes the locks of the nodes, and gives them back.
NO_TAG = "busbar_locks_only"
# Lines of the plan.
PLAN = 8
Values = Mapping[str, PlainView]


class MeasureError(RuntimeError):
    """Nothing can be measured; the message has the reason, and the way out."""


def add(command: argparse.ArgumentParser) -> None:
    text = "inventory, as for ansible-playbook"
    command.add_argument("-i", "--inventory", required=True, action="append", type=Path, metavar="PATH", help=text)
    command.add_argument("--limit", metavar="HOSTS", help="only these hosts; an empty limit is refused")
    command.add_argument("--check", action="store_true", help="print the plan and measure nothing")
    text = "node-minutes per night (default: busbar_measure_budget)"
    command.add_argument("--budget", type=number(0, 1e9, "number of node-minutes"), metavar="N", help=text)
    command.add_argument("-v", "--verbose", action="store_true", help="print everything, including each round")
    add_ansible(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    missing = not_installed(ANSIBLE)
    if missing:
        return complain("measure", missing)
    try:
        with signals.raised():
            return _MeasureRun(arguments).run()
    except lock.LockedError as error:
        return complain("measure", f"{error}; not started", LOCKED)
    except (MeasureError, runner.RunnerError, signals.Interrupted, OSError, ValueError) as error:
        return complain("measure", error)


class _MeasureRun:
    """One run of the command: its arguments, the inventory's values, and the ledger."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._manifest = inventories.read(arguments.inventory, arguments.limit)
        self._paths = inventories.sources(arguments.inventory)
        self._values = _intents(arguments.inventory, arguments.limit, self._manifest)
        given = arguments.budget
        self._budget = float(_common_value(self._values, "busbar_measure_budget") if given is None else given)
        path = str(_common_value(self._values, "nccl_benchmark_results_path"))
        if not path:
            raise MeasureError("nccl_benchmark_results_path is empty: ages and the budget are stored there; set it")
        self._results = Path(path).absolute()
        if all(map(measure.uses_slurm, self._values.values())):
            raise MeasureError(f"nothing can be measured: {measure.SLURM} (docs/benchmark.md#idle-nodes)")

    def run(self) -> int:
        if self._budget <= 0:
            print("nothing is measured: the budget is 0 node-minutes (busbar_measure_budget)")
            return 0
        if self._arguments.check:
            ledger = measure.load(self._results)
            ledger.book()
            ledger.scan(self._results, time.time())
            self._print_plan(*self._plan(ledger), check_mode=True)
            return 0
        path = measure.path_of(self._results)
        with lock.held(lock.lock_file(path), f"busbar measure, begun {time.strftime('%Y-%m-%dT%H:%M:%S')}"):
            ledger = measure.load(self._results)
            if was := ledger.book():
                hosts = printable(nodeset.brief(was.hosts, measure.ROOM))
                print(f"{hosts}: a run before this one was killed there, {was.cost:g} node-minutes count", flush=True)
                there = [host for host in was.hosts if host in self._values]
                if there:
                    self._play(there, "--tags", NO_TAG)
            ledger.scan(self._results, time.time())
            measure.save(self._results, ledger)
            return self._rounds(ledger)

    def _rounds(self, ledger: measure.Ledger) -> int:
        results: dict[str, HostResult] = {}
        found, left, begun = self._plan(ledger)
        self._print_plan(found, left, begun, check_mode=False)
        try:
            while found.units:
                batch = found.batch()
                of_round = self._round(ledger, batch)
                results |= of_round
                if self._arguments.verbose:
                    self._report(of_round)
                found, left, begun = self._plan(ledger)
        finally:
            if results:
                self._report(results)
        return _code(results)

    def _plan(self, ledger: measure.Ledger) -> tuple[measure.Plan, float, float]:
        """Return the plan, the node-minutes that are left, and the time."""
        now = time.time()
        name, begun = measure.night(now)
        left = self._budget - ledger.nights.get(name, 0.0)
        nodes = [measure.node_of(host, values, ledger.host(host)) for host, values in self._values.items()]
        return measure.plan(nodes, left, begun), left, now

    def _print_plan(self, found: measure.Plan, left: float, now: float, check_mode: bool) -> None:
        name, _begun = measure.night(now)
        lines = [
            f"budget of {name}: {left:g} of {self._budget:g} node-minutes are left",
            "no scheduler is queried: only what runs on a node at that moment, and the node's lock, keep it from jobs",
            *measure.plan_lines(found, check_mode),
        ]
        if not self._arguments.verbose:
            blocks = [screen.wrapped(line, terminal.WIDTH, 0, screen.LINES) for line in lines]
            lines = screen.page((), blocks, (), terminal.WIDTH, "-v", "line", height=PLAN)
        print("\n".join(map(printable, lines)), flush=True)

    def _round(self, ledger: measure.Ledger, batch: Sequence[measure.Unit]) -> dict[str, HostResult]:
        hosts = [host for unit in batch for host in unit.hosts]
        begun = time.time()
        try:
            ledger.grant(measure.night(begun)[0], sum(unit.cost for unit in batch), hosts, begun)
            measure.save(self._results, ledger)
            return self._play(hosts)
        finally:
            minutes = (time.time() - begun) / 60
            ledger.book(round(minutes * len(hosts), 2))
            ledger.scan(self._results, time.time())
            for unit in batch:
                scope = unit.nodes[0].scope
                for known in map(ledger.host, unit.hosts):
                    if known.finished.get(scope, 0.0) >= begun - 1:
                        known.minutes[scope] = round(minutes, 2)
            measure.save(self._results, ledger)

    def _play(self, hosts: Sequence[str], *words: str) -> dict[str, HostResult]:
        manifest = inventories.Manifest(tuple(hosts), self._manifest.secrets, self._manifest.simulated)
        with private_tempdir.directory() as folder, signals.collected() as ended:
            file, limit = folder / "findings.json", folder / "hosts"
            limit.write_text("".join(f"{host}\n" for host in hosts))
            done = ansible_process.run(
                private_data_dir=str(folder),
                inventory=self._paths,
                playbook=PLAYBOOK,
                limit=f"@{limit}",
                cmdline=" ".join(words) or None,
                extravars={
                    "busbar_findings_path": str(file),
                    "nccl_benchmark_results_path": str(self._results),
                    "nccl_benchmark_when": "always",
                },
                event_handler=lambda _event: False,
                cancel_callback=lambda: bool(ended),
            )
            if ended:
                raise signals.Interrupted(ended[0])
            if words:
                return {}
            if not file.exists():
                said = f"ansible-playbook {done.status}, rc {done.rc}: {runner.tail(done.stdout.read(), PLAYBOOK)}"
                raise runner.RunnerError(runner.clean(said, self._manifest.secrets))
            found = runner.results(runner.read_findings(file, len(hosts)), manifest, {})
            return {host: replace(of, findings=_standing(of)) for host, of in found.items()}

    def _command(self, fix: str, hosts: Sequence[str], _groups: str) -> str:
        return repair.command(fix, hosts, self._paths)

    def _report(self, results: Mapping[str, HostResult]) -> None:
        rows = screen.rows(finding_groups.fold(finding_groups.rows_of({h: of.findings for h, of in results.items()})))
        good = sum(not result.findings for result in results.values())
        head = f"MEASURED {WORDS[_code(results)]}: {good:,} of {len(results):,} hosts ok"
        more, verbose = f"-v, or {self._results}", self._arguments.verbose
        height = screen.HEIGHT - PLAN
        print(screen.render(head, "benchmark", rows, (), self._command, terminal.WIDTH, more, verbose, height=height))
        sys.stdout.flush()


def _standing(result: HostResult) -> tuple[Finding, ...]:
    """Return the findings of a host that the inventory does not accept."""
    return tuple(accepted.split(result.findings, result.acceptances, accepted.today())[0])


def _code(results: Mapping[str, HostResult]) -> int:
    return of_states(one.state for of in results.values() for one in of.findings if one.because is None)


def _common_value(values: Values, name: str) -> Any:
    found = {repr(of_host[name]): of_host[name] for of_host in values.values()}
    if len(found) > 1:
        raise MeasureError(f"{name} is {' and '.join(sorted(found)[:3])}: set it to the same for all of gpu_nodes")
    return next(iter(found.values()))


def _intents(paths: Sequence[Path], limit: str | None, manifest: inventories.Manifest) -> Values:
    """Return host -> values, by the module intent, which touches no host. Raises MeasureError for a wrong inventory."""
    with private_tempdir.directory() as folder:
        found, done = ansible_process.run_module(
            private_data_dir=str(folder),
            inventory=inventories.sources(paths),
            module="busbar.fabric.intent",
            limit=limit,
        )
        said = done.stdout.read()
    silent = [host for host in manifest.hosts if "values" not in found.get(host, {})]
    if silent:
        wrong = [str(found[host]["msg"]) for host in silent if "msg" in found.get(host, {})]
        why = "; ".join(wrong[:3]) or f"no result of {', '.join(silent[:3])}: {runner.tail(said)}"
        raise MeasureError(runner.clean(why, manifest.secrets))
    return {host: found[host]["values"] for host in manifest.hosts}
