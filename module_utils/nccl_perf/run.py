# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One nccl-tests run by the module's options, and the judgement of its stored result for the present node.

measure.py has what only a measurement needs: the audit, which sends this to every node, runs nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import time
from dataclasses import replace
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ..core.host import Host, ParseError, ReadError, search_path
from ..core.plan import Plan
from ..nccl_tests.marker import MARKER, Marker, parse_marker
from . import fingerprint as perf_depends
from . import judge as perf
from . import record as perf_run
from . import result as perf_answer
from .checks import PROOF

# Open MPI 4 starts a daemon for a program built with MPI and run without mpirun, and aborts without ssh.
ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}


class Last(NamedTuple):
    """The last run, before a new one is started.

    plan: the judgement of its record, or that there is none.   found: its keys of the result, {} for none.
    changed: parts of perf_depends that have changed.   notes: parts of which that is not known.
    """

    plan: Plan
    found: Mapping[str, object]
    changed: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()

    def result(self) -> Dict[str, object]:
        more = {"stored": bool(self.found), "changed_since": list(self.changed), "notes": list(self.notes)}
        return {**perf_answer.NOTHING, **self.found, **more}


NOTHING = Last(Plan(), {})


class PerfRun:
    """A wanted run: its options, its environment, and what its result depends on.

    job: its start on several hosts, a launch.Launch; None without the option.
    """

    def __init__(self, host: Host, given: Mapping[str, Any], environment: Mapping[str, object]) -> None:
        self.job = None
        if given["launch"] is None:
            self.wanted = perf_run.wanted(given, [socket.gethostname()], given["gpus"])
        else:
            # The nightly check looks at single nodes, and is not sent what starts a run on several.
            from ..nccl import launch
            from . import launch_command

            self.job = launch.wanted(given["launch"])
            self.wanted = launch_command.wanted(given, self.job)
        self.host = host
        self.given = given
        self.given_environment = checked(environment, self.wanted)
        self.environment = {
            "PATH": search_path(),
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C",
            **({} if self.job else ALONE),
            **self.given_environment,
            **self.wanted.variables,
        }
        if self.wanted.several:
            # What NCCL writes into a file does not reach this host.
            self.environment.pop("NCCL_DEBUG_FILE", None)

    def result(self, plan: Plan, directory: str) -> Dict[str, object]:
        """Return the result. directory: of the run, "" if nothing was run."""
        result = {**plan.result(), "commands": [shlex.join(self.wanted.command)]}
        # Notes are those on the stored results.
        del result["notes"]
        record = perf_run.record_path(directory) if directory else ""
        return dict(result, run_directory=directory, record=record)

    def last(self) -> Last:
        """The stored result as it is judged now. Nothing is run and nothing written for it."""
        wanted = replace(self.wanted, max_age_days=self.given["max_age_days"])
        if not self.given["stored_result"]:
            return Last(perf.not_run(wanted, "not measured now, and no stored result is named"), {})
        try:
            run = perf_run.read_stored(self.given["stored_result"], self.host.system_root)
            cut_off = perf_run.cut_off(self.given["result_directory"])
        except (ParseError, ReadError) as error:
            return Last(perf.not_run(wanted, "not measured now; %s" % error), {})
        now = self.depends(run.salt)
        before = run.depends or {}
        plan, found = perf_answer.judge(run, wanted, time.time(), perf.outdated(run, now, cut_off))
        changed = tuple(change.part for change in perf_depends.changes(before, now))
        return Last(plan, found, changed, tuple(perf_depends.unproven(before, now)))

    def depends(self, salt: str) -> perf_depends.Depends:
        """Return what a result depends on, as it is now. salt: of the record's digests."""
        environment, built = self.environment, None
        problem = ""
        try:
            environment = {**environment, **self.library_path()}
            marker = self.marker()
            name = os.path.basename(self.given["binary"])
            if marker is not None:
                built = "%.12s, sha256 %.16s" % (marker.commit, marker.binaries.get(name, "of another build"))
        except ReadError as error:
            problem = perf_depends.unknown(error)
        program = (self.given["binary"], problem or built)
        return {
            **perf_depends.read(self.host),
            **perf_depends.run_inputs(self.host, *program, environment, self.given_environment, salt),
        }

    def library_path(self) -> Dict[str, str]:
        """Return LD_LIBRARY_PATH of the program's build: programs do not name their libnccl."""
        marker = None if "LD_LIBRARY_PATH" in self.environment else self.marker()
        return {} if marker is None else {"LD_LIBRARY_PATH": ":".join(marker.inputs.library_path)}

    def mpi_library(self) -> str:
        """The file of libmpi that the program is built with; "" where that is not known. Raises ReadError."""
        marker = self.marker()
        return marker.inputs.mpi.library if marker is not None and marker.inputs.mpi is not None else ""

    def marker(self) -> Optional[Marker]:
        """Return the marker of the program's build, None without one. Raises ReadError."""
        path = os.path.join(os.path.dirname(self.given["binary"]), MARKER)
        text = Host().read_system(path)
        try:
            return None if text is None else parse_marker(text)
        except ParseError as error:
            raise ReadError(path, "%s; build nccl-tests again (role nccl_tests)" % error) from error


def checked(environment: Mapping[str, object], wanted: perf_run.Wanted) -> Dict[str, str]:
    """The option ``environment`` as texts. Raises ParseError, which names the variable and never its value."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise ParseError("environment: %r is not a name of a variable" % name)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "\0" in str(value):
            raise ParseError("environment: %s is neither text nor a number" % name)
        if name in wanted.variables and name not in PROOF:
            raise ParseError("environment: %s is what algorithm sets; leave one of them out" % name)
    return {name: str(value) for name, value in environment.items()}
