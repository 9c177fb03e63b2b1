#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: perftest
short_description: Run one host's end of RDMA tests between rails, and judge bandwidth, latency and counters
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs C(ib_write_bw) and C(ib_write_lat) on all rails of O(sessions) at once, as servers or as clients, under one
    time limit, and ends every process that it started. Both hosts of a pair run it at the same time, see
    M(busbar.fabric.rail_pairs).
  - Reads the NICs' counters before and after, and says what their movement means.
  - Runs nothing on a node that somebody uses, see O(require_idle).
  - Changes nothing on the host but C(/var/lib/busbar/perftest), where the last result of each role is kept.
attributes:
  check_mode:
    support: full
    description: Runs nothing and returns what it would run; judges the last result of each rail and role, and its age.
  diff_mode:
    support: none
    description: A measurement has no difference to show.
options:
  sessions:
    description:
      - This host's end of each test, as M(busbar.fabric.rail_pairs) plans them. Outside check mode all of one role.
    type: list
    elements: dict
    required: true
  tests:
    description: What is measured, bandwidth and latency.
    type: list
    elements: str
    choices: [bw, lat]
    default: [bw, lat]
  seconds:
    description: Of each bandwidth test, 3 or more.
    type: int
    default: 5
  timeout:
    description: Seconds granted to everything together, the wait for the other end included.
    type: float
    default: 120
  share:
    description: Least bandwidth, as a share of what the rail's rate carries.
    type: float
    default: 0.9
  latency:
    description: Most microseconds, typical; 0 for no bar. Left out, it follows from link layer and rate.
    type: float
  traffic_class:
    description: Of RoCE packets; -1 for none.
    type: int
    default: -1
  priority:
    description: The lossless priority, whose counters have to move and no others; -1 where the fabric has none.
    type: int
    default: -1
  address_family:
    description: Kind of RoCE v2 address whose GID is taken.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  memory:
    description: V(auto) is the memory of the rail's GPU where it has one and C(ib_write_bw) is built with CUDA.
    type: str
    choices: [auto, host]
    default: auto
  require_idle:
    description: Run only where no process is on a GPU, no Slurm job is on the node and no pod has been given a GPU.
    type: bool
    default: true
  max_age_days:
    description: How old a stored result may be.
    type: float
    default: 30
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc), C(/usr) and C(/var).
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Serve rail 0 to node03
  busbar.fabric.perftest:
    sessions:
      - {role: server, rail: 0, pci: "0000:1a:00.0", device: mlx5_6, peer: node03, address: "", rate_gbps: 400}
    priority: 3
    traffic_class: 106
  async: 150
  poll: 0
"""

RETURN = r"""
sessions:
  description: Each session with its results and what its rail's counters did (C(moved), and in words C(meaning)).
  type: list
  elements: dict
  returned: success
finished_at:
  description: When the results were taken, seconds since 1970; null without any.
  type: float
  returned: success
simulated:
  description: Whether the figures are of a simulated node.
  type: bool
  returned: success
notes:
  description: What a reader of the figures has to know.
  type: list
  elements: str
  returned: success
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
  description: What was run, or in check mode would be.
  type: list
  elements: str
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
import shlex
import signal
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import nic_counters, perftest
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans, process_group, trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    Host,
    ParseError,
    ReadError,
    Untrusted,
    search_path,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange, Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.perftest import Options, Port, Result, Session

STORE = "/var/lib/busbar/perftest/%s.json"
# Seconds during which a client knocks again at a server that is not up yet.
KNOCK = 30.0
OUTPUT_LIMIT = 1 << 20
PEERMEM = "/sys/module/nvidia_peermem"


class Rail:
    """One session at this end: where it runs, what came of it, and why it cannot run, "" if it can."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.port: Optional[Port] = None
        self.netdev = ""
        self.problem, self.fix = "", ""
        self.results: List[Result] = []
        self.before = self.moved = nic_counters.Counters({})

    def find(self, devices: Sequence[rdma.RdmaDevice], family: str) -> None:
        session = self.session
        mine = [one for one in devices if one.pci == session.pci] if session.pci else []
        mine = mine or [one for one in devices if one.name == session.device]
        ports = [port for one in mine[:1] for port in one.ports]
        active = next((port for port in ports if port.state == "ACTIVE"), None)
        self.fix = "run site.yml --tags platform for this host"
        if active is None:
            self.problem = "%s has no ACTIVE port" % (mine[0].name if mine else session.pci or session.device)
            return
        gid = None
        if session.link_layer == "Ethernet":
            found = rdma.rocev2(active, family)
            if found is None:
                self.problem = "%s has no RoCE v2 GID with an address (%s)" % (mine[0].name, family)
                return
            gid, self.netdev = found.index, found.netdev or ""
        self.port = Port(mine[0].name, active.number, gid)


class Task:
    """What the arguments come to. Raises ParseError and ReadError."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.host = Host(given["hardware_root"], given["system_root"])
        self.host.require_roots()
        self.given = given
        self.tests: Sequence[str] = given["tests"]
        if not self.tests or given["seconds"] < perftest.LEAST_SECONDS or given["timeout"] <= given["seconds"]:
            raise ParseError(
                "tests must name one at least, seconds be %d or more, timeout more than seconds"
                % perftest.LEAST_SECONDS
            )
        self.rails = [Rail(perftest.session_of(one)) for one in given["sessions"]]
        self.wanted = perftest.Bar(given["share"], given["latency"])
        self.options = Options(given["seconds"], given["traffic_class"])
        self.priority = given["priority"] if given["priority"] >= 0 else None
        self.deadline = time.monotonic() + given["timeout"]
        self.help = ""
        self.notes: List[str] = []
        devices, problems = rdma.read(self.host)
        if not devices and problems:
            raise ReadError(problems[0].source, problems[0].message)
        for rail in self.rails:
            rail.find(devices, given["address_family"])

    def argv(self, rail: Rail, test: str) -> Tuple[str, ...]:
        port = rail.port or Port(rail.session.device or rail.session.pci, 1, None)
        return perftest.argv(rail.session, port, test, self.options, self.help)

    def prepare(self) -> None:
        """Whether the programs are there, and in whose memory they can work."""
        try:
            for test in self.tests:
                self.host.tool(perftest.PROGRAMS[test])
            # Its exit code for --help is 1.
            done = self.host.run([perftest.PROGRAMS[perftest.BANDWIDTH], "--help"])
        except ReadError as error:
            fix = trusted.WAY_OUT if isinstance(error, Untrusted) else "install the package perftest on this host"
            for rail in self.rails:
                rail.problem, rail.fix = str(error), fix
            return
        self.help = done.stdout + done.stderr
        if self.given["memory"] == "host" or not any(rail.session.gpu for rail in self.rails):
            return
        if "--use_cuda" not in self.help:
            self.notes.append(
                "perftest ran over host memory: this ib_write_bw is built without CUDA, so that the path to the GPUs'"
                " memory is not in its figures"
            )
            return
        peermem = os.path.isdir(self.host.hardware(PEERMEM))
        dmabuf = not peermem and "--use_cuda_dmabuf" in self.help
        self.options = replace(self.options, memory="gpu", dmabuf=dmabuf)

    def run(self) -> None:
        able = [rail for rail in self.rails if not rail.problem]
        for rail in able:
            rail.before = self.counters(rail)
        if able and able[0].session.role == perftest.SERVER:
            self.start([(rail, test) for rail in able for test in self.tests])
        for test in self.tests if able and able[0].session.role == perftest.CLIENT else ():
            self.knock([rail for rail in able if not _nobody_there(rail)], test)
        for rail in able:
            rail.moved = nic_counters.difference(rail.before, self.counters(rail))

    def counters(self, rail: Rail) -> nic_counters.Counters:
        if rail.port is None:
            raise AssertionError("only rails with a port are tested")
        return nic_counters.read(self.host, rail.port.device, rail.port.number, rail.netdev)

    def knock(self, rails: Sequence[Rail], test: str) -> None:
        """All rails at once; those whose server is not up yet again."""
        end = min(time.monotonic() + KNOCK, self.deadline)
        while rails:
            self.start([(rail, test) for rail in rails])
            rails = [rail for rail in rails if _nobody_there(rail)]
            if not rails or time.monotonic() + 1 >= end:
                return
            for rail in rails:
                rail.results.pop()
            time.sleep(1)

    def start(self, work: Sequence[Tuple[Rail, str]]) -> None:
        """Runs all at once, and adds a result to each rail."""
        if not work:
            return
        with orphans.new_directory("busbar-perftest-") as directory:
            programs, commands = [], []
            for number, (rail, test) in enumerate(work):
                argv = self.argv(rail, test)
                commands.append(shlex.join(argv))
                path = os.path.join(directory, str(number))
                full = (self.host.tool(argv[0]), *argv[1:])
                programs.append(process_group.Program(full, path + ".out", path + ".err"))
            # CUDA numbers GPUs by speed unless it is told otherwise.
            environment = {"PATH": search_path(), "LC_ALL": "C", "HOME": "/", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            limit = max(1.0, self.deadline - time.monotonic())
            ended = process_group.run_all(programs, directory, environment, limit, OUTPUT_LIMIT)
            for (rail, test), program, command, end in zip(work, programs, commands, ended):
                text = _text(program.stdout) + _text(program.stderr)
                result = perftest.result(test, command, end.rc, end.ending, text)
                rail.results.append(replace(result, memory=self.options.memory))

    # -- what it means -------------------------------------------------------------------------------------------

    def findings(self, rail: Rail) -> Tuple[Finding, ...]:
        session = rail.session
        if rail.problem:
            command = shlex.join(self.argv(rail, self.tests[0]))
            return (perftest.unproven(session, rail.problem, command, rail.fix),)
        found = list(perftest.judge(session, rail.results, self.wanted))
        if any(one.figure is not None for one in rail.results):
            simulated = "simulated: " if any(one.simulated for one in rail.results) else ""
            source = simulated + ("ethtool -S %s, hw_counters" % rail.netdev if rail.netdev else "hw_counters")
            sends = session.role == perftest.CLIENT
            priority = self.priority if session.link_layer == "Ethernet" else None
            found += nic_counters.judge(session.subject, rail.moved, sends, priority, source)
        return perftest.explained(found)

    def store(self, finished: float) -> None:
        """Raises ReadError."""
        role = self.rails[0].session.role
        entries = [perftest.entry(rail.session, rail.results, rail.moved.values) for rail in self.rails if rail.results]
        if entries:
            path = STORE % role
            change = FileChange(path, self.host.read_system(path), perftest.record(finished, entries))
            apply.write(self.host, change)

    def recall(self) -> Tuple[List[Finding], Optional[float]]:
        """What the last results say, and when the oldest of them was taken."""
        stored: Dict[Tuple[str, int], Tuple[float, Session, Tuple[Result, ...], Dict[str, int]]] = {}
        problems: Dict[str, str] = {}
        for role in sorted({rail.session.role for rail in self.rails}):
            path = STORE % role
            try:
                text = self.host.read_system(path)
                if text is None:
                    problems[role] = "nothing was measured yet"
                    continue
                finished, entries = perftest.parse_record(text)
                for session, results, moved in entries:
                    stored[role, session.rail] = (finished, session, results, moved)
            except ReadError as error:
                problems[role] = str(error)
            except ParseError as error:
                problems[role] = "%s %s" % (path, error)
        found: List[Finding] = []
        times = []
        for rail in self.rails:
            role = rail.session.role
            last = stored.get((role, rail.session.rail))
            if last is None:
                why = "not run in check mode; %s" % problems.get(role, "nothing was measured of this rail yet")
                command = shlex.join(self.argv(rail, self.tests[0]))
                fix = "run verify.yml without --check when the node is idle"
                found.append(perftest.unproven(rail.session, why, command, fix))
                continue
            times.append(last[0])
            rail.session, rail.results, rail.problem = last[1], list(last[2]), ""
            rail.moved = nic_counters.Counters(last[3])
            found += self.findings(rail)
            found.append(
                perftest.fresh(rail.session.subject, last[0], time.time(), self.given["max_age_days"], STORE % role)
            )
        return found, min(times, default=None)


def _nobody_there(rail: Rail) -> bool:
    return bool(rail.results) and rail.results[-1].reason.startswith(perftest.NOT_LISTENING)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read(OUTPUT_LIMIT)


def stop(number: int, _frame: object) -> None:
    """As an exception, so that the programs are ended on the way out."""
    raise SystemExit(128 + number)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sessions": {"type": "list", "elements": "dict", "required": True},
            "tests": {"type": "list", "elements": "str", "choices": ["bw", "lat"], "default": ["bw", "lat"]},
            "seconds": {"type": "int", "default": 5},
            "timeout": {"type": "float", "default": 120},
            "share": {"type": "float", "default": 0.9},
            "latency": {"type": "float"},
            "traffic_class": {"type": "int", "default": -1},
            "priority": {"type": "int", "default": -1},
            "address_family": {"type": "str", "choices": ["ipv4", "ipv6"], "default": "ipv4"},
            "memory": {"type": "str", "choices": ["auto", "host"], "default": "auto"},
            "require_idle": {"type": "bool", "default": True},
            "max_age_days": {"type": "float", "default": 30},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    finished: Optional[float] = None
    found: List[Finding] = []
    try:
        task = Task(module.params)
        if module.check_mode:
            found, finished = task.recall()
        else:
            if len({rail.session.role for rail in task.rails}) > 1:
                raise ParseError("sessions are of both roles: a host is server or client of a test, never both at once")
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, stop)
            if module.params["require_idle"]:
                users = busy.read(task.host)
                found.append(perftest.idle(users.reasons, users.problems))
            if all(one.ok for one in found):
                task.prepare()
                task.run()
                finished = time.time()
                task.store(finished)
                for rail in task.rails:
                    found += task.findings(rail)
            else:
                for rail in task.rails:
                    command = shlex.join(task.argv(rail, task.tests[0]))
                    unproven = perftest.unproven(rail.session, "not run: the node is in use", command, found[0].fix)
                    found.append(replace(unproven, because=found[0].id))
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    result = Plan(tuple(found)).result()
    result.update(
        commands=[shlex.join(task.argv(rail, test)) for rail in task.rails for test in task.tests],
        sessions=[
            {
                **perftest.entry(rail.session, rail.results, {name: n for name, n in rail.moved.values.items() if n}),
                "meaning": nic_counters.meaning(rail.moved),
            }
            for rail in task.rails
        ],
        # Not `finished`: that is Ansible's own word for a task in the background.
        finished_at=finished,
        simulated=any(one.simulated for rail in task.rails for one in rail.results),
        notes=task.notes,
    )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
