# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check the site's intent: the inventory's values against ``site_values.py``, and against each other.

Ansible itself rejects neither an unknown variable nor a default of the wrong type, so this is done here, before any
host is touched.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import did_you_mean
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import nv_settings
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import wanted as nic_settings
from ansible_collections.busbar.fabric.plugins.module_utils.machine import minimum_versions
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import NicSetting
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member, launch
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import derive as nccl_conf
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import Chain, PortConfig, resolve

from . import accepted, model_sizes, nodeset, roce_chain, suite
from .plain_data import Plain, PlainView
from .site_value import Value
from .site_values import OF_RUN, PARTS, VALUES, of_role

T = TypeVar("T")


class WrongIntent(ParseError):
    """errors: a sentence for each mistake."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


# Names that the suite itself registers during a run.
REGISTERED = (
    *("busbar_intent", *(role.result for role in suite.SUITE), "drift_timer_result", "node_lock_result"),
    *("node_lock_released", "fleet_audit_result", "rail_info_result", "verify_fleet_result", "nccl_cluster_judged"),
    *("localise_round_result", "remediate_read_result", "remediate_plan_result", "remediate_state"),
    *("remediate_result", "ib_fabric_plan_result", "ib_fabric_judged"),
)
# Variables that nccl_conf derives, with the value to set instead.
_DERIVED = {
    "NCCL_IB_HCA": "the rails of the profile",
    "NCCL_SOCKET_IFNAME": "busbar_management_interface",
    "NCCL_IB_TC": "busbar_roce.dscp",
    "NCCL_IB_ADDR_FAMILY": "busbar_roce.address_family",
}
# These begin with common words, as variables of the user may.
_COMMON = ("platform", "reboot", "drain")
RESERVED = "busbar_"
# A site's own variables may begin with the name of a role, unless the rest is close to one of the role's.
ROLE_PREFIXES = tuple(f"{part}_" for part in PARTS if part not in _COMMON and of_role(part))
_RESTS = {prefix: [name[len(prefix) :] for name in VALUES if name.startswith(prefix)] for prefix in ROLE_PREFIXES}
# At this ratio every single wrong, missing or swapped letter is found.
_CLOSE = 0.65
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "path": (str,),
    "int": (int,),
    "raw": (int, str),
    "float": (int, float),
    "bool": (bool,),
    "list": (list, tuple),
    "dict": (dict,),
}
# A host's address for a launcher: no option, no list.
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,253}[A-Za-z0-9])?")
LEAF = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
# Nodes at once: a number, or a share.
_BATCH = r"[1-9][0-9]*|(?:[1-9]|[1-9][0-9]|100)%"
# Variable -> the least and the most that it may be, and how that is said.
_RANGES: dict[str, tuple[float, float, str]] = {
    **dict.fromkeys(("busbar_remediate_max_share", "gate_max_share", "perftest_share"), (0, 1, "0 to 1")),
    **dict.fromkeys(
        (
            *("busbar_remediate_max_attempts", "busbar_remediate_window_days", "busbar_lock_minutes"),
            *("busbar_task_timeout", "busbar_baseline_max_age_days", "nccl_benchmark_iterations"),
            *("nccl_benchmark_timeout", "perftest_rounds"),
        ),
        (1, math.inf, "1 or more"),
    ),
    "drain_timeout": (0, math.inf, "0 or more"),
    "nccl_benchmark_repeats": (1, 100, "1 to 100"),
    "nccl_benchmark_qps": (1, 128, "numbers from 1 to 128"),
    "gate_budget": (4, 45, "seconds from 4 to 45: Slurm ends its program after 60"),
    "watch_interval": (1, 60, "seconds from 1 to 60"),
    "watch_patience": (5, 86400, "seconds from 5 to 86400"),
    "watch_window": (1, 3600, "seconds from 1 to 3600"),
    "busbar_fabric_oversubscription": (*(1e-9, math.inf), "bandwidth to hosts for each of that to spines, such as 1.0"),
    "ib_fabric_seconds": (1, 3600, "seconds from 1 to 3600"),
    "ib_fabric_interval": (0, 86400, "seconds from 0 to 86400"),
    "perftest_seconds": (perftest.LEAST_SECONDS, math.inf, f"{perftest.LEAST_SECONDS} or more"),
    "perftest_latency": (0, math.inf, "microseconds, or 0 for no bar"),
    "node_health_power_limit": (0, math.inf, "watts, or 0"),
    "busbar_mtu": (netdev_mtu.LEAST, netdev_mtu.MOST, f"{netdev_mtu.LEAST} to {netdev_mtu.MOST}"),
}
# Variable -> form of it, or of each of its items, and what is expected.
_FORMS = {
    "nccl_benchmark_address": (ADDRESS, "a host's name or address"),
    "busbar_leaf": (LEAF, "a name of letters, digits, '.', ':', '/', '_' and '-'"),
    "gate_ignore": (re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+"), "ids of checks such as 'nccl_conf.file'"),
    minimum_versions.VARIABLE: (
        minimum_versions.FORM,
        "'bulletins', or a component and a version such as 'driver 580.178.04' (nic_firmware, container_toolkit, runc,"
        " dcgm, cuda)",
    ),
    "busbar_fabric_partitions": (re.compile(r"0x[0-9a-fA-F]{1,4}"), "partition keys such as '0x8001'"),
    "ib_fabric_devices": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}:[1-9][0-9]?"), "ports such as 'mlx5_0:1'"),
    "busbar_nccl_net_plugin": (re.compile(r"[A-Za-z0-9_.-]{1,64}|/[!-~]{1,500}"), "a name such as 'spcx', or a path"),
    "busbar_fabric_routing_engine": (re.compile(r"[A-Za-z0-9_-]{1,32}"), "one engine such as 'ftree'"),
}
# Mistakes in one message, and characters of host names before each.
_MISTAKES, _HOSTS = 30, 300
_PLAIN = (bool, int, float, str, list, dict)
_WORDS = {"str": "text", "int": "int", "raw": "numbers and text", "dict": "mappings"}


def digest(wanted: PlainView) -> str:
    """Return a hash of a host's intent: it tells a changed host from a changed inventory.

    wanted: result of the module intent.
    """
    values = {name: value for name, value in wanted["values"].items() if not of_no_host(name)}
    # A newer table of minimums is another intent: it is not the node that has changed.
    listed = minimum_versions.BULLETINS in values.get(minimum_versions.VARIABLE, ())
    of_table = [minimum_versions.DATE] if listed else []
    basis = [values, wanted["profile"], wanted["benchmark_runs"], *of_table]
    text = json.dumps(basis, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def printable_values(values: PlainView) -> Plain:
    """Return the values that may be printed and logged; enough to compare hosts and to choose bars.

    A private mapping keeps NCCL's variables, and the names of the others.
    """
    found: Plain = {}
    for name, value in redaction.scrub_all(values).items():
        if VALUES[name].private and isinstance(value, dict):
            found[name] = {key: item if _of_nccl(key) else redaction.REDACTED for key, item in value.items()}
        elif not VALUES[name].private:
            found[name] = value
    return found


def _of_nccl(name: object) -> bool:
    return str(name).startswith("NCCL_") and not redaction.is_secret_name(str(name))


def of_no_host(name: str) -> bool:
    """Return whether a variable of the suite concerns only the run or the control node."""
    return name.startswith("drift_timer_") or name in OF_RUN


def mine(name: str) -> bool:
    """Return whether a variable of this name is, or looks like, one of ours."""
    if name in VALUES:
        # The playbooks set this one, and a host has to be the same in all of them.
        return name != "busbar_role_verdict"
    if name.startswith("__") or name in REGISTERED:
        return False
    # Comparing all of a host's few hundred variables by letter would take longer than the rest of the check.
    if name.startswith(RESERVED):
        return True
    prefix = next(filter(name.startswith, ROLE_PREFIXES), "")
    if prefix:
        return bool(difflib.get_close_matches(name[len(prefix) :], _RESTS[prefix], 1, _CLOSE))
    return name.startswith(("platform_", "bus", "nccl_")) and bool(difflib.get_close_matches(name, VALUES, 1, 0.9))


def read(variables: PlainView) -> Plain:
    """Return every value of VALUES, set or default. Raises ParseError that names *all* variables that are wrong."""
    errors: list[str] = []
    for name in sorted(variables):
        if name not in VALUES:
            errors.append(f"{name} is not a variable of this suite{did_you_mean(name, VALUES, '')}")
    result: Plain = {}
    for name, value in VALUES.items():
        given = variables.get(name)
        if given is None:
            errors += [f"{name} is not set (busbar check recognises it)"] if value.required else []
        else:
            errors += _errors(name, given, value)
        result[name] = value.default if given is None else given
    if not errors:
        errors.extend(_inconsistent(result))
    if errors:
        raise WrongIntent(errors)
    return result


def sentences(error: ParseError) -> list[str]:
    """Return a sentence for each mistake in the inventory."""
    return list(error.errors) if isinstance(error, WrongIntent) else [str(error)]


def summarise_errors(errors: Mapping[str, Sequence[str]]) -> str:
    """Return each mistake of all hosts once, with the hosts that have it. errors: host -> sentences."""
    hosts = nodeset.grouped((sentence, host) for host, of_host in errors.items() for sentence in of_host)
    # The most frequent mistake first: it is a group's, and may cause others.
    found = sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"{nodeset.brief(names, _HOSTS)}: {sentence}" for sentence, names in found]
    more = ["and %d more mistakes; repair these first" % (len(lines) - _MISTAKES)] if len(lines) > _MISTAKES else []
    return "; ".join([*lines[:_MISTAKES], *more])


def summarise_doubts(values: Mapping[str, PlainView]) -> list[str]:
    """Return what is doubtful in the values of the hosts, with the hosts, and no mistake. values: by host."""

    def doubts(of_host: PlainView) -> list[str]:
        return minimum_versions.older_declarations(of_host["busbar_firmware"], of_host[minimum_versions.VARIABLE])

    hosts = nodeset.grouped((sentence, host) for host, of_host in values.items() for sentence in doubts(of_host))
    return [f"{nodeset.brief(names, _HOSTS)}: {sentence}" for sentence, names in hosts.items()][:_MISTAKES]


def _errors(name: str, given: Any, value: Value) -> list[str]:
    # YAML's `yes` is a bool and a bool is an int: both are mistakes in place of a number.
    if not isinstance(given, _TYPES[value.type]) or (value.type != "bool" and isinstance(given, bool)):
        # The plain name of Ansible's own subclasses of str and int.
        kind = next((of.__name__ for of in _PLAIN if isinstance(given, of)), type(given).__name__)
        if value.private:
            return [f"{name} is of type {kind}, expected {value.type}"]
        return [f"{name} is {given!r} ({kind}), expected {value.type}{_how(given, value)}"]
    known, plain = ", ".join(str(choice) for choice in value.choices if choice != ""), cast(Any, given)
    if value.type == "list":
        kinds = _TYPES[value.elements]
        wrong = [item for item in plain if not isinstance(item, kinds) or isinstance(item, bool)]
        if wrong:
            return [f"{name} holds {wrong[0]!r}, expected {_WORDS[value.elements]}{_how(given, value)}"]
        wrong = [item for item in plain if value.choices and item not in value.choices]
        return [f"{name} holds {wrong[0]!r}, expected some of {known}"] if wrong else []
    if value.choices and given not in value.choices:
        return [f"{name} is {given!r}, expected one of {known}"]
    if value.type == "path" and given and not str(given).startswith("/"):
        return [f"{name} is {given!r}, expected an absolute path"]
    errors: list[str] = []
    keys = value.keys or {}
    for key, item in plain.items() if keys else ():
        if key in keys:
            errors.extend(_errors(f"{name}.{key}", item, keys[key]))
        else:
            errors.append(f"{name} has unknown key {key!r}; known: {', '.join(keys)}")
    return errors


def _how(given: object, value: Value) -> str:
    """Return how to write the intended value: INI and ``-e NAME=VALUE`` only have text, YAML reads ``no`` as bool."""
    if value.type in ("str", "path"):
        return ": write it in quotes"
    return ": write it in YAML (group_vars) without quotes, or -e with JSON" if isinstance(given, str) else ""


def _inconsistent(values: PlainView) -> list[str]:
    extra = values["nccl_conf_extra"] or {}
    errors = [*accepted.errors(values["busbar_accepted"]), *_chain_errors(values)]
    derived = [(name, instead) for name, instead in _DERIVED.items() if name in extra]
    errors += [f"nccl_conf_extra.{name} is derived, not set: use {instead}" for name, instead in derived]
    errors += [f"nccl_conf_extra: {error}" for error in nccl_conf.extra_errors(extra)]
    errors += [f"nccl_conf_accepted: {error}" for error in nccl_conf.accepted_errors(values["nccl_conf_accepted"])]
    errors += [sentence for wrong, sentence in _contradictions(values) if wrong]
    for name in ("busbar_reboot_batches", "busbar_remediate_batches"):
        wrong = [repr(one) for one in values[name] if re.fullmatch(_BATCH, str(one)) is None]
        if wrong or not values[name]:
            errors.append(f'{name} holds {[*wrong, "nothing"][0]}, expected numbers of nodes such as 5, or "20%"')
    errors += _range_errors(values)
    errors += model_sizes.parallelism_errors(values["busbar_model_parallelism"])
    errors += _cluster_errors(values)
    errors += _nic_firmware_errors(values)
    return errors + _multirail_errors(values)


def _contradictions(values: PlainView) -> Iterator[tuple[bool, str]]:
    """Yield whether values contradict each other, and what to set."""
    infiniband, timeout = values["busbar_fabric"] == "infiniband", values["perftest_timeout"]
    kubelet = "kubelet" in values["host_limits_container_runtimes"]
    resources = bool(values["host_limits_kubernetes_rdma_resources"])
    both = "host_limits_container_runtimes: [kubelet] checks: set both or neither"
    yield kubelet != resources, f"host_limits_kubernetes_rdma_resources declares what {both}"
    lacking = "no program to measure with: set the commit, or nccl_benchmark_collectives: []"
    untested = values["nccl_benchmark_collectives"] and not values["nccl_tests_commit"]
    yield untested, f"nccl_tests_commit is empty, so that nccl_benchmark_collectives has {lacking}"
    held = values["busbar_remediate_quarantine"] and values["busbar_drain"] == "none"
    yield held, "busbar_remediate_quarantine drains nodes: set busbar_drain: slurm"
    unused = values["gate_nhc"] and "health" not in (values["gate_stages"] or ())
    yield unused, "gate_nhc runs the gate's health check: add health to gate_stages"
    two_ways = bool(values["ib_fabric_devices"] and values["ib_fabric_dumps"])
    yield two_ways, "ib_fabric_devices and ib_fabric_dumps are two ways to a sweep: set one of them"
    short = timeout < 4 * values["perftest_seconds"]
    yield short, f"perftest_timeout is {timeout}, expected 4 x perftest_seconds or more"
    chosen = [name for name in ("NCCL_NET_PLUGIN", "NCCL_NET") if name in (values["nccl_conf_extra"] or {})][:1]
    plugins = f"busbar_nccl_net_plugin and nccl_conf_extra.{''.join(chosen)} both choose a network: set one of them"
    yield bool(values["busbar_nccl_net_plugin"] and chosen), plugins
    off = bool(values["busbar_gpu_initiated"]) and values["busbar_gpudirect"] == "off"
    yield off, "busbar_gpu_initiated needs GPUDirect RDMA, but busbar_gpudirect is off"
    yield infiniband and values["busbar_mtu"] is not None, "busbar_mtu is set, but busbar_fabric is infiniband"
    yield infiniband and bool(values["busbar_roce"]), "busbar_roce is set, but busbar_fabric is infiniband"


def _chain_errors(values: PlainView) -> list[str]:
    """Return errors where the traffic class of jobs does not lead to the lossless queue."""
    settings = roce_chain.settings(values)
    chain, refused = _read(resolve, values["busbar_roce"] or {}, settings, roce_chain.PREFIX)
    if chain is not None:
        refused = _read(PortConfig.from_values, chain, settings, roce_chain.PREFIX)[1]
    if chain is None or refused:
        return refused
    classes = {} if chain.dscp is None else {"NCCL_IB_TC": nccl_conf.traffic_class(chain.dscp)}
    for name in ("nccl_conf_extra", "nccl_benchmark_environment"):
        classes.update((f"{name}.{key}", value) for key, value in (values[name] or {}).items())
    return roce_chain.disagreements(chain, classes)


def _range_errors(values: PlainView) -> list[str]:
    errors = []
    for name, (least, most, wanted) in _RANGES.items():
        wrong = [one for one in _items(values[name]) if not least <= one <= most]
        errors += [f"{name} is {f'{one:g}' if isinstance(one, float) else one}, expected {wanted}" for one in wrong[:1]]
    for name, (form, wanted) in _FORMS.items():
        wrong = [one for one in _items(values[name]) if form.fullmatch(one) is None]
        verb = "holds" if isinstance(values[name], list) else "is"
        errors += [f"{name} {verb} {one!r}, expected {wanted}" for one in wrong[:1]]
    return errors


def _items(value: object) -> list[Any]:
    """Return the items of a list, or the value alone; nothing of an unset or empty one."""
    return [*value] if isinstance(value, list | tuple) else [] if value in (None, "") else [value]


def _nic_firmware_errors(values: PlainView) -> list[str]:
    _versions, errors = _read(nic_settings.versions, values["busbar_firmware"])
    settings, refused = _read(nic_settings.parse, values["nic_firmware_settings"])
    return [*errors, *refused, *_against_fabric(settings or {}, values)]


def _read(reader: Callable[..., T], *given: object) -> tuple[T | None, list[str]]:
    """Return what a reader makes of values, and []; or None, and why it refuses them."""
    try:
        return reader(*given), []
    except ParseError as error:
        return None, [str(error)]


def _against_fabric(settings: Mapping[str, NicSetting], values: PlainView) -> list[str]:
    """Return contradictions between values set in two places: only the site knows which is intended."""
    fabric, wanted = values["busbar_fabric"], {}
    if fabric:
        number, word = {"infiniband": (1, "IB"), "ethernet": (2, "ETH")}[fabric]
        wanted["LINK_TYPE"] = (nv_settings.Value(word, number, word), f"busbar_fabric is {fabric}")
    # A refusal is reported elsewhere.
    chain = _read(resolve, values["busbar_roce"] or {}, roce_chain.settings(values), roce_chain.PREFIX)[0] or Chain()
    for name, key in (("CNP_DSCP", "cnp_dscp"), ("CNP_802P_PRIO", "cnp_priority")):
        if (asked := getattr(chain, key)) is not None:
            wanted[name] = (nv_settings.Value(str(asked), asked, ""), f"busbar_roce.{key} is {asked}")
    errors = [
        f"nic_firmware_settings.{name} is {settings[name].value}, but {other}"
        for name, (value, other) in wanted.items()
        if name in settings and not value.matches(settings[name].value)
    ]
    mask = settings.get("ROCE_CC_PRIO_MASK")
    bits = None if mask is None else nv_settings.parse_number(str(mask.value))
    if bits is not None and chain.priority is not None and not bits >> chain.priority & 1:
        bit = f"without the bit of busbar_roce.priority {chain.priority}: no congestion control would slow RDMA down"
        errors.append(f"nic_firmware_settings.ROCE_CC_PRIO_MASK is {bits}, {bit}")
    return errors


def _cluster_errors(values: PlainView) -> list[str]:
    scope, commit = values["nccl_benchmark_scope"], values["nccl_tests_commit"]
    options = {"kind": values["nccl_benchmark_launcher"], "options": values["nccl_benchmark_launcher_options"]}
    _launch, refused = _read(launch.wanted, {**options, "hosts": ["node"], "per_node": 1})
    errors = [error.replace("launch.options", "nccl_benchmark_launcher_options") for error in refused]
    if scope == "node":
        return errors
    asked = f"nccl_benchmark_scope: {scope} runs one program over several nodes"
    if values["nccl_tests_mpi"] == "off":
        errors.append(f"{asked}, which takes MPI, but nccl_tests_mpi is off: set nccl_tests_mpi: required")
    if not commit:
        errors.append(f"{asked}, but nccl_tests_commit is empty: set the commit, or nccl_benchmark_scope: node")
    if scope != "rail" and not values["nccl_benchmark_collectives"]:
        errors.append(f"{asked}, but nccl_benchmark_collectives is empty: name one, or set nccl_benchmark_scope: node")
    enabled = str(values["nccl_benchmark_environment"].get("NCCL_MNNVL_ENABLE", "")).strip()
    if scope == cluster_member.NVLINK_DOMAIN and enabled == "0":
        off = "nccl_benchmark_environment has NCCL_MNNVL_ENABLE: 0, which switches these off: take it out"
        errors.append(f"{asked}, over the NVLinks between them, but {off}")
    if scope == "leaf" and not values["busbar_leaf"]:
        way = "set busbar_leaf for every node, or nccl_benchmark_scope: cluster"
        errors.append(f"nccl_benchmark_scope is leaf, but busbar_leaf of this node is empty: {way}")
    return errors


def _multirail_errors(values: PlainView) -> list[str]:
    name, gateway = values["multirail_policy"], values["multirail_gateway"]
    if name not in ("", "none") and values["busbar_fabric"] == "infiniband":
        return ["multirail_policy is set, but busbar_fabric is infiniband"]
    policy, refused = _read(multirail.policy, name, values["multirail_values"], values["multirail_source_routing"])
    if policy is not None and gateway not in ("", "none") and not policy.routing:
        return [f"multirail_gateway is {gateway}, but without source routing no rail has a table to put it in"]
    return refused


def unknown_platform(name: str, known: Sequence[str]) -> str:
    """Return the sentence for a platform without a profile."""
    if name == "custom":
        draft = "draft one with `busbar check -i INVENTORY --limit HOST --platform custom --write DIR`, and review it"
        return f"busbar_platform is custom, but there is no profiles/custom.yml beside the inventory: {draft}"
    return f"busbar_platform is {name!r}, but there is no profile of that name{did_you_mean(name, known)}"
