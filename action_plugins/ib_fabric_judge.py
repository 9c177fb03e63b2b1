# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the sweeps of the InfiniBand fabric. Documented in library/ib_fabric_judge.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action.ib_fabric_plan import last_record
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    cabling_plan,
    due_roles,
    fabric_judge,
    fabric_record,
    fabric_run,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import FleetAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Asked
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_record import Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import HostFinding

display = Display()
SOURCE = "nccl_benchmark_results_path"


class ActionModule(FleetAction):
    SPEC: ClassVar[Spec] = {"path": {"type": "path", "default": ""}}

    def act(self, variables: Values, given: Values) -> Values:
        there, hostvars = variables["ansible_play_hosts_all"], variables["hostvars"]
        # Read raw: as an option it would be templated.
        plan = hostvars.raw_get(variables["inventory_hostname"])["ib_fabric_plan_result"]
        of_hosts = dict(due_roles.registered(hostvars, set(there)))
        answers = {host: fabric_run.answer_of(host, hostvars.raw_get(host)) for host in plan["hosts"]}
        run = Run(plan, given["path"], variables["groups"][fabric_run.GROUP], there)
        hosts = run.judged(answers, of_hosts, time.time())
        for line in run.said:
            display.display(line)
        return {"changed": False, "hosts": hosts, "path": run.folder}


class Run:
    """One run over the fabric. plan: registered by ib_fabric_plan.   path: nccl_benchmark_results_path.

    group: all nodes of the inventory.   there: those of the play.   said: lines for the user.
    folder: of the record; "" where none was written.
    """

    def __init__(self, plan: Mapping[str, Any], path: str, group: Sequence[str], there: Sequence[str]) -> None:
        self.plan, self.path, self.group, self.there = plan, path, group, there
        self.said: list[str] = []
        self.folder = ""
        self.problem = ""

    def judged(
        self, answers: Mapping[str, fabric_run.Answer], of_hosts: Mapping[str, Mapping[str, Any]], now: float
    ) -> dict[str, dict[str, Any]]:
        """Return host -> its part of the verdict. answers: of the hosts that were to sweep."""
        last, self.problem = last_record(self.path)
        sweeps = self._sweeps(answers, last, now)
        self.said += fabric_run.lines([one for one, _when in sweeps])
        name, before = self._before(last)
        hosts, silent = fabric_run.hosts_of(self.group, of_hosts, last)
        cables, plan_finding = self._cables()
        asked = Asked(
            sweeps=[one for one, _when in sweeps],
            before=before.sweeps if before is not None else (),
            plan=cables,
            hosts=hosts,
            boots={host: known.boot_id for host, known in (before.hosts if before else {}).items() if known.boot_id},
            wanted=fabric_run.wanted(self.plan["values"]),
        )
        in_play = {host: hosts[host] for host in self.there}
        found = [*fabric_run.of_hosts(self.plan["asked"], answers, bool(sweeps), in_play, silent)]
        judged = fabric_judge.judged(asked)
        found += [HostFinding(hosts=tuple(names), finding=finding) for names, finding in judged.lines]
        found += [
            HostFinding(hosts=self._swept(answers), finding=finding) for finding in (*self._wrong(), *plan_finding)
        ]
        record = Record(
            begun=now,
            finished=max((when for _one, when in sweeps), default=now),
            asked=tuple(self.plan["asked"]),
            hosts=hosts,
            sweeps=tuple(one for one, _when in sweeps),
            taken=tuple(when for _one, when in sweeps),
            before=name,
            findings=tuple(found),
            marks=fabric_run.marks(judged.marks, asked.sweeps),
            complete=fabric_run.is_complete([one for one, _when in sweeps], answers),
        )
        self._write(record)
        kept = HostFinding(hosts=self._swept(answers), finding=self._record())
        return fabric_run.told([*found, kept], answers, self.there, self.group, fabric_run.lacking(of_hosts))

    def _sweeps(
        self, answers: Mapping[str, fabric_run.Answer], last: Record | None, now: float
    ) -> list[tuple[Sweep, float]]:
        """Return sweep and time of each sweep of this run, and of recent ones of planes not swept now."""
        found = [(one, now) for given in answers.values() for one in given.sweeps]
        if last is None:
            return found
        every = zip(last.sweeps, last.taken, strict=True)
        return [*([each for each in every if self.plan["last"] or each[0].plane in self.plan["known"]]), *found]

    def _before(self, last: Record | None) -> tuple[str, Record | None]:
        """Return directory and record that is compared with: the last one in which every plane was complete."""
        if last is None:
            return "", None
        try:
            older = fabric_record.of_run(self.path, last.before)
        except (OSError, ParseError) as error:
            self.problem = f"the record before the last cannot be read: {error_text(error)}"
            older = None
        # A record that is judged again keeps its base of comparison.
        if self.plan["last"] or (not last.complete and older is not None):
            return last.before if older is not None else "", older
        return fabric_record.latest_name(self.path), last

    def _cables(self) -> tuple[Plan | None, list[Finding]]:
        path = self.plan["values"]["busbar_fabric_plan"]
        if not path:
            return None, []
        try:
            return cabling_plan.load(Path(path)), []
        except (OSError, ParseError) as error:
            said = error_text(error)
        return None, [fabric_run.PLAN.judge(path, "unknown", "a cabling plan", said, "busbar_fabric_plan")]

    def _wrong(self) -> list[Finding]:
        fix = "correct busbar_fabric_hosts, which names nodes as the inventory does, or put the node into the group"
        return [
            fabric_run.HOST.judge(
                f"busbar_fabric_hosts {name}", "unknown", "a node", why, "busbar_fabric_hosts", fix=fix
            )
            for name, why in self.plan["wrong"].items()
        ]

    def _swept(self, answers: Mapping[str, fabric_run.Answer]) -> tuple[str, ...]:
        """Return the hosts that get the findings which belong to no other node."""
        return (
            tuple(answers) or tuple(host for host in self.plan["asked"] if host in self.there) or tuple(self.there[:1])
        )

    def _write(self, record: Record) -> None:
        if not self.path or not record.sweeps:
            return
        try:
            self.folder = str(fabric_record.write(self.path, record))
        except (OSError, ParseError) as error:
            self.problem = error_text(error)

    def _record(self) -> Finding:
        where = str(fabric_record.folder(self.path)) if self.path else SOURCE
        state, have = ("unknown", self.problem) if self.problem else ("ok", self.folder or "nothing was swept")
        return fabric_run.RECORD.judge("record of the fabric", state, "kept", have, where)
