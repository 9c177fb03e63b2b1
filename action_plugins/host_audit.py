# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Audit a node in one query. Documented in library/host_audit.py.

The hosts' roles are in the table of the suite (plugin_utils/suite.py), the module arguments in the roles' variables,
which their tasks use, too: check mode and audit cannot drift apart.

Ansible forks a worker for every host, and what a worker reads is lost with it. So the roles' queries are read when this
file is imported, before the first fork, and what many hosts share is cached in the run's own directory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    codec,
    due_roles,
    expected_roles,
    findings_file,
    gate_files,
    host_variables,
    intent,
    output_limit,
    result_schema,
    suite,
    verdict,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.stage import declaration
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.run_cache import cached, cached_for

HERE = Path(__file__).resolve().parent.parent
# In a checkout the roles lie beside action_plugins/, in an installed collection beside plugins/.
TOP = HERE if (HERE / "roles").is_dir() else HERE.parent
COLLECTION = "busbar.fabric."
# Become methods that pass our script on to what they run, also as a collection's (community.general.doas).
PIPING = ("sudo", "doas", "pbrun", "dzdo")
LOCK = "node_lock"
# Bytes of a result. A healthy node sends 13 KB, one with all the faults of the lab less than ten times that.
LIMIT = output_limit.MIB
# Set once a query has been built, and with it all that queries have in common.
MADE = threading.Event()
MAIN = f"""
import json
from {bundle.PACKAGE} import audit
audit.main(json.loads(%r), %r, %r)
"""


class ActionModule(ActionBase):
    _VALID_ARGS = frozenset({"roles", "timeout", "first"})

    def run(self, tmp: str | None = None, task_vars: Plain | None = None) -> Plain:
        result: Plain = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "roles": {"type": "list", "elements": "str", "default": [*suite.AUDITED]},
                "timeout": {"type": "float", "default": 60},
                "first": {"type": "str", "default": "", "choices": ["", "query", "report"]},
            }
        )
        if arguments["first"]:
            return {**result, **self._first(arguments["first"], variables)}
        if unknown := sorted(set(arguments["roles"]) - set(_ASKED)):
            msg = f"roles: {', '.join(unknown)}: only {', '.join(_ASKED)} can be requested"
            return {**result, "failed": True, "msg": msg}
        try:
            question = question_of(arguments["roles"], variables, self._templar)
        except ParseError as error:
            return {**result, "failed": True, "wrong_inventory": intent.sentences(error), "msg": str(error)}
        return {**result, **question.judged(self._query(question.steps, arguments["timeout"], variables))}

    # -- the query -----------------------------------------------------------------------------------------------------

    def _first(self, what: str, variables: Plain) -> Plain:
        from ansible_collections.busbar.fabric.plugins.plugin_utils.check import hosts

        try:
            return hosts.report(variables) if what == "report" else hosts.query(self._query, variables, self._templar)
        except ParseError as error:
            return {"failed": True, "msg": str(error)}

    def _query(self, steps: list[Plain], limit: float, variables: PlainView, patience: float = 3600.0) -> Plain:
        """Return ``results``, one for each step; or ``msg``, why there are none. patience: seconds for a call of a
        tool.
        """
        text = cached_for(
            *(steps, f"script {limit} {patience}"),
            lambda: script(MAIN % (json.dumps(node_steps(steps)), limit, patience), {step["module"] for step in steps}),
        )
        MADE.set()
        try:
            with output_limit.limit_output(LIMIT):
                if self._can_pipe():
                    command = f"{python_of(variables, self._templar)} -I -S -c '{bundle.RUN}'"
                    done = self._low_level_execute_command(command, in_data=text)
                else:
                    given = {"script": base64.b64encode(text).decode()}
                    done = self._execute_module(f"{COLLECTION}host_audit", given, task_vars=variables)
        except output_limit.TooMuchError as error:
            return {"msg": str(error)}
        if done.get("failed"):
            return {"msg": printable(str(done.get("msg"))[:1000])}
        return read(steps, done)

    def _can_pipe(self) -> bool:
        """Return whether the connection can pipe a script: su and its like read a password from there."""
        become = self._connection.become
        return bool(self._connection.has_pipelining) and (become is None or become.name.split(".")[-1] in PIPING)


@dataclass(frozen=True)
class Question:
    """The query of one host. steps: ``role``, ``module`` and ``arguments`` of each module call. wanted: its intent.

    verify: verify.yml also tests this host; links between hosts are not judged here.
    check_mode: of the run.
    """

    roles: list[str]
    steps: list[Plain]
    wanted: PlainView
    verify: bool
    check_mode: bool

    def judged(self, answer: PlainView) -> Plain:
        """Return the action's result. answer: as read() returns it."""
        if "msg" in answer:
            return {**answer, "failed": True}
        found = _by_role(self.roles, self.steps, answer["results"], self.wanted)
        evidence = {name: pair for given in found.values() for name, pair in given.pop("evidence", {}).items()}
        values = self.wanted["values"]
        return {
            "changed": False,
            "intent": cached_for(self.wanted, "digest", lambda: intent.digest(self.wanted)),
            # One text: Ansible walks through every value of a result repeatedly, which was a third of the run's cost.
            "roles": json.dumps(found),
            "verify": self.verify,
            "evidence": findings_file.packed(evidence),
            "off": cached_for(self.wanted, "off", lambda: expected_roles.off(self.wanted)),
            "scope": values["nccl_benchmark_scope"],
            "compare": cached_for(self.wanted, "compare", lambda: declaration(self.wanted)),
            "sharp": values["busbar_sharp"],
            "due": _due(found, self.check_mode),
            "drain": values["busbar_drain"] != "none",
            **({"cabling": values["busbar_fabric_plan"]} if values["busbar_fabric_plan"] else {}),
        }


def question_of(names: list[str], variables: PlainView, templar: Templar) -> Question:
    """Return the query of a host about these roles. templar: with the host's variables. Raises ParseError."""
    if "busbar_intent" not in variables:
        variables = {**variables, "busbar_intent": intent_action.of_host(variables, templar)}
    wanted = variables["busbar_intent"]
    # This role's result feeds the fabric's judgement, whatever the tags leave out.
    of_fabric = bool(wanted["values"]["busbar_fabric_hosts"]) and verdict.played(suite.FABRIC, variables)
    rails = fabric_run.RAILS if of_fabric else None
    roles = [role for role in names if role == rails or verdict.played(role, variables)]
    asked = _steps(roles, variables, templar)
    verify = verdict.played(suite.VERIFY, variables) and wanted["values"]["busbar_verify"]
    return Question(roles, asked, wanted, verify, bool(variables.get("ansible_check_mode")))


def node_steps(steps: list[Plain]) -> list[Plain]:
    """Return the steps without what the node does not read."""
    return [{key: step[key] for key in ("module", "arguments")} for step in steps]


def script(main: str, modules: Collection[str]) -> bytes:
    """Return all that is piped to a node's Python. main: its last lines.   modules: those that it runs."""
    return _bundle(frozenset(modules)) + bundle.compressed(main)


def _steps(roles: list[str], variables: PlainView, templar: Templar) -> list[Plain]:
    """Return the module calls of the lock and the roles: ``role``, ``module``, ``arguments``.

    Hosts with equal variables have equal queries: only the first of them pays for the templates.
    """
    wanted = variables["busbar_intent"]
    lock = _lock_step(wanted["values"])
    # The gate's intent holds the queries of other roles, whether these are audited now or not.
    asking = [*roles, *gate_files.ROLES] if suite.GATE in roles else roles
    known = {name: value for role in asking for name, value in _ASKED[role].defaults.items()} | dict(variables)
    names = {name for role in asking for name in _ASKED[role].words if name in known and name != "busbar_intent"}
    own = templar.copy_with_new_env(available_variables=known)
    values = {name: host_variables.rendered(known[name], own) for name in names}
    basis = cached_for(wanted, "hash", lambda: _hash(wanted))
    steps: list[Plain] = cached(
        constants.DEFAULT_LOCAL_TMP,
        [roles, values, basis, lock],
        lambda: [lock, *(step for role in roles for step in _role_steps(role, known, templar))],
    )
    return steps


def _hash(wanted: PlainView) -> str:
    return hashlib.sha256(json.dumps(wanted, sort_keys=True, default=str).encode()).hexdigest()


def _role_steps(name: str, known: Plain, templar: Templar) -> Iterator[Plain]:
    role, asked = suite.AUDITED[name], _ASKED[name]
    known = known | asked.variables
    items: list[Plain] = [{}]
    if role.each:
        own = templar.copy_with_new_env(available_variables=known)
        items = [{role.each: item} for item in own.template(asked.variables[f"__{name}_each"])]
    for item in items:
        own = templar.copy_with_new_env(available_variables=known | item)
        # Templated as a whole, so that omitted arguments drop out.
        arguments = own.template(asked.variables[f"__{name}_arguments"])
        if name == suite.GATE and arguments["stages"]:
            arguments = {**arguments, "sums": gate_files.sums(_gate_texts(arguments, known, templar, ""))}
        yield {"role": name, "module": role.module, "arguments": arguments}


def gate_texts(variables: PlainView, templar: Templar, arguments: PlainView) -> dict[str, str]:
    """Return path -> text of the gate's files on a host. arguments: of the role's module."""
    known = {name: value for role in gate_files.ROLES for name, value in _ASKED[role].defaults.items()}
    values = variables["busbar_intent"]["values"]
    node = values["drain_slurm_node"] or str(variables["inventory_hostname"]).partition(".")[0]
    return _gate_texts(arguments, known | dict(variables), templar, node)


def _gate_texts(arguments: PlainView, known: Plain, templar: Templar, node: str) -> dict[str, str]:
    steps = [step for role in gate_files.ROLES for step in _role_steps(role, known, templar)]
    intent_text = gate_files.intent(arguments, steps, node)
    program = cached(constants.DEFAULT_LOCAL_TMP, "gate program", gate_files.program)
    return gate_files.texts(program, intent_text, arguments["stages"], arguments["nhc"])


def python_of(variables: PlainView, templar: Templar) -> str:
    """Return shell words that find Python: Ansible's discovery, which takes the first of a list, is a second query."""
    given = host_variables.rendered(variables.get("ansible_python_interpreter"), templar)
    given = given or constants.config.get_config_value("INTERPRETER_PYTHON")
    if not given.startswith("auto"):
        return str(given)
    names = constants.config.get_config_value("INTERPRETER_PYTHON_FALLBACK", variables=dict(variables))
    return f"$({' || '.join(f'command -v {shlex.quote(name)}' for name in names)} || echo /usr/bin/python3)"


def _lock_step(values: PlainView) -> Plain:
    """Return the step that reads who works on the node: its state meanwhile may be half changed."""
    here = {"run": _RUN.to_dict(), "minutes": values["busbar_lock_minutes"]}
    arguments = {"state": "held", "system_root": values["busbar_system_root"], **here}
    return {"role": LOCK, "module": LOCK, "arguments": arguments}


def read(steps: list[Plain], done: PlainView) -> Plain:
    """Return ``results``, one for each step, all of them valid; or ``msg``, why there are none."""
    # A login shell may print something first.
    said = str(done.get("stdout") or "").strip().rpartition("\n")[2]
    if not said.startswith("["):
        said = str(done.get("stderr") or "").strip().rpartition("\n")[2] or said or "nothing"
        return {"msg": printable(f"the node's python3 exited with {done.get('rc')}: {said[:300]}")}
    try:
        results = codec.as_list(codec.read(said), len(steps), len(steps))
        checked = []
        for step, given in zip(steps, results, strict=True):
            try:
                checked.append(result_schema.check(step["module"], given))
            except codec.Invalid as error:
                raise error.within(step["module"]) from None
        return {"results": checked}
    except codec.Invalid as error:
        return {"msg": result_schema.SAID + str(error)}


def _by_role(roles: list[str], steps: list[Plain], results: list[Plain], wanted: PlainView) -> Plain:
    answers: dict[str, list[Plain]] = {}
    for step, answer in zip(steps, results, strict=True):
        answers.setdefault(step["role"], []).append(answer)
    measured = answers.pop(suite.BENCHMARK, [])
    found: Plain = {role: given[0] for role, given in answers.items()}
    if suite.BENCHMARK in roles:
        failed = next((answer for answer in measured if answer.get("failed")), None)
        found[suite.BENCHMARK] = failed or nccl_benchmark.judged(
            wanted["profile_name"], wanted["benchmark_runs"], measured, found
        )
    return found


def _due(found: PlainView, check_mode: bool) -> list[str]:
    """Return the roles that site.yml would have to play; all of them if another run works there or left its lock.

    In check mode the lock blocks nothing, and a note names the run that has it.
    """
    free = found[LOCK].get("held") and (check_mode or not found[LOCK]["notes"])
    return [role for role in found if role != LOCK and (not free or due_roles.to_do(found[role], check_mode))]


@dataclass(frozen=True)
class _RoleFiles:
    """A role's query according to its own files. words: possible names of variables in it, and more."""

    variables: Plain
    defaults: Plain
    words: frozenset[str]


def _read_role(role: suite.Role) -> _RoleFiles:
    def load(part: str) -> Plain:
        path = TOP / "roles" / (role.home or role.name) / part / "main.yml"
        return DataLoader().load_from_file(str(path), cache="none", trusted_as_template=True) or {}

    # A folder may hold the query of another role, too.
    variables = {name: value for name, value in load("vars").items() if name.startswith(f"__{role.name}_")}
    return _RoleFiles(
        variables, load("defaults"), frozenset(re.findall(r"[A-Za-z_]\w*", json.dumps(variables, default=str)))
    )


@lru_cache(None)
def _bundle(modules: frozenset[str]) -> bytes:
    """Return the packed modules of an audit. Packing takes 0.5 s of a run."""
    wanted = [f"{bundle.PACKAGE}.{name}" for name in ("audit", "rail_info", "platform_facts", "machine.profile_doubts")]
    wanted += [f"{bundle.LIBRARY}.{name}" for name in sorted(modules)]
    return bundle.compressed(bundle.script(bundle.closure(wanted, bundle.source_of), ""))


_ASKED = {name: _read_role(role) for name, role in suite.AUDITED.items()}
_RUN = node_lock.this_run()
