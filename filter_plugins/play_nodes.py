# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the hosts that a play has work on, for ``hosts:``. Documented in play_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, reboot, suite
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars, PlainView
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import rollout

# Matches no host, without the warning for a name that does not exist.
NO_HOSTS = ["!all"]


def _wants(of_host: PlainView, what: str) -> bool:
    values = (of_host.get("busbar_intent") or {}).get("values") or {}
    return bool(values.get(f"busbar_{what}", due_roles.answer(of_host).get(what)))


def _scope(of_host: PlainView) -> str:
    """Return the scope of the benchmark that the inventory wants; "" of a host that did not respond."""
    values = (of_host.get("busbar_intent") or {}).get("values") or {}
    return values.get("nccl_benchmark_scope") or due_roles.answer(of_host).get("scope") or ""


PLAYS: dict[str, Callable[[PlainView], bool]] = {
    "alone": lambda of_host: bool((of_host.get("fleet_audit_result") or {}).get("by_task")),
    "inventory": lambda of_host: not due_roles.answers(of_host),
    "provision": lambda of_host: due_roles.has_play("provision", of_host),
    "reboot": lambda of_host: reboot.turn(of_host) == "reboot",
    "give_back": lambda of_host: reboot.turn(of_host) == "give_back",
    "sharp": lambda of_host: _wants(of_host, "sharp"),
    "verify": lambda of_host: _wants(of_host, "verify"),
    "benchmark": lambda of_host: due_roles.due(suite.BENCHMARK, of_host),
    # A host that did not respond may be one of them, and is to be named where others are measured.
    "cluster": lambda of_host: _scope(of_host) != "node",
}

# Plays of playbooks/fabric.yml: all nodes where a sweep is planned, the sweeping nodes, all nodes after a sweep.
FABRIC = ("fabric", "fabric_sweep", "fabric_judge")


def _fabric(registered: PlainView, hosts: list[str], play: str) -> list[str]:
    """Return the hosts of a play of the fabric. registered: of the first host, the same on all of them."""
    plan = registered.get("ib_fabric_plan_result") or {}
    if play == "fabric_sweep":
        return [host for host in hosts if host in plan.get("hosts", ())]
    asked = plan.get("judge") if play == "fabric_judge" else registered.get("busbar_fabric_hosts")
    return hosts if asked else []


def play_nodes(hosts: Iterable[str], hostvars: HostVars, play: str) -> list[str]:
    """Return the hosts with work, in the order of the inventory, so that the first is rebooted alone.

    Those of remediate.yml are in the order of their repair.

    Chosen before the play begins: ending hosts one by one costs Ansible the cube of their number.

    hostvars: of Ansible; only registered results are read. {} in a syntax check.
    """
    wanted = set(hosts)
    if play in rollout.PLAYS:
        return [host for host in rollout.play_hosts(play, hostvars) if host in wanted] or NO_HOSTS
    if play in FABRIC:
        order = [host for host in hostvars if host in wanted]
        return _fabric(hostvars.raw_get(order[0]) if order else {}, order, play) or NO_HOSTS
    if play not in PLAYS:
        raise AnsibleFilterError(f"play_nodes knows {', '.join([*PLAYS, *FABRIC, *rollout.PLAYS])}, not {play!r}")
    has_work = PLAYS[play]
    found = [(host, of_host) for host, of_host in due_roles.registered(hostvars, wanted) if has_work(of_host)]
    # Pairs are chosen over all of them, so all are included as soon as one of them is due.
    due = [_scope(of_host) and due_roles.due(suite.CLUSTER, of_host) for _host, of_host in found if play == "cluster"]
    return [host for host, _of_host in found if play != "cluster" or any(due)] or NO_HOSTS


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"play_nodes": play_nodes}
