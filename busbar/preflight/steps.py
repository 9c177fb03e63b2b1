# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run Slurm steps inside a job's own allocation: the roll call of its nodes, and nccl-tests over teams of them.

They run as the job's user, with the job's environment. A step is ended at its limit, with its srun, and with this
process.
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.process_group import Program
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate_files
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch, roll_call
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.launch import Launch, Launcher
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import collect as nccl_perf_collect
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import launch_command
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import module as nccl_perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import result as perf_answer
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, nodeset, slurm_engine, slurm_step
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call, Result
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.preflight import RollCallResult
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

# Sruns at a time: each is a process with threads here, and a query to slurmctld.
AT_ONCE = 128
# Variables of the job's environment for the ranks: paths of libraries, NCCL and MPI. Slurm's own are left to srun,
# which would take the job's counts and bindings for ours.
_HANDED_ON = re.compile(r"PATH|LD_LIBRARY_PATH|LD_PRELOAD|CUDA_HOME|(NCCL|UCX|OMPI_MCA|PMIX_MCA|FI|OPAL)_\w+")
_SLURMS = ("SLURM_CONF", "SLURM_CONF_SERVER")
# Options of nccl_perf that a campaign leaves to the module; one warm-up is enough for a first look.
_DEFAULTS = {**{name: option.get("default") for name, option in nccl_perf.SPEC.items()}, "warmup": 1}
# Variables that would send NCCL's log to another place.
_NOT = ("NCCL_DEBUG_FILE", "NCCL_TESTS_DEVICE")
T = TypeVar("T")
_PLACES = "/usr/local/bin:/usr/bin:/bin"
_OPTIONS = "the options behind --"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9])?")
_result = codec.of_class(
    RollCallResult, node=codec.text(pattern=_HOST), host=codec.text(pattern=_HOST), said=codec.text()
)
# Without all of these ok there is no figure, whatever the table prints.
_PROOF = tuple(f"nccl_perf.{name}" for name in ("job", "ran", "ranks", "sizes", "correct", "nonzero", "transport"))


@dataclass(frozen=True)
class Allocation:
    """A job's nodes. job: its id.   nodes: Slurm's names, in its order.   leaves: node -> its lowest switch.

    leaves is empty where Slurm has no topology, or not of every node.
    """

    job: str
    nodes: tuple[str, ...]
    leaves: Mapping[str, str]


@dataclass(frozen=True)
class StepResult:
    """The result of a step. figure: busbw in GB/s, None without one; ``said`` has the reason.

    seconds: until it ended.
    """

    figure: float | None
    said: str = ""
    seconds: float = 0.0
    simulated: bool = False


def allocation(environment: Mapping[str, str], programs: Mapping[str, str]) -> Allocation:
    """Return the current job. Raises SlurmError outside a job, or where scontrol does not respond."""
    job, named = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not re.fullmatch(r"[0-9]{1,10}", job) or not named:
        raise SlurmError(
            "there is no job here (SLURM_JOB_ID, SLURM_JOB_NODELIST): run it in a batch script, or below salloc"
        )
    said = slurm_step.run_program(programs["scontrol"], ["scontrol", "show", "hostnames", named])
    nodes = tuple(said.split())
    if not nodes or len(set(nodes)) < len(nodes) or not all(map(_HOST.fullmatch, nodes)):
        raise SlurmError(f"scontrol show hostnames {named} printed {printable(said[:200])!r}")
    try:
        topology = slurm_step.run_program(programs["scontrol"], ["scontrol", "show", "topology"])
    except SlurmError:
        # A Slurm without a topology gives no response, too.
        topology = ""
    return Allocation(job, nodes, leaves(topology, nodes))


def leaves(said: str, nodes: Collection[str]) -> dict[str, str]:
    """Return node -> its switch of level 0 in ``scontrol show topology``; {} where a node has none, or several."""
    found: dict[str, str] = {}
    for line in said.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if words.get("Level") != "0" or not words.get("Nodes"):
            continue
        try:
            below = nodeset.expand(words["Nodes"])
        except ParseError:
            return {}
        for node in below:
            if node in found:
                return {}
            found[node] = words.get("SwitchName", "")
    return {node: found[node] for node in nodes} if found.keys() >= set(nodes) else {}


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the job's environment that the ranks get."""
    given = {name: value for name, value in environment.items() if _HANDED_ON.fullmatch(name) and name not in _NOT}
    return {**given, "PATH": os.pathsep.join(filter(None, [environment.get("PATH", ""), _PLACES]))}


class Steps:
    """Start steps, wait for them, and read their output. Instances are an ``engine.Run`` of calls of nccl_perf."""

    def __init__(
        self,
        allocation: Allocation,
        srun: str,
        folder: Path,
        options: Sequence[str] = (),
        python: str = "python3",
        root: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """folder: private.   options: of srun, beside our own.   python: on the nodes.   root: of their hardware.

        environment: of the job; None: our own. Raises ParseError for what is not an option.
        """
        given = os.environ if environment is None else environment
        self.allocation = allocation
        self.launcher = Launcher("srun", srun, "")
        self.folder = folder
        self.options = tuple(options)
        self.python = python
        self.root = root
        self._handed_on = handed_on(given)
        self._slurms = {name: given[name] for name in _SLURMS if name in given}
        self._home = {"HOME": given.get("HOME", "/"), "LC_ALL": "C"}
        self._number = 0
        launch.wanted({"kind": "srun", "hosts": ["node"], "per_node": 1, "options": list(options), "python": python})

    # -- roll call -----------------------------------------------------------------------------------------------------

    def query(self, nodes: Sequence[str], limit: float) -> tuple[dict[str, RollCallResult], dict[str, str]]:
        """Return node -> its result, and of the others why there is none. limit: seconds of each of two queries.

        One step queries all; with a node that is down it fails as a whole, so that nodes without a result are
        queried again alone.
        """
        found, said = self._query_teams([tuple(nodes)], limit)
        rest = [node for node in nodes if node not in found]
        if rest and len(nodes) > 1:
            again, said = self._query_teams([(node,) for node in rest], limit)
            found.update(again)
        else:
            said = dict.fromkeys(rest, next(iter(said.values()), "no response"))
        return found, {node: said.get(node, "no response") for node in nodes if node not in found}

    def _query_teams(
        self, teams: Sequence[tuple[str, ...]], limit: float
    ) -> tuple[dict[str, RollCallResult], dict[str, str]]:
        """Return node -> result; the first node of each team that did not end well -> srun's message."""
        found: dict[str, RollCallResult] = {}
        why: dict[str, str] = {}
        for wave in _waves(teams):
            programs = [self._program(self._roll_call(team)) for team in wave]
            for team, program, ended in zip(wave, programs, self._run(programs, self._handed_on, limit), strict=True):
                for node, answer in answers(_text(program.stdout), team).items():
                    found[node] = answer
                if ended.ending or ended.rc:
                    last = _last(_text(program.stderr))
                    why[team[0]] = last or (f"no end within {limit:.0f} s" if ended.ending else f"srun: {ended.rc}")
        return found, why

    def _once_on_each(self, nodes: Sequence[str]) -> list[str]:
        words = [self.launcher.path, f"--jobid={self.allocation.job}", "--nodelist=" + ",".join(nodes)]
        words += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--overlap", "--overcommit"]
        return [*words, "--mem=0", "--cpu-bind=none", "--mpi=none", "--input=none", "--export=PATH"]

    def _roll_call(self, nodes: Sequence[str]) -> list[str]:
        words = [*self._once_on_each(nodes), "--wait=2"]
        words += ["--kill-on-bad-exit=0", self.python, "-I", "-S", "-c", inspect.getsource(roll_call)]
        return [*words, gate_files.STATE]

    def print_on_all(self, options: Sequence[str], argv: Sequence[str], limit: float) -> tuple[str, str]:
        """Run a program once on each node. Return its labelled output, and srun's message if the step failed."""
        words = [*self._once_on_each(self.allocation.nodes), *slurm_engine.APART, *options]
        program = self._program([*words, *argv])
        [ended] = self._run([program], self._handed_on, limit)
        failed = ended.ending or ended.rc
        last = _last(_text(program.stderr)) or f"srun ended with {ended.rc}, or not within {limit:.0f} s"
        return _text(program.stdout), last if failed else ""

    # -- measurements --------------------------------------------------------------------------------------------------

    def __call__(self, calls: Sequence[Call]) -> list[Result]:
        """Run calls over disjoint teams, with the same variables, at once. A result has its ``seconds``, too."""
        return [result for wave in _waves(calls) for result in self._measure(wave)]

    def _measure(self, calls: Sequence[Call]) -> list[Result]:
        limit = float(calls[0].arguments["timeout"])
        jobs = [self._launch(call.arguments["launch"]) for call in calls]
        wanted = [_wanted(call, job) for call, job in zip(calls, jobs, strict=True)]
        # Overrides the job's own: the bar is for the variables that the run sets.
        environment = {**self._handed_on, **calls[0].arguments["environment"], **wanted[0].variables}
        names = [name for name in environment if name.startswith("NCCL_")]
        programs = [
            self._program(
                [*launch.words(job, self.launcher, sorted(environment), limit, self.root or "/"), *one.program]
            )
            for job, one in zip(jobs, wanted, strict=True)
        ]
        found: list[Result] = []
        ended = self._run(programs, environment, limit + launch.GRACE)
        for job, one, program, end in zip(jobs, wanted, programs, ended, strict=True):
            run = perf_run.Run(one.command, end.rc, end.ending, limit, time.time(), end.left_behind)
            try:
                output = nccl_perf_collect.read(program.stdout, program.stderr, one, job, names)
                run = nccl_perf_collect.complete(run, output, self.launcher)
                plan, more = perf_answer.judge(run, one, time.time())
                found.append({**plan.result(), **more, "seconds": end.seconds})
            except ReadError as error:
                found.append({"failed": True, "msg": str(error), "seconds": end.seconds})
            # NCCL's log of a thousand ranks is no small file.
            for path in (program.stdout, program.stderr):
                Path(path).unlink(missing_ok=True)
        return found

    def _launch(self, given: PlainView) -> Launch:
        job = launch.wanted({**given, "options": [*self.options], "python": self.python})
        return replace(job, inside=self.allocation.job)

    # -- programs ------------------------------------------------------------------------------------------------------

    def _program(self, argv: Sequence[str]) -> Program:
        self._number += 1
        return Program(tuple(argv), *(str(self.folder / f"{self._number}.{name}") for name in ("out", "err")))

    def _run(
        self, programs: Sequence[Program], handed_on: Mapping[str, str], limit: float
    ) -> list[process_group.Ended]:
        environment = {**self._home, **self._slurms, **handed_on}
        try:
            return process_group.run_all(programs, str(self.folder), environment, limit)
        except ReadError as error:
            raise SlurmError(str(error)) from error


def _wanted(call: Call, job: Launch) -> perf_run.Wanted:
    # As Ansible types the options of a module.
    sizes = {name: str(call.arguments[name]) for name in ("min_bytes", "max_bytes")}
    return launch_command.wanted({**_DEFAULTS, **call.arguments, **sizes}, job)


def taken(result: Result) -> StepResult:
    """Return what a preflight needs of a result of nccl_perf."""
    seconds, simulated = result["seconds"], bool(result.get("simulated"))
    if result.get("failed"):
        return StepResult(None, result["msg"], seconds)
    bad = [from_dict(dict(one)) for one in result["findings"]]
    if any(one.check in _PROOF for one in bad):
        roots = [one for one in bad if one.because is None] or bad
        # The most telling cause first: how it was started, then how it ended.
        first = min(roots, key=lambda one: _PROOF.index(one.check) if one.check in _PROOF else len(_PROOF))
        return StepResult(None, _words(first), seconds, simulated)
    return StepResult(result.get("busbw"), "", seconds, simulated)


def _words(finding: Finding) -> str:
    """Return ``nccl_perf.ran: no end within 20 s``, with the options of this command."""
    have = (finding.have or finding.want or "").replace("nccl_benchmark_launcher_options", _OPTIONS)
    return f"{finding.check}: {have}"[:500]


def answers(said: str, asked: Collection[str]) -> dict[str, RollCallResult]:
    """Return node -> its result of the roll call. Results of nodes that were not queried are dropped."""
    found = {}
    for line in said.splitlines():
        _before, mark, data = line.partition(roll_call.MARK)
        answer = _answer(data) if mark else None
        if answer is not None and answer.node in asked:
            found[answer.node] = answer
    return found


def _answer(text: str) -> RollCallResult | None:
    try:
        data = codec.read(text[:4096])
        _result(data)
    except codec.Invalid:
        return None
    return RollCallResult(**{**data, "said": printable(data["said"][:300])})


def _waves(every: Sequence[T]) -> Iterator[Sequence[T]]:
    for begin in range(0, len(every), AT_ONCE):
        yield every[begin : begin + AT_ONCE]


def _text(path: str) -> str:
    """Return the beginning of a roll call's output: of a thousand nodes it is 300 KB."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(16 << 20)
    except FileNotFoundError:
        return ""


def _last(said: str) -> str:
    """Return srun's reason for a step that did not begin; its last lines only report the end."""
    telling = [line.strip() for line in said.splitlines() if "error: " in line]
    return printable(telling[0][:200]) if telling else ""
