# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a program of nccl-tests, alone or over several nodes, and store its output."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import replace
from typing import Dict, List, Tuple

from ..change import busy
from ..core import process_group, trusted
from ..core.host import ReadError, untrusted
from ..core.plan import Plan, merge
from ..nccl import launch
from . import collect as nccl_perf_collect
from . import fingerprint as perf_depends
from . import judge as perf
from . import record as perf_run
from . import result as perf_answer
from . import store as perf_store
from .run import PerfRun

# Variables, also passed on by a launcher (-x NAME=VALUE), whose value decides what is executed or loaded.
_LOADS = re.compile(r"PATH|LD_(LIBRARY_PATH|PRELOAD|AUDIT)|OPAL_PREFIX|NCCL_\w+_PLUGIN|OMPI_MCA_\w*path")
_SEPARATORS = re.compile(r"[:\s]")


def measure(asked: PerfRun) -> Tuple[Plan, Dict[str, object], str]:
    """Run it if the node is idle. Return findings, further keys of the result, and the directory.

    The directory is "" where nothing was run. Raises ReadError.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    store = perf_store.Store(asked.given["result_directory"], asked.host.system_root)
    with store.hold() as other_run:
        plan = _idle(asked, other_run)
        if not all(finding.ok for finding in plan.findings):
            return plan, {}, ""
        run, directory = _run(asked, store)
        judged, found = perf_answer.judge(run, asked.wanted, time.time())
        return merge(plan, judged), found, directory


def _idle(asked: PerfRun, other_run: str) -> Plan:
    """Judge whether the run may begin. other_run: holder of the lock.   Without require_idle nothing else counts."""
    if other_run:
        return perf.idle(asked.wanted, [other_run])
    if not asked.given["require_idle"]:
        return Plan()
    found = busy.read(asked.host)
    return perf.idle(asked.wanted, found.reasons, found.problems)


def _run(asked: PerfRun, store: perf_store.Store) -> Tuple[perf_run.Run, str]:
    """Run the program, as often as wanted. Return the record, and its directory.

    After a run that failed there is no other: a cluster that hangs would do so again. Raises ReadError.
    """
    store.tidy()
    salt = perf_depends.new_salt()
    # Before the run: a change during it was not measured.
    depends = asked.depends(salt)
    environment = {**asked.environment, **asked.library_path()}
    directory = store.begin()
    if environment.get("NCCL_DEBUG") and not asked.wanted.several:
        environment.setdefault("NCCL_DEBUG_FILE", os.path.join(directory, "nccl.%h.%p.log"))
    runs: List[perf_run.Run] = []
    while len(runs) < asked.wanted.repeats and all(run.rc == 0 and not run.left_behind for run in runs):
        runs.append(_run_once(asked, directory, environment, ".%d" % (len(runs) + 1) if runs else ""))
    run = replace(runs[0], depends=depends, salt=salt, others=tuple(runs[1:]))
    store.save(run, directory)
    return run, directory


def _run_once(asked: PerfRun, directory: str, environment: Dict[str, str], suffix: str) -> perf_run.Run:
    """Run once. suffix: of the names of the output files. Raises ReadError."""
    stdout, stderr = (os.path.join(directory, name + suffix) for name in ("stdout", "stderr"))
    wanted, job = asked.wanted, asked.job
    run = perf_run.Run(wanted.command, None, "", asked.given["timeout"], 0.0)
    launcher, pid = None, 0
    try:
        command = list(wanted.program)
        if job is not None:
            launcher = launch.read(asked.host, job.kind, asked.mpi_library())
            names, root = sorted(environment), asked.host.hardware_root
            command = [*launch.words(job, launcher, names, run.limit, root or "/"), *command]
        argv = _trusted(command, environment, asked.host.system_root)
        if launcher is not None:
            environment = {**environment, **launch.environment(launcher)}
        granted = run.limit + (0 if launcher is None else launch.GRACE)
        size = nccl_perf_collect.limit(wanted)
        ended = process_group.run(argv, directory, environment, granted, stdout, stderr, size)
        # A launcher that has lost a node may crash when it is ended: that is not the cause of the missing result.
        pid = ended.pid if ended.ending else 0
        run = replace(run, rc=ended.rc, ending=ended.ending, left_behind=ended.left_behind)
    except ReadError as error:
        run = replace(run, ending="not started: %s" % error)
    run = replace(run, finished=time.time())
    if job is None:
        return replace(run, stdout=perf_store.output(stdout), stderr=perf_store.output(stderr))
    variables = [name for name in environment if name.startswith("NCCL_")]
    output = nccl_perf_collect.read(stdout, stderr, wanted, job, variables, pid)
    return nccl_perf_collect.complete(run, output, launcher)


def _trusted(command: List[str], environment: Dict[str, str], root: str) -> Tuple[str, ...]:
    """The command, its first word as a full path. root: the system root.

    Raises ReadError where others than root may change what the command runs or loads: the program, a launcher's
    words that are files, the directories of PATH and of the loader.
    """
    first, *words = command
    path = shutil.which(first, path=environment["PATH"])
    if path is None:
        raise ReadError(first, "is not installed (looked in %s)" % environment["PATH"])
    given = [word.partition("=") for word in words]
    given += [(name, "=", value) for name, value in environment.items()]
    places = [place for name, _equals, value in given if _LOADS.fullmatch(name) for place in _SEPARATORS.split(value)]
    for place in (path, *(word for word in words if os.path.isfile(word) and os.access(word, os.X_OK)), *places):
        while place.startswith("/") and not os.path.lexists(place):
            place = os.path.dirname(place)
        doubt = trusted.doubt(place, root) if place.startswith("/") else ""
        if doubt:
            raise untrusted(place, doubt)
    return (path, *words)


def _stop(number: int, _frame: object) -> None:
    """Raise an exception, so that the program is ended on the way out."""
    raise SystemExit(128 + number)
