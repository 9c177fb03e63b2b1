# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run over the InfiniBand fabric: which hosts sweep, their results, and the findings of each host.

``of_host`` are the registered variables of a host, as Ansible's ``hostvars.raw_get`` returns them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, SWITCH, Sweep
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView

from .. import codec, due_roles, fabric_schema, nodeset, result_schema, suite
from ..terminal import counted
from . import cabling_plan, judge, members, record, subnet
from .evidence import Evidence, Host, Line, Wanted
from .record import Record

MODULE = "ib_fabric_info"
# The role whose module reports the GUIDs of a host.
RAILS = "platform"
GROUP = "gpu_nodes"
# Subjects of HOST: on a node that is to sweep, and on all others.
HERE, ANYWHERE = "sweep from this node", "sweep of its fabric"
# The verdict's finding of a node that did not respond.
SILENT = f"run.{RAILS}[live]@{RAILS}"
# Characters of names in a sentence.
_NAMES = 120
# Sweeps have a separate gate, which takes long enough for a large fabric.
_RESULT = codec.record(
    others=True,
    findings=result_schema.of_findings,
    passed=result_schema.ids,
    sweeps=codec.many(lambda _value: None, 64),
)

HOST = Check(
    "ib_fabric.host",
    why="a plane without a sweep is not judged: a cable may be missing, or in another rail's leaf",
    fix="run playbooks/fabric.yml once the node responds, or name another in busbar_fabric_hosts",
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


# -- before the sweep --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Due:
    """hosts: nodes that are to sweep, in turn.   last: the last record is judged, and no host sweeps.

    wrong: name in busbar_fabric_hosts -> what is wrong with it.   messages: lines for the user.
    """

    hosts: tuple[str, ...] = ()
    last: bool = False
    wrong: Mapping[str, str] = field(default_factory=dict)
    messages: tuple[str, ...] = ()


def due(
    asked: Sequence[str],
    group: Collection[str],
    there: Collection[str],
    last: Record | None,
    interval: float,
    now: float,
) -> Due:
    """Decide which hosts sweep.

    asked: busbar_fabric_hosts.   group: all nodes of the inventory.   there: those of this play.
    last: record.   interval: seconds between two sweeps of a plane.   now: seconds since 1970.
    """
    names = list(dict.fromkeys(asked))
    wrong = {name: f"it is not a node of the group {GROUP}" for name in names if name not in group}
    hosts = tuple(name for name in names if name in there)
    if names and not hosts and len(wrong) < len(names):
        left = nodeset.brief([name for name in names if name not in wrong], _NAMES)
        return Due(wrong=wrong, messages=(f"FABRIC: not swept: --limit leaves out {left}, which would sweep it",))
    stored = () if last is None else tuple(zip(last.sweeps, last.taken, strict=True))
    recent = stored and all(one.plane and 0 <= now - when < interval for one, when in stored)
    if last is None or not recent or not last.complete or not set(hosts) <= set(last.asked):
        return Due(hosts, wrong=wrong)
    ago = "%d s ago, and ib_fabric_interval is %g s" % (now - min(last.taken), interval)
    return Due(last=True, wrong=wrong, messages=(f"FABRIC: not swept again: that was {ago}",))


def last_record(path: str) -> tuple[Record | None, str]:
    """Return the last record, and why there is none. path: nccl_benchmark_results_path."""
    if not path:
        return None, "nccl_benchmark_results_path is empty: no sweep is stored"
    try:
        return record.read(record.folder(path)), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ParseError) as error:
        return None, f"the last record cannot be read: {error_text(error)}"


# -- results of nodes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeResult:
    """The result of a node that was to sweep. why: there is none, and the rest is empty."""

    sweeps: tuple[Sweep, ...] = ()
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    evidence: Mapping[str, Sequence[str]] = field(default_factory=dict)
    why: str = ""
    because: str | None = None


def read_result(host: str, of_host: PlainView) -> NodeResult:
    """Return the result of a node, typed and bounded; an invalid one costs only this host."""
    given = of_host.get(f"{suite.FABRIC}_result")
    if not isinstance(given, dict) or given.get("skipped"):
        lock = of_host.get("node_lock_result") or {}
        if lock.get("held") is False:
            return NodeResult(why="another run works on the node: see lock.held")
        if due_roles.answer(of_host).get("unreachable"):
            return NodeResult(why="the node did not respond", because=SILENT)
        return NodeResult(why="no result: its task was not run, or ended without a result")
    if given.get("unreachable") or given.get("failed"):
        return NodeResult(why=" ".join(str(given.get("msg") or "it gave no reason").split())[:300])
    try:
        _RESULT(given)
        sweeps = tuple(replace(record.read_sweep(one), host=host) for one in given["sweeps"])
    except (ParseError, codec.Invalid) as error:
        return NodeResult(why=f"{result_schema.SAID}{error}")
    findings = tuple(map(from_dict, given["findings"]))
    return NodeResult(sweeps, findings, tuple(given["passed"]), given.get("evidence", {}))


def _of_rails(of_host: PlainView) -> object:
    return due_roles.results(of_host, [RAILS], RAILS, nightly=True).get(RAILS)


def known_hosts(
    names: Iterable[str], of_hosts: Mapping[str, Mapping[str, object]], last: Record | None
) -> tuple[dict[str, Host], set[str]]:
    """Return each host of the inventory, and hosts of the run without a report, which are as in the last record.

    of_hosts: those of the run.
    """
    found, silent = {}, set()
    for name in names:
        of_host = of_hosts.get(name)
        result = _of_rails(of_host) if of_host else None
        report = result.get("fabric") if isinstance(result, Mapping) else None
        if report is not None and codec.is_valid(fabric_schema.on_fabric, report):
            found[name] = codec.build(Host, report)
            continue
        silent.update([name] if of_host is not None else [])
        # Whether it was rebooted since is not known.
        known = last.hosts.get(name) if last is not None else None
        found[name] = replace(known, boot_id=None) if known is not None else Host()
    return found, silent


def wanted(values: Plain) -> Wanted:
    """Return the site's requirements. values: of the intent."""
    return Wanted(
        oversubscription=values["busbar_fabric_oversubscription"],
        partitions=tuple(int(key, 16) for key in values["busbar_fabric_partitions"]),
        managers=tuple(values["busbar_fabric_managers"]),
        firmware=dict(values["busbar_firmware"]),
        routing=values["busbar_fabric_routing_engine"],
        adaptive_routing=values["busbar_fabric_adaptive_routing"],
    )


# -- findings ----------------------------------------------------------------------------------------------------------


def host_findings(
    asked: Sequence[str],
    answers: Mapping[str, NodeResult],
    swept: bool,
    hosts: Mapping[str, Host],
    silent: Collection[str],
) -> Iterator[Line]:
    """Yield HOST of every host.   answers: of those that were to sweep.   swept: there is a sweep, or a recent one."""
    names = nodeset.brief(asked, _NAMES)
    for host, given in answers.items():
        bad = next((finding for finding in given.findings if not finding.ok), None)
        state, have = "ok", counted(len(given.sweeps), "plane")
        if not given.sweeps and swept and not given.why and bad is None:
            have = "it sees no plane that others have not swept"
        elif given.why or not given.sweeps:
            state, have = "unknown", given.why or "it has swept nothing"
        yield Line((host,), HOST.judge(HERE, state, "a sweep", have, MODULE, because=given.because or bad))
    for host in (host for host in hosts if host not in answers):
        # A host that is not in the run has no finding to follow from.
        follows = HOST.finding_id(HERE) if answers else members.SWEEP.finding_id("fabric")
        state, have = ("ok", f"swept by {names}") if swept else ("unknown", f"none of {names} has swept it")
        if host in silent:
            state, follows = "unknown", SILENT
            have = "it did not report its GUIDs: those of the last record are used, if there is one"
        elif not hosts[host].rails:
            state, have = "ok", "it has no InfiniBand rail"
        yield Line((host,), HOST.judge(ANYWHERE, state, "a sweep", have, "busbar_fabric_hosts", because=follows))


def lacking(of_hosts: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return host -> id of the host's finding that a rail lacks a partition, which the fabric shows, too."""
    found = {}
    for host, of_host in of_hosts.items():
        for one in reversed(result_schema.findings_of(_of_rails(of_host))):
            if (one["check"], one["state"]) == (partition.RAIL_PARTITION.id, "drift"):
                found[host] = one["id"]
    return found


def results(
    found: Iterable[Line],
    answers: Mapping[str, NodeResult],
    there: Sequence[str],
    group: Collection[str],
    own: Mapping[str, str] | None = None,
) -> dict[str, Plain]:
    """Return host of the run -> its result for the verdict. own: of ``lacking``.

    A finding of hosts that are not in the run is only in the record; one of no host goes to those that swept.
    """
    of_host: dict[str, list[Finding]] = {host: [] for host in there}
    for hosts, finding in found:
        names = [host for host in hosts if host in of_host]
        if not names and not set(hosts) & set(group):
            names = [host for host in answers if host in of_host] or [*there][:1]
        follows = finding.check == subnet.PARTITION.id and finding.state == "drift"
        for name in names:
            cause = (own or {}).get(name) if follows else None
            of_host[name].append(replace(finding, because=cause) if cause else finding)
    found_of = {}
    for host, findings in of_host.items():
        given = answers.get(host, NodeResult())
        result = found_of[host] = Plan((*given.findings, *findings)).result()
        result["evidence"].update(given.evidence)
        result["passed"] = [*dict.fromkeys([*result["passed"], *given.passed])]
    return found_of


def lines(sweeps: Sequence[Sweep]) -> Iterator[str]:
    """Yield a line for each sweep."""
    for one in sweeps:
        switches, hcas = (sum(node.kind == kind for node in one.nodes) for kind in (SWITCH, CA))
        when = time.strftime("%H:%M:%S UTC", time.gmtime(one.at))
        where = f"{one.host} {one.device}:{one.port}" if one.device else one.host
        size = f"{switches} switches, {hcas} HCAs, {len(one.links())} cables"
        plane = f"plane 0x{one.plane}" if one.plane else "a plane whose subnet manager is not known"
        yield f"FABRIC: {plane} from {where} at {when}: {size}{'' if one.complete else ', NOT COMPLETE'}"


class Run:
    """Judge and store one run.

    plan: result of ib_fabric, phase plan.   path: nccl_benchmark_results_path.   group: all nodes of the inventory.
    there: those of the play.   messages: lines for the user.   folder: of the record, "" where none was written.
    """

    def __init__(self, plan: Plain, path: str, group: Sequence[str], there: Sequence[str]) -> None:
        self.plan, self.path, self.group, self.there = plan, path, group, there
        self.messages: list[str] = []
        self.folder = ""
        self.problem = ""

    def judged(
        self, answers: Mapping[str, NodeResult], registered: Mapping[str, Mapping[str, object]], now: float
    ) -> dict[str, Plain]:
        """Return host -> its result for the verdict. answers: of those that were to sweep."""
        last, self.problem = last_record(self.path)
        planes = tuple(one for given in answers.values() for one in given.sweeps)
        taken = (now,) * len(planes)
        if self.plan["last"] and last is not None:
            planes, taken = last.sweeps, last.taken
        self.messages += lines(planes)
        name, before = self._before(last)
        hosts, silent = known_hosts(self.group, registered, last)
        cables, own = self._cables()
        boots = {host: known.boot_id for host, known in (before.hosts if before else {}).items() if known.boot_id}
        earlier = before.sweeps if before is not None else ()
        judged = judge.judge(Evidence(planes, earlier, cables, hosts, boots, wanted(self.plan["values"])))
        # The hosts of what is of no other host.
        asked = self.plan["asked"]
        swept = tuple(answers) or tuple(host for host in asked if host in self.there) or tuple(self.there[:1])
        in_play = {host: hosts[host] for host in self.there}
        found = [
            *host_findings(asked, answers, bool(planes), in_play, silent),
            *judged,
            *(Line(swept, finding) for finding in own),
        ]
        whole = bool(planes) and all(one.complete for one in planes)
        made = Record(
            begun=now,
            finished=max(taken, default=now),
            asked=tuple(asked),
            hosts=hosts,
            sweeps=planes,
            taken=taken,
            before=name,
            findings=tuple(found),
            complete=whole and not any(one.why for one in answers.values()),
        )
        found.append(Line(swept, self._stored(made)))
        return results(found, answers, self.there, self.group, lacking(registered))

    def _before(self, last: Record | None) -> tuple[str, Record | None]:
        """Return the record to compare with, and its directory: the last with every plane complete."""
        if last is None:
            return "", None
        older = None
        try:
            older = record.read_run(self.path, last.before)
        except (OSError, ParseError) as error:
            self.problem = f"the record before the last cannot be read: {error_text(error)}"
        # A record that is judged again is compared with the same one again.
        if self.plan["last"] or (not last.complete and older is not None):
            return last.before if older is not None else "", older
        return record.latest_name(self.path), last

    def _cables(self) -> tuple[cabling_plan.Plan | None, list[Finding]]:
        """Return the plan, and findings of the inventory: names that are not nodes, a plan that cannot be read."""
        source, fix = "busbar_fabric_hosts", "correct busbar_fabric_hosts, or put the node into the group"
        wrong = self.plan["wrong"].items()
        found = [HOST.judge(f"{source} {name}", "unknown", "a node", why, source, fix=fix) for name, why in wrong]
        path = self.plan["values"]["busbar_fabric_plan"]
        try:
            return cabling_plan.load(Path(path)) if path else None, found
        except (OSError, ParseError) as error:
            text = error_text(error)
        return None, [*found, PLAN.judge(path, "unknown", "a cabling plan", text, "busbar_fabric_plan")]

    def _stored(self, made: Record) -> Finding:
        """Store the record, and return whether that succeeded."""
        if self.path and made.sweeps:
            try:
                self.folder = str(record.write(self.path, made))
            except (OSError, ParseError) as error:
                self.problem = error_text(error)
        where = str(record.folder(self.path)) if self.path else "nccl_benchmark_results_path"
        state, have = ("unknown", self.problem) if self.problem else ("ok", self.folder or "nothing was swept")
        return RECORD.judge("record of the fabric", state, "kept", have, where)
