# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a failure came to: which of NCCL's calls returned the error that it began with, up to the program's own call."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from .failure_checks import OPEN
from .job import Reported
from .jobs import Job
from .process import Call

# By file of NCCL's sources what fails with a call of it.
_PARTS: Tuple[Tuple[str, str], ...] = (
    (r"(?:^|/)init\.(?:cc|cpp|cu)", "the initialisation of the communicator"),
    (r"(?:^|/)(?:transport|transport/generic)\.(?:cc|cpp|cu)", "the connection between ranks"),
    (r"(?:^|/)group\.(?:cc|cpp|cu)", "the group call"),
    (r"(?:^|/)(?:enqueue|collectives)\.(?:cc|cpp|cu)", "the launch of the operation"),
)
# The same of calls that are within those: NCCL may go on after one.
_WITHIN: Tuple[Tuple[str, str], ...] = (
    # Its calls connect, and move data later.
    (r"(?:^|/)transport/net\.(?:cc|cpp|cu)", "the network transport"),
    (r"(?:^|/)channel\.(?:cc|cpp|cu)", "the set-up of a channel"),
    (r"(?:^|/)transport/p2p\.(?:cc|cpp|cu)", "the connection between GPUs of the node"),
    (r"(?:^|/)bootstrap\.(?:cc|cpp|cu)", "the bootstrap"),
    (r"(?:^|/)graph/search\.", "the search for rings and trees (NCCL_GRAPH_FILE is read there)"),
    (r"(?:^|/)graph/", "the reading of the topology"),
)
# A connection that the network's plugin refuses is asked for by the proxy's thread.
_PROXYS: Tuple[Tuple[str, str], ...] = ((r"(?:^|/)proxy\.(?:cc|cpp|cu)", "the proxy's operation"),)
# What ncclResult_t's numbers are called.
RESULTS: Dict[int, str] = {
    1: "an error of CUDA", 2: "a system error", 3: "an internal error", 4: "an invalid argument", 5: "an invalid usage",
    6: "a remote error",
}  # fmt: skip


def after(one: Reported) -> List[Call]:
    """Calls of the failure's process and GPU that returned an error behind it."""
    calls = one.process.calls if one.process is not None else ()
    return [
        call for call in calls if call.source == one.source and call.order > one.order and call.device == one.device
    ]


def own_calls(job: Job, one: Reported) -> List[Call]:
    """The same, up to the next failure of that process and GPU: what comes behind that is that one's."""
    calls = after(one)
    if not calls:
        return []
    later = [
        other.order
        for other in job.failures
        if other.process is one.process and other.source == one.source and other.device == one.device
        and other.order > one.order and other.failure.kind != "consequence"
    ]  # fmt: skip
    return [call for call in calls if not later or call.order < min(later)]


def ended_a_call(job: Job, one: Reported) -> bool:
    """Whether a warning that need not be a failure was one: the call behind it returned an error to the program."""
    return (
        one.failure.kind in _MAY_END
        and one.process is not None
        and any(
            to_program(call, _PROXYS if one.failure.kind == "plugin_warning" else ()) for call in own_calls(job, one)
        )
    )


def to_program(call: Call, more: Sequence[Tuple[str, str]] = ()) -> bool:
    """Whether what failed with a call is what the program called, or moves its data."""
    name = call.place.partition(":")[0]
    return call.progress or any(re.search(pattern, name) for pattern, _part in (*_PARTS, *more))


def came_to(calls: Sequence[Call]) -> str:
    """``with it the group call fails (group.cc:75 -> 6): 6 is a remote error``; "" where no call tells."""
    last: Dict[str, Call] = {}
    for call in calls:
        name = call.place.partition(":")[0]
        part = next((part for pattern, part in (*_PARTS, *_WITHIN) if re.search(pattern, name)), "")
        part = "the proxy's progress thread" if call.progress else part
        if part:
            last[part] = call
    if not last:
        return ""
    said = [
        "%s%s (%s -> %d)" % (part, "" if number else " fails", call.place, call.result)
        for number, (part, call) in enumerate(last.items())
    ]
    results = sorted({call.result for call in last.values() if call.result in RESULTS})
    meant = ", ".join("%d is %s" % (result, RESULTS[result]) for result in results)
    return "with it %s" % ", ".join(said) + (": %s" % meant if meant else "")


def last_words(job: Job, one: Reported) -> bool:
    """Whether a warning is what NCCL handed to a program as its last error (``Last error:``)."""
    raised = any(other.failure.kind == "exception" for other in job.failures)
    return one.process is None and one.failure.kind in {*OPEN, *_MAY_END}.difference(_NO_ERROR) and raised


_MAY_END = ("nvml", "system", "internal", "topology", "topology_file", "warning", "driver_functions", "plugin_warning")
# What a program is never told as an error.
_NO_ERROR = ("event", "ras", "fallback", "libfabric", "gdrcopy", "value")
