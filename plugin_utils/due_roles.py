# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide which roles, in which plays, are due on a host after fleet_audit has audited all of them.

site.yml audits every host in one query, as the nightly check does, and runs a role only where the audit found work, or
where a role before it has changed what it checks. Elsewhere the audit's result counts. Where a host was not queried, or
gave no valid result, every role is played.

``of_host``: registered results of a host, as Ansible's ``hostvars.raw_get`` returns them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

from . import suite
from .plain_data import HostVars, Plain, PlainView

AuditResult = PlainView
# Variables that are the same for all hosts of a run.
_SHARED = ("fleet_audit_result", "ansible_check_mode")
_BY_NAME = {role.name: role for role in suite.SUITE}
_TEXTS: dict[str, str] = {}


def answers(of_host: PlainView) -> Mapping[str, AuditResult]:
    """Return host -> its result in fleet_audit; {} where none was queried. of_host: any host's, all have the same."""
    return (of_host.get("fleet_audit_result") or {}).get("hosts") or {}


def answer(of_host: PlainView) -> AuditResult:
    """Return the host's result in fleet_audit; {} where it was not queried."""
    return answers(of_host).get(of_host.get("inventory_hostname", ""), {})


def is_well(heard: AuditResult) -> bool:
    """Return whether the host has responded, and no role has anything to do."""
    return "roles" in heard and not heard["due"]


def roles(heard: AuditResult) -> Plain:
    """Return role -> what it would have registered in check mode; {} of a host that did not respond."""
    return json.loads(heard["roles"], object_hook=_shared) if "roles" in heard else {}


def _shared(data: Plain) -> Plain:
    """Intern ids of checks, which are equal on most hosts: 10,000 hosts take half of the memory."""
    # sys.intern, which Ansible wraps in Python, takes four times as long.
    once = _TEXTS.setdefault
    return {once(name, name): [*map(once, value, value)] if name == "passed" else value for name, value in data.items()}


def to_do(result: PlainView, check_mode: bool) -> bool:
    """Return whether a role has work, from its module's result in check mode.

    In check mode that is a diff to print. Otherwise also withheld changes, since only a run sees what blocks them, and
    due measurements. Pending reboots belong to the play of reboots. A failed role is run so that its error is reported
    normally.
    """
    if any(result.get(name) for name in ("failed", "changed", "reboot_required")):
        return True
    return not check_mode and bool(result.get("withheld") or result.get("due"))


def due(role: str, of_host: PlainView) -> bool:
    """Return whether the role is to be played on the host, at this point of the run."""
    heard = answer(of_host)
    if "roles" not in heard:
        # A node that Slurm has lost may respond to ssh, and has to be repaired.
        return not heard.get("unreachable") or heard.get("engine") == "slurm"
    if role in heard["due"]:
        return True
    # In check mode nothing has changed, whatever a role reports.
    before = [mapping(of_host.get(f"{name}_result")) for name in _BY_NAME[role].after]
    changed = any(result.get("changed") or result.get("reboot") for result in before)
    return changed and not of_host.get("ansible_check_mode")


def results(of_host: PlainView, names: Sequence[str], first: str, nightly: bool) -> Plain:
    """Return role -> its registered result, else that of the audit.

    first: the role that reports why the host did not respond.
    nightly: nothing is played after the audit. Else the audit's result does not count for a role that was due:
    if the host was lost before its turn, there is no result.
    """
    said = answer(of_host)
    heard = of_audit(said, first)
    if "roles" in said and not nightly:
        heard = {name: result for name, result in heard.items() if name not in _BY_NAME or not due(name, of_host)}
    own = {name: registered_by(name, of_host) for name in names if has_registered(name, of_host)}
    lock = of_host.get("node_lock_result") or {"skipped": True}
    return heard | own | ({} if mapping(lock).get("skipped") else {"node_lock": lock})


def mapping(registered: object) -> AuditResult:
    """Return what a host has registered, {} where that is not a dictionary."""
    return registered if isinstance(registered, Mapping) else {}


def has_registered(role: str, of_host: PlainView) -> bool:
    """Return whether the run has a result of the role for the host, valid or not."""
    return _registered(role, of_host) in of_host


def registered_by(role: str, of_host: PlainView) -> object:
    """Return a role's registered result; of a joined role that failed, the failure."""
    result = of_host[_registered(role, of_host)]
    if _is_joined(role) and isinstance(mapping(result).get("hosts"), dict):
        return result["hosts"].get(of_host["inventory_hostname"], Plan().result())
    return result


def _registered(role: str, of_host: PlainView) -> str:
    judged = f"{role}_judged"
    # Played alone, the role has no joined result.
    return judged if _is_joined(role) and judged in of_host else f"{role}_result"


def _is_joined(role: str) -> bool:
    return role in _BY_NAME and _BY_NAME[role].joined


def of_audit(heard: AuditResult, first: str) -> Plain:
    """Return role -> its result in the audit. first: the role that reports why the host did not respond."""
    return roles(heard) or ({first: dict(heard)} if heard else {})


def registered(hostvars: HostVars, wanted: Container[str]) -> Iterator[tuple[str, PlainView]]:
    """Yield host and its registered results, in the inventory's order. hostvars: of Ansible.

    Ansible takes a millisecond to gather a host's variables. Where no role has work, one result is registered,
    which is the same for all of these hosts.
    """
    shared: Plain = {}
    for host in hostvars:
        if host not in wanted:
            continue
        if is_well(answers(shared).get(host, {})):
            yield host, {**shared, "inventory_hostname": host}
            continue
        of_host = hostvars.raw_get(host)
        shared = shared or {name: of_host[name] for name in _SHARED if name in of_host}
        yield host, of_host


def has_play(play: str, of_host: PlainView) -> bool:
    """Return whether a playbook of the suite's roles has one to play on the host."""
    return any(due(role.name, of_host) for role in suite.SUITE if role.play == play and role.audited)
