# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run over the InfiniBand fabric: who sweeps, what came of that, and what each host is told of it. Pure.

``of_host`` is what a run has registered for a host, as Ansible's ``hostvars.raw_get`` gives it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Sweep
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    answer,
    due_roles,
    fabric_members,
    fabric_record,
    fabric_subnet,
    nodeset,
    suite,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import End, Host, Wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_record import Mark, Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import HostFinding

MODULE = "ib_fabric_info"
# The role whose module says by what the fabric knows a host.
RAILS = "platform"
GROUP = "gpu_nodes"
# Subjects of HOST: on a node that is to sweep, and on all others.
HERE, ANYWHERE = "sweep from this node", "sweep of its fabric"
# What the verdict calls a node that did not respond.
SILENT = f"run.{RAILS}[live]@{RAILS}"
# Characters of names in a sentence.
_NAMES = 120
# A sweep is typed by its own reader, which takes long enough for a large fabric.
_ANSWER = answer.record(
    others=True, findings=answer.of_findings, passed=answer.ids, sweeps=answer.many(lambda _value: None, 64)
)

HOST = Check(
    "ib_fabric.host",
    why="a plane without a sweep is not judged: a cable may be missing, or in another rail's leaf",
    fix="run ansible-playbook playbooks/fabric.yml -i INVENTORY once the node responds, or name another in"
    " busbar_fabric_hosts",
)
"Did each node of `busbar_fabric_hosts` sweep its planes; on other nodes: did any of these"
PLAN = Check(
    "ib_fabric.plan_file",
    why="without the cabling plan a moved cable looks like one that was always there",
    fix="correct the file at that line, or name another file in busbar_fabric_plan",
)
"Can the cabling plan be read that `busbar_fabric_plan` names"
RECORD = Check(
    "ib_fabric.record",
    severity="minor",
    why="error rates and missing devices are found only by comparison with the previous sweep",
    fix="give the user that runs Busbar a writable directory, and name it in nccl_benchmark_results_path",
)
"Could the sweep be stored on the control node, and the last one be read"


@dataclass(frozen=True)
class Due:
    """Who is to sweep now.

    hosts: nodes, in turn.   known: planes, by the GUIDs of their subnet managers, that the last record has swept just
    now.   last: the last record is judged, and nobody sweeps.   wrong: name in busbar_fabric_hosts -> what is wrong
    with it.   said: lines for whoever runs this.
    """

    hosts: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    last: bool = False
    wrong: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def due(
    asked: Sequence[str],
    group: Collection[str],
    there: Collection[str],
    record: Record | None,
    interval: float,
    now: float,
) -> Due:
    """asked: busbar_fabric_hosts.   group: all nodes of the inventory.   there: those of this play.

    record: the last one.   interval: seconds between two sweeps of a plane.   now: seconds since 1970.
    """
    names = list(dict.fromkeys(asked))
    wrong = {name: f"it is not a node of the group {GROUP}" for name in names if name not in group}
    hosts = tuple(name for name in names if name in there)
    if names and not hosts and len(wrong) < len(names):
        left = nodeset.brief([name for name in names if name not in wrong], _NAMES)
        return Due(wrong=wrong, said=(f"FABRIC: not swept: --limit leaves out {left}, which would sweep it",))
    young = [] if record is None else taken(record, interval, now)
    if not young or record is None:
        return Due(hosts, wrong=wrong)
    ago = "%d s ago, and ib_fabric_interval is %g s" % (now - min(when for _one, when in young), interval)
    if record.complete and len(young) == len(record.sweeps) and set(hosts) <= set(record.asked):
        return Due(last=True, wrong=wrong, said=(f"FABRIC: not swept again: that was {ago}",))
    known = tuple(sorted({one.plane for one, _when in young}))
    return Due(hosts, known, wrong=wrong, said=(f"FABRIC: {_planes(known)} not swept again: that was {ago}",))


def taken(record: Record, interval: float, now: float) -> list[tuple[Sweep, float]]:
    """Whole planes that a record has swept within so many seconds, and when."""
    every = zip(record.sweeps, record.taken, strict=True)
    return [(one, when) for one, when in every if one.complete and one.plane and 0 <= now - when < interval]


@dataclass(frozen=True)
class Answer:
    """What a node that was to sweep gave. why: there is nothing; the rest is empty then."""

    sweeps: tuple[Sweep, ...] = ()
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)
    why: str = ""
    because: str | None = None


def answer_of(host: str, of_host: Mapping[str, Any]) -> Answer:
    """Typed, and never more than what a sweep can be; what is wrong with it costs this host's answer alone."""
    given = of_host.get(f"{suite.FABRIC}_result")
    if not isinstance(given, dict) or given.get("skipped"):
        lock = of_host.get("node_lock_result") or {}
        if lock.get("held") is False:
            return Answer(why="another run works on the node: see lock.held")
        heard = due_roles.answer(of_host)
        if heard.get("unreachable"):
            return Answer(why="the node did not respond", because=SILENT)
        return Answer(why="no result: its task was not run, or ended without a result")
    if given.get("unreachable") or given.get("failed"):
        said = " ".join(str(given.get("msg") or "it gave no reason").split())
        return Answer(why=said[:300])
    try:
        _ANSWER(given)
        sweeps = tuple(replace(sweep.from_dict(one), host=host) for one in given["sweeps"])
    except (ParseError, answer.Invalid) as error:
        return Answer(why=f"{answer.SAID}{error}")
    return Answer(sweeps, tuple(map(from_dict, given["findings"])), tuple(given["passed"]), given.get("evidence", {}))


def hosts_of(
    names: Iterable[str], of_hosts: Mapping[str, Mapping[str, object]], last: Record | None
) -> tuple[dict[str, Host], set[str]]:
    """By what the fabric knows each host of the inventory, and hosts of the run that did not say it now.

    These are as the last record has them.   of_hosts: those of the run.
    """
    found, silent = {}, set()
    for name in names:
        of_host = of_hosts.get(name)
        result = due_roles.results(of_host, [RAILS], RAILS, nightly=True).get(RAILS) if of_host else None
        said = result.get("fabric") if isinstance(result, Mapping) else None
        if said is not None and answer.is_valid(answer.on_fabric, said):
            found[name] = fabric_record.host(said)
            continue
        if of_host is not None:
            silent.add(name)
        # Whether it has been booted since, nobody knows.
        known = last is not None and name in last.hosts
        found[name] = replace(last.hosts[name], boot_id=None) if last is not None and known else Host()
    return found, silent


def wanted(values: Mapping[str, Any]) -> Wanted:
    """values: of the intent."""
    return Wanted(
        oversubscription=values["busbar_fabric_oversubscription"],
        partitions=tuple(int(key, 16) for key in values["busbar_fabric_partitions"]),
        managers=tuple(values["busbar_fabric_managers"]),
        firmware=dict(values["busbar_firmware"]),
        routing=values["busbar_fabric_routing_engine"],
        adaptive_routing=values["busbar_fabric_adaptive_routing"],
    )


def of_hosts(
    asked: Sequence[str], answers: Mapping[str, Answer], swept: bool, hosts: Mapping[str, Host], silent: Collection[str]
) -> Iterator[HostFinding]:
    """HOST, of every host.   answers: of those who were to sweep.   swept: there is a sweep, of now or of just now."""
    for host, given in answers.items():
        bad = next((finding for finding in given.findings if not finding.ok), None)
        state, have, because = "ok", _planes(given.sweeps), given.because or bad
        if given.why or not given.sweeps:
            state, have = "unknown", given.why or "it has swept nothing"
            if swept and not given.why and bad is None:
                state, have = "ok", "it sees no plane that others have not swept"
        yield HostFinding(hosts=(host,), finding=HOST.judge(HERE, state, "a sweep", have, MODULE, because=because))
    names = nodeset.brief(asked, _NAMES)
    for host, known in hosts.items():
        if host in answers:
            continue
        # Of those who are not in the run nothing is reported.
        follows = HOST.at(HERE) if answers else fabric_members.SWEEP.at("fabric")
        state, have = ("ok", f"swept by {names}") if swept else ("unknown", f"none of {names} has swept it")
        if host in silent:
            state, follows = "unknown", SILENT
            have = "it did not report its GUIDs: those of the last record are used, if there is one"
        elif not known.rails:
            state, have = "ok", "it has no InfiniBand rail"
        yield HostFinding(
            hosts=(host,),
            finding=HOST.judge(ANYWHERE, state, "a sweep", have, "busbar_fabric_hosts", because=follows),
        )


def _planes(every: Sized) -> str:
    return "%d plane%s" % (len(every), "s" * (len(every) != 1))


def marks(found: Iterable[tuple[tuple[End, ...], Finding]], sweeps: Iterable[Sweep]) -> tuple[Mark, ...]:
    """Each bad cable once, with the finding that others of it follow from. found: ends of one cable, or of several."""
    cables = {
        (node.guid, port.number): port.peer for one in sweeps for node in one.nodes for port in node.ports if port.peer
    }
    marked: dict[frozenset[End], Mark] = {}
    for ends, finding in sorted(found, key=lambda one: one[1].because is not None):
        for pair in [ends] if len(ends) <= 2 else [(end, *filter(None, [cables.get(end)])) for end in ends]:
            # Two cables with one finding, of which only one end each was seen, are two marks.
            mark = Mark(pair, finding.check, finding.state, finding.have or "-")
            marked.setdefault(frozenset(pair), mark)
    return tuple(marked.values())[: fabric_record.FINDINGS]


def lacking(of_hosts: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Host -> id of its own finding that a rail lacks a partition: it is the one that the fabric shows, too."""
    found = {}
    for host, of_host in of_hosts.items():
        own = answer.findings_of(due_roles.results(of_host, [RAILS], RAILS, nightly=True).get(RAILS))
        ids = [one["id"] for one in own if (one["check"], one["state"]) == (partition.RAIL_PARTITION.id, "drift")]
        found.update({host: ids[0]} if ids else {})
    return found


def told(
    found: Iterable[HostFinding],
    answers: Mapping[str, Answer],
    there: Sequence[str],
    group: Collection[str],
    own: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Host of the run -> what the verdict gets of it. own: as ``lacking`` gives it.

    What is of hosts that the inventory has and the run has not is left to the record. What is of no host of the
    inventory is told of those who swept.
    """
    of_host: dict[str, list[Finding]] = {host: [] for host in there}
    for one in found:
        names = [host for host in one.hosts if host in of_host]
        if not names and not set(one.hosts) & set(group):
            names = [host for host in answers if host in of_host] or [*there][:1]
        follows = one.finding.check == fabric_subnet.PARTITION.id and one.finding.state == "drift"
        for name in names:
            cause = (own or {}).get(name) if follows else None
            of_host[name].append(replace(one.finding, because=cause) if cause else one.finding)
    results = {}
    for host, findings in of_host.items():
        given = answers.get(host, Answer())
        results[host] = Plan((*given.findings, *findings)).result()
        results[host]["evidence"].update(given.evidence)
        results[host]["passed"] = [*dict.fromkeys([*results[host]["passed"], *given.passed])]
    return results


def is_complete(sweeps: Sequence[Sweep], answers: Mapping[str, Answer]) -> bool:
    return bool(sweeps) and all(one.complete for one in sweeps) and not any(one.why for one in answers.values())


def lines(sweeps: Sequence[Sweep]) -> list[str]:
    """What was swept, a line for each plane."""
    found = []
    for one in sweeps:
        kinds = [sum(node.kind == kind for node in one.nodes) for kind in (SWITCH, CA)]
        when = time.strftime("%H:%M:%S UTC", time.gmtime(one.at))
        where = f"{one.host} {one.device}:{one.port}" if one.device else one.host
        whole = "" if one.complete else ", NOT COMPLETE"
        counted = "%d switches, %d HCAs, %d cables" % (*kinds, sum(1 for _link in one.links()))
        plane = f"plane 0x{one.plane}" if one.plane else "a plane whose subnet manager is not known"
        found.append(f"FABRIC: {plane} from {where} at {when}: {counted}{whole}")
    return found
