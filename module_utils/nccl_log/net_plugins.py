# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network plugins that are there and are not used: the loader refuses them, or they do not start."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Sequence, Set, Tuple

from ..core.finding import Finding
from .events import Plugin
from .failure_checks import NET_PLUGIN
from .job import Process
from .jobs import Job, names
from .transport import SOCKETS

# By what a plugin says that it did not start at all.
_NOT_STARTED = re.compile(
    r"initiali[sz]ation failed|Initiali[sz]ing plugin failed|Failed to initiali[sz]e (?:any |the )?"
    r"(?:\w+ )?(?:plugin|protocol)|No eligible providers|[Pp]rovider is supported"
)


# As the plugin for libfabric names a platform that it does not know: no instance with EFA.
_NO_EFA = re.compile(r"the plugin for libfabric runs on (?:default|unknown|generic)", re.IGNORECASE)


def judge(job: Job) -> List[Finding]:
    """Network plugins that are there and that the loader refuses, or that do not start."""
    on: Dict[str, Set[str]] = {}
    for process in job.processes:
        for plugin in process.plugins:
            if plugin.kind == "NET" and plugin.state == "failed" and ": " in plugin.name:
                on.setdefault(plugin.name, set()).add(process.host)
    found = []
    for name, hosts in sorted(on.items())[:3]:
        have = "the network plugin is there and is not loaded: %s" % name
        have += "; on %s" % names(hosts) if hosts - {""} else ""
        cause = next((text for words, text in _LOADER if words in name), "")
        have += "; cause: %s" % cause if cause else ""
        have += "; NCCL continues without it: TCP is used" if SOCKETS in job.networks else ""
        fix = "`ldd` of the plugin's file in the job's own container shows what is missing; use a plugin that was"
        fix += " built for"
        fix += " the container's distribution, or an image that has what it needs"
        found.append(NET_PLUGIN.judge("%s plugin" % job.name, "drift", "loaded", have, "NET/Plugin", fix))
    return found + _refused(job) + _gin(job)


def _refused(job: Job) -> List[Finding]:
    """Plugins whose initialisation failed. Of NCCL's own NET/IB judge_network says what comes of it."""
    on: Dict[str, Set[str]] = {}
    for process in job.processes:
        for name in failed_to_start(process.plugins) - {"IB", SOCKETS}:
            on.setdefault(name, set()).add(process.host)
    found = []
    for name, hosts in sorted(on.items())[:3]:
        have = "the network plugin %s did not start (Failed to initialize NET plugin)" % name
        have += "; on %s" % names(hosts) if hosts - {""} else ""
        have += "; NCCL continues with %s" % names(job.networks) if job.networks else ""
        why = "the plugin is not used: with another network the job may be slower; this is not a failure"
        fix = "if the plugin is intended: the lines of NET/ before it (NCCL_DEBUG_SUBSYS=INIT,NET) show why;"
        fix += " where it is not meant: nothing"
        subject = "%s plugin %s" % (job.name, name)
        source = "Failed to initialize NET plugin"
        found.append(NET_PLUGIN.judge(subject, "unknown", "started", have, source, fix, why=why, severity="minor"))
    return found


def failed_to_start(plugins: Iterable[Plugin]) -> Set[str]:
    """Names of network plugins whose initialisation failed."""
    return {
        plugin.name
        for plugin in plugins
        if plugin.kind == "NET" and plugin.state == "failed" and ": " not in plugin.name
    }


def without_device(processes: Iterable[Process]) -> Set[str]:
    """Names of network plugins that found no device that they take."""
    return {plugin.name for process in processes for plugin in process.plugins if plugin.state == "idle"}


def not_efa(processes: Iterable[Process]) -> bool:
    """Whether the plugin for libfabric itself says that it knows no instance with EFA here."""
    return any(_NO_EFA.match(note.text) for process in processes for note in process.notes)


def here(processes: Iterable[Process], text: str, other: str) -> str:
    """The text; the other one where it speaks of EFA and the plugin knows none here."""
    return other if "EFA" in text and not_efa(processes) else text


def look_after_idle(processes: Sequence[Process]) -> str:
    if not_efa(processes):
        return NO_EFA_FIX
    return "`fi_info` in the job's own container shows what libfabric sees; on AWS `fi_info -p efa` has to name devices"


def look_after_gdr(processes: Sequence[Process]) -> str:
    """What to do where the plugin for libfabric has no GPUDirect RDMA."""
    if not_efa(processes):
        return "see what plugin, libfabric and driver need for GPUDirect RDMA: `fi_info -v` has to name FI_HMEM"
    return (
        "see what plugin, libfabric and driver need for GPUDirect RDMA on this instance: `fi_info -p efa -v` has to"
        " name FI_HMEM; an instance whose EFA has no RDMA never has it"
    )


NO_EFA_CAUSE = "no device that a provider of libfabric takes, or libfabric and plugin of different releases; the plugin"
NO_EFA_CAUSE += " itself knows no instance with EFA here"
NO_EFA_FIX = "`fi_info` in the job's own container shows what libfabric sees; where the network is InfiniBand or RoCE,"
NO_EFA_FIX += " NCCL's own NET/IB does without this plugin: NCCL_NET_PLUGIN=none, or an image without it"


def _gin(job: Job) -> List[Finding]:
    """A plugin for networking from within kernels (GIN) that was loaded and did not start."""
    loaded: Set[str] = set()
    hosts: Set[str] = set()
    for process in job.processes:
        own = {plugin.name for plugin in process.plugins if plugin.kind == "GIN" and plugin.state == "loaded"}
        if own and any(plugin.kind == "GIN" and plugin.state == "failed" for plugin in process.plugins):
            loaded |= own
            hosts.add(process.host)
    if not loaded:
        return []
    have = "GIN could not be started: the plugin %s was loaded, and its initialisation failed" % names(loaded)
    have += "; on %s" % names(hosts) if hosts - {""} else ""
    before = [one.failure.text for one in job.failures if one.failure.kind == "gdrcopy"]
    have += "; before it: %s" % before[0][:160] if before else ""
    have += "; collectives continue without it: this is not a failure"
    why = (
        "programs that use the network from within kernels (DeepEP and others, by GIN) end, or report that it is"
        " missing"
    )
    fix = "where the program needs GIN: /dev/gdrdrv in the job (`lsmod | grep gdrdrv`; in a container --device and its"
    fix += (
        " rights), what the plugin's documentation requires of driver and HCA, and NCCL_DEBUG_SUBSYS=INIT,NET,GIN for"
    )
    fix += " the reason; else nothing"
    return [NET_PLUGIN.judge("%s GIN" % job.name, "drift", "started", have, "GIN/Plugin", fix, why=why)]


def given_up(job: Job) -> List[str]:
    """Network plugins whose start returned an error to NCCL behind words of their own, and what came instead."""
    found: Dict[Tuple[str, str, str], Set[str]] = {}
    for process in job.processes:
        call = next((one for one in process.calls if _ITS_START.search(one.place)), None)
        for note in process.notes if call is not None else ():
            if note.kind == "last_words" and call is not None:
                plugin, _space, words = note.text.partition(" ")
                found.setdefault((plugin, words, "%s -> %d" % (call.place, call.result)), set()).add(process.host)
    said = []
    for (plugin, words, call), hosts in sorted(found.items())[:3]:
        others = sorted(name for name in job.networks if plugin not in name and not _is_libfabric(plugin, name))
        where = " on %s" % names(hosts, 4) if hosts - {""} else ""
        text = 'the network plugin %s was given up%s: its last words are "%s" (%s)' % (plugin, where, words, call)
        instead = "%s is used in its place, which is not a failure" % names(others)
        said.append("%s; %s" % (text, instead if others else "what came in its place is not in these lines"))
    return said


def _is_libfabric(plugin: str, network: str) -> bool:
    return plugin == "OFI" and "abric" in network


_ITS_START = re.compile(r"^(?:src/)?(?:plugin/)?net\.(?:cc|cpp|cu):")
# What the loader says of a plugin, and what that means.
_LOADER = (
    ("GLIBC_", "it was built for a newer glibc, that is a newer distribution, than the one that the job runs in"),
    ("GLIBCXX_", "it was built with a newer C++ library than the one that the job runs with"),
    ("CXXABI_", "it was built with a newer C++ library than the one that the job runs with"),
    ("undefined symbol", "plugin and a library that it needs are of two builds"),
    ("cannot open shared object file", "a library that it needs is not found"),
    ("wrong ELF class", "it is of another architecture"),
)


def not_started(processes: Sequence[Process], job: Job) -> List[Tuple[str, int]]:
    """Plugins that say to these processes that they did not start, and the line of the first word on each."""
    own = {process.key for process in processes}
    found: Dict[str, int] = {}
    for one in job.failures:
        mine = one.process is not None and one.process.key in own
        if mine and one.failure.kind == "net_plugin" and _NOT_STARTED.search(one.failure.text):
            found.setdefault(one.failure.code, one.order)
    return sorted(found.items())


def slingshot(processes: Iterable[Process]) -> bool:
    """Whether interfaces are named as those of Slingshot, over which RDMA is libfabric's."""
    return any(name.startswith("hsn") for process in processes for name in process.interfaces)
