# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what the site declares of its jobs' network: a plugin of NCCL, and traffic that GPUs start.

GPU-initiated traffic uses queue pairs that the kernel's forced traffic class does not reach (NVIDIA/nccl issue 2383).
Sources: NCCL 2.30.7 user guide, Device-Initiated Communication (requirements of GIN); NVSHMEM 3.4.5
(src/modules/transport/common/env_defs.h: the default of NVSHMEM_IB_TRAFFIC_CLASS is 0).
"""

from __future__ import annotations

from functools import partial
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..machine.rails import Rails
from . import net_plugins
from .checks import GIN, NET_PLUGIN, TRAFFIC_CLASS
from .environment import Environment
from .grammar import strtoll
from .library import Library
from .version import Version, format_version

_NVSHMEM = frozenset(("nvshmem", "deepep"))
FIRST_GIN: Version = (2, 28, 7)
CLASS = "NVSHMEM_IB_TRAFFIC_CLASS"
_MERGE = "NCCL_IB_MERGE_NICS"
# Variables with which GIN does not work if they are 0, and why.
_FORBIDDEN = (
    ("NCCL_CROSS_NIC", "GIN connects every NIC with those of all rails"),
    ("NCCL_CUMEM_ENABLE", "GIN takes symmetric memory, which is allocated by cuMem"),
    ("NCCL_GIN_ENABLE", "it switches GIN off"),
)
_CONF = "nccl.conf"
_FROM_EXTRA = "take %s out of nccl_conf_extra; then run site.yml --tags nccl_conf for this host"
_PLACES = "/etc/environment, profiles, units, Slurm, enroot"
_UNCLEAR = "%s is set in a form that Busbar cannot read"


def judge_plugin(host: Host, declared: str, files: Sequence[str], of_node: bool) -> List[Finding]:
    """Judge whether the declared plugin's library is there. files: plugins that were found.

    of_node: jobs load libraries of the node; otherwise only a path is judged.
    """
    named = "/" in declared
    if not net_plugins.entries(declared) or not (of_node or named):
        return []
    problems: List[Problem] = []
    there = named and attempt(partial(host.is_file_system, declared), declared, problems)
    path = declared if there else net_plugins.among(declared, files)
    want, places = net_plugins.library(declared), "/opt/hpcx*/nccl_*/lib and the like"
    if path is not None and not problems:
        return [NET_PLUGIN.judge(declared, "ok", want, path, path)]
    have = str(problems[0]) if problems else "absent" if named else "in none of the usual places"
    state = "drift" if named and not problems else "unknown"
    return [NET_PLUGIN.judge(declared, state, want, have, declared if named else places)]


def judge_initiated(
    kinds: Sequence[str],
    libraries: Sequence[Library],
    version: Optional[Version],
    expected: Mapping[str, str],
    environment: Environment,
    rails: Rails,
    dscp: Optional[int],
) -> List[Finding]:
    """Judge what GPU-initiated traffic needs of variables and libraries. expected: of nccl.conf.

    dscp: of the fabric's lossless queue; None on InfiniBand, and where the site declares none.
    """
    found: List[Finding] = []
    if "gin" in kinds:
        releases = [(library.path, library.version) for library in libraries]
        found += _releases(releases or ([("NCCL", version)] if version is not None else []))
        found += _variables(expected, environment, rails)
    if _NVSHMEM.intersection(kinds) and dscp is not None:
        found.append(_traffic_class(environment, dscp))
    return found


def _releases(releases: Sequence[Tuple[str, Version]]) -> Iterator[Finding]:
    want = "NCCL %s or later" % format_version(FIRST_GIN)
    for subject, version in releases:
        state, have = "ok" if version >= FIRST_GIN else "drift", format_version(version)
        yield GIN.judge(subject, state, want, have, fix="install %s where these jobs load it from" % want)


def _variables(expected: Mapping[str, str], environment: Environment, rails: Rails) -> Iterator[Finding]:
    given: Dict[str, List[Tuple[str, str]]] = {name: [(value, _CONF)] for name, value in expected.items()}
    unclear = []
    twins = _fused(rails)
    needed = {*(name for name, _why in _FORBIDDEN), *([_MERGE] if twins else ())}
    for one in environment.settings:
        if one.value is not None:
            given.setdefault(one.name, []).append((one.value, one.place))
        elif one.variable in needed:
            unclear.append(one)
    wrong = 0
    for name, why in _FORBIDDEN:
        for value, source in given.get(name, ()):
            if value and strtoll(value)[0] == 0:
                wrong += 1
                have = "%s=%s in %s: %s" % (name, value, source, why)
                fix = _FROM_EXTRA % name if source == _CONF else "remove the line from %s" % source
                file = source.partition(":")[0]
                yield GIN.judge("%s %s" % (file, name), "drift", "not 0", have, source, fix)
    merged = [strtoll(value)[0] for value, _source in given.get(_MERGE, [("1", "")])]
    if twins and any(merged):
        wrong += 1
        have = "%s are ports of one NIC, which NCCL joins: GIN does not support joined NICs" % " and ".join(twins)
        fix = 'set nccl_conf_extra: {%s: "0"}; then run site.yml --tags nccl_conf for this host' % _MERGE
        yield GIN.judge(_MERGE, "drift", "0", have, "nccl.conf", fix)
    if not wrong:
        want, have, source = "none that GIN cannot work with", "none of %s" % ", ".join(sorted(needed)), _PLACES
        for one in unclear[:1]:
            have, source = _UNCLEAR % one.variable, one.place
        yield GIN.judge("variables", "unknown" if unclear else "ok", want, have, source, "look at %s" % source)


def _fused(rails: Rails) -> List[str]:
    """Return the RDMA devices of two rails that are functions of one NIC; [] for none."""
    slots: Dict[str, List[str]] = {}
    for nic in rails.nics.values():
        if nic.rdma is not None:
            slots.setdefault(nic.pci.rpartition(".")[0], []).append(nic.rdma.name)
    return next((sorted(names) for names in slots.values() if len(names) > 1), [])


def _traffic_class(environment: Environment, dscp: int) -> Finding:
    """Judge the traffic class that NVSHMEM gets: a job that sets another one itself is not seen here."""
    # What only NCCL reads does not count.
    values = [one for one in environment.settings if one.variable == CLASS and not one.raw]
    wrong = [one for one in values if one.value is not None and strtoll(one.value)[0] >> 2 != dscp]
    unclear = [one for one in values if one.value is None]
    shared = [one for one in values if one.reaches_all]
    want = "%d (DSCP %d of busbar_roce)" % (dscp << 2, dscp)
    fix = TRAFFIC_CLASS.fix % ("%s=%d" % (CLASS, dscp << 2))
    for one in wrong[:1]:
        return TRAFFIC_CLASS.judge(CLASS, "drift", want, "%s in %s" % (one.value, one.place), one.place, fix)
    for one in unclear[:1]:
        return TRAFFIC_CLASS.judge(CLASS, "unknown", want, _UNCLEAR % CLASS, one.place, "look at %s" % one.place)
    if not shared:
        have = "not set for all jobs: NVSHMEM sends with class 0 unless the job sets it"
        return TRAFFIC_CLASS.judge(CLASS, "unknown", want, have, _PLACES, fix)
    return TRAFFIC_CLASS.judge(CLASS, "ok", want, shared[0].value, shared[0].place)
