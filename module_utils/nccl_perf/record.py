# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run of an nccl-tests program: the wanted run, its record, and the file format."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core import trusted
from ..core.host import Host, ParseError, ReadError
from ..core.size import parse_size, size_text
from ..nccl_tests.codec import decode, expect, quoted
from .checks import PROOF
from .fingerprint import Depends
from .output import collective_of
from .transport import Network

LONGEST = 86400.0
REPEATS = 100
# NCCL's name of an algorithm, or SHARP: reduction in the switches (CollNet). More than one as NCCL_ALGO has it.
SHARP = "SHARP"
# In the subject of a run that has to go that way between hosts.
OVER_NVLINK = " over NVLink"
_ALGORITHM = re.compile(r"|[A-Za-z0-9^][A-Za-z0-9,;:^]{0,99}")
_FORMAT = 4
# Formats that are read. Up to 3 there was the program's result as JSON, beside its text.
_FORMATS = (3, _FORMAT)
# In the result directory while a run has no result yet.
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Wanted:
    """The wanted run.

    ranks: GPUs that take part, over all hosts.   hosts: their names; what follows the first dot does not count.
    sizes: bytes, ascending.   bar_busbw: GB/s, at the largest size.
    max_age_days: of a stored result.   command: what a stored result must come from; for people, and compared.
    program: the program and its options.   algorithm: NCCL_ALGO, or SHARP; "" for NCCL's choice.
    repeats: how often it is run.   rails: HCAs of each host that must carry data, None for all that NCCL finds there.
    way: the required transport between hosts, one of WAYS.
    """

    collective: str
    ranks: int
    hosts: Tuple[str, ...]
    sizes: Tuple[int, ...]
    bar_busbw: Optional[float] = None
    max_age_days: Optional[float] = None
    command: Tuple[str, ...] = ()
    program: Tuple[str, ...] = ()
    algorithm: str = ""
    repeats: int = 1
    rails: Optional[int] = None
    way: str = "network"

    @property
    def several(self) -> bool:
        """Return whether it runs over more than one host."""
        return len(self.hosts) > 1

    @property
    def variables(self) -> Dict[str, str]:
        """Return NCCL's variables that the run sets, beside the site's.

        Over several hosts NCCL's log on stdout is the proof of the transport.
        """
        found = {} if not self.algorithm else {"NCCL_ALGO": self.algorithm}
        if self.algorithm == SHARP:
            found = {"NCCL_ALGO": "CollNetDirect,CollNetChain", "NCCL_COLLNET_ENABLE": "1"}
        return {**found, **(PROOF if self.several else {})}

    @property
    def subject(self) -> str:
        """Return the subject, equal in every run. For a run on one host it has no host name."""
        found = subject(self.collective, self.ranks, self.sizes[-1])
        found += " " + self.algorithm if self.algorithm else ""
        found += OVER_NVLINK if self.way == "nvlink" else ""
        if not self.several:
            return found
        names = ",".join(short_names(self.hosts)) if len(self.hosts) <= 4 else "%d hosts" % len(self.hosts)
        return "%s %s" % (found, names)


@dataclass(frozen=True)
class Run:
    """Record of one run, and of its repeats.

    ending: "" if the program ended normally, "timeout", "overflow", or "not started: REASON".
    limit: seconds granted.   finished: seconds since 1970.   left_behind: processes that did not die.
    stdout: without NCCL's lines.
    depends: what the result depends on, at the run's begin; None for a repeat.   salt: of the digests in it.
    network: its transport; None within a node.   others: its repeats, which have neither command, depends, salt nor
    others.
    """

    command: Tuple[str, ...]
    rc: Optional[int]
    ending: str
    limit: float
    finished: float
    left_behind: Tuple[int, ...] = ()
    stdout: str = ""
    stderr: str = ""
    depends: Optional[Depends] = None
    salt: str = ""
    network: Optional[Network] = None
    others: Tuple[Run, ...] = ()


def subject(collective: str, ranks: int, size: int) -> str:
    """``all_reduce 8 ranks 8G``. size: bytes of the largest message."""
    return "%s %d ranks %s" % (collective, ranks, size_text(size))


def short_names(hosts: Iterable[str]) -> List[str]:
    """Each host once, in order: nccl-tests cuts a host's name at its first dot."""
    return sorted({host.partition(".")[0].lower() for host in hosts})


def wanted(given: Mapping[str, Any], hosts: Sequence[str], ranks: int, launcher: Sequence[str] = ()) -> Wanted:
    """Return the run of the module's options. Raises ParseError that names the option.

    launcher: words before the program, for people.
    """
    check_options(given)
    collective = collective_of(given["binary"])
    if collective is None:
        raise ParseError("binary: the name %r does not show the collective" % given["binary"])
    minimum, maximum = parse_size(given["min_bytes"]), parse_size(given["max_bytes"])
    options = {"-b": minimum, "-e": maximum, "-f": given["step_factor"], "-g": given["gpus"]}
    options.update({"-n": given["iterations"], "-w": given["warmup"], "-c": 1})
    words = [word for option, value in options.items() for word in (option, str(value))]
    found = Wanted(
        collective=collective,
        ranks=ranks,
        hosts=tuple(hosts),
        sizes=sizes(minimum, maximum, given["step_factor"]),
        program=(given["binary"], *words),
        **{name: given[name] for name in ("bar_busbw", "algorithm", "repeats", "rails", "way")},
    )
    settings = ["%s=%s" % item for item in found.variables.items() if item[0] not in PROOF]
    return replace(found, command=(*(["env", *settings] if settings else []), *launcher, *found.program))


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ParseError for an option that no run can have."""
    for name in ("binary", "result_directory"):
        if not given[name].startswith("/") or not given[name].isprintable():
            raise ParseError("%s: %r is not an absolute path" % (name, given[name]))
    for name, least in (("gpus", 1), ("iterations", 1), ("warmup", 0), ("rails", 1)):
        if given[name] is not None and not least <= given[name] <= 1_000_000:
            raise ParseError("%s is %d, expected %d or more" % (name, given[name], least))
    if not 1 <= given["repeats"] <= REPEATS:
        raise ParseError("repeats is %d, expected 1 to %d" % (given["repeats"], REPEATS))
    for name in ("timeout", "max_age_days", "bar_busbw"):
        value = given[name]
        if value is not None and (not math.isfinite(value) or value <= 0):
            raise ParseError("%s is %g, expected more than 0" % (name, value))
    if given["timeout"] > LONGEST:
        raise ParseError("timeout is %g, expected at most %g s" % (given["timeout"], LONGEST))
    if not _ALGORITHM.fullmatch(given["algorithm"]):
        raise ParseError("algorithm: %r is not an NCCL_ALGO, such as Ring, and not SHARP" % given["algorithm"])


def sizes(minimum: int, maximum: int, factor: int) -> Tuple[int, ...]:
    """The sizes in bytes that -b, -e and -f make nccl-tests run. Raises ParseError."""
    if minimum > maximum:
        raise ParseError("the smallest size, %d, is larger than the largest, %d" % (minimum, maximum))
    if factor < 2:
        raise ParseError("the step factor is %d, expected 2 or more" % factor)
    found = []
    while minimum <= maximum:
        found.append(minimum)
        minimum *= factor
    return tuple(found)


def record(run: Run) -> str:
    """The run as a file, for a later judgement."""
    return json.dumps({"format": _FORMAT, **asdict(run)}, indent=1) + "\n"


def parse_record(text: str) -> Run:
    """The run that ``record`` wrote. Raises ParseError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("no record of a run: %s" % error) from None
    data = expect(dict, data, "the record")
    number = data.pop("format", None)
    if number not in _FORMATS:
        raise ParseError("the record has format %s, expected %d" % (quoted(number), _FORMAT))
    run = _run(data)
    others = expect(list, data["others"], "others")
    if len(others) >= REPEATS:
        raise ParseError("the record has more repeats than there can be")
    return replace(run, others=tuple(_run(expect(dict, one, "others")) for one in others))


def _run(data: Dict[str, Any]) -> Run:
    """Return the run without its repeats."""
    names = {field.name for field in fields(Run)}
    if set(data) - {"json"} != names:
        raise ParseError("the record has other keys than expected: %s" % quoted(sorted(set(data) ^ names)))
    run: Run = decode(Run, {**data, "others": []}, "the record")
    return run


def record_path(directory: str) -> str:
    return os.path.join(directory, "record.json")


def read_stored(path: str, root: str) -> Run:
    """The record of an earlier run. root: the system root.

    Raises ParseError, and ReadError, also for a record that others than root may change.
    """
    text = Host().read_system(path)
    if text is None:
        raise ReadError(path, "there is no stored result")
    doubt = trusted.doubt(path, root)
    if doubt:
        raise ReadError(path, "is not trusted, because %s; %s" % (doubt, trusted.WAY_OUT))
    return parse_record(text)


def cut_off(directory: str) -> str:
    """When the run began that has left no result: one that was killed, hung with its node, or goes on right now.

    "" where there is none. Raises ReadError.
    """
    text = Host().read_system(os.path.join(directory, UNFINISHED))
    return "" if text is None else text.strip()[:40] or "at an unknown time"
