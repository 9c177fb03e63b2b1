# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Log of remediation: an append-only file of JSON lines on the control node, one line an action.

``begun`` is on the disk before an action on a node, so that the next run finds what a killed one left: an action
without ``done``, ``failed`` or ``held`` after it. Lines are never changed or removed. Figures are GB/s (1e9 bytes),
times seconds since 1970.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import codec, result_schema, results_folder
from ..plain_data import Plain
from ..record_file import shortened

NAME = "actions.jsonl"
ACTIONS = (
    *("asked", "dropped", "refused", "drained", "role", "rebooted", "verified", "measured", "resumed"),
    # Release 0.2.0 also logged the record that it wrote for the vendor.
    *("left_drained", "rma"),
)
OUTCOMES = ("begun", "done", "failed", "held")
# Bytes of the file, some 200,000 actions; older ones have to be moved to another file.
LIMIT = 128 << 20
# After these remediation has finished with a node.
_CLOSED = ("resumed", "left_drained")

_name = codec.text(codec.LINE, empty=False, line=True)
_figure = codec.maybe(codec.number(0, 1e6))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One action on one node for one finding.

    run: id of the run of ansible-playbook.   boot_id: of the node at its last audit, "" where unknown.
    check, subject, finding: of the finding, whose id the last is; "" where the action is not for one of them.
    attempt: number of the attempt for this finding on this node, from 1; 0 for none.
    before, after: the finding's figure, None where it has none, or was not measured.
    """

    at: float
    run: str
    host: str
    action: str
    outcome: str
    boot_id: str = ""
    check: str = ""
    subject: str = ""
    finding: str = ""
    role: str = ""
    attempt: int = 0
    before: float | None = None
    after: float | None = None
    why: str = ""


_entry = codec.of_class(
    Entry,
    at=result_schema.seconds,
    run=_name,
    host=_name,
    action=codec.one_of(*ACTIONS),
    outcome=codec.one_of(*OUTCOMES),
    attempt=codec.whole(0, 1 << 20),
    before=_figure,
    after=_figure,
)


@dataclass(frozen=True)
class Log:
    """entries: in the order of the file.   torn: lines that a crash has cut off."""

    entries: tuple[Entry, ...] = ()
    torn: int = 0


def file(results: str | Path) -> Path:
    """Return the path of the log below ``nccl_benchmark_results_path``."""
    return Path(results) / NAME


def to_line(entry: Entry) -> str:
    """Return one line of the file. Texts are cut to what ``from_dict`` accepts, without terminal control characters."""
    data = {name: shortened(value) if isinstance(value, str) else value for name, value in asdict(entry).items()}
    return json.dumps(data, sort_keys=True, allow_nan=False) + "\n"


def from_dict(data: Plain) -> Entry:
    """Return the entry of plain data. Raises ParseError."""
    try:
        _entry(data)
        return Entry(**data)
    except ValueError as error:
        raise ParseError(printable(str(error)[:300])) from None


def append(results: str | Path, entries: Iterable[Entry]) -> None:
    """Append entries; they are on the disk when it returns. Raises OSError; ParseError for invalid entries."""
    path = file(results)
    lines = [to_line(entry) for entry in entries]
    for line in lines:
        from_dict(json.loads(line))
    path.parent.mkdir(parents=True, exist_ok=True)
    # For its owner only, as findings are; never through a planted link.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        # A line that a crash cut off stays, and spoils no line after it.
        begin = "\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else ""
        data = (begin + "".join(lines)).encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
        if not size:
            _sync(path.parent)
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    """Flush the folder: a new file's name is on the disk with its folder, and not before."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(results: str | Path) -> Log:
    """Read the log; empty where there is no file. Raises OSError; ParseError that names file and line."""
    path = file(results)
    try:
        content = results_folder.content(path, LIMIT)
    except FileNotFoundError:
        return Log()
    except ParseError as error:
        raise ParseError(f"{path}: {error}; move the file away once no action in it is open") from None
    entries, torn = [], 0
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line:
            continue
        if not line.endswith(b"}"):
            torn += 1
            continue
        try:
            entries.append(from_dict(codec.read(line.decode())))
        except ValueError as error:
            raise ParseError(f"{path}, line {number}: {error}") from None
    return Log(tuple(entries), torn)


def open_drains(entries: Sequence[Entry]) -> Mapping[str, Entry]:
    """Return host -> its drain that no run has ended: neither given back nor left drained with a logged reason."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.action == "drained" and entry.outcome == "begun":
            found[entry.host] = entry
        elif (entry.action in _CLOSED and entry.outcome == "done") or (
            # Nothing was drained.
            entry.action == "drained" and entry.outcome == "held"
        ):
            found.pop(entry.host, None)
    return found


def held(entries: Sequence[Entry]) -> frozenset[str]:
    """Return hosts that remediation left drained for a person to look at, and has not given back since."""
    last: dict[str, str] = {}
    for entry in entries:
        if entry.action in _CLOSED and entry.outcome == "done":
            last[entry.host] = entry.action
    return frozenset(host for host, action in last.items() if action == "left_drained")


def attempts(entries: Sequence[Entry], host: str, finding: str, since: float) -> int:
    """Return how often a role was begun on the host for the finding since a time, once a run."""
    return len({entry.run for entry in _matching(entries, host, finding, since, "role", "begun")})


def mended(entries: Sequence[Entry], host: str, finding: str, since: float) -> float | None:
    """Return when the finding was last proven to be repaired on the host since a time; None where it was not."""
    return max((entry.at for entry in _matching(entries, host, finding, since, "verified", "done")), default=None)


def _matching(
    entries: Sequence[Entry], host: str, finding: str, since: float, action: str, outcome: str
) -> Iterator[Entry]:
    wanted = (host, finding, action, outcome)
    for entry in entries:
        if entry.at >= since and (entry.host, entry.finding, entry.action, entry.outcome) == wanted:
            yield entry
