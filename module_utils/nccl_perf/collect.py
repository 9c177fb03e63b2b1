# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Collect what the programs of one run over several nodes printed into its two files: the table, and the proof."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Collection, Optional, Tuple

from ..core import process_group
from ..core.host import Host, ParseError, ReadError
from ..diagnose import excerpt
from ..nccl import launch, rank_guard
from ..nccl.launch import Launch, Launcher
from . import output as perf_output
from . import proof as nccl_perf_proof
from . import store as perf_store
from .record import Run, Wanted
from .streams import Streams
from .transport import Network

# NCCL's lines of one rank at INIT,NET,ENV are some 16 KB, with many channels four times as much.
_OF_RANK = 64 << 10
# Of the files that stay in the run's directory, for `busbar diagnose`.
_LARGEST = 16 << 20
# Reason in a guard's output for a program that it ended at the limit.
_LIMIT = "limit"


@dataclass(frozen=True)
class Output:
    """stdout, stderr: without NCCL's lines and those of the rank guards.   network: what all of them prove.

    begun: a rank guard, or the program, has printed something.
    timed_out: a rank guard ended its program at its limit.
    rc: the highest exit code of a rank that its guard knows, else 0.
    """

    stdout: str
    stderr: str
    network: Network
    begun: bool = True
    timed_out: bool = False
    rc: int = 0


def limit(wanted: Wanted) -> int:
    """Bytes that a run may print into one file."""
    return process_group.OUTPUT_LIMIT + (_OF_RANK * wanted.ranks if wanted.several else 0)


def read(
    stdout: str, stderr: str, wanted: Wanted, job: Launch, asked: Optional[Collection[str]] = None, ended: int = 0
) -> Output:
    """stdout, stderr: paths; of a run that was not started they are not there.

    asked: names of NCCL's variables that its ranks were meant to have.
    ended: process id of a launcher that had to be ended.
    Raises ReadError.
    """
    streams = Streams(wanted.ranks, ended)
    table, errors = (_rest(streams, path) for path in (stdout, stderr))
    network = nccl_perf_proof.read(streams.log, wanted) if wanted.several else Network()
    if streams.cut:
        network = network.without("the output has too much that is not NCCL's")
    begun = bool(streams.log.state.processes or table.strip())
    views: Tuple[rank_guard.RankView, ...] = ()
    try:
        views, table = rank_guard.parse(table)
        begun = begun and bool(views)
    except ParseError as error:
        network = network.without("the output of the rank guards cannot be parsed: %s" % error)
        table = "\n".join(line for line in table.split("\n") if rank_guard.MARK not in line)
    endings = [view.ending for view in views if view.ending is not None]
    network = replace(
        network,
        rails=launch.moved(views),
        launched=launch.judge(views, job, wanted.subject, asked).findings,
        tables=max(perf_output.programs(table), 1),
    )
    timed_out = any(_LIMIT in ending.why for ending in endings)
    rc = max((ending.rc or 0 for ending in endings), default=0)
    return Output(table[: perf_store.KEPT], errors[: perf_store.KEPT], network, begun, timed_out, rc)


def _rest(streams: Streams, path: str) -> str:
    """Return what of a file is not NCCL's."""
    try:
        with open(path, "rb") as stream:
            text = perf_output.without_log(streams.take(stream, path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    _shorten(path)
    return text


def complete(run: Run, output: Output, launcher: Optional[Launcher]) -> Run:
    """Return the run with the output of its programs. launcher: None where it could not be read."""
    if output.timed_out:
        run = replace(run, rc=None, ending="timeout")
    elif run.rc == 0:
        # A launcher may be told to pass over a rank that fails (orte_abort_on_non_zero_status 0).
        run = replace(run, rc=output.rc)
    elif launcher is not None and not output.begun and not run.ending:
        why = launch.refusal(launcher, run.rc, output.stderr or output.stdout)
        run = replace(run, ending="not started: %s" % why)
    return replace(run, stdout=output.stdout, stderr=output.stderr, network=output.network)


def _shorten(path: str) -> None:
    """Replace a large file by its lines that report something."""
    try:
        if os.path.getsize(path) <= _LARGEST:
            return
        kept = excerpt.read(Host(), path, os.path.getsize(path), _LARGEST, lambda _line: 1)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(kept.text)
    except (OSError, ReadError):
        # Not the result, and what is there is removed with its run.
        return
