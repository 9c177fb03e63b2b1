# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network plugins that are there and are not used: the loader refuses them, or they do not start."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Set, Tuple

from ..core.finding import Finding
from .failure_checks import NET_PLUGIN
from .job import Process
from .jobs import Job, names
from .transport import SOCKETS

# By what a plugin says that it did not start at all.
_NOT_STARTED = re.compile(
    r"initiali[sz]ation failed|Initiali[sz]ing plugin failed|Failed to initiali[sz]e (?:any |the )?"
    r"(?:\w+ )?(?:plugin|protocol)|No eligible providers|[Pp]rovider is supported"
)


def judge(job: Job) -> List[Finding]:
    """Network plugins that are there and that the loader refuses."""
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
        have += "; NCCL goes on without it: TCP is used" if SOCKETS in job.networks else ""
        fix = "`ldd` of the plugin's file in the job's own container says what is missing; use a plugin that was"
        fix += " built for"
        fix += " the container's distribution, or an image that has what it needs"
        found.append(NET_PLUGIN.judge("%s plugin" % job.name, "drift", "loaded", have, "NET/Plugin", fix))
    return found + _gin(job)


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
    have += "; collectives go on without it: no failure of theirs is told by this"
    why = (
        "programs that use the network from within kernels (DeepEP and others, by GIN) end, or say that it is not there"
    )
    fix = "where the program needs GIN: /dev/gdrdrv in the job (`lsmod | grep gdrdrv`; in a container --device and its"
    fix += " rights), what the plugin's documentation asks of driver and HCA, and NCCL_DEBUG_SUBSYS=INIT,NET,GIN for"
    fix += " the reason; else nothing"
    return [NET_PLUGIN.judge("%s GIN" % job.name, "drift", "started", have, "GIN/Plugin", fix, why=why)]


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
