# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hosts that a play has work on, for ``hosts:``. Documented in play_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.plugin_utils import reboot, suite, work

# Matches nobody, and without the warning that a name which is not there would give.
NOBODY = ["!all"]


def _wants(of_host: Mapping[str, Any], what: str) -> bool:
    """Return whether the inventory wants it, by the intent or by what the audit has heard."""
    values = (of_host.get("busbar_intent") or {}).get("values") or {}
    return bool(values.get(f"busbar_{what}", work.answer(of_host).get(what)))


def _scope(of_host: Mapping[str, Any]) -> str:
    """Over what the inventory wants its benchmark; "" of a host that did not respond."""
    values = (of_host.get("busbar_intent") or {}).get("values") or {}
    return values.get("nccl_benchmark_scope") or work.answer(of_host).get("scope") or ""


PLAYS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "alone": lambda of_host: bool((of_host.get("fleet_audit_result") or {}).get("by_task")),
    "inventory": lambda of_host: not work.answers(of_host),
    "provision": lambda of_host: work.has_play("provision", of_host),
    "reboot": lambda of_host: reboot.turn(of_host) == "reboot",
    "give_back": lambda of_host: reboot.turn(of_host) == "give_back",
    "sharp": lambda of_host: _wants(of_host, "sharp"),
    "verify": lambda of_host: _wants(of_host, "verify"),
    "benchmark": lambda of_host: work.due(suite.BENCHMARK, of_host),
    # Whoever did not respond may be one of them, and is to be named where others are measured.
    "cluster": lambda of_host: _scope(of_host) != "node",
}

# Of playbooks/fabric.yml: all nodes where somebody is to sweep, who sweeps, all nodes where somebody did.
FABRIC = ("fabric", "fabric_sweep", "fabric_judge")


def _fabric(registered: Mapping[str, Any], hosts: list[str], play: str) -> list[str]:
    """registered: of the first host, which has what every host of such a play has."""
    plan = registered.get("ib_fabric_plan_result") or {}
    if play == "fabric_sweep":
        return [host for host in hosts if host in plan.get("hosts", ())]
    asked = plan.get("judge") if play == "fabric_judge" else registered.get("busbar_fabric_hosts")
    return hosts if asked else []


def play_nodes(hosts: Iterable[str], hostvars: Any, play: str) -> list[str]:
    """Of these hosts, in the order of the inventory, which intersect() has not: the first is rebooted alone.

    Chosen before the play begins: to end each host by itself costs Ansible the cube of their number.

    hostvars: Ansible's own; of each host only what the run has registered is looked at. {} in a syntax check.
    """
    wanted = set(hosts)
    if play in FABRIC:
        order = [host for host in hostvars if host in wanted]
        return _fabric(hostvars.raw_get(order[0]) if order else {}, order, play) or NOBODY
    if play not in PLAYS:
        raise AnsibleFilterError(f"play_nodes knows {', '.join([*PLAYS, *FABRIC])}, not {play!r}")
    has_work = PLAYS[play]
    found = [(host, of_host) for host, of_host in work.registered(hostvars, wanted) if has_work(of_host)]
    # Who is measured with whom is decided over all of them, so all are there as soon as one of them is due.
    if play == "cluster" and not any(_scope(of_host) and work.due(suite.CLUSTER, of_host) for _host, of_host in found):
        found = []
    return [host for host, _of_host in found] or NOBODY


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"play_nodes": play_nodes}
