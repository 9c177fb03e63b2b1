# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks a node everything in one question. Documented in library/host_audit.py.

What is asked is read from the roles' own tasks, with the arguments that they give: what they do in check mode and what
the audit does cannot drift apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible_collections.busbar.fabric.plugins.module_utils import bundle, nccl_benchmark

HERE = Path(__file__).resolve().parent.parent
# In a checkout the roles lie beside action_plugins/, in an installed collection beside plugins/.
TOP = HERE if (HERE / "roles").is_dir() else HERE.parent
MODULES = HERE / ("library" if (HERE / "library").is_dir() else "modules")
MODULE_UTILS = HERE / "module_utils"
ACTIONS = "action_plugins" if (HERE / "library").is_dir() else "action"
COLLECTION = "busbar.fabric."
# These hand our script on to what they run.
PIPING = ("sudo", "doas", "pbrun", "dzdo")
# The roles that own a state of a host, in the order of site.yml.
ROLES = (
    *("platform", "mofed", "iommu", "pcie_path", "host_limits"),
    *("mtu", "multirail"),
    *("roce_qos", "nvidia_peermem", "nccl_conf", "nccl_tests"),
)
BENCHMARK = "nccl_benchmark"
MAIN = f"""
from {bundle.PACKAGE} import audit
audit.main(json.loads(%r), %r)
"""


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset({"roles", "timeout"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "roles": {"type": "list", "elements": "str", "default": [*ROLES, BENCHMARK]},
                "timeout": {"type": "float", "default": 60},
            }
        )
        if "busbar_intent" not in variables:
            variables["busbar_intent"] = self._intent(variables)
        intent = variables["busbar_intent"]
        if intent.get("failed"):
            result.update(failed=True, msg=intent["msg"])
            return result
        steps = [step for role in arguments["roles"] for step in self._steps(role, variables)]
        answer = self._ask(steps, arguments["timeout"], variables)
        if "msg" in answer:
            result.update(answer, failed=True)
            return result
        result.update(changed=False, roles=self._by_role(steps, answer["results"], intent))
        return result

    def _intent(self, variables: dict[str, Any]) -> dict[str, Any]:
        task = self._task.copy()
        task.args = {}
        action = self._shared_loader_obj.action_loader.get(
            f"{COLLECTION}intent",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        answer: dict[str, Any] = action.run(task_vars=variables)
        return answer

    # -- what is asked -----------------------------------------------------------------------------------------------

    def _steps(self, role: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
        """The module calls of a role whose result it registers: ``role``, ``module``, ``arguments``."""
        folder = TOP / "roles" / role
        known = {**(self._load(folder / "defaults" / "main.yml") or {}), **variables}
        tasks = [task for path in sorted((folder / "tasks").glob("*.yml")) for task in self._load(path)]
        task, defaults = next(_of_node(tasks, {}))
        module = next(key for key in task if _runs_there(key))
        given = {**defaults.get(module, {}), **(task[module] or {})}
        known.update(task.get("vars", {}))
        steps = []
        for item in self._items(task, known):
            templar = self._templar.copy_with_new_env(available_variables={**known, **item})
            # As a whole: what is omitted drops out of it.
            arguments = templar.template(given)
            steps.append({"role": role, "module": module.removeprefix(COLLECTION), "arguments": arguments})
        return steps

    def _items(self, task: Mapping[str, Any], known: dict[str, Any]) -> list[dict[str, Any]]:
        if "loop" not in task:
            return [{}]
        templar = self._templar.copy_with_new_env(available_variables=known)
        name = task.get("loop_control", {}).get("loop_var", "item")
        return [{name: item} for item in templar.template(task["loop"])]

    def _load(self, path: Path) -> Any:
        return self._loader.load_from_file(str(path), cache="all", trusted_as_template=True)

    # -- the question ------------------------------------------------------------------------------------------------

    def _ask(self, steps: list[dict[str, Any]], limit: float, variables: Mapping[str, Any]) -> dict[str, Any]:
        """``results``, one for each step; or ``msg``, why there are none."""
        script = _bundle([step["module"] for step in steps])
        script += MAIN % (json.dumps([{key: step[key] for key in ("module", "arguments")} for step in steps]), limit)
        if self._can_pipe():
            python = _interpreter(self._templar.template(variables.get("ansible_python_interpreter")))
            done = self._low_level_execute_command(f"{python} -I -S -", in_data=script.encode())
        else:
            done = self._execute_module(f"{COLLECTION}host_audit", {"script": script}, task_vars=variables)
            if done.get("failed"):
                return {"msg": done["msg"]}
        try:
            # A login shell may greet us first.
            results = json.loads(done["stdout"].strip().splitlines()[-1])
        except (IndexError, ValueError):
            said = (done.get("stderr") or done.get("stdout") or "nothing").strip().splitlines()[-1:] or ["nothing"]
            return {"msg": f"the node's python3 ended with {done.get('rc')} and said: {said[0][:300]}"}
        return {"results": results}

    def _can_pipe(self) -> bool:
        """su and its like read a password from where the script would come."""
        become = self._connection.become
        return bool(self._connection.has_pipelining) and (become is None or become.name in PIPING)

    def _by_role(
        self, steps: list[dict[str, Any]], results: list[dict[str, Any]], intent: Mapping[str, Any]
    ) -> dict[str, Any]:
        """role -> what the role would have registered."""
        found: dict[str, Any] = {}
        for step, answer in zip(steps, results, strict=True):
            found.setdefault(step["role"], []).append(answer)
        roles = {role: answers[0] for role, answers in found.items() if role != BENCHMARK}
        if BENCHMARK in found:
            measured = found[BENCHMARK]
            earlier = [roles[role] for role in nccl_benchmark.EARLIER if role in roles]
            others = [finding for result in earlier for finding in result.get("findings", [])]
            plan = nccl_benchmark.judge(intent["profile_name"], intent["benchmark_runs"], measured, others)
            judged = plan.result()
            judged["passed"] += nccl_benchmark.passed(measured)
            roles[BENCHMARK] = judged
        return roles


def _of_node(
    tasks: list[dict[str, Any]], defaults: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Tasks that run a module of ours on the node, each with its module_defaults."""
    for task in tasks:
        inside = {**defaults, **task.get("module_defaults", {})}
        if any(map(_runs_there, task)):
            yield task, inside
        yield from _of_node(task.get("block", []), inside)


def _runs_there(key: str) -> bool:
    name = key.removeprefix(COLLECTION)
    return key.startswith(COLLECTION) and not (HERE / ACTIONS / f"{name}.py").exists()


def _interpreter(given: str | None) -> str:
    """Discovery would be a second question to the host."""
    return "/usr/bin/python3" if given is None or given.startswith("auto") else given


def _bundle(modules: list[str]) -> str:
    """The same for every host: made once in a run, and kept in the run's own directory."""
    names = sorted(set(modules))
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
    path = Path(constants.DEFAULT_LOCAL_TMP) / f"busbar-audit-{digest}.py"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    wanted = [f"{bundle.PACKAGE}.audit", *(f"{bundle.LIBRARY}.{name}" for name in names)]
    sources = {name: bundle.bare(text) for name, text in bundle.closure(wanted, _source_of).items()}
    script = bundle.script(sources, "")
    descriptor, new = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(script)
    os.replace(new, path)
    return script


def _source_of(name: str) -> str:
    package, _dot, module = name.rpartition(".")
    return ((MODULES if package == bundle.LIBRARY else MODULE_UTILS) / f"{module}.py").read_text(encoding="utf-8")
