# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of lines that are alike, what each has of its own, and who each is of: short enough to be told one by one."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from . import outcome
from .failure_checks import OPEN
from .failure_order import NUMBER
from .job import Process, Reported
from .jobs import Job, names, numbers
from .words import own_words

# Of a list.
_TOLD = 6
# Characters that two lines begin with, to be alike.
_BEGIN = 16


def each(job: Job, reported: Sequence[Reported]) -> str:
    """Who says what, of failures whose texts differ by some words alone."""
    first = reported[0]
    said: List[str] = []
    for one in reported[1:]:
        words = own_words(first.failure.text, one.failure.text) or _own_end(first.failure.text, one.failure.text)
        if not words or one.process is None or one.failure.device:
            continue
        gpu = ", GPU %d" % one.device if one.device is not None and 0 <= one.device < 64 else ""
        text = "%s%s: %s" % (job.who(one.process), gpu, words)
        if text not in said:
            said.append(text)
    return "alike: %s%s" % ("; ".join(said[:_TOLD]), " and more" if len(said) > _TOLD else "") if said else ""


def _own_end(text: str, other: str) -> str:
    """How another line ends, where both begin alike."""
    if NUMBER.sub("#", text) == NUMBER.sub("#", other):
        return ""
    alike = next((at for at, (one, two) in enumerate(zip(text, other)) if one != two), len(text))
    same = text[: text.rfind(" ", 0, alike) + 1]
    return other[len(same) :][:80].strip() if len(same) >= _BEGIN else ""


def said_again(one: Reported, behind: Reported) -> bool:
    """Whether a warning of no rule is what the next one of its process and file tells, with the same last words."""
    words = one.failure.text.rpartition(": ")[2].strip(" .'")
    return (
        one.failure.kind in ("warning", "system")
        and behind.failure.kind not in OPEN
        and one.process is behind.process is not None
        and 0 < behind.order - one.order <= 2
        and one.place.partition(":")[0] == behind.place.partition(":")[0] != ""
        and len(words) > 8
        and words in behind.failure.text
    )


def named_again(one: Reported, behind: Reported) -> bool:
    """Whether an error of CUDA is that of the call which the warning before it names, of the same thread."""
    return (
        behind.failure.kind == "cuda"
        and one.failure.kind == "peer_access"
        and one.process is behind.process is not None
        and one.device == behind.device
        and 0 < behind.order - one.order <= 4
        and one.place.partition(":")[0] == behind.place.partition(":")[0] != ""
        and one.failure.text.rpartition(": ")[2].strip(" .'") == behind.failure.code
    )


def lost(job: Job) -> str:
    """``GPUs 5-6 lost local ranks 0-1``: which connections to service threads were closed, of each GPU."""
    several = len({process.host for process in job.processes}) > 1
    by: Dict[Tuple[str, Tuple[int, ...]], List[Process]] = {}
    for process in job.processes:
        ranks = tuple(sorted(int(note.text) for note in process.notes if note.kind == "closed"))
        if ranks:
            by.setdefault((process.host if several else "", ranks), []).append(process)
    said = []
    for (host, ranks), processes in sorted(by.items()):
        gpus = {gpu for process in processes for gpu in process.gpus}
        alone = all(len(process.gpus) == 1 for process in processes)
        who = (
            "GPU%s %s" % ("" if len(gpus) == 1 else "s", numbers(gpus)) if alone else names(map(job.who, processes), 3)
        )
        who += " of %s" % host if host and alone else ""
        said.append("%s lost local rank%s %s" % (who, "" if len(ranks) == 1 else "s", numbers(ranks)))
    return "; ".join(said[:_TOLD]) + (" and more" if len(said) > _TOLD else "")


def tried_before(reported: Sequence[Reported]) -> str:
    """How often who gave up had tried, as the last line on it says."""
    last = [one.process.retries for one in reported if one.process is not None and one.process.retries is not None]
    most = max(last, key=lambda one: one.tried, default=None)
    if most is None or not most.tried:
        return ""
    text = "it was tried before, %d of %d times" % (most.tried, most.most)
    return text + (", at last %.2g s apart" % (most.wait / 1000) if most.wait else "")


def without_warning(job: Job, reported: Sequence[Reported]) -> str:
    """GPUs and processes in which the same call returned the error, and that print no warning of it."""
    first = next(iter(outcome.after(reported[0])), None)
    if first is None:
        return ""
    told = {(one.process, one.device) for one in reported}
    said = []
    for process in job.processes:
        same = {call.device for call in process.calls if (call.place, call.result) == (first.place, first.result)}
        gpus = sorted(gpu for gpu in same if gpu is not None and 0 <= gpu < 64 and (process, gpu) not in told)
        if gpus:
            said.append("%s, GPU%s %s" % (job.who(process), "" if len(gpus) == 1 else "s", numbers(gpus)))
    if not said:
        return ""
    more = "; and %d more" % (len(said) - _TOLD) if len(said) > _TOLD else ""
    text = "the same call fails on %s%s, without its own warning (%s -> %d)"
    return text % ("; ".join(said[:_TOLD]), more, first.place, first.result)


def retrying(job: Job, reported: Sequence[Reported]) -> str:
    """Other processes that try a TCP connection again, with the last try that is shown of each."""
    told = {one.process.key for one in reported if one.process is not None}
    by: Dict[str, List[Process]] = {}
    for process in job.processes:
        last = process.retries
        if last is not None and process.key not in told:
            tried = "try %d of %d" % (last.tried, last.most) if last.most else "trying again"
            by.setdefault("%s%s" % (tried, " to %s" % last.peer if last.peer else ""), []).append(process)
    said = []
    for what, processes in sorted(by.items())[:_TOLD]:
        alone = all(len(process.gpus) == 1 for process in processes)
        gpus = numbers({gpu for process in processes for gpu in process.gpus})
        hosts = names({process.host for process in processes}, 3)
        said.append(
            "%s at %s" % ("GPUs %s of %s" % (gpus, hosts) if alone else names(map(job.who, processes), 4), what)
        )
    if said and any(one.process is None for one in reported):
        # Who reports it may be one of them.
        return "tries that are shown, of who reports it or of others: %s" % "; ".join(said).replace(" at try", ", try")
    return "others are at it: %s" % "; ".join(said) if said else ""
