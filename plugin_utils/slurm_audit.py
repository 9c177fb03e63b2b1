# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run fleet_audit through Slurm: host_audit's query of all nodes in one step.

host_audit has query and gate, slurm_engine the results of each node, slurm_step srun.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleError
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import intent, slurm_engine, slurm_step, suite
from .plain_data import Plain
from .slurm_engine import SlurmError

# Rounds at most: a step that could not begin on one node has begun nowhere, and is tried again without that node.
ROUNDS = 5
# Jobs at a time: usually one per partition.
WIDTH = 16
# Seconds for one module of the audit, as host_audit has it.
STEP = 60.0


@dataclass(frozen=True)
class _Host:
    name: str
    node: str
    python: str
    question: host_audit.Question


def audit(
    names: Sequence[str],
    variables_of: Callable[[str], Mapping[str, object]],
    templar: Templar,
    limit: float,
    tell: Callable[[str], None],
    keep: Callable[[str, Plain], None] = lambda _name, _given: None,
) -> dict[str, Plain]:
    """Return host -> host_audit's result, or why there is none; for each of the names.

    limit: seconds for the results, once Slurm has given the nodes. tell: gets progress. keep: gets each result.
    Raises SlurmError where no host can be queried, before anything is started.
    """
    paths = _may()
    nodes = slurm_engine.nodes_of(slurm_step.run_program(paths["sinfo"], slurm_engine.SINFO))
    run = _Run(paths, limit, tell, keep, len(names))
    hosts: dict[str, _Host] = {}
    for name in names:
        of_host = variables_of(name)
        try:
            made = _host(name, of_host, templar.copy_with_new_env(available_variables=of_host))
        except (ParseError, AnsibleError) as error:
            wrong = {"wrong_inventory": intent.sentences(error)} if isinstance(error, ParseError) else {}
            run.answer(name, {"failed": True, "msg": str(error), **wrong})
            continue
        other = hosts.setdefault(made.node, made)
        said = slurm_engine.refused(nodes.get(made.node))
        if other is not made:
            why = f"{made.node} is the name in Slurm of {other.name}, too"
            run.answer(name, slurm_engine.not_asked(why, "set drain_slurm_node to each node's own name in Slurm"))
        elif said:
            run.answer(name, said)
            del hosts[made.node]
    run.query(hosts, nodes)
    return run.answers


def _may() -> dict[str, str]:
    """Return Slurm's programs, if this user may run the audit. Raises SlurmError."""
    if os.geteuid() != 0:
        way = "run busbar as root on a machine where srun works, or leave --engine slurm out"
        raise SlurmError(f"the audit reads what only root may, and Slurm runs a step as its user: {way}")
    paths = slurm_step.programs()
    if slurm_engine.root_jobs_refused(slurm_step.run_program(paths["scontrol"], ("scontrol", "show", "config"))):
        way = "leave --engine slurm out, or let root run jobs"
        raise SlurmError(f"slurm.conf has DisableRootJobs=YES, and the audit reads what only root may: {way}")
    return paths


def _host(name: str, variables: Mapping[str, object], templar: Templar) -> _Host:
    question = host_audit.question_of([*suite.AUDITED], variables, templar)
    node = str(question.wanted["values"].get("drain_slurm_node") or variables["inventory_hostname_short"])
    if slurm_engine.NAME.fullmatch(node) is None:
        raise AnsibleError(f"drain_slurm_node: {printable(node)!r} is not a name of a node")
    return _Host(name, node, host_audit.python_of(variables, templar), question)


@dataclass
class _Run:
    paths: dict[str, str]
    limit: float
    tell: Callable[[str], None]
    keep: Callable[[str, Plain], None]
    count: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    answers: dict[str, Plain] = field(default_factory=dict)

    def answer(self, name: str, given: Plain) -> None:
        with self.lock:
            self.answers[name] = given
            self.keep(name, given)
            heard = len(self.answers)
        if heard % max(1, self.count // 20) == 0 or heard == self.count:
            self.tell(f"{heard} of {self.count} hosts have responded")

    def query(self, hosts: Mapping[str, _Host], nodes: Mapping[str, slurm_engine.Node]) -> None:
        """Query hosts, by the names of their nodes, each of which Slurm may give."""
        preferred = os.environ.get("SLURM_PARTITION")
        jobs: list[tuple[str, list[_Host]]] = []
        for python in sorted({host.python for host in hosts.values()}):
            alike = [node for node, host in hosts.items() if host.python == python]
            by_partition = slurm_engine.by_partition(alike, nodes, preferred)
            jobs += [(partition, [hosts[node] for node in of_it]) for partition, of_it in by_partition.items()]
        with ThreadPoolExecutor(WIDTH) as threads:
            for done in [threads.submit(self._job, *job) for job in jobs]:
                done.result()

    def _job(self, partition: str, hosts: list[_Host]) -> None:
        left = {host.node: host for host in hosts}
        try:
            for number in range(ROUNDS):
                if not self._step(partition, left, last=number == ROUNDS - 1):
                    return
                left = {node: host for node, host in left.items() if host.name not in self.answers}
                if not left:
                    return
        except SlurmError as error:
            # Fails this job's nodes only: results of the others count.
            for host in left.values():
                if host.name not in self.answers:
                    self.answer(host.name, {"failed": True, "msg": str(error)})

    def _step(self, partition: str, left: Mapping[str, _Host], last: bool) -> bool:
        """Query these hosts. True: some have no result yet, through no fault of theirs."""
        answers = slurm_engine.NodeOutputs(left)
        words = slurm_engine.SrunMessages(frozenset(left))
        waited = set(left)

        def on_output(data: bytes) -> None:
            for node, text in answers.feed(data):
                waited.discard(node)
                if node not in answers.wrong:
                    self.answer(left[node].name, _judged(left[node].question, text))
            waited.difference_update(answers.wrong)

        def on_error_line(line: bytes) -> None:
            label = slurm_engine.label_of(line)
            if label:
                answers.note_error(*label)
            else:
                words.read_line(line.decode("utf-8", "replace"))
                # Nothing more comes from a node that Slurm has given up.
                waited.difference_update(words.lost)

        job = f"{slurm_engine.JOB}-{secrets.token_hex(4)}"
        seconds = self.limit + slurm_engine.IMMEDIATE
        script = Path(constants.DEFAULT_LOCAL_TMP) / job
        questions = {node: host_audit.node_steps(host.question.steps) for node, host in left.items()}
        modules = {step["module"] for steps in questions.values() for step in steps}
        script.write_bytes(host_audit.script(slurm_engine.main_of(questions, STEP, seconds), modules))
        python = next(iter(left.values())).python
        argv = slurm_engine.command(job, partition, left, python, seconds)
        try:
            late = slurm_step.run(self.paths, argv, job, script, seconds, on_output, on_error_line, lambda: not waited)
        finally:
            script.unlink(missing_ok=True)
        silent = [node for node in left if node in answers.wrong or left[node].name not in self.answers]
        if words.not_given and not any(map(answers.begun, left)):
            return self._not_given(left, silent, words.not_given, last)
        again = set() if last or late else words.blameless(silent) - set(answers.wrong)
        for node in set(silent) - again:
            self.answer(left[node].name, slurm_engine.silent(node, answers, words, self.limit, late))
        return bool(again)

    def _not_given(self, left: Mapping[str, _Host], silent: Collection[str], why: str, last: bool) -> bool:
        """Fail hosts that are no longer idle. Return whether the others are to be queried again."""
        nodes = slurm_engine.nodes_of(slurm_step.run_program(self.paths["sinfo"], slurm_engine.SINFO))
        refused = {node: slurm_engine.refused(nodes.get(node)) for node in silent}
        told = {node: given for node, given in refused.items() if given}
        for node in silent:
            if node in told or last or not told:
                self.answer(left[node].name, told.get(node) or slurm_engine.busy(f"no allocation: {printable(why)}"))
        return bool(told) and not last


def _judged(question: host_audit.Question, text: bytes) -> Plain:
    said = text.decode("utf-8", "replace")
    if not said.startswith("{"):
        return question.judged(host_audit.read(question.steps, {"stdout": said, "rc": 0}))
    try:
        path = json.loads(said)["withheld"]
    except (ValueError, KeyError, RecursionError):
        path = "?"
    why = f"Slurm hides {printable(str(path)[:60])} from its steps (ConstrainDevices in cgroup.conf)"
    return slurm_engine.not_asked(why, slurm_engine.OVER_SSH)
