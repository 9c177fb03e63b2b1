# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report from the RAS of running jobs on several hosts: which ranks hold up which, and evidence to collect.

A job spans hosts, and each reports all of it: its communicators are joined by their hash.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    from_dict,
    printable,
)
from ansible_collections.busbar.fabric.plugins.module_utils.ras import judge as nccl_hang
from ansible_collections.busbar.fabric.plugins.module_utils.ras import views as ras_views
from ansible_collections.busbar.fabric.plugins.module_utils.ras.answer import Group, Place, ranges
from ansible_collections.busbar.fabric.plugins.module_utils.ras.judge import Known, by_inner
from ansible_collections.busbar.fabric.plugins.module_utils.ras.processes import Process
from ansible_collections.busbar.fabric.plugins.module_utils.ras.read import READABLE
from ansible_collections.busbar.fabric.plugins.module_utils.ras.views import View
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    codec,
    exit_code,
    nodeset,
    result_schema,
    screen,
    terminal,
)

MODULE = "nccl_ras_info"
FORMAT = 1
MOVES, HUNG, UNKNOWN = "MOVES", "HUNG", "UNKNOWN"
EXIT_CODES = {MOVES: exit_code.GOOD, HUNG: exit_code.FINDINGS, UNKNOWN: exit_code.UNKNOWN}
# Processes for which commands are printed.
_SHOWN = 8


# -- results of the nodes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostResult:
    """Result of a host. why: the reason for none; "" where there is one."""

    why: str = ""
    views: tuple[View, ...] = ()
    processes: tuple[Process, ...] = ()
    addresses: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def read_host(host: str, registered: object) -> HostResult:
    """Return a host's result, checked."""
    if not isinstance(registered, dict) or not registered:
        return HostResult("not queried in time")
    if registered.get("unreachable"):
        return HostResult(f"unreachable: {registered.get('msg') or 'no response'}")
    if "views" not in registered:
        return HostResult(str(registered.get("msg") or "it has not responded"))
    try:
        found = result_schema.check(MODULE, registered)
        views = tuple(_view(host, codec.build(View, one)) for one in found["views"])
    except codec.Invalid as error:
        return HostResult(result_schema.SAID + str(error))
    return HostResult(
        views=views,
        processes=tuple(codec.build(Process, one) for one in found["processes"]),
        addresses=tuple(found["addresses"]),
        findings=tuple(from_dict({k: v for k, v in item.items() if k != "id"}) for item in found["findings"]),
    )


def _view(host: str, view: View) -> View:
    """Return a view in which loopback addresses are those of the host. Raises codec.Invalid for impossible ranks."""

    def local(place: Place) -> Place:
        try:
            loopback = ipaddress.ip_address(place.host.partition("%")[0]).is_loopback
        except ValueError:
            return replace(place, host="")
        return replace(place, host=host) if loopback else place

    communicators = []
    for one in view.now.communicators:
        groups = [*one.statuses, *one.errors, *(group for of in one.counts.values() for group in of)]
        named = {rank for group in groups for rank in group.ranks}
        ranks = [*one.places, *(each.rank for each in one.missing)]
        if not named <= one.places.keys() or any(rank >= one.size for rank in ranks):
            raise codec.Invalid(f"communicator {one.name} of {one.size} ranks has a rank beyond them")
        places = {rank: local(place) for rank, place in one.places.items()}
        missing = tuple(replace(each, place=each.place and local(each.place)) for each in one.missing)
        communicators.append(replace(one, places=places, missing=missing))
    return replace(view, now=replace(view.now, communicators=tuple(communicators)))


# -- the report --------------------------------------------------------------------------------------------------------


def build(registered: Mapping[str, object], inventory: Sequence[str] = (), simulated: bool = False) -> dict[str, Any]:
    """Return the report. registered: host -> result of nccl_ras_info. inventory: arguments of ``-i`` in commands.

    simulated: a host is one of the lab's.
    """
    results = {host: read_host(host, given) for host, given in registered.items()}
    hosts = {host: " ".join(printable(result.why).split())[:500] for host, result in results.items()}
    known = _known(results)
    renamed = iter(ras_views.distinct([view for result in results.values() for view in result.views]))
    views = {host: [next(renamed) for _view in result.views] for host, result in results.items()}
    every = [view for of_host in views.values() for view in of_host]
    idle = [host for host, of in results.items() if every and not (of.why or of.processes or of.views)]
    of_jobs, suspects = nccl_hang.examine(every, known)
    findings = _findings(of_jobs, results, idle)
    bad = [finding for _host, finding in findings if not finding.ok]
    hung = any(finding.state == "drift" for finding in bad)
    verdict = HUNG if hung else UNKNOWN if bad or any(hosts.values()) else MOVES
    return {
        "format": FORMAT,
        "verdict": verdict,
        "simulated": simulated,
        "exit_code": EXIT_CODES[verdict],
        "hosts": hosts,
        "idle": idle,
        "jobs": _jobs(views, known),
        "findings": [{"host": host, **finding.to_dict()} for host, finding in findings],
        "collect": _collect(suspects, known, inventory, set(registered)),
    }


def _findings(
    of_jobs: Sequence[Finding], results: Mapping[str, HostResult], idle: Sequence[str]
) -> list[tuple[str | None, Finding]]:
    """Return the findings on jobs, and those of nodes on their own processes with the host; the worst first."""
    findings: list[tuple[str | None, Finding]] = [(None, finding) for finding in of_jobs]
    for host, result in results.items():
        findings += [(host, finding) for finding in result.findings if host not in idle]
    order = {"drift": 0, "unknown": 1, "ok": 3}

    def rank(each: tuple[str | None, Finding]) -> tuple[bool, int, int]:
        one = each[1]
        return one.because is not None, order.get(one.state, 2), SEVERITIES.index(one.severity)

    return sorted(findings, key=rank)


def _known(results: Mapping[str, HostResult]) -> Known:
    owners: dict[str, set[str]] = {}
    processes: dict[tuple[str, int], Process] = {}
    for host, result in results.items():
        # Each has the same 172.17.0.1 of docker0, which identifies none.
        for address in result.addresses:
            owners.setdefault(address, set()).add(host)
        processes.update(by_inner(host, result.processes))
    names = {address: next(iter(of)) for address, of in owners.items() if len(of) == 1}
    partly = {host for host, result in results.items() if any(one.check == READABLE.id for one in result.findings)}
    queried = frozenset(host for host, result in results.items() if not result.why and host not in partly)
    return Known(names, queried, processes)


def _jobs(views: Mapping[str, Sequence[View]], known: Known) -> list[dict[str, Any]]:
    found = []
    for of_job in ras_views.jobs([view for of_host in views.values() for view in of_host]):
        joined = ras_views.join(of_job)
        places = {place for one in joined for place in one.now.places.values()}
        places |= {lost.place for one in joined for lost in one.now.missing if lost.place is not None}
        found.append(
            {
                "users": sorted({user for view in of_job for user in view.users}),
                "nccl": sorted({view.now.version for view in of_job}),
                "asked_on": [host for host, of_host in views.items() if any(view in of_job for view in of_host)],
                "seconds": max(view.seconds for view in of_job),
                "hosts": sorted({known.host(place.host) for place in places}),
                "processes": len({(place.host, place.pid) for place in places}),
                "communicators": [_communicator(one) for one in joined],
            }
        )
    return found


def _communicator(one: ras_views.Joined) -> dict[str, Any]:
    return {
        "name": one.name,
        "size": one.now.size,
        "moved": one.moved,
        "counts": {name: _groups(of) for name, of in sorted(one.now.counts.items())},
        "statuses": _groups(one.now.statuses),
        "missing": [lost.rank for lost in one.now.missing],
    }


def _groups(of: Sequence[Group]) -> list[dict[str, Any]]:
    return [{"value": group.value, "number": len(group.ranks), "ranks": ranges(group.ranks)} for group in of]


def _collect(
    suspects: Mapping[Place, str], known: Known, inventory: Sequence[str], asked: set[str]
) -> list[dict[str, Any]]:
    """Return, for each process that others wait for, commands that save its state before it is killed."""
    found = []
    for place, why in [*suspects.items()][:_SHOWN]:
        host, pid = known.host(place.host), known.pid(place)
        process = known.process(place)
        # A name from a node is never an argument of a command.
        prefix = ["ansible", host, *(word for path in inventory for word in ("-i", path)), "-b", "-m", "command", "-a"]
        dump = f"py-spy dump --pid {pid}" + (" --nonblocking" if process is not None and process.state in "Tt" else "")
        wanted = [
            f"ps -o pid,stat,wchan:32,etime,cmd -p {pid}",
            dump,
            f"cat /proc/{pid}/stack",
            f"nvidia-smi -i {place.nvml} -q -d UTILIZATION,POWER,CLOCK,ECC,PERFORMANCE",
            "dmesg --ctime",
        ]
        found.append(
            {
                "host": host,
                "pid": pid,
                "gpu": place.nvml,
                "why": why,
                "state": known.state(place),
                "commands": [shlex.join([*prefix, command]) for command in wanted] if host in asked else [],
            }
        )
    return found


# -- text --------------------------------------------------------------------------------------------------------------


def text(report: Mapping[str, Any], width: int = terminal.WIDTH, verbose: bool = False) -> str:
    """Return the verdict, the findings, what to collect and the jobs on one screen; all of them with ``verbose``."""
    most = None if verbose else screen.LINES
    bad = [finding for finding in report["findings"] if finding["state"] != "ok"]
    roots = sum(finding["because"] is None for finding in bad)
    blocks = [_finding_lines(finding, width, most) for finding in bad]
    blocks[roots:roots] = map(_collect_lines, report["collect"])
    silent = nodeset.grouped((why, host) for host, why in report["hosts"].items())
    rest = [f"no response from {nodeset.fold(hosts)}: {why}" for why, hosts in silent.items() if why]
    rest += [f"no process with libnccl on {nodeset.fold(report['idle'])}"] if report["idle"] else []
    blocks += [screen.wrapped(_job(job), width, 0, most) for job in report["jobs"]]
    head, tail = screen.wrapped(headline(report), width), screen.each(rest, width, verbose)
    if verbose:
        lines = [*(line for block in blocks for line in (*block, "")), *tail, *head]
    else:
        lines = screen.page(head, blocks, tail, width, "-v, or --json", "finding or job")
    return "\n".join(printable(line) for line in lines) + "\n"


def _finding_lines(finding: Mapping[str, Any], width: int, most: int | None) -> list[str]:
    at = f"  {finding['host']}" if finding["host"] else ""
    head = f"{finding['severity']}  {finding['state']}  {finding['check']}{at}  {finding['subject']}"
    texts = [finding["have"], f"why: {finding['why']}", f"do: {finding['fix']}"]
    texts[1:] = [f"caused by {finding['because']}"] if finding["because"] else texts[1:]
    return screen.wrapped(head, width, 0, most) + [
        line for text in texts for line in screen.wrapped(text, width, 4, most)
    ]


def _collect_lines(each: Mapping[str, Any]) -> list[str]:
    state = f", {each['state']}" if each["state"] else ""
    process = f"{each['host']} process {each['pid']} GPU {each['gpu']}: {each['why']}{state}"
    lines = [f"collect before anything is killed: {process}"]
    lines += [f"    $ {command}" for command in each["commands"]] or ["    its host was not queried: name it, too"]
    return lines


def headline(report: Mapping[str, Any]) -> str:
    sentence = {
        MOVES: "every job launches collectives, and no rank is behind",
        HUNG: "a rank holds up the others",
        UNKNOWN: "no rank is seen to hold up the others, and whether all is well is unknown",
    }[report["verdict"]]
    responses = [why for why in report["hosts"].values() if not why]
    jobs = terminal.counted(len(report["jobs"]), "job")
    counts = f"{jobs}, {len(responses)} of {len(report['hosts'])} hosts responded"
    simulated = ", simulated" if report["simulated"] else ""
    return f"VERDICT {report['verdict']}: {sentence} ({counts}{simulated}; nothing was changed)"


def _job(job: Mapping[str, Any]) -> str:
    where = nodeset.brief(job["hosts"], 60) or "hosts that RAS does not name"
    asked = f"queried on {nodeset.brief(job['asked_on'], 60)}"
    asked += f" twice, {job['seconds']:g} s apart" if job["seconds"] else " once"
    what = f"processes: {job['processes']} on {where}"
    communicators = terminal.counted(len(job["communicators"]), "communicator")
    return f"JOB of {', '.join(job['users'])}: NCCL {', '.join(job['nccl'])}, {what}, {communicators}; {asked}"
