# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is left to do on a host after fleet_audit has asked all of them: which roles, in which plays.

site.yml asks every host everything in one question, as the nightly check does, and plays a role only where it has
something to write, run or withhold, or where a role before it has changed what it looks at. Of all others the audit's
answer counts. Where a host was not queried, or did not respond that counts, every role is played.

``of_host`` is what a run has registered for a host, as Ansible's ``hostvars.raw_get`` gives it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

Answer = Mapping[str, Any]
# Variables that are the same for all hosts of a run.
_SHARED = ("fleet_audit_result", "ansible_check_mode")
_BY_NAME = {role.name: role for role in suite.SUITE}
_TEXTS: dict[str, str] = {}


def answers(of_host: Mapping[str, Any]) -> Mapping[str, Answer]:
    """Host -> what fleet_audit has heard of it; {} where it asked nobody. of_host: any host's, all hold the same."""
    return (of_host.get("fleet_audit_result") or {}).get("hosts") or {}


def answer(of_host: Mapping[str, Any]) -> Answer:
    """What fleet_audit has heard of this host; {} where it was not queried."""
    return answers(of_host).get(of_host.get("inventory_hostname", ""), {})


def is_well(heard: Answer) -> bool:
    """Whether it has answered, and no role has anything to do."""
    return "roles" in heard and not heard["due"]


def roles(heard: Answer) -> dict[str, Any]:
    """Role -> what it would have registered in check mode; {} of a host that did not respond."""
    return json.loads(heard["roles"], object_hook=_shared) if "roles" in heard else {}


def _shared(data: dict[str, Any]) -> dict[str, Any]:
    """Ids of checks are the same on most hosts: kept once, 10,000 hosts take half of the memory."""
    # sys.intern, which Ansible wraps in Python, takes four times as long.
    once = _TEXTS.setdefault
    return {once(name, name): [*map(once, value, value)] if name == "passed" else value for name, value in data.items()}


def to_do(result: Mapping[str, Any], check_mode: bool) -> bool:
    """Whether a role has work, from what its module said in check mode.

    In check mode that is a diff to be shown. Else also what is withheld, since only a run knows who is in the way, and
    a measurement that is due. What waits for a reboot is the play of reboots' to ask for. What failed is played, so
    that its error is told as ever.
    """
    if any(result.get(name) for name in ("failed", "changed", "reboot_required")):
        return True
    return not check_mode and bool(result.get("withheld") or result.get("due"))


def due(role: str, of_host: Mapping[str, Any]) -> bool:
    """Whether the role is to be played on the host, as things stand at this point of the run."""
    heard = answer(of_host)
    if "roles" not in heard:
        # A node that Slurm has lost may be there for ssh, and waits to be mended.
        return not heard.get("unreachable") or heard.get("engine") == "slurm"
    if role in heard["due"]:
        return True
    # In check mode nothing has changed, whatever a role says.
    return not of_host.get("ansible_check_mode") and any(_has_changed(name, of_host) for name in _BY_NAME[role].after)


def _has_changed(role: str, of_host: Mapping[str, Any]) -> bool:
    result = mapping(of_host.get(f"{role}_result"))
    return bool(result.get("changed") or result.get("reboot"))


def results(of_host: Mapping[str, Any], names: Sequence[str], first: str, nightly: bool) -> dict[str, Any]:
    """Role -> what it has registered, else what the audit has heard for it.

    first: the role that has to tell why the host did not respond at all.
    nightly: nothing is played after the audit. Else the audit's answer does not count for a role that was to be played:
    where the host was lost before its turn came, there is no result.
    """
    said = answer(of_host)
    heard = of_audit(said, first)
    if "roles" in said and not nightly:
        heard = {name: result for name, result in heard.items() if name not in _BY_NAME or not due(name, of_host)}
    own = {name: registered_by(name, of_host) for name in names if has_registered(name, of_host)}
    lock = of_host.get("node_lock_result") or {"skipped": True}
    return heard | own | ({} if mapping(lock).get("skipped") else {"node_lock": lock})


def mapping(registered: Any) -> Answer:
    """Return what a host has registered, {} where that is not a dictionary."""
    return registered if isinstance(registered, Mapping) else {}


def has_registered(role: str, of_host: Mapping[str, Any]) -> bool:
    """Whether the run has a result of the role for the host, whatever it is."""
    return _registered(role, of_host) in of_host


def registered_by(role: str, of_host: Mapping[str, Any]) -> Any:
    """That result. Of a role that is joined, where that failed, the failure."""
    result = of_host[_registered(role, of_host)]
    if _is_joined(role) and isinstance(mapping(result).get("hosts"), dict):
        return result["hosts"].get(of_host["inventory_hostname"], Plan().result())
    return result


def _registered(role: str, of_host: Mapping[str, Any]) -> str:
    judged = f"{role}_judged"
    # Where the role was played by itself, nobody has joined anything.
    return judged if _is_joined(role) and judged in of_host else f"{role}_result"


def _is_joined(role: str) -> bool:
    return role in _BY_NAME and _BY_NAME[role].joined


def of_audit(heard: Answer, first: str) -> dict[str, Any]:
    """Role -> what the audit has heard for it. first: the role that has to tell why the host did not respond at all."""
    return roles(heard) or ({first: dict(heard)} if heard else {})


def registered(hostvars: Any, wanted: Container[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Host and what the run has registered for it, in the inventory's order. hostvars: Ansible's own.

    To gather a host's variables takes Ansible a millisecond. Where no role has anything to do, one thing is registered,
    which is the same for all of these hosts.
    """
    shared: dict[str, Any] = {}
    for host in hostvars:
        if host not in wanted:
            continue
        if is_well(answers(shared).get(host, {})):
            yield host, {**shared, "inventory_hostname": host}
            continue
        of_host = hostvars.raw_get(host)
        shared = shared or {name: of_host[name] for name in _SHARED if name in of_host}
        yield host, of_host


def has_play(play: str, of_host: Mapping[str, Any]) -> bool:
    """Whether a playbook that plays roles of the suite has one to play on the host."""
    return any(due(role.name, of_host) for role in suite.SUITE if role.play == play and role.audited)
