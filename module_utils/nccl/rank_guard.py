# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the output of a job's rank guards, typed and bounded: untrusted nodes have printed it."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.host import ParseError
from . import rank_program

MARK = rank_program.MARK
# More ranks than in any job whose output is stored.
MOST_RANKS = 16384
_MOST_LINES = 5 * MOST_RANKS
_MOST_RAILS = 64
_MOST_VARIABLES = 200
_HOST = re.compile(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9_.:-]{1,32}")
_VARIABLE = re.compile(r"NCCL_[A-Za-z0-9_]{1,60}")
_CPUS, _NUMBER = r"[0-9,-]{0,2000}", r"[0-9]{1,7}"
# Field of a line -> its type, and the form of its text. Those of _OPTIONAL may be null.
_FIELDS: Dict[str, Tuple[type, str]] = {
    **dict.fromkeys(("rank", "world", "left"), (int, _NUMBER)),
    **dict.fromkeys(("gpus", "visible"), (int, "[0-9]{1,4}")),
    **dict.fromkeys(("cpus", "gpu_cpus"), (str, _CPUS)),
    "rc": (int, "[0-9]{1,3}"),
    "what": (str, ".{0,16}"),
    "why": (str, ".{0,80}"),
    "job": (str, ".{0,64}"),
    "pmix": (bool, ".*"),
    "gpu": (str, r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
    "visible_devices": (str, ".{0,200}"),
}
_OPTIONAL = ("rank", "world", "rc", "left")


@dataclass(frozen=True)
class Rank:
    """A rank as its guard found it before it started the program.

    host: short name, lower case.   rank, world: as the launcher sets them, None if it does not.
    job: the launcher's id of the job, equal in all its ranks.   pmix: the program can query the other ranks.
    cpus: the program may run on, such as ``0-31``.   gpus: on the node.   visible: of these, those CUDA will find.
    gpu: PCI address of the rank's GPU, "" where it finds none.   gpu_cpus: those next to it.
    visible_devices: CUDA_VISIBLE_DEVICES.
    """

    host: str
    rank: Optional[int]
    world: Optional[int]
    job: str
    pmix: bool
    cpus: str
    gpus: int
    visible: int
    gpu: str
    gpu_cpus: str
    visible_devices: str


@dataclass(frozen=True)
class Ending:
    """rc: of the program, 128 + n for a signal, None where it had to be ended.   why: it had to be, else "".

    left: processes that do not die.
    """

    rc: Optional[int]
    why: str
    left: int


@dataclass(frozen=True)
class RankView:
    """Output of one rank's guard.

    variables: NCCL_* -> value, or ``#`` and a digest of it; None if not printed.
    rails: from local rank 0, what its node's ports had counted at the beginning and the end: RDMA device -> bytes sent
    and received. Less than two where the guard was killed.
    """

    begin: Rank
    variables: Optional[Mapping[str, str]] = None
    ending: Optional[Ending] = None
    rails: Tuple[Mapping[str, Tuple[int, int]], ...] = ()

    @property
    def host(self) -> str:
        return self.begin.host


def program() -> str:
    """The guard as text, for ``python3 -c``."""
    return inspect.getsource(rank_program)


def parse(text: str) -> Tuple[Tuple[RankView, ...], str]:
    """Return the ranks in the order of their first lines, and the text without the guards' lines.

    Two ranks with the same number stay two. Raises ParseError for a line that no guard has printed: lines of a single
    job are complete.
    """
    found: List[RankView] = []
    last: Dict[Tuple[str, Optional[int]], int] = {}
    kept = []
    lines = 0
    for line in text.splitlines(keepends=True):
        before, mark, said = line.partition(MARK)
        if not mark:
            kept.append(line)
            continue
        lines += 1
        if kept and kept[-1] == "\n":
            # The guard prints a line feed before its line.
            kept.pop()
        if lines > _MOST_LINES:
            raise ParseError("more than %d lines of rank guards" % _MOST_LINES)
        # A launcher may have put the rank's number before the line; anything else is half a line of the program.
        if before.strip() and not re.fullmatch(r"\s*(\d+:|\[\d+,\d+\]<\w+>:|\[[\w,:.-]+\]:?)\s*", before):
            kept.append(before + "\n")
        _take(_data(said), found, last)
    return tuple(found), "".join(kept)


def _data(said: str) -> Dict[str, object]:
    try:
        data = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise ParseError("a rank's line is torn or not JSON: %.80r" % said) from error
    if not isinstance(data, dict):
        raise ParseError("a rank's line is %.80r" % said)
    return data


def _take(data: Mapping[str, object], found: List[RankView], last: Dict[Tuple[str, Optional[int]], int]) -> None:
    """last: host and rank -> index in ``found`` of its last beginning."""
    what, host, rank = _value(data, "what"), data.get("host"), _value(data, "rank")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        raise ParseError("host: %.80r is not a host name" % (host,))
    if what == "begin":
        if len(found) >= MOST_RANKS:
            raise ParseError("more than %d ranks" % MOST_RANKS)
        last[host, rank] = len(found)
        fields = {name: _value(data, name) for name in Rank.__dataclass_fields__ if name in _FIELDS}
        found.append(RankView(Rank(host=host, **fields)))
        return
    if (host, rank) not in last:
        raise ParseError("rank %s on %s reports before it has started" % (rank, host))
    view = found[last[host, rank]]
    if what == "variables":
        view = replace(view, variables=_variables(data.get("variables")))
    elif what == "rails":
        if len(view.rails) >= 2:
            raise ParseError("rank %s on %s has counted its rails more than twice" % (rank, host))
        view = replace(view, rails=(*view.rails, _rails(data.get("rails"))))
    elif what == "end":
        view = replace(view, ending=Ending(_value(data, "rc"), _value(data, "why"), _value(data, "left") or 0))
    elif what != "cut":
        raise ParseError("a rank reports %r" % what)
    found[last[host, rank]] = view


def _value(data: Mapping[str, object], name: str) -> Any:
    """Return a field of a line. Raises ParseError where it has not its type and form."""
    value = data.get(name)
    kind, form = _FIELDS[name]
    if value is None and name in _OPTIONAL:
        return None
    if type(value) is not kind or not re.fullmatch(form, str(value), re.DOTALL):
        raise ParseError("%s is %.80r" % (name, value))
    return value


def _variables(given: object) -> Dict[str, str]:
    if not isinstance(given, dict) or len(given) > _MOST_VARIABLES:
        raise ParseError("variables are %.80r" % (given,))
    for name, value in given.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str) or len(value) > 80:
            raise ParseError("variable %.80r is %.80r" % (name, value))
    return given


def _rails(given: object) -> Dict[str, Tuple[int, int]]:
    if not isinstance(given, dict) or len(given) > _MOST_RAILS:
        raise ParseError("rails are %.80r" % (given,))
    found = {}
    for name, counted in given.items():
        whole = isinstance(counted, list) and len(counted) == 2 and all(type(number) is int for number in counted)
        if not _DEVICE.fullmatch(name) or not whole or not all(0 <= n < 2**68 for n in counted):
            raise ParseError("rail %.80r has counted %.80r" % (name, counted))
        found[name] = (counted[0], counted[1])
    return found
