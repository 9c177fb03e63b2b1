# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report from the RAS of running jobs on several hosts: which ranks hold up which, and evidence to collect.

A job spans hosts, and each reports all of it: its communicators are joined by their hash.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    from_dict,
    printable,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.ras import join as ras_join
from ansible_collections.busbar.fabric.plugins.module_utils.ras import judge as nccl_hang
from ansible_collections.busbar.fabric.plugins.module_utils.ras.answer import (
    Absent,
    Communicator,
    Group,
    Missing,
    Place,
    RasStatus,
    Row,
)
from ansible_collections.busbar.fabric.plugins.module_utils.ras.checks import RAS, READABLE
from ansible_collections.busbar.fabric.plugins.module_utils.ras.known import Known, Seen
from ansible_collections.busbar.fabric.plugins.module_utils.ras.known import seen as seen_processes
from ansible_collections.busbar.fabric.plugins.module_utils.ras.views import Silence, View, ranges
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
# Ranks of a result in all communicators: 10,000 in a dozen each. A short text may claim billions.
MOST_NAMED = 4_000_000
MOVES, HUNG, UNKNOWN = "MOVES", "HUNG", "UNKNOWN"
EXIT_CODES = {MOVES: exit_code.GOOD, HUNG: exit_code.FINDINGS, UNKNOWN: exit_code.UNKNOWN}
# Processes for which commands are printed.
_SHOWN = 8


# -- results of the nodes ----------------------------------------------------------------------------------------------


class _Reader:
    """Build views of a node's result. Raises codec.Invalid for values of the right types that are impossible."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.named = 0

    def view(self, data: Mapping[str, Any]) -> View:
        before = None if data["before"] is None else self._answer(data["before"])
        return View(data["source"], tuple(data["users"]), before, self._answer(data["now"]), float(data["seconds"]))

    def _answer(self, data: Mapping[str, Any]) -> RasStatus:
        hosts = [self._host_of(address) for address in data["hosts"]]
        return RasStatus(
            form=data["form"],
            version=data["version"],
            communicators=tuple(self._communicator(one, hosts) for one in data["communicators"]),
            rows=tuple(Row(*row) for row in data["rows"]),
            absent=tuple(Absent(self._host_of(one[0]), one[1], one[2], one[3]) for one in data["absent"]),
            processes=data["processes"],
            timeouts=data["timeouts"],
        )

    def _host_of(self, address: str) -> str:
        """Return the host of an address; for a loopback address the host that reported it."""
        try:
            return self.host if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address
        except ValueError:
            return ""

    def _communicator(self, data: Mapping[str, Any], hosts: Sequence[str]) -> Communicator:
        size = data["size"]

        def place(given: Sequence[int]) -> Place:
            if given[0] >= len(hosts):
                raise codec.Invalid(f"communicator {data['name']} names host {given[0]} of {len(hosts)}")
            return Place(hosts[given[0]], *given[1:])

        def groups(given: Sequence[Sequence[Any]]) -> tuple[Group, ...]:
            return tuple(Group(value, number, self._ranks(named, size)) for value, number, named in given)

        places = {one[0]: place(one[1:]) for one in data["places"]}
        missing = tuple(Missing(one[0], None if one[1] is None else place(one[1]), *one[2:]) for one in data["missing"])
        if any(rank >= size for rank in [*places, *(one.rank for one in missing)]):
            raise codec.Invalid(f"communicator {data['name']} of {size} ranks has a rank beyond them")
        return Communicator(
            name=data["name"],
            size=size,
            places=places,
            counts={name: groups(of) for name, of in data["counts"].items() if of},
            statuses=groups(data["statuses"]),
            errors=groups(data["errors"]),
            missing=missing,
            missing_number=data["missing_number"],
            whole=data["whole"],
        )

    def _ranks(self, text: str, size: int) -> tuple[int, ...]:
        found: list[int] = []
        for part in text.split(",") if text else ():
            low, _dash, high = part.partition("-")
            first, last = int(low), int(high or low)
            if not first <= last < size:
                raise codec.Invalid(f"ranks {part} in a communicator of {size}")
            self.named += last - first + 1
            if self.named > MOST_NAMED:
                raise codec.Invalid(f"names more than {MOST_NAMED} ranks")
            found += range(first, last + 1)
        return tuple(found)


def read_host(host: str, registered: object) -> tuple[dict[str, Any], list[View], str]:
    """Return a host's checked result, its views, and why there are none: "" where there are."""
    if not isinstance(registered, dict) or not registered:
        return {}, [], "not queried in time"
    if registered.get("unreachable"):
        return {}, [], f"unreachable: {registered.get('msg') or 'no response'}"
    if "views" not in registered:
        return {}, [], str(registered.get("msg") or "it has not responded")
    try:
        found = result_schema.check(MODULE, registered)
        return found, [_Reader(host).view(one) for one in found["views"]], ""
    except codec.Invalid as error:
        return {}, [], result_schema.SAID + str(error)


# -- the report --------------------------------------------------------------------------------------------------------


def build(registered: Mapping[str, object], inventory: Sequence[str] = (), simulated: bool = False) -> dict[str, Any]:
    """Return the report. registered: host -> result of nccl_ras_info. inventory: arguments of ``-i`` in commands.

    simulated: a host is one of the lab's.
    """
    answers: dict[str, dict[str, Any]] = {}
    views: dict[str, list[View]] = {}
    hosts: dict[str, str] = {}
    for host, given in registered.items():
        found, of_host, why = read_host(host, given)
        hosts[host] = " ".join(printable(why).split())[:500]
        if not why:
            answers[host], views[host] = found, of_host
    known = _known(answers)
    every = ras_join.distinct([view for of_host in views.values() for view in of_host])
    renamed = iter(every)
    views = {host: [next(renamed) for _view in of_host] for host, of_host in views.items()}
    silent = [
        Silence(Problem(f"{one['source']} on {host}", one["message"]), tuple(one["users"]), tuple(one["pids"]))
        for host, found in answers.items()
        for one in found["silent"]
    ]
    idle = [host for host, found in answers.items() if _idle(found)] if every else []
    findings = _findings(nccl_hang.judge(every, silent, known), answers, idle)
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
        "collect": _collect(every, known, inventory, set(registered)),
    }


def _findings(
    of_jobs: Sequence[Finding], answers: Mapping[str, Mapping[str, Any]], idle: Sequence[str]
) -> list[tuple[str | None, Finding]]:
    """Return the findings on jobs, and those of nodes on their own processes with the host; the worst first."""
    findings: list[tuple[str | None, Finding]] = [(None, finding) for finding in of_jobs]
    for host, found in answers.items():
        for item in found["findings"]:
            if item["check"] in (RAS.id, READABLE.id) and host not in idle:
                findings.append((host, from_dict({k: v for k, v in item.items() if k != "id"})))
    order = {"drift": 0, "unknown": 1}

    def rank(each: tuple[str | None, Finding]) -> tuple[bool, bool, int, int]:
        one = each[1]
        return one.ok, one.because is not None, order.get(one.state, 2), SEVERITIES.index(one.severity)

    return sorted(findings, key=rank)


def _known(answers: Mapping[str, Mapping[str, Any]]) -> Known:
    owners: dict[str, set[str]] = {}
    processes: dict[tuple[str, int], Seen] = {}
    for host, found in answers.items():
        # Each has the same 172.17.0.1 of docker0, which identifies none.
        for address in found["addresses"]:
            owners.setdefault(address, set()).add(host)
        processes.update(seen_processes(host, found["processes"]))
    names = {address: next(iter(of)) for address, of in owners.items() if len(of) == 1}
    unread = {host for host, found in answers.items() if any(f["check"] == READABLE.id for f in found["findings"])}
    return Known(names, frozenset(answers.keys() - unread), processes)


def _idle(found: Mapping[str, object]) -> bool:
    return not found["processes"] and not found["views"] and not found["silent"]


def _jobs(views: Mapping[str, Sequence[View]], known: Known) -> list[dict[str, Any]]:
    found = []
    for of_job in ras_join.jobs([view for of_host in views.values() for view in of_host]):
        asked = [host for host, of_host in views.items() if any(view in of_job for view in of_host)]
        joined = ras_join.join(of_job)
        places = {place for one in joined for place in one.now.places.values()}
        places |= {lost.place for one in joined for lost in one.now.missing if lost.place is not None}
        found.append(
            {
                "users": sorted({user for view in of_job for user in view.users}),
                "nccl": sorted({view.now.version for view in of_job}),
                "form": sorted({view.now.form for view in of_job}),
                "asked_on": asked,
                "seconds": max(view.seconds for view in of_job),
                "hosts": sorted({known.host(place.host) for place in places}),
                # The text lists few of them.
                "processes": max(len({(place.host, place.pid) for place in places}), of_job[0].now.processes or 0),
                "communicators": [_communicator(one, known) for one in joined],
                # Communicators with findings are listed above with their names.
                "alike": [[row.number, row.size, row.status] for row in of_job[0].now.rows if row.errors == "OK"],
            }
        )
    return found


def _communicator(one: ras_join.Joined, known: Known) -> dict[str, Any]:
    launched = one.now.launched
    missing = {lost.rank: lost for lost in one.now.missing}
    ranks = []
    for rank in sorted({*one.now.places, *missing, *launched}):
        place = one.now.places.get(rank) or (missing[rank].place if rank in missing else None)
        ranks.append(
            {
                "rank": rank,
                "host": known.host(place.host) if place else None,
                "pid": known.pid(place) if place else None,
                "gpu": place.nvml if place else None,
                "launched": launched.get(rank),
                "missing": rank in missing,
                "state": known.state(place) if place else "",
            }
        )
    return {
        "name": one.name,
        "size": one.now.size,
        "moved": one.moved,
        "counts": {
            name: [{"value": group.value, "number": group.number, "ranks": ranges(group.ranks)} for group in of]
            for name, of in sorted(one.now.counts.items())
        },
        "statuses": {str(group.value): group.number for group in one.now.statuses},
        "errors": {str(group.value): ranges(group.ranks) for group in one.now.errors},
        "missing": one.now.missing_number,
        "ranks": ranks,
    }


def _collect(views: Sequence[View], known: Known, inventory: Sequence[str], asked: set[str]) -> list[dict[str, Any]]:
    """Return, for each process that others wait for, commands that save its state before it is killed."""
    found = []
    for place, why in [*nccl_hang.suspects(views, known).items()][:_SHOWN]:
        host, pid = known.host(place.host), known.pid(place)
        seen = known.seen(place)
        # A name from a node is never an argument of a command.
        prefix = ["ansible", host, *(word for path in inventory for word in ("-i", path)), "-b", "-m", "command", "-a"]
        dump = f"py-spy dump --pid {pid}" + (" --nonblocking" if seen is not None and seen.state in "Tt" else "")
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
                "recorded": _recorded(seen),
            }
        )
    return found


def _recorded(seen: Seen | None) -> list[str]:
    if seen is None:
        return []
    told = seen.told
    buffer = next((name for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE") if name in told), "")
    recorder = "flight recorder off: start PyTorch with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    if buffer and told[buffer] != "0":
        dumps = told.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "") in ("1", "true")
        lacks = "no dump is configured: TORCH_NCCL_DUMP_ON_TIMEOUT=1 was not set"
        state = "it writes when the watchdog fires: wait for that" if dumps else lacks
        recorder = f"flight recorder on ({buffer}): {state}"
    if told.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return [recorder, "no log of NCCL: start with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"]
    file = printable(told.get("NCCL_DEBUG_FILE", ""))
    return [recorder, *([f"NCCL's log: {file} on that host; busbar diagnose FILE reads it"] if file else [])]


# -- text --------------------------------------------------------------------------------------------------------------


def text(report: Mapping[str, Any], width: int = terminal.WIDTH, verbose: bool = False) -> str:
    """Return the verdict, the findings, what to collect and the jobs on one screen; all of them with ``verbose``."""
    most = None if verbose else screen.LINES
    bad = sorted((of for of in report["findings"] if of["state"] != "ok"), key=lambda of: of["because"] is not None)
    roots = sum(of["because"] is None for of in bad)
    blocks = [_finding_lines(finding, width, most) for finding in bad]
    blocks[roots:roots] = map(_collect_lines, report["collect"])
    jobs = [_job(job) for job in report["jobs"]]
    silent = nodeset.grouped((why, host) for host, why in report["hosts"].items())
    rest = [f"no response from {nodeset.fold(hosts)}: {why}" for why, hosts in silent.items() if why]
    rest += [f"no process with libnccl on {nodeset.fold(report['idle'])}"] if report["idle"] else []
    if verbose:
        lines = [line for block in (*jobs, *blocks) for line in (*block, "")]
        lines += [*screen.each(rest, width, True), headline(report)]
    else:
        jobs = [[screen.wrapped(line, width, 0, 1)[0] for line in job] for job in jobs]
        head, tail = screen.wrapped(headline(report), width), screen.each(rest, width, False)
        lines = screen.page(head, [*blocks, *jobs], tail, width, "-v, or --json", "finding or job")
    return "\n".join(printable(line) for line in lines) + "\n"


def _finding_lines(finding: Mapping[str, Any], width: int, most: int | None) -> list[str]:
    at = f"  {finding['host']}" if finding["host"] else ""
    head = f"{finding['severity']}  {finding['state']}  {finding['check']}{at}  {finding['subject']}"
    follows = [f"caused by {finding['because']}"] if finding["because"] else []
    texts = [finding["have"], *(follows or (f"why: {finding['why']}", f"do: {finding['fix']}"))]
    return [
        *screen.wrapped(head, width, 0, most),
        *(line for text in texts for line in screen.wrapped(text, width, 4, most)),
    ]


def _collect_lines(each: Mapping[str, Any]) -> list[str]:
    state = f", {each['state']}" if each["state"] else ""
    process = f"{each['host']} process {each['pid']} GPU {each['gpu']}: {each['why']}{state}"
    lines = [f"collect before anything is killed: {process}"]
    lines += [f"    $ {command}" for command in each["commands"]] or ["    its host was not queried: name it, too"]
    return lines + [f"    {recorded}" for recorded in each["recorded"]]


def headline(report: Mapping[str, Any]) -> str:
    asked = len(report["hosts"])
    answered = sum(1 for why in report["hosts"].values() if not why)
    jobs = len(report["jobs"])
    said = {
        MOVES: "every job launches collectives, and no rank is behind",
        HUNG: "a rank holds up the others",
        UNKNOWN: "no rank is seen to hold up the others, and whether all is well is unknown",
    }[report["verdict"]]
    counted = f"{jobs} job{'' if jobs == 1 else 's'}, {answered} of {asked} hosts responded"
    counted += ", simulated" if report["simulated"] else ""
    return f"VERDICT {report['verdict']}: {said} ({counted}; nothing was changed)"


def _job(job: Mapping[str, Any]) -> list[str]:
    where = nodeset.brief(job["hosts"], 60) or "hosts that RAS does not name"
    asked = f"queried on {nodeset.brief(job['asked_on'], 60)}"
    twice = f" twice, {job['seconds']:g} s apart" if job["seconds"] else " once"
    head = f"JOB of {', '.join(job['users'])}: NCCL {', '.join(job['nccl'])}, {job['processes']} processes on {where}"
    lines = [f"{head}; {asked}{twice}"]
    rows = [("COMMUNICATOR", "RANKS", "MISSING", "STATUS", "MOVES", "LAUNCHED (RANKS)")]
    shown = sorted(job["communicators"], key=lambda one: (one["moved"] is not False, -one["missing"], -one["size"]))
    for one in shown:
        counts = [
            f"{name} " + ", ".join(f"{group['value']} ({group['number']})" for group in of[:4])
            for name, of in one["counts"].items()
            if [group["value"] for group in of] != [0]
        ]
        moves = {True: "yes", False: "no", None: "?"}[one["moved"]]
        status = ", ".join(one["statuses"]) or "?"
        launched = "; ".join(counts) or ("none" if one["counts"] else "equal, or not reported")
        rows.append((one["name"].split(":")[0], str(one["size"]), str(one["missing"] or "-"), status, moves, launched))
    rows += [(f"{number} without name", str(size), "-", status, "?", "alike") for number, size, status in job["alike"]]
    return [*lines, *_table(rows)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
