# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan remediation over all nodes: how many at once, in which order, and who measures with whom. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .. import nodeset
from ..plain_data import HostVars, PlainView
from . import action_log
from .accusations import Accusation
from .action_log import Entry
from .plan import BETWEEN, NodePlan

# Characters of host names in a sentence.
_ROOM = 120
_TURNS = ("remediate_canary", "remediate_others")
# Plays of remediate.yml: whom they are for says filter_plugins/play_nodes.yml.
PLAYS = (
    *("remediate_accused", "remediate_paired"),
    *(f"{turn}{after}" for turn in _TURNS for after in ("", "_paired", "_pending")),
)


@dataclass(frozen=True)
class Rollout:
    """nodes: plan of each accused node.   order: those that are acted on, the canary first and its leaf after it.

    most: how many may be.
    """

    nodes: Mapping[str, NodePlan]
    order: tuple[str, ...]
    most: int


def plan_rollout(plans: Sequence[NodePlan], inventory: Sequence[str], share: float, log: Sequence[Entry]) -> Rollout:
    """Decide who is acted on. inventory: all nodes, of which share is the limit."""
    most = max(1, int(share * len(inventory)))
    held = [name for name in inventory if name in action_log.held(log)]
    wanted = sorted((plan for plan in plans if plan.act), key=lambda plan: (not _is_finished(plan), plan.worst))
    room = most - len(set(held) - {plan.name for plan in wanted})
    chosen = [plan for number, plan in enumerate(wanted) if _is_finished(plan) or number < room]
    leaves = list(dict.fromkeys(plan.leaf for plan in chosen))
    order = [plan.name for plan in sorted(chosen, key=lambda plan: leaves.index(plan.leaf))]
    why = "%d of %d nodes may be acted on or held at once (busbar_remediate_max_share: %g)" % (
        *(most, len(inventory)),
        share,
    )
    why += f", and {nodeset.brief(held, _ROOM)} held already" if held else ""
    nodes = {plan.name: plan for plan in plans}
    nodes |= {plan.name: replace(plan, act=False, refused=why) for plan in wanted if plan not in chosen}
    return Rollout(nodes, tuple(order), most)


def _is_finished(plan: NodePlan) -> bool:
    """Return whether it is finished whatever the share, because remediation has drained it already."""
    return plan.left or plan.returns


def batches(sizes: Sequence[int | str], nodes: int) -> list[int]:
    """Return numbers of nodes after the canary, from ``[1, "10%"]``: the last one is repeated, as in ``serial``."""
    found: list[int] = []
    given = list(sizes) or [1]
    while sum(found) < nodes:
        size = str(given[min(len(found), len(given) - 1)])
        count = int(float(size[:-1]) * nodes / 100) if size.endswith("%") else int(size)
        found.append(min(max(1, count), nodes - sum(found)))
    # The rest of the canary's batch comes after it.
    return [size for size in (sum(found[:1]) - 1, *found[1:]) if size > 0] or [1]


def play_hosts(play: str, hostvars: HostVars) -> list[str]:
    """Return the hosts of a play of remediate.yml in their order. hostvars: of Ansible; {} in a syntax check."""
    read = _registered("remediate_read_result", hostvars)
    if not play.startswith(_TURNS):
        return list(read.get(play.removeprefix("remediate_")) or ())
    order = _registered("remediate_plan_result", hostvars).get("order") or []
    found: list[str] = order[:1] if play.startswith(_TURNS[0]) else order[1:]
    if play in _TURNS:
        return found
    states = {host: (hostvars.raw_get(host).get("remediate_state") or {}).get("state") or {} for host in found}
    pending = [host for host, state in states.items() if state.get("pending")]
    pairs = read.get("pairs") or {}
    return good_first({host: pairs.get(host, []) for host in pending}) if play.endswith("_paired") else pending


def _registered(name: str, hostvars: HostVars) -> PlainView:
    """Return what was registered once for all hosts of a play: the same on each of them."""
    return next((result for host in hostvars if (result := hostvars.raw_get(host).get(name))), {})


def partners(accused: Sequence[Accusation], fit: Sequence[str], leaves: Mapping[str, str]) -> dict[str, list[str]]:
    """Return node that is accused between nodes -> two good ones to measure it with, as different as possible.

    fit: nodes that may take part.   leaves: node -> leaf.
    """
    bad = {one.host for one in accused if not one.finding.ok}
    found: dict[str, list[str]] = {}
    used: dict[str, int] = {}
    for one in accused:
        if one.finding.check not in BETWEEN or one.host in found or one.host not in fit:
            continue
        good = [name for name in fit if name in one.good and name not in bad]
        near = [name for name in good if leaves.get(name) == leaves.get(one.host)]
        chosen = sorted(near, key=lambda name: used.get(name, 0))[:2]
        if chosen:
            found[one.host] = chosen
            used.update((name, used.get(name, 0) + 1) for name in chosen)
    return found


def good_first(pairs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes of a search: good ones first, so that some node is known to be good."""
    return list(dict.fromkeys([*(name for others in pairs.values() for name in others), *pairs]))


def plan_lines(found: Rollout, check_mode: bool) -> list[str]:
    """Return the plan as text, a line for each node and accusation."""
    verb = "would be" if check_mode else "are"
    head = "REMEDIATION: %d of %d accused nodes %s acted on, %d at most at once"
    names = dict.fromkeys([*found.order, *found.nodes])
    lines = [line for name in names for line in _node_lines(found.nodes[name])]
    return [head % (len(found.order), len(found.nodes), verb, found.most), *lines]


def _node_lines(plan: NodePlan) -> Iterator[str]:
    if plan.left:
        yield f"  {plan.name}: an earlier run has drained it and was ended before it gave it back; that is finished now"
    if plan.returns:
        yield f"  {plan.name}: it was left drained for what is ok now: it is proven again and given back"
    if plan.act:
        steps = [*(["drain"] if plan.drain else []), *(["measure"] if plan.measure else []), *plan.roles]
        steps += ["reboot where that is still needed"] if plan.reboot else []
        steps += ["audit it again", *(["measure with good nodes"] if plan.between else [])]
        yield f"  {plan.name}: " + ", ".join([*steps, *(["give back"] if plan.drain else [])])
    else:
        yield f"  {plan.name}: nothing is done" + (f", {plan.refused}" if plan.refused else "")
    for item in plan.items:
        yield f"    {item.verdict}: {item.finding.check} {item.finding.subject}: {item.why}"
