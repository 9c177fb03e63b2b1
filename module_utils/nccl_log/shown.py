# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log shows of a job, and what it does not, in sentences: of healthy logs and cut ones, too."""

from __future__ import annotations

import re
from typing import Dict, List, Set, Tuple

from . import (
    aftermath,
    alike,
    attendance,
    ends,
    events,
    judge,
    judge_watchdog,
    last_lines,
    net_plugins,
    results,
    signals,
    survived,
    table_told,
    transport,
    ways,
)
from .failures import failure
from .job import NO_FAILURES, Log, Process
from .jobs import UNNAMED, Job, missing, names, numbers, of_ranks
from .quotes import Quote

# What stands before a note of a kind.
_NOTES = {"odd": "worth a look, not a failure: ", "fallback": "NCCL continues in another way: "}
_NOTES.update({"fact": "", "harmless": "harmless: "})
# What network plugins are, by the name that stands in their lines.
_PLUGINS = {
    "FastSocket": "TCP, no RDMA",
    "GPUDirectTCPX": "TCP that writes into the GPU's memory",
    "FasTrak": "TCP that writes into the GPU's memory",
    "OFI": "libfabric",
    "UCX": "RDMA by UCX",
    "gIB": "RDMA",
}
# Names of plugins for which NCCL looks where no variable names one.
_USUAL = re.compile(r"^(?:libnccl-(?:net|tuner|profiler|env|gin|rma)\.so)?$")
# Hosts and communicators in a list; processes that are named one by one, and of which ranks are looked for.
_HOSTS, _COMMUNICATORS, _NAMED, _RANKED = 6, 4, 16, 2000
# How communicators end.
_ENDS = (("Destroy", "ended in order"), ("Abort", "aborted"), ("Revoke", "revoked"))
# Kinds of lines that report a failure.
_FAILED = signals.ERROR, signals.DEATH
# Processes of which PCI addresses are reported.
_BUSES = 8


def shown(log: Log, job: Job, whole: bool = True) -> List[str]:
    """What the log tells of a job. whole: it is the first job, with which what nobody signed is reported."""
    said = [*_seen(job), *_releases(log, job)]
    if whole:
        networks = {name for process in log.processes.values() for name in process.networks}
        said += [*_programs(log), *table_told.told(log.table, log.trace, networks)]
        said += [*log.trace.told(), *log.matrix.told(), *log.stacks.told()]
        if log.starts > 1 and job.world is None:
            text = "NCCL's release is here %d times on a separate line, which rank 0 of a job prints: "
            tests = [test for test in log.table.tests if test.begin]
            one_by_one = len(tests) >= log.starts and all(test.apart for test in tests)
            text += "tests one after the other" if one_by_one else (
                "usually %d jobs (a program without MPI on each host), or one that was started again" % log.starts
            )  # fmt: skip
            said.append(text % log.starts)
    said += [*_communicators(job), *ways.told(log, job), *_nodes(job), *_plugins(job), *_notes(job)]
    if whole:
        said += [*survived.told(log, job), *_warnings(log), *results.told(log.results), *_successes(job)]
        if job.failures or not _worked(log, job):
            said += last_lines.told(log, job)
    return said


def _warnings(log: Log) -> List[str]:
    """That NCCL warns of nothing, or of nothing that is a failure."""
    if log.info and not log.warnings:
        return ["no warning of NCCL's (WARN) is in these lines"]
    if not log.info or log.failures:
        return []
    count = "only warning (WARN) is about" if log.warnings == 1 else "%d warnings (WARN) are about" % log.warnings
    return ["NCCL's %s what it does without, and no failure" % count]


def _worked(log: Log, job: Job) -> bool:
    """Whether a program has told of its own work."""
    return bool(log.results.kept) or any(one.kind == signals.SUCCESS for one in job.quotes)


def not_shown(log: Log, job: Job, whole: bool = True) -> List[str]:
    """What the log does not tell of a job."""
    said: List[str] = []
    if job.processes:
        said += transport.transport(job).missing if job.nodes != 1 else ()
        said = _absent(log, job, said)
        shaped = max((process.shaped for process in job.processes), default=0)
        if shaped == 1 and _NODES in said:
            said[said.index(_NODES)] = (
                "whether the job has more nodes than the one of the communicator that is named (nNodes 1)"
            )
        if whole and len(log.table.hosts) > 1 and _NODES in said:
            text = "NCCL does not report over how many nodes the job runs: nccl-tests' list names %d hosts"
            said[said.index(_NODES)] = text % len(log.table.hosts)
        done = any(one.done for one in job.communicators)
        torn = results.torn(log.results) if whole else []
        if job.communicators and not done:
            others = ", ".join("%s (line %d)" % one for one in torn[:4])
            text = ": lines with a cut beginning report it of others, %s" % others if others else " (Init COMPLETE)"
            said.append("that a communicator %swas completed%s" % ("whose beginning is here " if others else "", text))
        elif done and whole and not (log.table.rows or log.trace.streams or job.failures or _worked(log, job)):
            ended = any(one.gone for one in job.communicators) or any(process.ended for process in job.processes)
            text = "what came %s: collectives, their speed, the result%s"
            said.append(text % (("before the communicators ended", "") if ended else
                                ("after the initialisation", " and end of the job")))  # fmt: skip
        if not job.communicators and not job.failures:
            said.append(
                "which ranks started, and that any completed (Init START, Init COMPLETE): NCCL was not at INFO, or the"
                " log is cut"
            )
        elif not job.communicators and any(one.networks or one.connections for one in job.processes):
            said.append("that any rank got ready (Init COMPLETE)")
    if whole and log.processes and not job.versions:
        said.append("which release of NCCL it is")
    if whole and job.failures and all(one.failure.kind in _AFTER for one in job.failures):
        said += _beginning(job)
    if whole and not log.table.rows and (log.table.ranks or log.tests):
        said.append("a row of nccl-tests' table: no bandwidth")
    if log.cut_off and whole:
        said.append("the end of %s: its last line has no end, and may be cut off" % names(log.cut_off, 2))
    return said


def _absent(log: Log, job: Job, said: List[str]) -> List[str]:
    """What the proof of a transport lacks, without ranks that other lines name as their own."""
    unseen = transport.unseen(job)
    if job.world is None or job.rivals or unseen not in said:
        return said
    there = attendance.named(log, job)
    silent = numbers(there - set(job.world.began))
    where = "these lines, which leave some out" if log.elided else "this log"
    texts = []
    if len(there) < job.world.ranks:
        which = of_ranks(missing(there, job.world.ranks), " of %d is", " of %d are") % job.world.ranks
        texts.append(unseen if attendance.unnamed(job) else "%s not in %s" % (which, where))
    if silent:
        texts.append("the beginning (Init START) of %s, of which other lines are here" % of_ranks(silent))
    return [one for text in said for one in (texts if text == unseen else [text])]


def _beginning(job: Job) -> List[str]:
    """That what failed first is not here, where nothing in the log may be it."""
    first = min(job.failures, key=lambda one: (one.source, one.order))
    known = {" ".join(one.failure.text[:120].split()) for one in job.failures}
    before = [one for one in job.quotes if one.kind in (signals.ERROR, signals.DEATH) and not one.nccl]
    if any((one.source, one.order) < (first.source, first.order) for one in before
           if " ".join(one.text[:120].split()) not in known):  # fmt: skip
        return []
    if all(one.failure.kind in ("watchdog", "progress", "signalled", "stuck") for one in job.failures):
        codes = {one.failure.code for one in job.failures if one.failure.kind == "watchdog"}
        if len(codes) == 1 and judge_watchdog.not_come(job, next(iter(codes))):
            return ["what stopped the rank that did not come"]
        if judge_watchdog.taken_down(job):
            return ["what the abort of the process group waited for"]
        return ["why the ranks waited: which rank or transfer did not come, and what stopped it"]
    return ["the first error itself: these lines were caused by it, or only report it"]


# A sentence of transport's.
_NODES = "the number of nodes of the job is unknown"
# Kinds of failures that only report another one.
_AFTER = (
    "signalled",
    "consequence",
    "exception",
    "test",
    "watchdog",
    "progress",
    "exit",
    "stuck",
    "left",
    "closed",
    "store",
)


def _who(job: Job, process: Process) -> str:
    text = job.who(process)
    gpus = sorted(process.gpus)
    text += " GPU%s %s" % ("" if len(gpus) == 1 else "s", numbers(gpus)) if gpus else ""
    others = {rank: number for rank, number in process.nvml.items() if len(process.buses) > 1}
    if others and len(job.processes) <= _BUSES:
        text += " (%s: the job sees a part of the GPUs)" % ", ".join(
            "rank %d's is nvmlDev %d" % pair for pair in sorted(others.items())[:8]
        )
    if len(process.buses) == 1 and len(job.processes) <= _BUSES:
        [(rank, bus)] = process.buses.items()
        parts = ["busId %s" % bus] if bus else []
        parts += ["nvmlDev %d" % process.nvml[rank]] if rank in process.nvml else []
        text += " (%s)" % ", ".join(parts) if parts else ""
    return text


def _seen(job: Job) -> List[str]:
    """Processes of each host with their GPUs; GPUs that two processes of a host have in common."""
    hosts: Dict[str, List[Process]] = {}
    for process in job.processes:
        hosts.setdefault(process.host or UNNAMED, []).append(process)
    if not hosts or (len(job.processes) == 1 and not job.processes[0].host and job.processes[0].key[1] is None):
        return []
    text = []
    for host, processes in sorted(hosts.items())[:_HOSTS]:
        if len(job.processes) <= _NAMED:
            text.append(", ".join(_who(job, one) for one in processes))
            continue
        ranks = [rank for one in processes for rank in job.ranks_of(one)] if len(job.processes) < _RANKED else []
        gpus = {gpu for one in processes for gpu in one.gpus}
        own = "%d process%s on %s" % (len(processes), "" if len(processes) == 1 else "es", host)
        own += ", ranks %s" % numbers(ranks) if ranks else ""
        text.append(own + (", GPUs %s" % numbers(gpus) if gpus else ""))
    said = [
        "seen: %s" % "; ".join(text) + (" and %d more hosts" % (len(hosts) - _HOSTS) if len(hosts) > _HOSTS else "")
    ]
    for host, processes in sorted(hosts.items())[:_HOSTS]:
        on: Dict[int, List[Process]] = {}
        for process in processes:
            if len(process.gpus) == 1 and process.key[1] is not None:
                on.setdefault(next(iter(process.gpus)), []).append(process)
        shared = {gpu: own for gpu, own in on.items() if len(own) > 1}
        several = len({job.rank_of(one) for own in shared.values() for one in own} - {None}) > 1
        buses = {bus for own in shared.values() for one in own for bus in one.buses.values()}
        if shared and not (several and len(buses) > 1):
            gpu, own = next(iter(shared.items()))
            said.append(
                "worth a look: processes %s of %s all use device %d: the same GPU, unless each sees another one under"
                " that number (CUDA_VISIBLE_DEVICES); or they are separate programs,"
                " such as nccl-tests built without MPI and started by mpirun"
                % (", ".join(str(one.key[1]) for one in own[:6]), host, gpu)
            )
    return said


def _releases(log: Log, job: Job) -> List[str]:
    said = []
    built = {process.cuda for process in job.processes if process.cuda} or log.built_for
    drivers = {process.driver for process in job.processes if process.driver}
    parts = []
    if job.versions:
        parts.append("NCCL %s" % ", ".join(job.versions))
    if built:
        parts.append("built for CUDA %s" % names(built))
    if drivers:
        parts.append("driver of CUDA %s" % ", ".join("%d.%d" % (n // 1000, n % 1000 // 10) for n in sorted(drivers)))
    if len(parts) > 1:
        said.append("releases: %s" % ", ".join(parts))
    older, too_old = judge.older_driver(log, job)
    return said + ([older] if older and not too_old else [])


def _programs(log: Log) -> List[str]:
    of = log.programs
    parts = []
    if of.worlds:
        parts.append("a world of %s ranks" % ", ".join(map(str, sorted(of.worlds)[:4])))
    if of.local:
        parts.append("%s ranks on a node" % ", ".join(map(str, sorted(of.local)[:4])))
    if of.ranks:
        parts.append("ranks that report it: %s" % numbers(of.ranks))
    if of.hosts:
        where = ", ".join("rank %d on %s" % pair for pair in sorted(of.hosts.items())[:8])
        parts.append(where + (" and %d more" % (len(of.hosts) - 8) if len(of.hosts) > 8 else ""))
    if of.files:
        parts.append("files of %s in tracebacks" % names(of.files, 8))
    if of.ends:
        codes: Dict[str, List[int]] = {}
        for rank, code in of.ends.items():
            codes.setdefault(code, []).append(rank)
        each = ["%s on %s" % (code, of_ranks(numbers(ranks))) for code, ranks in sorted(codes.items())]
        parts.append("exit codes in torchrun's list: %s" % names(each, 6))
    if of.meeting:
        parts.append("processes meet at %s" % names(of.meeting, 4))
    if of.backends:
        parts.append("backend %s" % names(of.backends, 3))
    if of.variables:
        pairs = ["%s=%s" % pair for pair in sorted(of.variables.items())[:12]]
        parts.append("variables in lines of programs or commands: %s" % ", ".join(pairs))
    said = ["programs report: %s" % "; ".join(parts)] if parts else []
    if of.starting and not log.info:
        said.append("lines of a launcher's or a store's start (rendezvous), as is normal; NCCL has not started"
                    " in them")  # fmt: skip
    return said


def _communicators(job: Job) -> List[str]:
    said = []
    ordered = sorted(job.communicators, key=lambda one: (-one.ranks, one.key))
    for one in ordered[:_COMMUNICATORS]:
        begun = numbers(one.began) if len(one.began) < one.ranks else "all"
        text = "communicator %s of %d ranks%s: started by %s" % (
            one.key, one.ranks, " (one process has all of them)" if one.one_process else "", begun,
        )  # fmt: skip
        text += ", Init COMPLETE of %s" % ("all" if len(one.done) == one.ranks else numbers(one.done) or "none")
        if one.named:
            text = "a communicator of %d ranks, whose beginning (Init START) is not in the log: lines name %s" % (
                one.ranks, "all of them" if begun == "all" else "rank " + begun,
            )  # fmt: skip
        text = text.replace("of %d ranks of %d ranks" % (one.ranks, one.ranks), "of %d ranks" % one.ranks)
        if one.nodes is not None:
            text += ", over %d node%s" % (one.nodes, "" if one.nodes == 1 else "s")
            text += " (%d ranks on each)" % one.local_ranks if one.local_ranks else ""
        for how, meant in _ENDS:
            if how in one.gone:
                text += ", %s (%s COMPLETE) by %s" % (
                    meant, how, "all" if len(one.gone[how]) == one.ranks else "rank " + numbers(one.gone[how]),
                )  # fmt: skip
        failed = any(one.kind in _FAILED or "failed or timed out" in one.text for one in job.quotes)
        if "Abort" in one.gone and not job.failures and not failed:
            text += ": no failure is in these lines, so usually the program itself ended it so"
        elif "Abort" in one.gone and job.failures:
            text += ": usually the clean-up after a failure, and not a cause"
        said.append(text)
    if len(ordered) > _COMMUNICATORS:
        said.append("and %d more communicators" % (len(ordered) - _COMMUNICATORS))
    split = sum(one.split for one in job.communicators)
    if split:
        said.append("%d of %d communicators are made by ncclCommSplit" % (split, len(job.communicators)))
    shaped = max(((process.shaped_ranks, process.shaped) for process in job.processes), default=(0, 0))
    if job.world is None and shaped[0]:
        local = max(process.shaped_local for process in job.processes)
        said.append("a communicator of %d ranks over %d node%s is named%s" % (
            *shaped, "" if shaped[1] == 1 else "s", " (%d ranks on each)" % local if local else "",
        ))  # fmt: skip
    slowest = max(job.processes, key=lambda process: process.init_seconds, default=None)
    if slowest is not None and slowest.init_seconds:
        several = len([1 for process in job.processes if process.init_seconds]) > 1
        said.append("%s took %g s%s%s" % (
            "the longest initialisation" if several else "an initialisation",
            slowest.init_seconds[0],
            _largest(slowest.init_seconds[2], slowest.init_seconds[0]),
            ": %s" % slowest.init_seconds[2] if slowest.init_seconds[2] else "",
        ))  # fmt: skip
    return said


def _largest(parts: str, whole: float) -> str:
    """Of the parts of an initialisation, as they are printed, the one that took most of it; a torn line lacks some."""
    found = [(float(seconds), name) for name, seconds in re.findall(r"([a-z]+) (\d+(?:\.\d+)?)(?:,|$)", parts)]
    most, name = max(found, default=(0.0, ""))
    if not most or most * 2 < whole:
        return ""
    return ", most of it, %g s, in %s%s" % (most, name, " (waiting for others)" if name == "bootstrap" else "")


def _nodes(job: Job) -> List[str]:
    """The topology that was printed: of processes that print the same, once."""
    found: Dict[Tuple[str, ...], List[Process]] = {}
    for process in job.processes:
        parts = []
        if process.nvlinks:
            speeds = sorted(set(process.nvlinks.values()))
            speed = " to ".join("%g" % value for value in speeds[:: max(len(speeds) - 1, 1)])
            parts.append("NVLinks of %s GB/s%s on %d GPU%s" % (
                speed, " to NVSwitch" if process.nvswitch else "", len(process.nvlinks),
                "" if len(process.nvlinks) == 1 else "s",
            ))  # fmt: skip
        parts += process.topology.told() if process.topology is not None else []
        if parts:
            found.setdefault(tuple(parts), []).append(process)
    said = []
    for told, processes in sorted(found.items(), key=lambda one: (-len(one[1]), one[1][0].order))[:3]:
        who = names((process.host or UNNAMED for process in processes), 3)
        said.append("topology of %s: %s" % (who, "; ".join(told)))
    if len(found) > 3:
        said.append("and %d topologies more that differ from these" % (len(found) - 3))
    return said


def _plugins(job: Job) -> List[str]:
    said = []
    plugins = {plugin for process in job.processes for plugin in process.plugins}
    speaks = {plugin.name for plugin in plugins if plugin.state == "speaks"}
    if speaks:
        kinds = "; ".join("%s is %s" % (name, _PLUGINS[name]) for name in sorted(speaks) if name in _PLUGINS)
        said.append("lines of a network plugin: %s" % names(speaks) + (" (%s)" % kinds if kinds else ""))
    idle = net_plugins.without_device(job.processes)
    if idle:
        said.append("the network plugin %s found no device that it takes (no eligible provider): it is not used"
                    % names(idle))  # fmt: skip
    said += net_plugins.given_up(job)
    there = {plugin for plugin in plugins if plugin.state == "loaded"}
    absent = {plugin.kind for plugin in plugins if plugin.state == "missing"}
    absent -= {plugin.kind for plugin in there if not plugin.name.startswith("internal")}
    asked = {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"} & _set(job)
    if "NET" in absent and any(one.failure.kind == "no_network" for one in job.failures):
        absent.remove("NET")
        said.append("no plugin for NET is there, and the requested network needs one")
    slingshot = net_plugins.slingshot(job.processes)
    if "NET" in absent and not asked and slingshot and "Socket" in job.networks:
        absent.remove("NET")
        said.append(
            "no plugin for NET is there: over Slingshot's interfaces (hsn...) NCCL then goes by TCP, no failure,"
            " and slow between nodes; libfabric needs the plugin aws-ofi-nccl"
        )
    if absent and not asked:
        said.append("harmless: no plugin for %s is there; NCCL does without" % ", ".join(sorted(absent)))
    missing = {plugin for plugin in plugins if plugin.state == "missing" and not _USUAL.match(plugin.name)}
    odd = {plugin.name for plugin in missing}
    if odd:
        text = "not found: %s" % names(odd, 4)
        if any("-./" in name or ".so.so" in name or "-/" in name for name in odd):
            text += (
                " (NCCL puts lib...- and .so around what is not a whole path: give the whole path, or a bare name that"
            )
            text += " LD_LIBRARY_PATH finds)"
        without = {plugin.kind for plugin in missing} <= {"PROFILER", "TUNER"}
        said.append(text + ("; communication does without a profiler or tuner" if without else ""))
    failed = net_plugins.failed_to_start(plugins)
    if "IB" in failed:
        said.append("NCCL's own NET/IB did not start (Failed to initialize NET plugin IB), as where no HCA is visible")
    not_up = {plugin for plugin in there if plugin.kind == "NET" and _is_one_of(plugin.name, failed)}
    loaded = {"%s %s" % (plugin.kind, plugin.name) for plugin in there - not_up}
    if loaded:
        said.append("plugins loaded: %s" % names(loaded, 6))
    if not_up:
        said.append("loaded, and not started: %s" % names((plugin.name for plugin in not_up), 6))
    unfit = {plugin.name for plugin in plugins if plugin.state == "unfit"}
    if unfit:
        said.append("a network plugin does not fit this NCCL (no %s): NCCL's own networks are used" % names(unfit))
    return said


def _is_one_of(loaded: str, failed: Set[str]) -> bool:
    """Whether ``SPCX (v10)`` or ``libnccl-net-spcx.so`` is among plugins that NCCL calls by their own names."""
    words = re.split(r"[^a-z0-9]+", loaded.lower())
    return any(name.lower() in words for name in failed)


def _notes(job: Job) -> List[str]:
    said = []
    notes = {(note.kind, note.text) for process in job.processes for note in process.notes}
    for kind in ("odd", "fallback", "fact", "harmless"):
        for text in sorted(text for of, text in notes if of == kind)[:8]:
            note = events.Note(kind, text)
            few = job.processes if len(job.processes) < _RANKED else ()
            hosts = {process.host for process in few if note in process.notes}
            # Where all say it, or a host has no name, whose it is tells nothing.
            some = "" not in hosts and 0 < len(hosts) < len({process.host for process in few})
            said.append(_NOTES[kind] + text + (" (according to %s)" % names(hosts, 3) if some else ""))
    said += _interfaces(job, notes) + _host_memory(job)
    shut = [process for process in job.processes if ends.shut_down(process)]
    if shut:
        said.append(
            "calls on sockets that returned 3 on %s go with the end of their communicators: waits end so when one is"
            " aborted, which is not a failure" % names([job.who(process) for process in shut], 4)
        )
    closed = [int(text) for of, text in notes if of == "closed"]
    if closed:
        said.append(
            "service threads report that local rank%s %s closed %s: ended or closed down, as is usual at the end and"
            " after a failure, and not an error; look at these ranks first if no other line names the failed rank"
            % (
                "" if len(closed) == 1 else "s",
                numbers(closed),
                "its connection" if len(closed) == 1 else "connections",
            )
        )
        if not all(process.ended for process in job.processes):
            said.append("of these %s" % alike.lost(job))
    return said + _settings(job, notes) + _effects(job)


def _host_memory(job: Job) -> List[str]:
    """In which ways processes share memory of the host, where these are two."""
    ways_of = {
        one: {note.text for note in one.notes if note.kind == "host_memory"} for one in job.processes if one.notes
    }
    by = {way: [job.who_and_gpu(one) for one, said in ways_of.items() if way in said] for way in ("CUMEM", "MMAP")}
    if not all(by.values()) or by["CUMEM"] == by["MMAP"]:
        return []
    return [
        "worth a look, not a failure: memory of the host is shared in two ways: by cuMem (CUMEM) on %s; by files"
        " in /dev/shm (MMAP) on %s: ranks that do not agree on it cannot attach each other's; NCCL_CUMEM_HOST_ENABLE=0"
        " makes all of them use files" % (names(by["CUMEM"], 8), names(by["MMAP"], 8))
    ]


def _effects(job: Job) -> List[str]:
    """What variables bring here that their values alone do not tell."""
    said = []
    one_each = job.world is not None and job.world.nodes == job.world.ranks > 1
    off = [name for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") if job.number(name) and one_each]
    hosts = {one.host for one in job.world.began.values()} - {""} if job.world is not None else set()
    if off and job.world is not None and len(hosts) == job.world.ranks:
        said.append("without effect here: %s: between GPUs of a node, and each node has one rank" % names(off))
    elif len(off) > 1:
        said.append(
            "%s switch off both paths between GPUs of a host: NCCL then counts ranks of one host as separate nodes,"
            " which use the network; these lines do not show whether the other ranks are on other hosts"
            % " and ".join(off)
        )
    if set(job.set_to("NCCL_NET_GDR_LEVEL")) & {"SYS", "5"}:
        said.append(
            "NCCL_NET_GDR_LEVEL allows GPUDirect RDMA over any distance, from one CPU socket to the other as well,"
            " which is slow on many hosts"
        )
    return said


def _settings(job: Job, notes: Set[Tuple[str, str]]) -> List[str]:
    """The variables that NCCL found, those apart of which a network plugin says that it has set them."""
    by: Dict[str, str] = {}
    for kind, text in notes:
        if kind == "plugin_set":
            plugin, name = text.split()
            by[name] = plugin
    said = []
    for plugin in sorted(set(by.values())):
        own = [name for name in sorted(by) if by[name] == plugin]
        each = ["%s=%s" % (name, names(job.set_to(name), 3)) if job.set_to(name) else name for name in own]
        said.append(
            "set by the network plugin %s, as it reports, and not by the job: %s" % (plugin, ", ".join(each[:30]))
        )
    settings = ["%s=%s" % (name, names(job.set_to(name), 3)) for name in sorted(_set(job) - set(by))]
    if settings:
        said.append(
            "set (by the environment, or a file such as /etc/nccl.conf: the log does not show which): %s"
            % ", ".join(settings[:30]) + (" and %d more" % (len(settings) - 30) if len(settings) > 30 else "")
        )  # fmt: skip
    return said


def _interfaces(job: Job, notes: Set[Tuple[str, str]]) -> List[str]:
    """Interfaces of plugins that NCCL looked for and did not find, from the newest on: no fault of any."""
    said = []
    for kind in ("older", "collnet"):
        lacks = sorted((text for of, text in notes if of == kind), key=lambda text: -int(text[1:]))
        has = any(
            plugin.kind == "COLLNET" and plugin.state == "loaded" for one in job.processes for plugin in one.plugins
        )
        if lacks and (kind == "older" or has):
            said.append(
                "harmless: NCCL looks for newer interfaces of a %s plugin first (%s) and takes the one that it has"
                % ("network" if kind == "older" else "CollNet", ", ".join(lacks))
            )
        elif lacks:
            said.append(
                "harmless: the network plugin has no interface for CollNet (%s): no SHARP by it, no other loss"
                % ", ".join(lacks)
            )
    return said


def _set(job: Job) -> Set[str]:
    return {name for process in job.processes for name in process.variables}


def _successes(job: Job) -> List[str]:
    good = [one for one in job.quotes if one.kind == signals.SUCCESS]
    said = [
        "a program reports: %s%s" % (one.text[:160], ", %d times" % one.count if one.count > 1 else "")
        for one in good[:5]
    ]
    if good and not job.failures:
        said.append("a failure, if there is one, is later than these lines, or in others")
    return said


def quoted(job: Job, explained: str) -> List[Tuple[Quote, bool]]:
    """Lines that report a failure and that findings do not quote, with whether it is the first report of all.

    explained: what the findings say. Worst kinds stay where the log has too many.
    """
    reports = [one for one in job.quotes if one.kind != signals.SUCCESS]
    # A warning before it may tell of the same.
    first = reports[0] if reports and reports[0].kind in (signals.ERROR, signals.DEATH) else None
    if first is not None and signals.MERELY.search(first.text):
        first = None
    failed = [(one.source, one.order) for one in job.failures if one.failure.kind not in NO_FAILURES]
    if first is not None and min(failed, default=(first.source, first.order)) < (first.source, first.order):
        first = None  # a finding tells what came before it
    return [
        (one, one is first)
        for one in reports
        if " ".join(one.text[:120].split()) not in explained or one.calls or one.behind
    ]


def _again(job: Job, one: Quote, code: str) -> str:
    """Of an error of CUDA's that a line before has told already: CUDA returns it at each later call."""
    before = [
        other.order for other in job.failures
        if (other.failure.kind, other.failure.code, other.source) == ("cuda", code, one.source)
        and other.order < one.order
    ]  # fmt: skip
    if not before:
        return ""
    return "the error of line %d met again, as CUDA returns it at each later call: usually caused by that" % (
        min(before),
    )


def _lost_behind(job: Job, one: Quote) -> str:
    """Of a lost connection of Gloo's behind a wait that PyTorch gave up: who waited ended, and its peers lost it."""
    if one.nccl or "lost another rank" not in one.about:
        return ""
    waits = [other.order for other in job.failures if other.failure.kind == "watchdog" and other.source == one.source]
    if not waits or min(waits) > one.order:
        return ""
    text = "it stands behind the wait that was given up in line %d, after which PyTorch ends the process: it likely"
    return (text + " was caused by that, and is not a fault of the network") % min(waits)


def quote(job: Job, one: Quote, first: bool) -> List[str]:
    """A quote as it is printed: the line and who wrote it, then what it is."""
    head = "line %d" % one.order
    head += " (the first report of a failure by its place in the log)" if first else ""
    if one.nccl:
        head += ", NCCL%s%s" % (" on %s" % one.by if one.by else "", ", %s" % one.place if one.place else "")
    elif one.count > 1:
        who = []
        if len(one.ranks) > 1:
            who.append("ranks %s" % numbers(one.ranks))
        if len(one.hosts) > 1:
            who.append("on %s" % names(one.hosts, 8))
        if len(one.pids) > 1:
            who.append("processes %s" % names([pid.lstrip(":") for pid in one.pids], 8))
        head += " and %d more alike, up to line %d%s" % (
            one.count - 1, one.last, ": %s" % ", ".join(who or one.others) if who or one.others else "",
        )  # fmt: skip
    if one.nccl and one.count > 1:
        others = (one.pids or one.hosts) - {one.by}
        head += ", %d times, up to line %d" % (one.count, one.last)
        head += ", then on %s" % names(others, 3) if others else ""
    said = ["%s: %s" % (head, " | ".join([one.text, *one.behind]))]
    told = failure(one.text, one.place) if one.nccl else None
    of = [said for said in job.failures if (said.source, said.order) == (one.source, one.order)] if one.nccl else []
    follows = next((why for why in (aftermath.follows(job, said) for said in of) if why), "")
    if follows:
        said.append("= %s" % follows)
    elif told is not None and told.kind == "cuda" and _again(job, one, told.code):
        said.append("= %s" % _again(job, one, told.code))
    elif told is not None and told.kind == "consequence":
        said.append("= caused by a failure before it, or part of the end: not a cause")
    if one.about:
        said.append("= %s" % "; ".join(part for part in (one.about, _lost_behind(job, one)) if part))
    if one.calls:
        said.append("= called from: %s" % one.trail)
    if one.kernel:
        said.append("= at the launch of the program's kernel %s" % one.kernel)
    return said


__all__ = ["not_shown", "quote", "quoted", "shown"]
