# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print the verdict over all hosts and fail on anything but ok. Documented in library/verdict.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.parsing.vault import EncryptedString
from ansible.utils.display import Display
from ansible.vars.hostvars import HostVarsVars
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_counters import CONGESTION
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    accepted,
    codec,
    due_roles,
    expected_roles,
    findings_file,
    intent,
    reboot,
    result_schema,
    results_folder,
    suite,
    terminal,
    verdict,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.control import ControlAction, Spec, Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.stage import Fleet
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars, Plain, PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult, role_results

display = Display()
COLLECTION = "busbar.fabric."

# Counters of a port that grow under every load: traffic, and what congestion control does.
_USUAL = re.compile("port_(xmit|rcv)_(packets|wait)|%s|[rt]x_prio[0-7]_pause(_duration)?" % "|".join(CONGESTION))
# What is known of a GPU that nobody has asked of a port.
_PARTS = ("product", "serial", "part", "firmware", "slot", "board")


class ActionModule(ControlAction):
    SPEC: ClassVar[Spec] = {
        "roles": {"type": "list", "elements": "str"},
        "path": {"type": "path", "default": ""},
        "nightly": {"type": "bool", "default": False},
    }

    def act(self, variables: Values, given: Values) -> Values:
        role = str(self._task._role or "").removeprefix(COLLECTION)
        if role in suite.ROLES:
            return self._of_role(role, variables)
        # One verdict on all hosts, with and without `run_once`.
        if not self._task.run_once and variables["inventory_hostname"] != variables["ansible_play_hosts"][0]:
            return {"changed": False, "skipped": True}
        roles = given["roles"] or suite.judged(given["nightly"])
        found = _Found()
        # Every host of the play before any was lost: an unreachable one is not in ansible_play_hosts any more.
        for host in variables["ansible_play_hosts_all"]:
            # Ansible gathers all of a host's variables anew at each of these look-ups: one a host. What a run registers
            # holds no templates, and looking for them costs more than all else here.
            raw = variables["hostvars"].raw_get(host)
            found.add(host, raw, self._loader, roles, variables, given["nightly"])
        tags = (list(variables.get("ansible_run_tags") or ["all"]), variables.get("ansible_skip_tags"))
        judged = found.judge(roles, variables, partial=tags[0] != ["all"] or bool(tags[1]))
        self._print(judged, variables, str(variables.get("ansible_limit") or ""))
        if given["path"]:
            try:
                run = _run(variables, found.simulated)
                data = {**judged.to_dict(), "check_mode": bool(self._task.check_mode), "run": run}
                for host, of_host in data["hosts"].items():
                    of_host.update(found.more[host])
                # For its owner only: findings name a site's addresses and versions, and quote tools.
                results_folder.replace_file(given["path"], findings_file.text(data, found.evidence))
            except OSError as error:
                return {"failed": True, "msg": f"busbar_findings_path: {error_text(error)}"}
        failure = {} if judged.ok else {"failed": True, "msg": verdict.not_ok(judged)}
        return {"changed": False, "ok": judged.ok, **failure}

    def _of_role(self, role: str, variables: due_roles.AuditResult) -> dict[str, object]:
        """Print what a role has found on this host, and fail on it, unless the playbook judges all roles."""
        if not boolean(self._templar.template(variables.get("busbar_role_verdict", True))):
            return {"changed": False, "skipped": True}
        host = variables["inventory_hostname"]
        names = [role, *(one.name for one in suite.SUITE if one.home == role)]
        registered = {
            name: due_roles.registered_by(name, variables)
            for name in names
            if due_roles.has_registered(name, variables)
        }
        wanted = variables.get("busbar_intent") or {}
        found = _Found(
            results={host: role_results(registered)},
            off={host: expected_roles.off(wanted) if wanted.get("values") else {}},
        )
        found.hidden = secrets(variables["hostvars"].raw_get(host), self._loader, host)
        found.accepted[host] = accepted.parse(self._templar.template(variables.get(accepted.VARIABLE) or []))
        judged = found.verdict([*dict.fromkeys((role, *registered))])
        # A role that is off and has judged nothing is in order.
        if all(finding.check == verdict.HOST.id for finding in judged.hosts[0].findings):
            return {"changed": False, "ok": True}
        self._print(judged, variables, None)
        return {"changed": False, "ok": False, "failed": True, "msg": verdict.not_ok(judged)}

    def _print(self, judged: verdict.Verdict, variables: due_roles.AuditResult, limit: str | None) -> None:
        check_mode, verbose = bool(self._task.check_mode), display.verbosity > 0
        text = verdict.render(judged, check_mode, terminal.WIDTH, _inventory(variables), limit, verbose)
        display.display(f"\n{text}\n")


@dataclass
class _Found:
    """The results of a run. results: host -> role -> result. more: host -> more entries for the findings file.

    hidden: secrets of the inventory.   on_demand: roles that need not be played, and that a host has a result of.
    off: host -> roles that its own values turn off.   fleet: inputs of the comparison of hosts.
    audited: host -> packed evidence of the audit's passed checks.   own: host -> secrets of its variables.
    accepted: host -> deviations that the inventory accepts.
    """

    results: dict[str, dict[str, RoleResult]] = field(default_factory=dict)
    more: dict[str, Plain] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    simulated: bool = False
    on_demand: set[str] = field(default_factory=set)
    fleet: Fleet = field(default_factory=Fleet)
    accepted: dict[str, tuple[accepted.Acceptance, ...]] = field(default_factory=dict)
    off: dict[str, Mapping[str, str]] = field(default_factory=dict)
    audited: dict[str, str] = field(default_factory=dict)
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def evidence(self, host: str) -> dict[str, list[str]]:
        """Return value and source of each passed check of a host, without the secrets of its variables."""
        found: dict[str, list[str]] = findings_file.unpacked(self.audited[host])
        for result in self.results[host].values():
            found.update({name: [*pair] for name, pair in result.evidence.items()})
        return {name: [redaction.scrub(text, self.own[host]) for text in pair] for name, pair in found.items()}

    def judge(
        self, roles: Sequence[str], variables: PlainView, partial: bool = False, ended: bool = False
    ) -> verdict.Verdict:
        """Return the verdict, with the comparisons between hosts. variables: of the run.

        Roles on demand that no host has a result of are not missing.
        """
        played = [role for role in roles if verdict.played(role, variables)]
        joined = self.fleet.join(self.results, played, variables, self.off)
        roles = [*dict.fromkeys((*roles, *joined))]
        more = [role for role in suite.ON_DEMAND if role in self.on_demand and role not in roles]
        for of_host in self.results.values():
            for role in more:
                of_host.setdefault(role, RoleResult())
        return self.verdict([*roles, *more], partial, ended)

    def verdict(self, roles: Sequence[str], partial: bool = False, ended: bool = False) -> verdict.Verdict:
        """Return the verdict on the results, without accepted findings and secrets."""
        judged = verdict.judge(self.results, roles, partial, ended, self.off)
        judged = verdict.accept(judged, self.accepted, accepted.today()).scrubbed(self.hidden)
        return replace(judged, simulated=self.simulated)

    def add(
        self, host: str, raw: PlainView, loader: object, roles: Sequence[str], variables: PlainView, nightly: bool
    ) -> None:
        """Add a host. raw: its variables, as Ansible's hostvars have them. variables: of the run."""
        of_host = secrets(raw, loader, host)
        self.hidden.update(of_host)
        self.own[host] = redaction.secret_texts(of_host)
        # A template that fails accepts nothing.
        with contextlib.suppress(AnsibleError):
            of_inventory = HostVarsVars(raw, loader=loader, host=host)
            self.accepted[host] = accepted.parse(of_inventory[accepted.VARIABLE] if accepted.VARIABLE in raw else ())
        audit = due_roles.answer(raw)
        values = (raw.get("busbar_intent") or {}).get("values", {})
        self.fleet.add(host, raw, audit)
        off = audit.get("off") or (expected_roles.off(raw["busbar_intent"]) if values else {})
        # Run by hand, verify.yml tests whatever busbar_verify is.
        self.off[host] = {} if list(roles) == [suite.VERIFY] else off
        self.audited[host] = audit.get("evidence", "")
        first = roles[0] if roles and verdict.played(roles[0], variables) else "node_lock"
        own = [role for role in suite.ON_DEMAND if due_roles.has_registered(role, raw)]
        self.on_demand.update(own)
        registered = due_roles.results(raw, [*dict.fromkeys((*roles, *own))], first, nightly)
        for role, told in reboot.untouched(raw).items():
            if role in roles and verdict.played(role, variables):
                registered.setdefault(role, told)
        self.results[host] = role_results(registered)
        busbw = _busbw(registered.get("nccl_benchmark") or {})
        health = _health(registered.get("node_health") or {})
        # A host that was worked on afterwards has its end from that, and not from an audit without a response.
        worked = any(f"{role}_result" in raw for role in roles)
        end = None if worked else _end(audit)
        self.more[host] = {"intent": _intent(raw, audit), "end": end, "busbw": busbw, "health": health}
        self.simulated = self.simulated or raw.get("busbar_hardware_root", "/") != "/"


def until_now(
    hosts: Sequence[str],
    hostvars: HostVars,
    loader: object,
    variables: PlainView,
    arguments: PlainView,
    heard: Mapping[str, PlainView],
) -> verdict.Verdict:
    """Return the verdict on a run that was ended before its own.

    hostvars: of Ansible. variables: of the start of the run. arguments: of the run's task of verdict.
    heard: host -> result, where the audit was interrupted. Raises AnsibleError.
    """
    nightly = arguments.get("nightly") is True
    given = arguments.get("roles")
    every = given if isinstance(given, list) else suite.judged(nightly)
    roles = [role for role in every if verdict.played(role, variables)]
    found = _Found()
    for host in hosts:
        raw = hostvars.raw_get(host)
        if "fleet_audit_result" not in raw:
            raw = {**raw, "fleet_audit_result": {"hosts": heard}}
        found.add(host, raw, loader, roles, variables, nightly)
    judged = found.judge(roles, variables, ended=True)
    return replace(judged, left_out=tuple(role for role in every if role not in roles))


def secrets(raw: due_roles.AuditResult, loader: object, host: str) -> set[str]:
    """Return the secrets of the inventory for a host: by name, or from a vault.

    raw: what Ansible's hostvars have of the host.
    """
    of_host = HostVarsVars(raw, loader=loader, host=host)
    found: set[str] = set()
    for name, value in raw.items():
        # Registered results hold no secret of the inventory, and ``groups`` has every host once for every host.
        if name in intent.REGISTERED or name == "groups" or name.startswith("__"):
            continue
        # A lookup that fails, a vault that stays shut: there is no text that could leak.
        with contextlib.suppress(AnsibleError):
            # Templated only where that matters: a password may come from a lookup.
            given = of_host[name] if redaction.is_secret_name(name) else value
            found.update(redaction.find_secrets({name: given}, EncryptedString))
    return found


def _end(audit: PlainView) -> str | None:
    """Return how the audit of a host ended, where its findings do not show that; else None."""
    ends = {"unreachable": "unreachable", "timedout": "timed_out", "not_run": "not_run"}
    return next((end for key, end in ends.items() if audit.get(key)), None)


def _intent(raw: PlainView, audit: PlainView) -> str | None:
    read = raw.get("busbar_intent") or {}
    found: str | None = audit.get("intent")
    return intent.digest(read) if "values" in read else found


def _busbw(benchmark: PlainView) -> dict[str, Plain]:
    """Return benchmark run -> figure and bar in GB/s and time of measurement, where there is a figure."""
    names = ("busbw", "bar", "finished", "simulated")
    if not codec.is_valid(codec.many(result_schema.a_run), benchmark.get("runs") or []):
        return {}
    return {
        run["name"]: {name: run.get(name) for name in names}
        for run in benchmark.get("runs") or []
        if run.get("busbw") is not None
    }


def _health(role: PlainView) -> list[Plain]:
    """Return the devices of a node that are wrong or have growing counters, with the ports of its rails."""
    devices, ports = role.get("devices") or [], role.get("ports") or []
    if not (
        codec.is_valid(result_schema.health_devices, devices) and codec.is_valid(result_schema.health_ports, ports)
    ):
        return []
    found = {one["pci"]: {**one, "grown": {**one["grown"]}} for one in devices}
    for port in ports:
        lost = {name: count for name, count in port["grown"].items() if count and not _USUAL.fullmatch(name)}
        if lost:
            there = {"pci": port["pci"], "name": "rail %d" % port["rail"], "seconds": port["seconds"], "grown": {}}
            one = found.setdefault(port["pci"], {**there, **dict.fromkeys(_PARTS)})
            one["seconds"] = one["seconds"] or port["seconds"]
            one["grown"].update(lost)
    return [*found.values()]


def _run(variables: PlainView, simulated: bool) -> Plain:
    """Return the description of the run for the findings file. variables: of the task, for any host."""
    revision = variables.get("awx_project_revision")
    return findings_file.of_run(
        started=(variables.get("fleet_audit_result") or {}).get("begun"),
        ended=findings_file.now(),
        inventory=_inventory(variables),
        limit=variables.get("ansible_limit"),
        group=[str(host) for host in variables["groups"].get(findings_file.GROUP) or []],
        simulated=simulated,
        commit=revision if isinstance(revision, str) else None,
    )


def _inventory(variables: due_roles.AuditResult) -> list[str]:
    return [str(path) for path in variables.get("ansible_inventory_sources") or []]
