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
from ipaddress import ip_address, ip_interface
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import perftest, recognise
from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core import finding as findings
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    ASPECTS,
    DISRUPTIONS,
    SEVERITIES,
    STATES,
    Finding,
)
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.module_utils.health.judge_ports import PortGrowth
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import PortNeighbour
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PATH_CLASSES
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import transport as perf_transport
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.result import Statistics
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo

from .codec import (
    LARGEST,
    LIMIT,
    LINE,
    MANY,
    Check,
    Invalid,
    Record,
    anything,
    each,
    flag,
    is_valid,
    many,
    maybe,
    number,
    of_class,
    one_of,
    quoted,
    read_by,
    record,
    row_of,
    table,
    text,
    whole,
)
from .plain_data import Plain

SAID = "its result is not valid: "
NOT_QUERIED = "not queried: "


def one_or_flag(value: Any) -> None:
    """Accept 0 and 1, which Ansible's own modules return for false and true."""
    if value not in (0, 1):
        raise Invalid(f"is {quoted(value)}, expected 0 or 1")


_an_id = text(LINE, empty=False, line=True)


def ids(value: Any) -> None:
    """Check ids of findings. There are hundreds a host, so they are checked together before one by one."""
    if not isinstance(value, list) or len(value) > MANY or not _all_good(value):
        many(_an_id)(value)


def evidence(value: Any) -> None:
    """Check evidence of passed checks: id -> value and source."""
    if not isinstance(value, dict) or not _all_good([*value]):
        table(anything, _an_id)(value)
    for name, pair in value.items():
        if not (isinstance(pair, list) and len(pair) == 2 and _all_good(pair)):
            raise Invalid(f"is {quoted(pair)}, expected a value and its source").within(quoted(name))


def _all_good(words: list[Any]) -> bool:
    if not all(map(str.__instancecheck__, words)):
        return False
    sizes = [*map(len, words), 1]
    return min(sizes) > 0 and max(sizes) <= LINE and "".join(words).isprintable()


def address(value: Any) -> None:
    """Check a rail's address, which other hosts connect to: it leads to one host, and not to itself or to many."""
    text(64)(value)
    try:
        parsed = ip_address(value)
    except ValueError:
        raise Invalid(f"is {quoted(value)}, which is not an IP address") from None
    if "%" in value or parsed.is_multicast or parsed.is_loopback or parsed.is_unspecified or value == _BROADCAST:
        raise Invalid(f"is {quoted(value)}, which is not an address of a host")


_BROADCAST = "255.255.255.255"
_CHECK_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
# PCI functions; RDMA devices, whose names come from the kernel or from udev; interfaces (IFNAMSIZ).
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DEVICE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,63}")
_NETDEV = re.compile(r"(?![-.]|\.{1,2}$)[!-.0-~]{1,15}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"/[ -~]{0,4000}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}")

line = text(LINE, line=True)
lines = many(text())

_of_finding = of_class(
    Finding,
    check=text(100, _CHECK_ID),
    state=one_of(*STATES),
    severity=one_of(*SEVERITIES),
    aspect=one_of(*ASPECTS),
    disruption=one_of(*DISRUPTIONS),
    because=maybe(_an_id),
    subject=_an_id,
    **each(("want", "have"), maybe(text())),
    **each(("source", "why"), text(empty=False)),
    fix=text(),
)
a_finding = Record({"id": _an_id, **_of_finding.keys})


def decode_findings(value: Any) -> tuple[Finding, ...]:
    """Return the findings of plain data: complete, with ids that fit. Raises Invalid."""
    many(a_finding, 2000)(value)
    found = []
    for place, item in enumerate(value):
        try:
            found.append(findings.from_dict(item))
        except ValueError as error:
            raise Invalid(str(error)[:200]).within(f"[{place}]") from None
    return tuple(found)


def of_findings(value: Any) -> None:
    """Check findings."""
    decode_findings(value)


seconds = number(0, 1e11)
_hex = text(16, re.compile(r"[0-9a-f]{16}"))


def interface(value: Any) -> None:
    """Accept an address with the length of its prefix, ``10.16.0.1/24``."""
    text(64)(value)
    try:
        ip_interface(value)
    except ValueError:
        raise Invalid(f"is {quoted(value)}, which is not an address with a prefix") from None
    if "%" in value or "/" not in value:
        raise Invalid(f"is {quoted(value)}, which is not an address with a prefix")


# A field of one of these names is the same in every result.
_RATE, _SAID = number(0, 1e6), text(255, line=True)
LIMITS: dict[str, Check] = {
    "pci": text(20, _PCI),
    "device": text(64, _DEVICE),
    "netdev": text(15, re.compile("|" + _NETDEV.pattern)),
    "link_layer": one_of("Ethernet", "InfiniBand"),
    "rate_gbps": number(1, 10000),
    "mtu": whole(0, 1 << 20),
    "rail": whole(0, 99),
    "gpu": text(20, re.compile("|" + _PCI.pattern)),
    "gpu_index": whole(0, 999),
    **each(("busbw", "algbw", "average_busbw", "bar", "prediction"), _RATE),
    "size": whole(),
    "errors": text(),
    **each(("devices", "without_gdr", "found"), text(64, line=True)),
}


def known(names: str, optional: bool = False) -> Plain:
    """Return name -> its check in LIMITS. optional: it may be null."""
    return {name: maybe(LIMITS[name]) if optional else LIMITS[name] for name in names.split()}


rail = of_class(
    RailInfo,
    LIMITS,
    optional=("gpu", "gpu_index", "addresses", "guids"),
    number=whole(0, 99),
    address=maybe(address),
    addresses=many(interface, 16),
    guids=table(_hex, one_of("node", "port", "system"), 3),
)
_info = of_class(
    HostInfo,
    optional=("gpus",),
    gpus=many(text(64, re.compile("[A-Za-z0-9-]+")), 64),
    rails=many(rail, 100),
    missing=table(text(), text(2, re.compile(r"[0-9]{1,2}")), 100),
)


def info(value: Any) -> None:
    """Check ``rail_info`` of topology_info's result, with each rail once."""
    _info(value)
    numbers = [one["number"] for one in value["rails"]]
    if len(set(numbers)) != len(numbers):
        raise Invalid("names a rail twice").within("rails")


session = of_class(
    perftest.Session,
    LIMITS,
    role=one_of("server", "client"),
    pci=text(20, re.compile("|" + _PCI.pattern)),
    device=text(64, re.compile("|" + _DEVICE.pattern)),
    # The host's address in the inventory, where a rail has none.
    address=text(256, re.compile(r"|[A-Za-z0-9_:.][A-Za-z0-9_:.%-]*")),
    mtu=whole(1, 1 << 20),
)
result = of_class(
    perftest.Result,
    LIMITS,
    test=one_of("bw", "lat"),
    figure=maybe(_RATE),
    rc=maybe(whole(-1000, 1000)),
    memory=one_of("gpu", "host"),
    **each(("command", "reason", "fix"), text()),
)
tested = record(
    session=session,
    results=many(result, 100),
    moved=table(whole(-LARGEST, LARGEST)),
    meaning=lines,
    optional=["meaning"],
)
placement = of_class(perf_output.Placement, LIMITS, **each(("wrong", "error"), maybe(number(-LARGEST))))
# root: -1 where the collective has none.
row = of_class(
    perf_output.Row,
    root=maybe(whole(-1, 1 << 32)),
    **each(("out_of_place", "in_place"), maybe(placement)),
)
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
    name=_an_id,
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
            **each(("out_of_place", "in_place", "spread"), maybe(_RATE)),
            repeats=whole(1, 1000),
        ),
        1000,
    ),
)

# GUIDs by which a fabric sweep knows a host (machine.rails.guids); duplicates are judged later.
_guid = maybe(text(16, re.compile("[0-9a-f]{16}")))
on_fabric = record(
    boot_id=maybe(text(36, re.compile("[0-9a-f-]{36}"))),
    rails=many(
        record(**known("rail pci device rate_gbps"), **each(("node_guid", "port_guid"), _guid), port=whole(1, 254)), 100
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
gate_state = record(
    **_gate_run,
    said=text(),
    findings=of_findings,
    kept_out=maybe(record(reason=text(LINE, line=True), at=seconds)),
    history=many(record(**_gate_run), 100),
)

# Ranks as ranges, ``0-3,7``; a count, a status or an error; number of ranks, and those that are named.
_RANKS = re.compile(r"([0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*)?")
_HOSTNAME = re.compile(r"[0-9A-Za-z:.%_-]{0,64}")
_most_ranks = whole(0, 1 << 17)
_pid = whole(-1, 1 << 31)
_gpu = whole(-1, 1 << 10)


def count(value: Any) -> None:
    """Check a 64-bit counter. The history has the same limit."""
    whole(0, (1 << 64) - 1)(value)


def ras_groups(of: Check) -> Check:
    return many(row_of(of, _most_ranks, text(1 << 20, _RANKS)))


ras_communicator = record(
    name=text(64, re.compile(r"0x[0-9a-f]{0,16}(:0x[0-9a-f]{1,16}){0,2}")),
    size=_most_ranks,
    places=many(row_of(_most_ranks, _most_ranks, _pid, _gpu, _gpu), 1 << 17),
    counts=table(ras_groups(count), text(32, re.compile(r"[A-Za-z][A-Za-z0-9_]*")), 64),
    statuses=ras_groups(text(32, re.compile("[A-Z]+"))),
    errors=ras_groups(line),
    missing=many(row_of(_most_ranks, maybe(row_of(_most_ranks, _pid, _gpu, _gpu)), maybe(flag), flag), 1 << 17),
    missing_number=_most_ranks,
    whole=flag,
)
ras_answer = record(
    form=one_of("json", "text"),
    version=text(64, line=True),
    communicators=many(ras_communicator, 1 << 14),
    hosts=many(text(64, _HOSTNAME)),
    rows=many(row_of(whole(0, 1 << 14), _most_ranks, text(32, line=True), text(64, line=True))),
    absent=many(
        row_of(text(64, _HOSTNAME), _pid, text(200, re.compile(r"[0-9][0-9,]*( \(NVML [0-9][0-9,]*\))?")), flag)
    ),
    processes=maybe(whole(0, 1 << 31)),
    timeouts=whole(0, 1 << 31),
)
ras_view = record(
    source=text(128, line=True),
    users=many(text(64, line=True), 1000),
    seconds=number(0, 1e6),
    before=maybe(ras_answer),
    now=ras_answer,
)
nccl_process = record(
    **each(("pid", "inner"), _pid),
    user=text(64, line=True),
    name=text(64),
    state=text(8, re.compile("[A-Za-z?]?")),
    library=text(4096),
    **each(("apart", "gpu"), flag),
    told=table(text(LINE), text(64), 20),
)
ras_silence = record(
    source=text(128, line=True), message=text(LINE), users=many(text(64, line=True), 1000), pids=many(_pid)
)

# LLDP data of a switch, in a port that anything may be plugged into.
neighbour = of_class(
    PortNeighbour,
    LIMITS,
    label=_an_id,
    netdev=text(15, _NETDEV),
    device=text(64, re.compile("|" + _DEVICE.pattern)),
    mac=text(59, re.compile("[0-9a-f:]*")),
    **each(("chassis", "name", "port", "description"), _SAID),
)


def _devices_with(counters: int, devices: int) -> Check:
    return many(
        record(
            # Findings files of release 0.2.0 lack it.
            ("board",),
            pci=text(20, _PCI),
            name=text(40, line=True),
            seconds=maybe(number(0, 1e9)),
            grown=table(count, text(80, line=True), counters),
            **each(("product", "serial", "part", "firmware", "slot", "board"), maybe(_SAID)),
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
    domain=text(64, re.compile(r"[0-9a-f-]{36}\.[0-9]{1,10}")), nodes=many(text(45, re.compile(r"[0-9a-f.:]+")), 1024)
)


# Of an InfiniBand plane: rows with the fields of module_utils/fabric/sweep.py in their order.
_sweep_line, _sweep_text = text(sweep.LINE, line=True), text(sweep.SAID, line=True)
_node_guid, _end_port, _speed = text(16, re.compile("[0-9a-f]{16}")), whole(0, 254), maybe(one_of(*sweep.SPEEDS))
_lid, _count = maybe(whole(0, sweep.MOST_LID)), whole(0, (1 << 64) - 1)
_guid_or_none, _line_or_none = maybe(_node_guid), maybe(_sweep_line)


def _lanes(value: Any) -> None:
    if type(value) not in (int, type(None)) or value not in (None, *sweep.WIDTHS):
        raise Invalid(f"is {quoted(value)}, expected a number of lanes")


def _place(value: Any) -> None:
    (_node_guid if isinstance(value, str) else whole(0, sweep.MOST_NODES))(value)


_PORT = (
    *(_end_port, whole(0, len(sweep.STATES) - 1), maybe(text(64, line=True)), _lanes, _speed, _lanes, _speed),
    *(maybe(row_of(_place, _end_port)), _lid, _guid_or_none),
    *(maybe(many(_count, 1 + 2 * sweep.MOST_COUNTERS, 1)), maybe(_sweep_text)),
)


def a_port(value: Any) -> None:
    """Check the row of a port, which may lack its last fields."""
    if not isinstance(value, list) or not 2 <= len(value) <= len(_PORT):
        raise Invalid(f"is {quoted(value)}, expected a row of 2 to {len(_PORT)}")
    row_of(*_PORT[: len(value)])(value)


_a_node = row_of(
    *(_node_guid, one_of(*sweep.KINDS), _sweep_line, _guid_or_none, maybe(whole(0, (1 << 32) - 1)), _line_or_none),
    *(_line_or_none, many(a_port, 255)),
)
_a_manager = row_of(_node_guid, one_of(*sweep.MANAGER_STATES), maybe(whole(0, 15)), _lid, _sweep_line)
_counter_names = many(text(64, re.compile(r"[A-Za-z][A-Za-z0-9_]*")), sweep.MOST_COUNTERS)
a_sweep = record(
    plane=text(16, re.compile("|[0-9a-f]{16}")),
    **each(("host", "device"), _sweep_line),
    port=_end_port,
    **each(("at", "seconds"), number(0, 1 << 40)),
    source=one_of(*sweep.SOURCES),
    routing=_line_or_none,
    adaptive_routing=maybe(flag),
    complete=flag,
    managers=many(_a_manager, sweep.MOST_NODES),
    nodes=many(_a_node, sweep.MOST_NODES),
    counter_sets=many(_counter_names, sweep.MOST_SETS),
    pkeys=table(many(whole(0, 0xFFFF), sweep.MOST_KEYS), _node_guid, sweep.MOST_NODES),
    events=many(row_of(_sweep_line, whole(0, 1 << 32), _sweep_line, _sweep_line), sweep.MOST_EVENTS),
    unhealthy=many(row_of(_node_guid, _end_port, _sweep_line), sweep.MOST_NODES),
    problems=many(row_of(_sweep_text, _sweep_text), sweep.MOST_PROBLEMS),
)


# Facts of a host besides its rails that are compared between hosts, by name.
facts = table(maybe(text(200, line=True)), text(32, re.compile("[a-z_]+")), 32)
_short, _register = text(200, line=True), whole(-1, 1 << 17)
_SETTINGS: dict[str, Check] = {
    **each(("trust", "owner", "psid", "firmware"), _short),
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
    "gpus": many(record(pci=text(20, _PCI), model=_short, device=whole(0, 0xFFFF)), 64),
    "nics": many(of_class(recognise.Nic, pci=text(20, _PCI), **_OF_NIC), 512),
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
    "ib_fabric_info": {"sweeps": many(a_sweep, 64)},
    "lldp": {"neighbours": many(neighbour, 200)},
    "node_health": {"boot_id": text(64, line=True), "devices": health_devices, "imex": imex, "ports": health_ports},
    "nccl_cluster": {"due": due, "member": member, "unfit": many(record(have=text(), fix=text()), 1000)},
    "nccl_conf": {"variables": table(text(), text(LINE), 1000)},
    "nccl_perf": {
        "measured": measured,
        "busbw": maybe(_RATE),
        "finished_at": maybe(seconds),
        **each(("simulated", "stored"), flag),
        "repeats": many(record(rc=maybe(whole(-1000, 1000)), busbw=maybe(_RATE), finished=seconds, ending=line), 1000),
        "statistics": many(statistics, 1000),
        "transport": transport,
        "rails": table(table(moved, text(64, line=True), 1000), _short_name),
        "ranks": table(whole(0, 1 << 20), _short_name),
        "nccl_version": line,
        "due": due,
        "changed_since": many(line, 100),
        **each(("run_directory", "record"), text(4096)),
    },
    "nccl_tests_build": {
        "build": anything,
        "path": text(4096, _PATH),
        "class_id": maybe(text(64, _DIGEST)),
        "origin": text(LINE),
        **each(("current", "packed"), flag),
        "share": maybe(record(**each(("has", "can_build", "can_copy"), flag))),
        "argv": lines,
        "log": text(4096),
    },
    "nccl_log_info": {
        "logs": many(
            record(path=text(4096), **each(("size", "read", "left_out"), whole()), text=text(1 << 21)),
            64,
        )
    },
    "nccl_ras_info": {
        "views": many(ras_view, 100),
        "processes": many(nccl_process),
        "addresses": many(text(64, _HOSTNAME)),
        "silent": many(ras_silence, 100),
    },
    "node_lock": {"held": flag, "holder": maybe(of_class(node_lock.Run, id=_an_id))},
    "perftest": {"sessions": many(tested, 1000), "finished_at": maybe(seconds), "simulated": flag},
    "reboot": {"reasons": lines, "unload_first": lines},
    "slurm_node": {"drained": flag, "jobs": lines, "ours": flag},
    "topology_info": {
        **each(("topology", "draft"), anything),
        **each(("doubts", "busy"), lines),
        "fabric": on_fabric,
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
    *("build", "share", "variables", "topology", "fabric", "rail_info", "draft", "doubts", "argv", "log", "imex"),
    *("recognition", "state", "member", "unfit", "busy"),
)
_NEEDED = ("findings", "passed")


def check(module: str, data: Any, background: bool = False) -> Plain:
    """Return the valid keys of a module's result. Raises Invalid.

    module: its name without the collection's.   background: the result is that of a poll.
    """
    if not isinstance(data, dict):
        raise Invalid(f"is {quoted(data)}, expected a dictionary")
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


def given(result: Any, module: str = "") -> Plain:
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


def findings_of(registered: Any) -> list[Plain]:
    """Return a role's registered findings; [] where they are invalid, which the verdict on the role reports."""
    found = registered.get("findings") if isinstance(registered, dict) else None
    return found if found and is_valid(of_findings, found) else []
