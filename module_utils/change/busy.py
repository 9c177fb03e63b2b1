# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find the users of a node: processes on its GPUs, a Slurm job, GPUs given to Kubernetes pods.

A job may hold a node for minutes before its first kernel, so an idle GPU is not a free node. guard.py finds the users
of the devices that a change would disturb.
Sources: nvidia-smi --help-query-compute-apps; Slurm's cgroup plugins (v1: slurm/uid_N/job_N, v2:
slurmstepd.scope/job_N); the kubelet's device manager checkpoint (pkg/kubelet/cm/devicemanager/checkpoint), and that of
its DRA manager (pkg/kubelet/cm/dra/state).
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, attempt
from . import guard

QUERY = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv")
# Devices of each plugin, and the pods that have them.
KUBELET = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
# Resource claims (DRA) of pods, and the devices that each was given.
CLAIMS = "/var/lib/kubelet/dra_manager_state"
CGROUPS = "/sys/fs/cgroup"
PODS = "/var/lib/kubelet/pods"
_HEADER = re.compile(r"pid, process_name, used_(?:gpu_)?memory \[MiB\]")
# A name may hold commas. nvidia-smi may not report name or memory of a process in another container.
_ROW = re.compile(r"(\d{1,10}|\[[^\]]*\]), (.*), (?:(\d{1,9}) MiB|\[?[A-Za-z/ ]+\]?)")


class Busy(NamedTuple):
    """reasons: users of the node, a line each; empty if there are none.   problems: what could not be read.

    unload_first: idle kernel modules that block the unloading of the NICs' drivers.
    """

    reasons: Tuple[str, ...]
    problems: Tuple[Problem, ...] = ()
    unload_first: Tuple[str, ...] = ()

    @property
    def against(self) -> Optional[str]:
        """Return why the node must not be disturbed, for findings; None if it is idle."""
        if self.reasons:
            return "busy: %s" % self.reasons[0]
        return "whether it is in use is not known: %s" % self.problems[0] if self.problems else None


def parse_processes(text: str) -> List[str]:
    """Return a line for each process of QUERY's output, which has one per process and GPU. Raises ParseError."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or _HEADER.fullmatch(lines[0]) is None:
        raise ParseError("%r, expected the header 'pid, process_name, used_gpu_memory [MiB]'" % text[:80])
    used: Dict[Tuple[str, str], List[int]] = {}
    for line in lines[1:]:
        match = _ROW.fullmatch(line)
        if match is None:
            raise ParseError("%r, expected a line such as '4242, python, 71680 MiB'" % line[:80])
        used.setdefault((match.group(1), match.group(2)), []).append(int(match.group(3) or 0))
    return [
        "process %s (pid %s) holds %d MiB on %d GPU%s" % (name, pid, sum(mib), len(mib), "s" * (len(mib) > 1))
        for (pid, name), mib in used.items()
    ]


def parse_checkpoint(text: str) -> Dict[str, int]:
    """Return pod UID -> number of NVIDIA devices that the kubelet has given to it. Raises ParseError."""
    try:
        data: Any = json.loads(text)
        entries = data["Data"]["PodDeviceEntries"] or []
        found: Dict[str, int] = {}
        for entry in entries:
            if not str(entry["ResourceName"]).startswith("nvidia.com/"):
                continue
            # A list up to Kubernetes 1.19, since then lists by NUMA node.
            devices = entry["DeviceIDs"] or []
            count = len(devices) if isinstance(devices, list) else sum(len(part) for part in devices.values())
            uid = str(entry["PodUID"])
            found[uid] = found.get(uid, 0) + count
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("not a checkpoint of the kubelet's device manager: %s" % type(error).__name__) from error
    return found


def parse_claims(text: str) -> Dict[str, int]:
    """Return pod UID -> number of GPUs that its resource claims hold. Raises ParseError."""
    try:
        # JSON within JSON, of which the kubelet takes the checksum.
        entries = json.loads(json.loads(text)["Data"]).get("Entries") or []
        found: Dict[str, int] = {}
        for entry in entries:
            # A claim of compute-domain.nvidia.com is for an IMEX channel, and a domain's own daemon has one, too.
            count = len((entry["DriverState"] or {}).get("gpu.nvidia.com", {}).get("Devices") or [])
            for uid in entry["PodUIDs"] if count else ():
                found[uid] = found.get(uid, 0) + count
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError("not a checkpoint of the kubelet's DRA manager: %s" % type(error).__name__) from error
    return found


def read(host: Host, devices: Sequence[str] = (), peer: Sequence[str] = ()) -> Busy:
    """Find the users. devices: PCI addresses that a change would disturb; without any, only users of the GPUs count.

    peer: addresses of Ansible's own connection, as guard.connection returns them.
    """
    problems: List[Problem] = []
    reasons = attempt(lambda: parse_processes(host.query(QUERY)), " ".join(QUERY), problems) or []
    reasons += attempt(lambda: _slurm_jobs(host), CGROUPS, problems) or []
    for path, parse in ((KUBELET, parse_checkpoint), (CLAIMS, parse_claims)):
        reasons += attempt(partial(_pods, host, path, parse), path, problems) or []
    disturbed, unread, unload_first = guard.read(host, devices, peer) if devices else ([], [], [])
    return Busy((*reasons, *disturbed), (*problems, *unread), tuple(unload_first))


def _slurm_jobs(host: Host) -> List[str]:
    tops = [
        "%s/system.slice/%s" % (CGROUPS, name)
        for name in host.listdir(CGROUPS + "/system.slice")
        if name.endswith("slurmstepd.scope")
    ]
    for controller in ("cpuset", "memory", "devices", "freezer"):
        for name in host.listdir("%s/%s" % (CGROUPS, controller)):
            if name.startswith("slurm"):
                path = "%s/%s/%s" % (CGROUPS, controller, name)
                tops += ["%s/%s" % (path, user) for user in host.listdir(path) if user.startswith("uid_")]
    jobs = {name[4:] for top in tops for name in host.listdir(top) if name.startswith("job_")}
    return ["Slurm job %s" % job for job in sorted(jobs)]


def _pods(host: Host, path: str, parse: Callable[[str], Dict[str, int]]) -> List[str]:
    text = host.read_system(path)
    if text is None:
        return []
    # The checkpoint keeps pods that are gone until the next one is given a device.
    there = set(host.listdir_system(PODS))
    given = parse(text)
    return ["Kubernetes pod %s holds %d GPUs" % (uid, given[uid]) for uid in sorted(there.intersection(given))]
