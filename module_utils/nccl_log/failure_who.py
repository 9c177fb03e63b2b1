# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who reports a failure, whom it names, and where: who reports is not who is to blame."""

from __future__ import annotations

import re
from collections import Counter
from typing import Dict, List, Optional, Sequence, Set

from ..core.finding import Finding
from . import aftermath, judge_watchdog
from .failure_causes import RESULTS
from .failure_order import NUMBER, came_before, in_order, kind_of
from .job import Process, Reported
from .jobs import Job, missing, names, numbers, of_ranks
from .judge_calls import calls_of, stage, with_gpu

PID = re.compile(r"\bpid (\d{1,10})")

_SIZE = re.compile(r"\(size \d+\)|\b\d+ bytes")

_LINK_LOCAL = ("169.254.", "fe80:")
# What Docker gives its bridges.
_BRIDGE = re.compile(r"172\.(?:1[7-9]|2\d|3[01])\.\d{1,3}\.1$")
_PORT = re.compile(r"<(\d{1,5})>")


def who(job: Job, reported: Sequence[Reported]) -> str:
    said: List[str] = []
    pids: Set[str] = set()
    told_again = 0
    for one in reported:
        if one.process is not None:
            # The thread that hears of an HCA's events has no GPU.
            device = None if "async" in one.failure.text else one.device
            who = with_gpu(job.who(one.process, device), device)
        elif one.failure.rank is not None:
            told = one.failure.peer if one.failure.kind == "exit" else ""
            who = "rank %d" % one.failure.rank + (" (%s)" % told if told else "")
            pids |= set(PID.findall(told))
        elif one.failure.kind in ("exit", "cuda", "sharp") and one.failure.peer:
            who = one.failure.peer
            again = set(PID.findall(who))
            if again and again <= pids:
                told_again += 1  # a launcher tells an end in several lines
                continue
            pids |= again
        else:
            continue
        if who not in said:
            said.append(who)
    if not said:
        same = len({NUMBER.sub("#", one.failure.text) for one in reported}) == 1
        return ("seen %d times" if same else "%d lines report it") % len(reported) if len(reported) > 1 else ""
    if reported[0].failure.kind == "watchdog" and len(said) > 1:
        ranks = [one.failure.rank for one in reported if one.failure.rank is not None]
        ranks += _also_waiting(job, reported)
        text = "waiting: ranks %s" % numbers(ranks)
        rest = missing(ranks, _world(job, ranks))
        text += "; not reported by %s" % of_ranks(rest) if rest else ""
        return text
    if any(one.process is not None for one in reported):
        # What a program repeats of NCCL's words is no report of its own.
        told_again = sum(one.process is None for one in reported)
    times = len(reported) - told_again
    own, rest = [one.failure.rank for one in reported if one.failure.rank is not None], _alike(reported)
    if reported[0].failure.kind in ("watchdog", "stuck"):
        times = len(said)  # an exception says them again
    elif own and reported[0].failure.kind != "exit" and all(one.process is None for one in reported):
        times = len(own)
        rest = ", more lines of it name no rank" if times < len(reported) else ""
    if len(said) > 4 and len(own) == len(reported):
        return "on %s" % of_ranks(numbers(own))
    unnamed = reported[0].process is None and not own and any(one.process is not None for one in reported)
    # Whose the first one is it does not say.
    on = "its line names no process; NCCL warns of the same on" if unnamed else "on"
    if len(said) <= 4:
        return (
            "%s %s" % (on, "; ".join(said))
            + (", %d times" % times if times > len(said) else "")
            + (rest if len(reported) > len(said) else "")
        )
    return "first on %s, %d times on %d processes or GPUs%s" % (said[0], times, len(said), rest)


def _also_waiting(job: Job, reported: Sequence[Reported]) -> List[int]:
    """Ranks that by their progress wait for the one collective that timed out, and have no line on that."""
    codes = {one.failure.code for one in reported}
    return judge_watchdog.waiting(job, next(iter(codes))) if len(codes) == 1 else []


def late(job: Job, reported: Sequence[Reported]) -> str:
    """``, to which rank 1 had not come``: who is behind, or is one of few of which no line says that they wait."""
    waiting = {one.failure.rank for one in reported if one.failure.rank is not None}
    codes = {one.failure.code for one in reported}
    behind = set(judge_watchdog.not_come(job, next(iter(codes)))) - waiting if len(codes) == 1 else set()
    if behind:
        return ", to which %s had not come" % of_ranks(numbers(behind))
    waiting |= set(_also_waiting(job, reported))
    silent = set(range(_world(job, sorted(waiting)))) - waiting if waiting else set()
    if not silent or len(silent) > len(waiting) // 2:
        return ""
    return ", and %s no wait" % of_ranks(numbers(silent), " reports", " report")


def _world(job: Job, ranks: Sequence[int]) -> int:
    """How many ranks the job has at least; where no communicator tells, no more than lines name, if that is most."""
    if job.world is not None:
        return job.world.ranks
    told = {one.failure.rank for one in job.failures if one.failure.rank is not None}
    told |= {rank for one in job.quotes for rank in one.ranks}
    most = max(told | set(ranks)) + 1
    return most if most <= 2 * len(set(ranks)) else 0


def _alike(reported: Sequence[Reported]) -> str:
    """How many of the reports are in the first one's words, where some are not."""
    if any(one.process is None for one in reported):
        return ""
    words = [NUMBER.sub("#", one.failure.text[:80]).split()[:2] for one in reported]
    same = words.count(words[0])
    return " (%d of them in these words)" % same if same < len(reported) else ""


def devices_differ(reported: Sequence[Reported]) -> bool:
    """Whether processes report different HCAs."""
    by: Dict[Optional[Process], Set[str]] = {}
    for one in reported:
        by.setdefault(one.process, set()).add(one.failure.device)
    told = None not in by and all("" not in devices for devices in by.values())
    return told and len({frozenset(devices) for devices in by.values()}) > 1


def of_each(job: Job, reported: Sequence[Reported]) -> str:
    """``HCA mlx5_0 of rank 1; mlx5_8, mlx5_9 of rank 6``."""
    by: Dict[Process, Dict[str, None]] = {}
    for one in reported:
        if one.process is not None:
            by.setdefault(one.process, {})[one.failure.device] = None
    said = ["%s on %s" % (names(devices, _DEVICES), job.who(process)) for process, devices in by.items()]
    return "HCA %s%s" % ("; ".join(said[:_EACH]), "; and on %d more" % (len(said) - _EACH) if len(said) > _EACH else "")


# Of processes and of the HCAs of each, which are reported.
_EACH, _DEVICES = 8, 16
# Failures to open a device, which belong to who reports them.
_SKIPPED = ("hca_skipped", "verbs", "no_device")


def where(job: Job, reported: Sequence[Reported]) -> str:
    """The HCAs and peers that are in most of the reports: who reports is not who is to blame."""
    parts = []
    if reported[0].failure.kind in _SKIPPED and devices_differ(reported):
        return of_each(job, reported)
    for what, values in (
        ("HCA", [one.failure.device for one in reported if one.failure.device]),
        ("peer", [one.failure.peer for one in reported if one.failure.peer and one.failure.kind == "completion"]),
    ):
        counted = Counter(values).most_common(3)
        if counted:
            parts.append(
                "%s %s" % (what, ", ".join("%s (%d)" % pair if len(values) > 1 else pair[0] for pair in counted))
            )
    if reported[0].failure.kind == "completion" and len(_hosts(reported)) > 1:
        parts.append(_between(job, reported))
    return "; ".join(parts)


def _hosts(reported: Sequence[Reported]) -> Set[str]:
    return {one.process.host for one in reported if one.process is not None and one.process.host}


def _between(job: Job, reported: Sequence[Reported]) -> str:
    """``that is, mlx5_1 of n1 to 10.0.0.2, 2 times``: which HCA of whom reports which peer."""
    addresses = _addresses(job)
    counted = Counter(
        (one.failure.device, one.process.host if one.process is not None else "", one.failure.peer) for one in reported
    )
    said = []
    for (device, host, peer), count in counted.most_common(_EACH):
        of = addresses.get(peer, "")
        text = (device or "an HCA") + (" of %s" % host if host else "")
        text += " to %s%s" % (peer, " (%s)" % of if of and of != peer else "") if peer else ""
        said.append(text + (" %d times" % count if count > 1 else ""))
    more = len(counted) - len(said)
    return "that is, %s%s" % (", ".join(said), " and %d more such pairs" % more if more else "")


def when(reported: Sequence[Reported]) -> str:
    """``in time: n1 first, at 10:46:33; n2 at 10:46:34``, where lines of several hosts have times of one kind."""
    timed = [one for one in reported if one.process is not None and one.process.host and one.time]
    if len(_hosts(reported)) < 2 or len(timed) < len(reported) or len({one.clock for one in timed}) != 1:
        return ""
    first: Dict[str, str] = {}
    for one in sorted(timed, key=lambda one: (one.time, one.order)):
        if one.process is not None:
            first.setdefault(one.process.host, one.time)
    if len(set(first.values())) == 1:
        return ""
    said = ["%s at %s" % (host, time) for host, time in first.items()]
    text = "by the lines' times %s" % ", ".join(said[:_EACH]) + (" and more" if len(said) > _EACH else "")
    return text + " (clocks of hosts may differ)"


# Failures to make a connection between ranks.
_MAKING = ("connect", "address", "queue_pair", "handshake")


def announced(job: Job, one: Reported) -> str:
    """The one connection over the network that a process had announced before it could not be made."""
    if one.failure.kind not in _MAKING or one.process is None or len(one.process.crossed) != 1 or not one.process.calls:
        return ""
    text = "the one connection over the network that this process announces is %d->%d, so it is likely that one"
    text %= next(iter(one.process.crossed))
    ready = any(world.done & set(job.ranks_of(one.process)) for world in job.communicators)
    return text + (", requested after its Init COMPLETE, by a send or receive or a first collective" if ready else "")


def unreached(job: Job, reported: Sequence[Reported]) -> str:
    """Which addresses did not answer, and those among them that no other node can reach."""
    peers = _named(job, reported)
    text = "not reached: %s" % ", ".join(peers) if peers else "the line names no address"
    local = {peer for peer in (one.failure.peer for one in reported) if peer.lower().startswith(_LINK_LOCAL)}
    if local:
        text += "; %s is a link-local address, usually of an interface that is not intended for this" % names(local, 2)
    return text + own_bridge(reported)


def own_bridge(reported: Sequence[Reported]) -> str:
    """Addresses that no other host is reached by, usually."""
    bridges = {one.failure.peer for one in reported if _BRIDGE.match(one.failure.peer)}
    if not bridges:
        return ""
    text = "; %s is an address as a Docker bridge has it (docker0, br-...), which every host may have for itself: as a"
    text += " rule the wrong interface was chosen; let NCCL_SOCKET_IFNAME name the interface between the nodes"
    return text % names(bridges, 2)


def _addresses(job: Job) -> Dict[str, str]:
    """Whose an address is."""
    addresses: Dict[str, str] = {}
    for process in job.processes:
        if process.bootstrap is not None:
            addresses.setdefault(process.bootstrap.address, process.host)
    by: Dict[str, Set[str]] = {}
    for process in job.processes:
        by.setdefault(process.oob_address, set()).add(process.host)
    for address, hosts in by.items():
        if address and len(hosts) == 1:
            addresses.setdefault(address, next(iter(hosts)))
    return addresses


def _named(job: Job, reported: Sequence[Reported]) -> List[str]:
    """The three peers that most reports name, with their hosts and how often."""
    addresses = _addresses(job)
    peers = Counter(one.failure.peer for one in reported if one.failure.peer)
    named = []
    for peer, count in peers.most_common(3):
        host = addresses.get(peer, "")
        ports = {port for one in reported if one.failure.peer == peer for port in _PORT.findall(one.failure.text)[:1]}
        of = ", ports %s" % names(ports, 4) if len(ports) > 1 else ""
        named.append("%s%s (%d%s)" % (peer, " = %s" % host if host and host != peer else "", count, of))
    return named


def went_away(job: Job, reported: Sequence[Reported]) -> str:
    """Whom the victims name, and who says nothing."""
    named = _named(job, reported)
    victims = {one.process.key for one in job.failures if one.process is not None}
    silent = [one for one in job.processes if one.key not in victims and one.ended != "Destroy"]
    text = "the lost peers are %s" % ", ".join(named) if named else "the lost peer is not named"
    text += own_bridge(reported)
    if any(map(aftermath.of_itself, reported)):
        text += "; a peer is on the reporter's own host: it may be a thread of NCCL's own (proxy) there, whose end then"
        text += " was caused by another failure on that host"
    if not named and job.world is not None and job.world.ranks == 2:
        own = {rank for one in reported if one.process is not None for rank in job.ranks_of(one.process)}
        text += "; of two ranks in all the other is rank %d" % (1 - max(own)) if own in ({0}, {1}) else ""
    if silent and len(silent) < len(job.processes):
        text += "; no failure is reported by %s" % names([job.who(process) for process in silent], 4)
    return text


def failed_before(job: Job, ordered: Sequence[Reported]) -> str:
    """Calls that failed elsewhere before the first connection was closed."""
    one = ordered[0]
    for call, process in calls_of(job):
        if call.source == one.source and call.order < one.order:
            who = with_gpu(job.who(process), call.device)
            meant = next((text for number, _words, text in RESULTS if number == str(call.result)), "")
            places = [other.place for other in process.calls if other.device == call.device]
            return "before it calls of NCCL failed on %s: %s -> %d (%s) %s" % (
                who, call.place, call.result, meant, stage(places),
            )  # fmt: skip
    return ""


def sizes(job: Job, reported: Sequence[Reported]) -> List[str]:
    """How much was asked for, where memory gave out: it stands in the warning behind the first one."""
    kind = kind_of(reported[0])
    if kind not in ("cuda", "shared_memory", "host_memory"):
        return []
    said = [one.failure.text for one in reported]
    mine = {one.process for one in reported}
    said += [one.failure.text for one in job.failures if kind_of(one) == "consequence" and one.process in mine]
    sizes = [match.group() for match in map(_SIZE.search, said) if match]
    shown = sizes[0].strip("()").replace("size ", "") if sizes else ""
    # The first warning is printed.
    return [] if not shown or shown in said[0] else ["%s bytes" % shown.replace(" bytes", "")]


def gid_changed(job: Job, failed: Reported) -> List[str]:
    """A change of the addresses of an HCA before a connection of it failed."""
    before = [one for one in job.failures if kind_of(one) in ("event", "port") and "GID" in one.failure.code.upper()]
    before = [one for one in before if (in_order([one, failed]) or [failed])[0] is one]
    if not before:
        return []
    device = before[0].failure.device
    text = "before it the GID table%s changed: the address of the port came or went while the job ran" % (
        " of %s" % device if device else "",
    )  # fmt: skip
    return [text + ", and connections of it are likely to fail then (NetworkManager, DHCP or a bond may change it)"]


def waits_for_ended(job: Job, reported: Sequence[Reported], cause: Optional[Finding]) -> str:
    """Where another rank has failed before: that it did not come is enough for the wait."""
    gone = [one for one in job.failures if kind_of(one) in ("cuda", "oom", "exit", "xid")]
    failed = {one.failure.rank for one in gone if not came_before(reported, one)} - {None}
    failed -= {one.failure.rank for one in reported}
    if cause is None or not failed:
        return ""
    return "as rank %s failed before, these ranks wait for what does not come: a longer timeout repairs nothing" % (
        numbers(rank for rank in failed if rank is not None)
    )


def two_layers(job: Job) -> str:
    layers: Dict[str, Set[str]] = {}
    for process in job.processes:
        for device in process.devices.values():
            layers.setdefault(device.layer, set()).add(device.name)
    if len({"IB", "RoCE"} & set(layers)) < 2:
        return ""
    said = ["%s (%s)" % (names(layers[layer], 3), layer) for layer in ("IB", "RoCE")]
    return "the HCAs are of two link layers, which do not reach each other: %s" % ", ".join(said)


def link_local(job: Job, reported: Sequence[Reported]) -> str:
    """Of RoCE alone: on InfiniBand such GIDs are the rule."""
    layers = {device.name: device.layer for process in job.processes for device in process.devices.values()}
    for one in reported:
        roce = one.failure.device.startswith("roce") or layers.get(one.failure.device) == "RoCE"
        if "<link-local>" in one.failure.text or (roce and "ocalGid fe80" in one.failure.text):
            return "the GIDs are link-local: usually a RoCE port without an address, which NCCL_IB_HCA can leave out"
    return ""
