# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run ``busbar diagnose``: what happened to a job and what to do about it, from its NCCL_DEBUG output.

Of logs of RCCL or of an NCCL before 2.18 only what warnings state is judged.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BufferedIOBase
from itertools import chain
from typing import IO

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.lines import clock, same_day
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.log_reader import Reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import report
from ansible_collections.busbar.fabric.plugins.module_utils.ras import judge as ras_judge
from ansible_collections.busbar.fabric.plugins.module_utils.ras.answer import RasStatus, parse_json
from ansible_collections.busbar.fabric.plugins.module_utils.ras.judge import PROGRESS, Known
from ansible_collections.busbar.fabric.plugins.module_utils.ras.views import View
from ansible_collections.busbar.fabric.plugins.module_utils.watch import history
from ansible_collections.busbar.fabric.plugins.plugin_utils import terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render, screenful
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import ERROR, FINDINGS, UNKNOWN, of_states, worst

from . import inspector, job_files, recorder
from .command_line import complain

BLOCK = 1 << 20
# Bytes of a file that may be a RAS status as JSON.
_STATUS = 16 << 20
# Lines at the begin and end of a block whose times count; seconds that clocks differ, and that a timeout takes.
_TIMED, _MARGIN = 200, 900.0
# What a file begins with -> how it is read.
_OPEN: dict[bytes, Callable[..., BufferedIOBase]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_NOT_READ = {
    b"\x28\xb5\x2f\xfd": "is packed by zstd: zstd -dc FILE | busbar diagnose -",
    b"PK\x03\x04": "is a zip archive: unzip -p FILE | busbar diagnose -",
}


def run(
    paths: Sequence[str],
    as_json: bool,
    everything: bool = False,
    dumps: str | None = None,
    records: str | None = None,
    watch: str | None = None,
) -> int:
    """Read logs of one job, or of several ("-": standard input), and print the diagnosis. Return the exit code.

    everything: --all.   dumps, records: directory of flight recorder dumps, or of Inspector's records, in place of
    logs.   watch: directory with what ``busbar watch`` has stored on a node of the job.
    """
    given = [value for value in (dumps, records, paths or None) if value is not None]
    if len(given) != 1 or (watch is not None and not paths):
        return complain("diagnose", "name logs, or --recorder or --inspector and a directory without other options")
    if dumps is not None:
        return job_files.run(recorder.report, dumps, as_json, everything)
    if records is not None:
        return job_files.run(inspector.report, records, as_json, everything)
    reader = Reader()
    codes: list[int] = []
    statuses: dict[str, RasStatus] = {}
    times: set[str] = set()
    for path in paths:
        try:
            _read("<stdin>" if path == "-" else path, path, reader, statuses, None if watch is None else times)
        except ReadError as error:
            codes.append(complain("diagnose", error, UNKNOWN))
    reader.end()
    log = reader.log
    if not log.sources and not statuses:
        nothing = len(codes) < len(paths)
        return complain("diagnose", f"there is nothing in {', '.join(paths)}", UNKNOWN) if nothing else ERROR
    log.state.versions |= {status.version for status in statuses.values()}
    result = judge(log)
    if statuses:
        of_lines = result.findings if log.lines else []
        result = replace(result, findings=worst_first([*of_lines, *_judge_statuses(statuses)]))
    try:
        more = _node_events(times, watch) if watch is not None else []
        result = replace(result, findings=worst_first([*result.findings, *more])) if more else result
    except ReadError as error:
        codes.append(complain("diagnose", error, UNKNOWN))
    show = render if everything else screenful
    print(json.dumps(report(result), indent=1) if as_json else show(result, terminal.WIDTH))
    if result.unsupported or not (statuses or log.info or log.warnings or log.groups):
        codes.append(UNKNOWN)
    codes += [FINDINGS] if result.root is not None else []
    return worst([*codes, of_states(one.state for one in result.findings)])


def _read(name: str, path: str, reader: Reader, statuses: dict[str, RasStatus], times: set[str] | None = None) -> None:
    """Read a log, or what ``ncclras --format json`` has written. times: gets those of lines. Raises ReadError."""
    blocks = _blocks(path, name)
    first = next(blocks, b"")
    if first.lstrip()[:1] == b"{" and b'"communicators"' in first:
        rest = (block for _number, block in zip(range(_STATUS // BLOCK), blocks, strict=False))
        try:
            statuses[name] = parse_json(b"".join([first, *rest]).decode("utf-8", "replace"))
        except ParseError as error:
            raise ReadError(name, str(error)) from error
    elif first:
        reader.source(name)
        for block in chain([first], blocks):
            reader.feed(block)
            if times is not None:
                lines = block.decode("utf-8", "replace").splitlines()
                found = {clock(line) for line in [*lines[:_TIMED], *lines[-_TIMED:]]}
                times.update(same_day(stamp) for stamp in found if stamp)


def _node_events(times: set[str], folder: str) -> list[Finding]:
    """Judge what a node's watch has seen between the first and the last time of the logs. Raises ReadError."""
    path = os.path.abspath(folder)
    if not os.path.isdir(path):
        raise ReadError(folder, "is not a directory of busbar watch")

    def clock_of(seconds: float) -> str:
        return time.strftime("%m%d %H:%M:%S", time.localtime(seconds))

    events, want = history.read(Host(), 0.0, path), "none in the last day, since the log has no times"
    if times:
        first, last, want = min(times), max(times), "none while the job ran"
        events = [
            one for one in events if clock_of(one.at + _MARGIN) >= first and clock_of(one.since - _MARGIN) <= last
        ]
    return history.judge(events, want, folder)


def _judge_statuses(statuses: Mapping[str, RasStatus]) -> list[Finding]:
    """Judge each status as RAS reported it at one moment."""
    views = [View(name, (), status) for name, status in statuses.items()]
    fix = "`busbar hang HOST` takes two reports some seconds apart, which show whether the job progresses"
    found = ras_judge.judge(views, Known())
    return [replace(one, fix=fix) if one.check == PROGRESS.id else one for one in found]


def _blocks(path: str, name: str) -> Iterator[bytes]:
    """Yield a file's content in blocks, unpacked where it is packed. Raises ReadError."""
    try:
        if path == "-" and sys.stdin is None:
            raise ReadError(name, "is closed")
        # A pipe can be opened and read only once.
        with open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as plain:
            begin = plain.peek(8)
            for magic, why in _NOT_READ.items():
                if begin.startswith(magic):
                    raise ReadError(name, why)
            opener = next((way for magic, way in _OPEN.items() if begin.startswith(magic)), None)
            yield from _decoded(opener(plain, "rb") if opener else plain)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ReadError(name, f"cannot be read: {reason}") from error


def _decoded(stream: IO[bytes] | BufferedIOBase) -> Iterator[bytes]:
    """Yield blocks of UTF-8, also from the UTF-16 that Windows' tools write."""
    blocks = iter(partial(stream.read, BLOCK), b"")
    first = next(blocks, b"")
    if not first.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        yield from chain([first] if first else [], blocks)
        return
    decoder = getincrementaldecoder("utf-16")("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode("utf-8", "replace")
