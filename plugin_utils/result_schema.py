# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Schemas of node results: type, length and range of every key that a module of ours returns.

A node may be broken or hostile. Its result is checked here once, before anything else reads it: an invalid one makes
that host unknown and no other. Ansible adds keys to a result, which differ between releases, and some are orders to the
control node (``ansible_facts`` overrides the inventory's variables, ``add_host`` adds to it): keys that are not named
here are dropped at the top of a result, and refused below it.
"""

from __future__ import annotations

import re

from ansible_collections.busbar.fabric.plugins.module_utils import perftest, recognise
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_ports import PortGrowth
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import PortNeighbour
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PATH_CLASSES
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import transport as perf_transport
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.result import Statistics

from . import fabric_schema, ras_schema
from .codec import (
    LARGEST,
    LIMIT,
    LINE,
    Check,
    Invalid,
    anything,
    as_dict,
    each,
    flag,
    is_valid,
    many,
    maybe,
    number,
    of_class,
    one_of,
    read_by,
    record,
    table,
    text,
    whole,
)
from .plain_data import Plain
from .result_fields import DEVICE, LIMITS, NETDEV, PCI, RATE, SHORT, an_id, count, known, one_or_flag
from .result_fields import a_finding as a_finding
from .result_fields import decode_findings as decode_findings
from .result_fields import evidence as evidence
from .result_fields import ids as ids
from .result_fields import info as info
from .result_fields import line as line
from .result_fields import lines as lines
from .result_fields import of_findings as of_findings
from .result_fields import seconds as seconds

SAID = "its result is not valid: "
NOT_QUERIED = "not queried: "
_PATH = re.compile(r"/[ -~]{0,4000}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")

session = of_class(
    perftest.Session,
    LIMITS,
    role=one_of("server", "client"),
    pci=text(20, re.compile("|" + PCI.pattern)),
    device=text(64, re.compile("|" + DEVICE.pattern)),
    # The host's address in the inventory, where a rail has none.
    address=text(256, re.compile(r"|[A-Za-z0-9_:.][A-Za-z0-9_:.%-]*")),
    mtu=whole(1, 1 << 20),
)
result = of_class(
    perftest.Result,
    LIMITS,
    test=one_of("bw", "lat"),
    figure=maybe(RATE),
    rc=maybe(whole(-1000, 1000)),
    memory=one_of("gpu", "host"),
    **each(("command", "reason", "fix"), text()),
)
tested = record(
    session=session,
    results=many(result, 100),
    moved=table(whole(-LARGEST, LARGEST)),
)
placement = of_class(perf_output.Placement, LIMITS, wrong=maybe(number(-LARGEST)))
# root: -1 where the collective has none.
row = of_class(perf_output.Row, root=maybe(whole(-1, 1 << 32)), **each(("out_of_place", "in_place"), maybe(placement)))
rank = of_class(perf_output.Rank)
# {} where nothing was measured.
measured = of_class(
    perf_output.Result,
    LIMITS,
    optional=[*perf_output.Result.__dataclass_fields__],
    ranks=many(rank, 1 << 16),
    rows=many(row, 1000),
)
statistics = of_class(Statistics)
# Short host names, names of HCAs, interfaces and networks: some have blanks.
_short_name = text(255, empty=False, line=True)
host_transport = of_class(perf_transport.HostTransport, LIMITS)
_transport: Plain = {
    "networks": many(line, 64),
    "nodes": maybe(whole(0, 1 << 20)),
    "expected": maybe(whole(0, 1 << 24)),
    "proven": flag,
    "missing": many(line, 20),
    "gdr": maybe(flag),
    "hosts": table(host_transport, _short_name),
}
# {} where it was not over several hosts.
transport = record(optional=list(_transport), **_transport)
moved = of_class(perf_transport.Moved, **each(("sent", "received"), whole(-LARGEST, LARGEST)))
# Why a benchmark is to be measured, "" where its stored result is kept.
due = text(LINE, line=True)
# A benchmark run, as its table and the findings file read it.
a_run = record(
    others=True,
    name=an_id,
    **each(("subject", "collective"), line),
    gpus=whole(0, 1 << 20),
    max_bytes=whole(),
    **known("bar prediction busbw", optional=True),
    finished=maybe(seconds),
    **each(("simulated", "stored"), flag),
    due=due,
    rows=many(
        record(
            ("spread", "repeats"),
            size=whole(),
            **each(("out_of_place", "in_place", "spread"), maybe(RATE)),
            repeats=whole(1, 1000),
        ),
        1000,
    ),
)

# A node for a benchmark between nodes. Its devices become a variable of the program.
member = record(
    optional=["domain", "no_domain"],
    name=text(63, re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")),
    build=line,
    rails=table(record(**known("device"), gpu=whole(0, 999)), text(2, re.compile(r"[0-9]{1,2}")), 100),
    domain=text(60, re.compile(r"|[0-9a-f-]{36}\.[0-9]{1,10}")),
    no_domain=line,
)

# State that the gate stores on a node.
_gate_run: Plain = {
    "at": maybe(seconds),
    "boot_id": maybe(line),
    "stage": maybe(one_of(*gate.STAGES, "command")),
    "verdict": maybe(one_of(*gate.VERDICTS)),
    "action": maybe(one_of(*gate.ACTIONS)),
    **each(("seconds", "cpu_seconds"), maybe(number())),
}
# Release 0.1.0 stored its CPU time, too.
gate_state = record(
    ["cpu_seconds"],
    **_gate_run,
    said=text(),
    findings=of_findings,
    kept_out=maybe(record(reason=text(LINE, line=True), at=seconds)),
    history=many(record(["cpu_seconds"], **_gate_run), 100),
)

# LLDP data of a switch, in a port that anything may be plugged into.
neighbour = of_class(
    PortNeighbour,
    LIMITS,
    label=an_id,
    netdev=text(15, NETDEV),
    device=text(64, re.compile("|" + DEVICE.pattern)),
    mac=text(59, re.compile("[0-9a-f:]*")),
    **each(("chassis", "name", "port", "description"), SHORT),
)


def _devices_with(counters: int, devices: int) -> Check:
    return many(
        record(
            # Findings files of release 0.2.0 lack it.
            ("board",),
            pci=text(20, PCI),
            name=text(40, line=True),
            seconds=maybe(number(0, 1e9)),
            grown=table(count, text(80, line=True), counters),
            **each(("product", "serial", "part", "firmware", "slot", "board"), maybe(SHORT)),
        ),
        devices,
    )


# Counters of GPUs and PCIe functions since the previous run, with the devices; and the same in the findings file, where
# a NIC has its port's counters, too.
health_devices, told_devices = _devices_with(100, 1000), _devices_with(200, 2000)

# Counters of a rail's port since the previous run.
port_growth = of_class(
    PortGrowth,
    LIMITS,
    link_layer=one_of("", "InfiniBand", "Ethernet"),
    speed=text(8, re.compile("[A-Z0-9]*")),
    seconds=maybe(number(0, 1e9)),
    grown=table(count, text(64, re.compile("[a-z][a-z0-9_]*")), 100),
)
health_ports = many(port_growth, 64)


# UUID and clique of an NVLink domain, and the addresses of IMEX's list.
imex = record(
    domain=text(64, re.compile(r"[0-9a-f-]{36}\.[0-9]{1,10}")), nodes=many(text(253, re.compile(r"[0-9a-z.:-]+")), 1024)
)


# Facts of a host besides its rails that are compared between hosts, by name.
facts = table(maybe(text(200, line=True)), text(32, re.compile("[a-z_]+")), 32)
_short, _register = text(200, line=True), whole(-1, 1 << 17)
_SETTINGS: dict[str, Check] = {
    **each(("trust", "owner", "psid", "firmware", "family"), _short),
    **each(("pfc", "switch_pfc", "ecn", "partitions"), many(whole(0, 0xFFFF), 64)),
    "cnp": many(whole(0, 0xFFFF), 2, least=2),
    **each(("tos", "traffic_class", "mtu", *multirail.KEYS), _register),
    **each(("dscp2prio", "switch_dscp"), table(whole(0, 7), text(2, re.compile("[0-9]+")), 64)),
    "routed": flag,
}
_OF_NIC: Plain = {"path": one_of(*PATH_CLASSES), "link_layer": _short, "rate_gbps": maybe(number(0, 1e5))}
# Result of platform_facts.py.
_RECOGNITION: dict[str, Check] = {
    **each(("bus", "root", "guest", "fabric"), flag),
    **each(("architecture", "machine", "cloud", "product"), _short),
    "gpus": many(record(pci=text(20, PCI), model=_short, device=whole(0, 0xFFFF)), 64),
    "nics": many(of_class(recognise.Nic, pci=text(20, PCI), **_OF_NIC), 512),
    "nvswitches": whole(0, 64),
    "foreign": many(one_of("AMD GPU", "EFA"), 512),
    "draft": maybe(read_by(lambda value: profile.parse(value, "draft"))),
    "rails": many(record([*_SETTINGS], False, **_SETTINGS), 512),
    "runtimes": table(flag, one_of("docker", "containerd"), 2),
    "resources": maybe(many(_short, 100)),
}

# -- results of each module --------------------------------------------------------------------------------------------

# Keys of every module, see plan.Plan.result and apply.result; of a failed one, keys that Ansible adds.
_ALL: dict[str, Check] = {
    **each(("changed", "failed"), flag),
    **each(("msg", "stdout", "stderr", "module_stdout", "module_stderr"), text(LIMIT)),
    "diff": many(table(maybe(text(LIMIT)), limit=8), 1000),
    "findings": of_findings,
    "passed": ids,
    "evidence": evidence,
    **each(("commands", "reboot_required", "notes", "backup_files"), lines),
    **each(("withheld", "repaired"), ids),
    "facts": facts,
    "rc": maybe(whole(-LARGEST, LARGEST)),
}
# Module -> key -> check of its value; other modules may return keys of _ALL only.
ANSWERS: dict[str, dict[str, Check]] = {
    # Keys of a role with several modules, or of the control node.
    # fix: advice for a host that was not queried.
    "": {"due": due, "fix": line},
    "gate": {"state": maybe(gate_state)},
    "ib_fabric_info": {"sweeps": many(fabric_schema.a_sweep, 64)},
    "lldp": {"neighbours": many(neighbour, 200)},
    "node_health": {"boot_id": text(64, line=True), "devices": health_devices, "imex": imex, "ports": health_ports},
    "nccl_cluster": {"due": due, "member": member, "unfit": many(record(have=text(), fix=text()), 1000)},
    "nccl_conf": {"variables": table(text(), text(LINE), 1000)},
    "nccl_perf": {
        "measured": measured,
        "busbw": maybe(RATE),
        "finished_at": maybe(seconds),
        **each(("simulated", "stored"), flag),
        "repeats": many(record(rc=maybe(whole(-1000, 1000)), busbw=maybe(RATE), finished=seconds, ending=line), 1000),
        "statistics": many(statistics, 1000),
        "transport": transport,
        "rails": table(table(moved, text(64, line=True), 1000), _short_name),
        "nccl_version": line,
        "due": due,
        "changed_since": many(line, 100),
        **each(("run_directory", "record"), text(4096)),
    },
    "nccl_tests_build": {
        "build": anything,
        "path": text(4096, _PATH),
        "argv": lines,
        "log": text(4096),
    },
    "nccl_log_info": {
        "logs": many(record(path=text(4096), **each(("size", "read", "left_out"), whole()), text=text(1 << 21)), 64)
    },
    "nccl_ras_info": {
        "views": many(ras_schema.view, 100),
        "processes": many(ras_schema.process),
        "addresses": many(ras_schema.address),
    },
    "node_lock": {"held": flag, "holder": maybe(of_class(node_lock.Run, id=an_id))},
    "perftest": {"sessions": many(tested, 1000), "finished_at": maybe(seconds), "simulated": flag},
    "reboot": {"reasons": lines, "unload_first": lines},
    "slurm_node": {"drained": flag, "jobs": lines, "ours": flag},
    "topology_info": {
        "draft": anything,
        **each(("doubts", "busy"), lines),
        "fabric": fabric_schema.on_fabric,
        "rail_info": info,
        "recognition": record((), False, **_RECOGNITION),
    },
}
# First result of a module that runs in the background.
_STARTED: dict[str, Check] = {
    "ansible_job_id": text(64, _JOB),
    "results_file": text(4096, _PATH),
    "started": one_or_flag,
    "finished": one_or_flag,
}
# Keys that may be missing: the audit omits them, or they belong to a draft or a failure.
_OPTIONAL = (
    *("build", "share", "variables", "fabric", "rail_info", "draft", "doubts", "argv", "log", "imex"),
    *("recognition", "state", "member", "unfit", "busy"),
)
_NEEDED = ("findings", "passed")


def check(module: str, given: object, background: bool = False) -> Plain:
    """Return the valid keys of a module's result. Raises Invalid.

    module: its name without the collection's.   background: the result is that of a poll.
    """
    data = as_dict(given)
    known = {**_ALL, **ANSWERS.get(module, {}), **(_STARTED if background else {})}
    kept = {}
    for key, of_key in known.items():
        if key in data:
            try:
                of_key(data[key])
            except Invalid as error:
                raise error.within(key) from None
            kept[key] = data[key]
    if not kept.get("failed") and (not background or kept.get("finished")):
        # Only one of a role's modules has keys beside findings.
        for key in (*_NEEDED, *(ANSWERS.get(module, {}) if module else ())):
            if key not in kept and key not in _OPTIONAL:
                raise Invalid("is missing").within(key)
    return kept


def given(result: object, module: str = "") -> Plain:
    """Return a host's registered result if it is valid; else a failure that names what is not.

    module: its name; "" for a role's result, of which findings and their keys are taken.
    """
    if result is None or result == {}:
        return {}
    if isinstance(result, dict) and not result.get("findings"):
        for ending in ("unreachable", "skipped"):
            if result.get(ending):
                said = {name: str(result[name])[:LINE] for name in ("msg", "fix") if result.get(name)}
                return {ending: True, "msg": "", **said}
    try:
        return check(module, result)
    except Invalid as error:
        return {"failed": True, "msg": SAID + str(error)}


def findings_of(registered: object) -> list[Plain]:
    """Return a role's registered findings; [] where they are invalid, which the verdict on the role reports."""
    found = registered.get("findings") if isinstance(registered, dict) else None
    return found if found and is_valid(of_findings, found) else []
