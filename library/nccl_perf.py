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
  - A run over more than one host has no verdict on its bandwidth without the proof of its transport. NCCL's own log of
    that very run (C(NCCL_DEBUG=INFO), which is set for it) has to show every rank, the network and the HCAs that were
    used, and GPUDirect RDMA of each connection. A run over sockets is not good, whatever it reaches.
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
      - Variables reach other hosts only by the launcher's own options, NCCL_DEBUG among them; see O(launch).
    type: list
    elements: str
    default: []
  launch:
    description:
      - Starts the program on several hosts, one process for each GPU (O(gpus) is 1), in place of O(launcher).
      - C(kind) is V(mpirun) (Open MPI 4 or later, by ssh) or V(srun). C(hosts) are the hosts as they call themselves,
        this one first; C(addresses) those by which the launcher reaches them, where these are others; C(per_node) is
        the number of processes on each. C(options) are further words for the launcher, C(python) is the interpreter on
        the hosts.
      - Each process is started by a guard, which binds it to the CPUs of its GPU, says what it found, and ends it at
        O(timeout), and when whoever started it is gone.
      - Variables of O(environment) reach all hosts, by name.
    type: dict
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
  repeats:
    description:
      - How often the program is run. Its bandwidth is judged by the median, all else by the worst of them.
      - After a run that failed there is no other.
    type: int
    default: 1
  algorithm:
    description: C(NCCL_ALGO), such as V(Ring); or V(SHARP), reduction in the switches. Empty - NCCL's choice.
    type: str
    default: ""
  rails:
    description:
      - How many HCAs of each host have to carry data between hosts. Where it is not given, as many as NCCL finds on the
        host that has most of them.
    type: int
  timeout:
    description: Seconds granted to each run of the program.
    type: float
    default: 900
  environment:
    description:
      - The run's environment, beside C(PATH), C(HOME) and C(LC_ALL). Nothing else is handed on, but that
        C(LD_LIBRARY_PATH) is what the marker of M(busbar.fabric.nccl_tests_build) beside the program says, where there
        is one and it is not set here.
      - The values are neither logged nor returned. Where C(NCCL_DEBUG) is set, NCCL writes into the run's directory;
        over several hosts into stdout, at level INFO.
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
    launch: {kind: mpirun, hosts: [node01, node02], per_node: 8}
    ranks: 16
    min_bytes: 8G
    max_bytes: 8G
    algorithm: Ring
    repeats: 3
    bar_busbw: 330
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
  description:
    - What the program printed - ranks, rows with their figures, release, errors. Empty where there is nothing.
    - With O(repeats) the run that is nearest to the median. Over several hosts C(ranks) is empty, see RV(ranks).
  type: dict
  returned: success
busbw:
  description:
    - GB/s, out of place, at the largest size, median of the repeats; null where one of them did not measure it.
  type: float
  returned: success
repeats:
  description:
    - Each run of the program - C(rc), C(busbw) as above, C(finished) in seconds since 1970, and C(ending), why it did
      not end by itself.
  type: list
  elements: dict
  returned: success
statistics:
  description:
    - Of each size over the repeats, out of place - C(size) in bytes; C(time_us), C(algbw) and C(busbw), medians;
      C(busbw_lowest); C(time_p99_us); C(spread), (highest - lowest) / median of busbw, and C(max_over_mean), longest
      time / mean of the others, both null for one run; C(repeats), how many have figures.
  type: list
  elements: dict
  returned: success
transport:
  description:
    - What NCCL's log of a run over several hosts proves - C(networks), C(nodes) and C(expected) ranks as NCCL counts,
      C(proven), C(missing), C(gdr), and by host C(ranks), C(devices), C(without_gdr) and C(found).
    - With O(repeats) of the run that proves least. Empty within a node, and where an earlier release kept the result.
  type: dict
  returned: success
rails:
  description: By host and HCA the bytes C(sent) and C(received) during that run.
  type: dict
  returned: success
ranks:
  description: By host how many ranks took part in a run over several hosts.
  type: dict
  returned: success
nccl_version:
  description: The NCCL that ran; more than one where hosts differ. Empty where it is not known.
  type: str
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

import os
import re
import shlex
import shutil
import signal
import socket
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group, trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    ParseError,
    ReadError,
    search_path,
    untrusted,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import (
    launch,
    perf,
    perf_answer,
    perf_depends,
    perf_launch,
    perf_output,
    perf_run,
    perf_store,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import run_output
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
    "launch": {"type": "dict"},
    "repeats": {"type": "int", "default": 1},
    "algorithm": {"type": "str", "default": ""},
    "rails": {"type": "int"},
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
    with measurement.store.alone() as other_run:
        plan = measurement.idle(other_run)
        if all(finding.ok for finding in plan.findings):
            run, directory = measurement.run()
            judged, found = perf_answer.judge(run, measurement.wanted, time.time())
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
        more = {"stored": bool(self.found), "changed_since": list(self.changed), "notes": list(self.notes)}
        return {**perf_answer.NOTHING, **self.found, **more}


NOTHING = Last(Plan(), {})


def is_secret(value: str) -> bool:
    """Whether a value of the environment must be masked wherever it is quoted; figures and paths must not be."""
    return len(value) >= MASKED_LENGTH and not value.isdigit() and not value.startswith("/")


class Measurement:
    """One call of the module: the run that is wanted, its environment, and the store of this and earlier runs."""

    def __init__(self, host: Host, given: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        self.job = None if given["launch"] is None else launch.wanted(given["launch"])
        given = given if self.job is None else perf_launch.options(given, self.job)
        self.wanted = perf_run.wanted(given, socket.gethostname())
        self.host = host
        self.given = given
        self.store = perf_store.Store(given["result_directory"], host.system_root)
        self.given_environment = checked(environment, self.wanted)
        self.environment = {
            "PATH": search_path(),
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C",
            **({} if given["launcher"] else ALONE),
            **self.given_environment,
            **self.wanted.variables,
        }
        if self.wanted.several:
            # What NCCL writes into a file does not reach this host.
            self.environment.pop("NCCL_DEBUG_FILE", None)

    def said(self, plan: Plan, directory: str) -> Dict[str, Any]:
        """directory: of the run, "" where nothing was run."""
        result = {**plan.result(), "commands": [shlex.join(self.wanted.command)]}
        record = perf_store.record_path(directory) if directory else ""
        return dict(result, run_directory=directory, record=record)

    def last(self) -> Last:
        """The stored result as it is judged now. Nothing is run and nothing written for it."""
        wanted = replace(self.wanted, max_age_days=self.given["max_age_days"])
        if not self.given["stored_result"]:
            return Last(perf.not_run(wanted, "not measured now, and no stored result is named"), {})
        try:
            run = perf_store.stored(self.given["stored_result"], self.host.system_root)
            cut_off = self.store.cut_off()
        except (ParseError, ReadError) as error:
            return Last(perf.not_run(wanted, "not measured now; %s" % error), {})
        now = self.depends(run.salt)
        before = run.depends or {}
        plan, found = perf_answer.judge(run, wanted, time.time(), perf.outdated(run, now, cut_off))
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

    def trusted(self, command: List[str], environment: Dict[str, str]) -> Tuple[str, ...]:
        """The command, its first word as a full path.

        Raises ReadError where others than root may change what the command runs or loads: the program, a launcher's
        words that are files, the directories of PATH and of the loader.
        """
        first, *words = command
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
        """Runs the program, as often as is asked for. Returns what is kept of that, and its directory.

        After a run that failed there is no other: a cluster that hangs would do so once more. Raises ReadError.
        """
        self.store.tidy(self.given["keep"] - 1)
        salt = perf_depends.new_salt()
        # Before the run: what changes in the middle of it was not measured.
        depends = self.depends(salt)
        environment = {**self.environment, **self.library_path()}
        directory = self.store.begin()
        if environment.get("NCCL_DEBUG") and not self.wanted.several:
            environment.setdefault("NCCL_DEBUG_FILE", os.path.join(directory, "nccl.%h.%p.log"))
        runs: List[perf_run.Run] = []
        while len(runs) < self.wanted.repeats and all(run.rc == 0 and not run.left_behind for run in runs):
            runs.append(self.once(directory, environment, ".%d" % (len(runs) + 1) if runs else ""))
        run = replace(runs[0], depends=depends, salt=salt, others=tuple(runs[1:]))
        self.store.keep(run, directory)
        return run, directory

    def once(self, directory: str, environment: Dict[str, str], suffix: str) -> perf_run.Run:
        """suffix: of the names of the files that the output goes to. Raises ReadError."""
        stdout, stderr = (os.path.join(directory, name + suffix) for name in ("stdout", "stderr"))
        run = perf_run.Run(self.wanted.command, None, "", self.given["timeout"], 0.0)
        launcher = None
        try:
            command = [*self.given["launcher"], *self.wanted.program]
            if self.job is not None:
                launcher = launch.read(self.host, self.job.kind)
                command = perf_launch.command(
                    self.job, launcher, self.wanted.program, environment, run.limit, self.host.hardware_root
                )
            # Before anything of it is run, the question for -J among it.
            argv = self.trusted(command, environment)
            if self.knows_json(directory, environment):
                argv += ("-J", os.path.join(directory, perf_store.RESULT_JSON))
            if launcher is not None:
                environment = {**environment, **launch.environment(launcher)}
            size = run_output.limit(self.wanted)
            granted = run.limit + (0 if launcher is None else launch.GRACE)
            ended = process_group.run(argv, directory, environment, granted, stdout, stderr, size)
            run = replace(run, rc=ended.rc, ending=ended.ending, left_behind=ended.left_behind)
        except ReadError as error:
            run = replace(run, ending="not started: %s" % error)
        finally:
            # Before anything else, and also when we are interrupted: it holds the environment.
            json, written = perf_store.take_json(directory)
        run = replace(run, finished=time.time(), json=json)
        if self.job is None and not self.wanted.several:
            return replace(run, stdout=perf_store.output(stdout), stderr=perf_store.output(stderr))
        asked = [name for name in environment if name.startswith("NCCL_")]
        said = run_output.read(stdout, stderr, self.wanted, written, self.job, asked)
        if said.timed_out:
            run = replace(run, rc=None, ending="timeout")
        elif launcher is not None and not said.begun and not run.ending:
            run = replace(run, ending=perf_launch.refusal(launcher, run.rc, said.stderr or said.stdout))
        return replace(run, stdout=said.stdout, stderr=said.stderr, network=said.network)

    def knows_json(self, directory: str, environment: Dict[str, str]) -> bool:
        """Whether the program has -J, by its own usage text; a program that cannot even print that has not."""
        path = os.path.join(directory, "usage")
        try:
            if not os.path.exists(path):
                argv = [self.given["binary"], "-h"]
                process_group.run(argv, directory, {**ALONE, **environment}, HELP_TIMEOUT, path, path + ".stderr")
        except ReadError:
            return False
        return "[-J," in perf_store.output(path)


def checked(environment: Mapping[str, Any], wanted: perf_run.Wanted) -> Dict[str, str]:
    """The option ``environment`` as texts. Raises ParseError, which names the variable and never its value."""
    for name, value in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)):
            raise ParseError("environment: %r is no name of a variable" % name)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "\0" in str(value):
            raise ParseError("environment: %s is neither text nor a number" % name)
        if name in wanted.variables and name not in perf_run.PROOF:
            raise ParseError("environment: %s is what algorithm sets; leave one of them out" % name)
    return {name: str(value) for name, value in environment.items()}


def stop(number: int, _frame: object) -> None:
    """As an exception, so that the program is ended on the way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
