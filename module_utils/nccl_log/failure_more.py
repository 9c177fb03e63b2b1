# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What failures of one kind say beyond their words: a function for each kind that has more to say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, Dict, List, Optional, Sequence

from ..core.finding import Finding
from . import alike, cuda_errors, ends, fail_words, judge_watchdog, outcome, signals
from .failure_order import NUMBER
from .failure_who import PID, failed_before, gid_changed, link_local, two_layers, unreached, waits_for_ended, went_away
from .job import Reported
from .jobs import Job, names, numbers
from .transport import SOCKETS

_RANKS = re.compile(r"\brank (\d{1,8})\b")


@dataclass(frozen=True)
class Case:
    """Failures of one kind and code.

    reported: all of them; ordered: the same as they came.   cause: the finding that these likely follow from.
    """

    job: Job
    kind: str
    code: str
    reported: Sequence[Reported]
    ordered: Sequence[Reported]
    cause: Optional[Finding]

    @property
    def one(self) -> Reported:
        return self.ordered[0]

    @cached_property
    def ended_a_call(self) -> bool:
        return outcome.ended_a_call(self.job, self.one)

    @cached_property
    def gave_up(self) -> str:
        """What PyTorch's watchdog waited for."""
        return judge_watchdog.gave_up(self.job, self.reported)

    @property
    def out_of_step(self) -> bool:
        """Whether that says that the program's ranks called different things."""
        return self.kind == "watchdog" and "out of step" in self.gave_up


def more(case: Case) -> List[str]:
    """What failures of this kind say more."""
    return MORE[case.kind](case) if case.kind in MORE else []


def went_on_with(case: Case) -> List[str]:
    """The HCAs that are left where one was not opened."""
    if (case.kind, case.code) != ("verbs", "ibv_open_device"):
        return []
    return sorted({device.name for by in case.job.processes for device in by.devices.values()})


def _closed(case: Case) -> List[str]:
    return [went_away(case.job, case.reported), failed_before(case.job, case.ordered)]


# Of at least four digits: a bus that is not 0. A smaller number may be an index.
_BUS = re.compile(r"[0-9a-f]{4,12}$")


def _address(bus: str) -> str:
    """``01:00.0`` of the number that NCCL makes of it: 1000."""
    digits = bus.zfill(8)
    domain = digits[:-5].lstrip("0")
    return "%s%s:%s.%s" % (
        "%s:" % domain.zfill(4) if len(digits) > 8 or domain else "",
        digits[-5:-3],
        digits[-3:-1],
        digits[-1],
    )


def _duplicate_gpu(case: Case) -> List[str]:
    ranks = [int(rank) for one in case.reported for rank in _RANKS.findall(one.failure.text)]
    buses = {one.failure.code for one in case.reported if _BUS.match(one.failure.code)}
    said = ["%s is %s" % (bus, _address(bus)) for bus in sorted(buses)]
    said = ["what NCCL calls the CUDA device is the GPU's PCI address: %s" % ", ".join(said)] if said else []
    return (["ranks %s" % numbers(ranks)] if ranks else []) + said


def _rdma(case: Case) -> List[str]:
    parts = fail_words.gids(case.reported) + gid_changed(case.job, case.one)
    parts += [two_layers(case.job), link_local(case.job, case.reported)]
    roce = any("::ffff:" in one.failure.text for one in case.reported) or any(one.roce for one in case.job.processes)
    parts += ["RoCE: the GIDs are IPv4 addresses"] if roce else []
    if case.kind == "queue_pair" and case.one.process is None:
        whose = signals.classify(case.one.failure.text)
        parts.append("a connection of another program than NCCL" + ("; %s" % whose.about if whose else ""))
    return parts


def _sharp(case: Case) -> List[str]:
    others = {NUMBER.sub("#", other.failure.text[-50:]): other.failure.text for other in case.reported[1:]}
    others.pop(NUMBER.sub("#", case.one.failure.text[-50:]), None)
    return ["also: %s" % text[-120:] for text in list(others.values())[:2]]


def _net_plugin(case: Case) -> List[str]:
    if not any(SOCKETS in by.networks or by.interfaces for by in case.job.processes):
        return []
    left = [by for by in case.job.processes if by.interfaces and not by.devices]
    return ["NET/Socket (TCP) is what is left"] if left and case.job.networks <= {SOCKETS} else []


def _connect(case: Case) -> List[str]:
    parts = [unreached(case.job, case.reported), alike.retrying(case.job, case.reported)]
    if case.kind == "connect":
        return [*parts, alike.tried_before(case.reported)]
    if case.one.process is not None and case.one.process.retries is not None:
        last = case.one.process.retries
        parts.append("NCCL tries again" + (" (%d of %d)" % (last.tried, last.most) if last.most else ""))
    return parts


def _watchdog(case: Case) -> List[str]:
    parts = [] if case.out_of_step else [judge_watchdog.behind(case.job)]
    return [*parts, *judge_watchdog.waits(case.job, case.reported),
            waits_for_ended(case.job, case.reported, case.cause)]  # fmt: skip


def _plugin_waits(case: Case) -> List[str]:
    peers = ", ".join(sorted({"%s on %s" % (one.failure.peer, one.failure.device) for one in case.reported})[:6])
    waited = max(int(one.failure.code) for one in case.reported) / 1e9
    return ["GPUDirectTCPX or FasTrak waits: not received from %s, for up to %.0f s" % (peers, waited)]


def _hca_skipped(case: Case) -> List[str]:
    none = any("device" in by.absent and not by.devices for by in case.job.processes)
    return ["none is left: NET/IB found no device that it can use"] if none else []


def _verbs(case: Case) -> List[str]:
    opened = went_on_with(case)
    text = "NCCL continues with the HCAs that it can open (%s): not a failure"
    return [text % names(opened, 8)] if opened else []


def _interface(case: Case) -> List[str]:
    said = ["NCCL_SOCKET_IFNAME=%s" % value for value in list(case.job.set_to("NCCL_SOCKET_IFNAME"))[:3]]
    if said:
        return said
    text = "NCCL_SOCKET_IFNAME=%s, as a command or program reports%s"
    asked = ": usually this host has no such interface that is up" if case.kind == "no_interface" else ""
    return [text % (value, asked) for name, value in case.job.commanded if name == "NCCL_SOCKET_IFNAME"]


def _time_limit(case: Case) -> List[str]:
    done = [one for one in case.job.quotes if one.kind == signals.SUCCESS and one.source == case.one.source]
    done = [one for one in done if one.order < case.one.order]
    text = "a program reports before it (line %d): %s: it may have finished without exiting"
    return [text % (done[-1].order, done[-1].text[:120])] if done else []


def _exit(case: Case) -> List[str]:
    one = case.one
    said = [other.failure.peer or str(other.order) for other in case.reported]
    ended = {(PID.findall(text) or [text])[-1] for text in said}
    # A launcher's list is in any order: only its own word on who was first proves it, and not how many there are.
    proven = "the first" in one.failure.text
    which = "" if proven else "%d ended; which of them was first is not proven" % len(ended)
    own = ends.signal_of(one.failure.code)
    told = [other for other in case.reported if ends.by_order(other.failure)]
    if told and len(case.reported) - len(told) == 1 and own == 0:
        which = "all others were ended"
    codes = {other.failure.code for other in case.reported} - {one.failure.code}
    # One end is told as a code and as a signal.
    codes = {code for code in codes if own == 0 or ends.signal_of(code) != own}
    return [
        which if len(ended) > 1 else "",
        "others ended with %s" % names([ends.ended_with(code) for code in sorted(codes)], 4) if codes else "",
    ]


MORE: Dict[str, Callable[[Case], List[str]]] = {
    "closed": _closed,
    "duplicate_gpu": _duplicate_gpu,
    "completion": _rdma,
    "queue_pair": _rdma,
    "sharp": _sharp,
    "net_plugin": _net_plugin,
    "cuda": lambda case: [cuda_errors.failed_check(case.one.failure.code, case.job.quotes, case.one.order)],
    "connect": _connect,
    "merely_tried": _connect,
    "watchdog": _watchdog,
    "signalled": lambda case: [judge_watchdog.behind(case.job)],
    "oom": lambda case: [ends.killed(case.job.failures)],
    "mismatch": lambda case: fail_words.fingerprints(case.one.failure.text),
    "plugin_waits": _plugin_waits,
    "time_limit": _time_limit,
    "stuck": lambda case: judge_watchdog.outstanding(case.job, case.reported),
    "hca_skipped": _hca_skipped,
    "verbs": _verbs,
    "no_interface": _interface,
    "address": _interface,
    "exit": _exit,
}
