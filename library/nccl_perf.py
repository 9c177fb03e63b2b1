#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_perf
short_description: Run one nccl-tests program and judge its result, where anything missing counts as failed
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs one program of nccl-tests, directly or through a launcher, under a time limit, and ends every process that it
    started.
  - Judges exit code, sizes, ranks, hosts, correctness and, with O(bar_busbw), the bus bandwidth of the largest size.
    Exit code 0 alone proves nothing.
  - Runs nothing on a node that somebody uses, see O(require_idle).
  - With O(when=changed) nothing is run, either, where the stored result is good, young enough, and of the node as it is
    now. With a result is kept what it depends on - driver, NCCL, the program's build, C(nccl.conf), kernel and its
    arguments, firmware of the NICs, GPUs, and a digest of O(environment).
  - Changes nothing on the host but its files below O(result_directory). The JSON of nccl-tests holds the whole
    environment; that part is removed before anything else is done with it.
attributes:
  check_mode:
    support: full
    description: Runs nothing and returns what it would run, and why; judges O(stored_result) where that is given.
  diff_mode:
    support: none
    description: A measurement has no difference to show.
options:
  binary:
    description: Absolute path of the program, for example C(/opt/nccl-tests/build/all_reduce_perf).
    type: path
    required: true
  collective:
    description: What the program measures; needed where its name does not tell.
    type: str
    choices: ["", all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, alltoallv, scatter, gather,
              sendrecv, hypercube]
    default: ""
  min_bytes:
    description: Smallest size, such as V(8) or V(1M).
    type: str
    default: "8"
  max_bytes:
    description: Largest size, such as V(8G).
    type: str
    default: 8G
  step_factor:
    description: Each size is this many times the one before.
    type: int
    default: 2
  gpus:
    description: GPUs per process.
    type: int
    default: 1
  ranks:
    description: GPUs that must take part, over all hosts.
    type: int
    required: true
  hosts:
    description: Names of the hosts that must take part, as they call themselves. Where none is listed, this host alone.
    type: list
    elements: str
    default: []
  launcher:
    description:
      - Words before the program, such as C(mpirun) with its options. The program must be built with MPI then.
      - Variables reach other hosts only by the launcher's own options.
    type: list
    elements: str
    default: []
  iterations:
    description: Measured iterations of each size.
    type: int
    default: 20
  warmup:
    description: Iterations before these.
    type: int
    default: 5
  check:
    description: Let the program verify the values; without it there is no finding on correctness.
    type: bool
    default: true
  timeout:
    description: Seconds granted to the whole run.
    type: float
    default: 900
  environment:
    description:
      - The run's environment, beside C(PATH), C(HOME) and C(LC_ALL). Nothing else is handed on, but that
        C(LD_LIBRARY_PATH) is what the marker of M(busbar.fabric.nccl_tests_build) beside the program says, where there
        is one and it is not set here.
      - The values are neither logged nor returned. Where C(NCCL_DEBUG) is set, NCCL writes into the run's directory.
    type: dict
    default: {}
  result_directory:
    description: Each run makes a directory of its own below; the link C(latest) leads to the last one.
    type: path
    default: /var/lib/busbar/nccl_perf
  bar_busbw:
    description: Least bus bandwidth in GB/s, out of place, of the largest size.
    type: float
  when:
    description:
      - When the program is run. V(always); V(never), O(stored_result) is judged then.
      - V(changed) - only where O(stored_result) is not good, not there, older than O(max_age_days), or where something
        that it depends on has changed; else it is judged.
    type: str
    choices: [changed, always, never]
    default: always
  stored_result:
    description: Where nothing is run, judge this record of an earlier run, for example C(latest/record.json).
    type: path
    default: ""
  max_age_days:
    description: How old a stored result may be.
    type: float
    default: 30
  require_idle:
    description: Run only where no process is on a GPU, no Slurm job is on the node and no pod has been given a GPU.
    type: bool
    default: true
  keep:
    description: How many runs are kept below O(result_directory).
    type: int
    default: 5
extends_documentation_fragment:
  - busbar.fabric.node
"""

EXAMPLES = r"""
- name: Measure all-reduce within the node
  busbar.fabric.nccl_perf:
    binary: /opt/nccl-tests/build/all_reduce_perf
    gpus: 8
    ranks: 8
    min_bytes: 1M
    bar_busbw: 350
    environment:
      LD_LIBRARY_PATH: /usr/local/cuda/lib64
  register: node_result

- name: Measure all-reduce over two nodes
  busbar.fabric.nccl_perf:
    binary: /opt/nccl-tests/build/all_reduce_perf_mpi
    launcher: [mpirun, -np, "16", -H, "node01:8,node02:8", --bind-to, none]
    ranks: 16
    hosts: [node01, node02]
    min_bytes: 8G
    max_bytes: 8G
    stored_result: /var/lib/busbar/nccl_perf/latest/record.json
  register: pair_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
commands:
  description: The command that was run, or would be. Where the program knows it, C(-J) is added to it.
  type: list
  elements: str
  returned: success
measured:
  description: What the program printed - ranks, rows with their figures, release, errors. Empty where there is nothing.
  type: dict
  returned: success
busbw:
  description: GB/s, out of place, at the largest size; null where it was not measured.
  type: float
  returned: success
stored:
  description: Whether an earlier run is judged, and nothing was measured now.
  type: bool
  returned: success
due:
  description: Why it was measured, or in check mode would be; empty where the stored result stands.
  type: str
  returned: success
changed_since:
  description: What has changed since the stored result was measured, such as V(NVIDIA driver) or V(nccl.conf).
  type: list
  elements: str
  returned: success
notes:
  description: What of that could not be compared.
  type: list
  elements: str
  returned: success
finished_at:
  description: When the run that is judged ended, in seconds since 1970; null where there is none.
  type: float
  returned: success
simulated:
  description: Whether the program says that it simulates.
  type: bool
  returned: success
run_directory:
  description: Where the output of the run lies; empty where nothing was run.
  type: str
  returned: success
record:
  description: The run as one file, for O(stored_result); empty where nothing was run.
  type: str
  returned: success
reboot_required:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import asdict, replace
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks, process_group, trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    ParseError,
    ReadError,
    search_path,
    untrusted,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import (
    perf,
    perf_depends,
    perf_output,
    perf_run,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import MARKER, Marker, parse_marker

SPEC: Dict[str, Dict[str, Any]] = {
    "binary": {"type": "path", "required": True},
    "collective": {"type": "str", "choices": ["", *perf_output.COLLECTIVES], "default": ""},
    "min_bytes": {"type": "str", "default": "8"},
    "max_bytes": {"type": "str", "default": "8G"},
    "step_factor": {"type": "int", "default": 2},
    "gpus": {"type": "int", "default": 1},
    "ranks": {"type": "int", "required": True},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "launcher": {"type": "list", "elements": "str", "default": []},
    "iterations": {"type": "int", "default": 20},
    "warmup": {"type": "int", "default": 5},
    "check": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 900},
    "environment": {"type": "dict", "default": {}, "no_log": True},
    "result_directory": {"type": "path", "default": "/var/lib/busbar/nccl_perf"},
    "bar_busbw": {"type": "float"},
    "when": {"type": "str", "choices": [*perf.WHEN], "default": "always"},
    "stored_result": {"type": "path", "default": ""},
    "max_age_days": {"type": "float", "default": 30},
    "require_idle": {"type": "bool", "default": True},
    "keep": {"type": "int", "default": 5},
    **module.ROOTS,
}
HELP_TIMEOUT = 20.0
# Of the output, without NCCL's own lines, this much is judged and kept: 10,000 ranks print half of it.
KEPT = 2_000_000
RESULT_JSON = "result.json"
# In the result directory while a run has no result yet.
UNFINISHED = "unfinished"
RUN = re.compile(r"[0-9]{8}T[0-9]{6}-[a-z0-9_]{8}")
# Open MPI 4 starts a daemon for a program built with MPI and run without mpirun, and aborts where there is no ssh.
ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}
# Variables, also such that a launcher hands on (-x NAME=VALUE), whose value says what is executed or loaded.
LOADS = re.compile(r"PATH|LD_(LIBRARY_PATH|PRELOAD|AUDIT)|OPAL_PREFIX|NCCL_\w+_PLUGIN|OMPI_MCA_\w*path")
SEPARATORS = re.compile(r"[:\s]")
# Values shorter than this are no secrets, and masking every "1" or "INFO" would blot out the figures.
MASKED_LENGTH = 8


def main() -> None:
    ansible = AnsibleModule(SPEC, supports_check_mode=True)
    # Taken out, it cannot be returned; what of it may be a secret is masked also where the program quotes it.
    environment = ansible.params.pop("environment")
    ansible.no_log_values = set(filter(is_secret, ansible.no_log_values))
    module.run(ansible, lambda host, given, check_mode: work(host, given, check_mode, environment))


def work(host: Host, given: Mapping[str, Any], check_mode: bool, environment: Mapping[str, Any]) -> Dict[str, Any]:
    measurement = Measurement(host, given, environment)
    last = NOTHING
    if check_mode or given["when"] != "always":
        last = measurement.last()
    due = perf.due(last.plan, given["when"])
    if check_mode or not due:
        return {**last.result(), "due": due, **measurement.said(last.plan, "")}
    directory = ""
    found: Dict[str, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    with measurement.alone() as other_run:
        plan = measurement.idle(other_run)
        if all(finding.ok for finding in plan.findings):
            run, directory = measurement.run()
            judged, found = judge(run, measurement.wanted)
            plan = merge(plan, judged)
    return {**NOTHING.result(), **found, "due": due, **measurement.said(plan, directory)}


class Last(NamedTuple):
    """What is known of the last run before any is started.

    plan: the judgement of its record, or that there is none.   found: what the module returns of it, {} for none.
    changed: parts of perf_depends that are not as they were.   notes: parts of which that is not known.
    """

    plan: Plan
    found: Mapping[str, Any]
    changed: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()

    def result(self) -> Dict[str, Any]:
        nothing: Dict[str, Any] = {"measured": {}, "busbw": None, "finished_at": None, "simulated": False}
        more = {"stored": bool(self.found), "changed_since": list(self.changed), "notes": list(self.notes)}
        return {**nothing, **self.found, **more}


NOTHING = Last(Plan(), {})


def is_secret(value: str) -> bool:
    """Whether a value of the environment must be masked wherever it is quoted; figures and paths must not be."""
    return len(value) >= MASKED_LENGTH and not value.isdigit() and not value.startswith("/")


class Measurement:
    """One call of the module: the run that is wanted, its environment, and the directory of this and earlier runs."""

    def __init__(self, host: Host, given: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        self.wanted = perf_run.wanted(given, socket.gethostname())
        self.host = host
        self.given = given
        self.directory: str = given["result_directory"]
        self.given_environment = checked(environment)
        self.environment = {
            "PATH": search_path(),
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C",
            **({} if given["launcher"] else ALONE),
            **self.given_environment,
        }

    @contextlib.contextmanager
    def alone(self) -> Iterator[str]:
        """Holds the lock of the result directory. Yields who else has it, "" for nobody. Raises ReadError."""
        # Of another name than earlier releases gave it, which others could open, and may still hold.
        path = os.path.join(self.directory, ".run.lock")
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            doubt = trusted.doubt(self.directory, self.host.system_root)
            if doubt:
                raise untrusted(self.directory, doubt)
            lock = locks.open_file(path)
        except OSError as error:
            raise ReadError(path, "cannot be written: %s" % error.strerror) from error
        try:
            locks.take(lock)
        except BlockingIOError:
            yield "another benchmark run (%s is locked)" % path
        else:
            yield ""
        finally:
            os.close(lock)

    def said(self, plan: Plan, directory: str) -> Dict[str, Any]:
        """directory: of the run, "" where nothing was run."""
        result = {**plan.result(), "commands": [shlex.join(self.wanted.command)]}
        return dict(result, run_directory=directory, record=record_path(directory) if directory else "")

    def last(self) -> Last:
        """The stored result as it is judged now. Nothing is run and nothing written for it."""
        wanted = replace(self.wanted, max_age_days=self.given["max_age_days"])
        if not self.given["stored_result"]:
            return Last(perf.not_run(wanted, "not measured now, and no stored result is named"), {})
        try:
            run = stored(self.given["stored_result"], self.host.system_root)
            cut_off = self.cut_off()
        except (ParseError, ReadError) as error:
            return Last(perf.not_run(wanted, "not measured now; %s" % error), {})
        now = self.depends(run.salt)
        before = run.depends or {}
        plan, found = judge(run, wanted, perf.outdated(run, now, cut_off))
        changed = tuple(change.part for change in perf_depends.changes(before, now)) if before else ()
        return Last(plan, found, changed, tuple(perf_depends.unproven(before, now)))

    def depends(self, salt: str) -> perf_depends.Depends:
        """What a result depends on, as it is now. salt: of the record's digests."""
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
            **perf_depends.of_run(self.host, *program, environment, self.given_environment, salt),
        }

    def cut_off(self) -> str:
        """When the run began that has left no result: one that was killed, hung with its node, or goes on right now.

        "" where there is none. Raises ReadError.
        """
        text = Host().read_system(os.path.join(self.directory, UNFINISHED))
        return "" if text is None else text.strip()[:40] or "at an unknown time"

    def begin(self) -> None:
        """Says, until ``keep``, that a run has begun. It is on the disk before the run can hang the node."""
        path = os.path.join(self.directory, UNFINISHED)
        try:
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ReadError(path, "cannot be written: %s" % error.strerror) from error

    def idle(self, other_run: str) -> Plan:
        """Whether the run may begin. other_run: who holds the lock.   Nothing else is asked without require_idle."""
        if other_run:
            return perf.idle(self.wanted, [other_run])
        if not self.given["require_idle"]:
            return Plan()
        found = busy.read(self.host)
        return perf.idle(self.wanted, found.reasons, found.problems)

    def library_path(self) -> Dict[str, str]:
        """LD_LIBRARY_PATH of the build that the program is from: no program says which libnccl it means."""
        marker = None if "LD_LIBRARY_PATH" in self.environment else self.marker()
        return {} if marker is None else {"LD_LIBRARY_PATH": ":".join(marker.inputs.library_path)}

    def marker(self) -> Optional[Marker]:
        """Of the build that the program is from, None where it has none. Raises ReadError."""
        path = os.path.join(os.path.dirname(self.given["binary"]), MARKER)
        text = Host().read_system(path)
        try:
            return None if text is None else parse_marker(text)
        except ParseError as error:
            raise ReadError(path, "%s; build nccl-tests again (role nccl_tests)" % error) from error

    def trusted(self, environment: Dict[str, str]) -> Tuple[str, ...]:
        """The command, its first word as a full path.

        Raises ReadError where others than root may change what the command runs or loads: the program, a launcher's
        words that are files, the directories of PATH and of the loader.
        """
        first, *words = self.wanted.command
        path = shutil.which(first, path=environment["PATH"])
        if path is None:
            raise ReadError(first, "is not installed (looked in %s)" % environment["PATH"])
        given = [word.partition("=") for word in words]
        given += [(name, "=", value) for name, value in environment.items()]
        places = [place for name, _equals, value in given if LOADS.fullmatch(name) for place in SEPARATORS.split(value)]
        for place in (path, *(word for word in words if os.path.isfile(word) and os.access(word, os.X_OK)), *places):
            while place.startswith("/") and not os.path.lexists(place):
                place = os.path.dirname(place)
            doubt = trusted.doubt(place, self.host.system_root) if place.startswith("/") else ""
            if doubt:
                raise untrusted(place, doubt)
        return (path, *words)

    def run(self) -> Tuple[perf_run.Run, str]:
        """Runs the program. Returns what is kept of the run, and its directory. Raises ReadError."""
        self.tidy(self.given["keep"] - 1)
        self.begin()
        salt = perf_depends.new_salt()
        # Before the run: what changes in the middle of it was not measured.
        depends = self.depends(salt)
        environment = {**self.environment, **self.library_path()}
        try:
            directory = tempfile.mkdtemp(prefix=time.strftime("%Y%m%dT%H%M%S-"), dir=self.directory)
        except OSError as error:
            raise ReadError(self.directory, "cannot be written: %s" % error.strerror) from error
        if environment.get("NCCL_DEBUG"):
            environment.setdefault("NCCL_DEBUG_FILE", os.path.join(directory, "nccl.%h.%p.log"))
        stdout, stderr = os.path.join(directory, "stdout"), os.path.join(directory, "stderr")
        run = perf_run.Run(self.wanted.command, None, "", self.given["timeout"], 0.0, depends=depends, salt=salt)
        try:
            command = self.trusted(environment)
            if self.knows_json(directory, environment):
                command += ("-J", os.path.join(directory, RESULT_JSON))
            ended = process_group.run(command, directory, environment, run.limit, stdout, stderr)
            run = replace(run, rc=ended.rc, ending=ended.ending, left_behind=ended.left_behind)
        except ReadError as error:
            run = replace(run, ending="not started: %s" % error)
        finally:
            # Before anything else, and also when we are interrupted: it holds the environment.
            json = take_json(directory)
        run = replace(run, finished=time.time(), json=json, stdout=output(stdout), stderr=output(stderr))
        self.keep(run, directory)
        return run, directory

    def tidy(self, keep: int) -> None:
        """Removes all but the newest runs, and what killed runs have left of the environment. Raises ReadError."""
        runs = [name for name in os.listdir(self.directory) if RUN.fullmatch(name)]
        # Two runs of one second have the same time in their names.
        runs.sort(key=lambda name: os.stat(os.path.join(self.directory, name)).st_mtime_ns, reverse=True)
        last = os.path.basename(os.path.realpath(os.path.join(self.directory, "latest")))
        for number, name in enumerate(runs):
            directory = os.path.join(self.directory, name)
            take_json(directory)
            if number >= keep and name != last:
                try:
                    shutil.rmtree(directory)
                except OSError as error:
                    raise ReadError(directory, "cannot be removed: %s" % error.strerror) from error

    def knows_json(self, directory: str, environment: Dict[str, str]) -> bool:
        """Whether the program has -J, by its own usage text; a program that cannot even print that has not."""
        path = os.path.join(directory, "usage")
        try:
            process_group.run(
                [self.given["binary"], "-h"], directory, environment, HELP_TIMEOUT, path, path + ".stderr"
            )
        except ReadError:
            return False
        return "[-J," in output(path)

    def keep(self, run: perf_run.Run, directory: str) -> None:
        link = os.path.join(self.directory, "latest")
        try:
            with open(record_path(directory), "x", encoding="utf-8") as stream:
                stream.write(perf_run.record(run))
            new = os.path.join(directory, "latest")
            os.symlink(os.path.basename(directory), new)
            os.replace(new, link)
            with contextlib.suppress(FileNotFoundError):  # the result is there, whoever has taken that away
                os.unlink(os.path.join(self.directory, UNFINISHED))
        except OSError as error:
            raise ReadError(link, "cannot be written: %s" % error.strerror) from error


def checked(environment: Mapping[str, Any]) -> Dict[str, str]:
    """The option ``environment`` as texts. Raises ParseError, which names the variable and never its value."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise ParseError("environment: %r is no name of a variable" % name)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "\0" in str(value):
            raise ParseError("environment: %s is neither text nor a number" % name)
    return {name: str(value) for name, value in environment.items()}


def take_json(directory: str) -> Optional[str]:
    """The complete JSON file of a run, without the environment. No JSON file is left on disk. Raises ReadError.

    Processes that write to one name make path, path.0, path.1 and so on, and those that die leave a part.
    """
    taken: List[str] = []
    for name in sorted(os.listdir(directory)):
        if not name.startswith(RESULT_JSON):
            continue
        path = os.path.join(directory, name)
        try:
            text = text_of(path)
        finally:
            remove(path)
        with contextlib.suppress(ParseError):  # then the text of stdout has to do
            taken.append(perf_output.redact(text))
    return taken[0] if taken else None


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        raise ReadError(path, "holds the environment and cannot be removed: %s" % error.strerror) from error


def text_of(path: str) -> str:
    """The text of a file, up to OUTPUT_LIMIT; "" where there is none. Raises ReadError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(process_group.OUTPUT_LIMIT)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def output(path: str) -> str:
    """What of a program's output, which lies in a file, is judged and kept. Raises ReadError."""
    return perf_output.without_log(text_of(path))[:KEPT]


def record_path(directory: str) -> str:
    return os.path.join(directory, "record.json")


def stored(path: str, root: str) -> perf_run.Run:
    """The record of an earlier run. root: the system root.

    Raises ParseError, and ReadError, also for a record that others than root may change.
    """
    text = Host().read_system(path)
    if text is None:
        raise ReadError(path, "there is no stored result")
    doubt = trusted.doubt(path, root)
    if doubt:
        raise ReadError(path, "is not believed, because %s; %s" % (doubt, trusted.WAY_OUT))
    return perf_run.parse_record(text)


def judge(run: perf_run.Run, wanted: perf_run.Wanted, since: Sequence[str] = ()) -> Tuple[Plan, Dict[str, Any]]:
    """The findings on a run, and what the module returns of it beside them. since: as perf.outdated gives it."""
    result, problem = perf.read(run)
    plan = perf.judge(result, wanted, run, time.time(), problem, since)
    if result is None:
        return plan, {"finished_at": run.finished}
    return plan, {
        "finished_at": run.finished,
        "measured": asdict(result),
        "busbw": perf.reached(result, wanted),
        "simulated": result.simulated,
    }


def stop(number: int, _frame: object) -> None:
    """As an exception, so that the program is ended on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
