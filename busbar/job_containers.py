# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Containers of a job that lack what NCCL needs, and launches that ask a node for more GPUs than it has.

What a template fills in is not known and not judged. docs/containers.md says what a container needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.shell_assignments import commands

from .job_variables import Job

SHM = Check(
    "nccl_conf.lint.shm",
    why="/dev/shm has 64 MiB by default; NCCL's ranks on one node, and data loaders, need gigabytes.",
    fix="Mount an emptyDir with medium: Memory at /dev/shm.",
)
"Has a container with several GPUs a large /dev/shm (busbar lint alone)"
IPC_LOCK = Check(
    "nccl_conf.lint.ipc_lock",
    why="Memory for RDMA has to be locked; a container inherits a limit of a few MiB unless its runtime has none.",
    fix="Add the capability IPC_LOCK.",
)
"May a container with RDMA devices lock memory (busbar lint alone)"
RDMA = Check(
    "nccl_conf.lint.rdma_resource",
    why="Without /dev/infiniband NCCL finds no RDMA device, and talks TCP between the nodes.",
    fix="Request the resource of your RDMA device plugin, such as rdma/hca_shared_devices_a: 1.",
)
"Has a container of a job over several nodes an RDMA device (busbar lint alone)"
LAUNCH = Check(
    "nccl_conf.lint.gpus_per_node",
    why="nccl-tests uses -g GPUs in each process, so the product is what every node must have; 8 is usual.",
    fix="Write -g 1 with one process a GPU, or start one process a node.",
)
"Does a launch of nccl-tests use each GPU of a node once (busbar lint alone)"

_JOBS = ("PyTorchJob", "MPIJob", "JobSet", "TrainingRuntime", "ClusterTrainingRuntime", "LeaderWorkerSet", "RayCluster")
_JOBS = (*_JOBS, "RayJob", "Job", "StatefulSet")
_COUNTS = ("replicas", "parallelism", "numNodes", "size")
_RDMA = re.compile(r"rdma|hca|mlnx|roce|hostdev|infiniband|/ib", re.IGNORECASE)
# Other ways to a network: more interfaces, EFA, TCPX, dynamic resources.
_OTHER = re.compile(
    r"cncf\.io/networks|networking\.gke\.io|vpc\.amazonaws\.com/efa|resourceClaims|tcpx|/gib|NET.{1,20}Socket"
)
_TCP = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
_INCLUDED = re.compile(
    r"(?i)\{\{[^}]*(?:toYaml|include|tpl|template)[^}]*(?:volume|security|resource|spec|contain|extra)"
)
_DOCKER = ("docker", "podman", "nerdctl")
_TOOLS = re.compile(r"nvidia-smi|nvcc|dcgm")
_PER_NODE = ("-npernode", "--npernode", "-ppn", "--ntasks-per-node")


class _Mapping(dict[str, object]):
    """A YAML mapping without its tags; line: where it begins, from 1."""

    line = 0


def judge(job: Job, text: str, name: str) -> list[Finding]:
    """Return what containers and launches of a job lack. name: of the file."""
    found: list[Finding] = []
    wants_rdma = any(item.name.startswith("NCCL_IB_") and item.name != "NCCL_IB_DISABLE" for item in job.assignments)
    for document in job.documents if not _INCLUDED.search(text) else ():
        root = _plain(document, {})
        if isinstance(root, _Mapping):
            other = bool(_OTHER.search(text)) or any((item.name, item.value) in _TCP for item in job.assignments)
            found += [finding for pod, nodes in _pods(root) for finding in _pod(pod, nodes, wants_rdma, other, name)]
            found += _services(root, name)
    tasks = re.search(r"(?m)^#SBATCH\s+--ntasks-per-node[= ](\d+)", text)
    for script, first in job.scripts:
        for line, words in commands(script) if re.search("_perf|run", script) else ():
            where = f"{name}:{line + first - 1}"
            found += [*_docker(words, where), *_launch(words, tasks.group(1) if tasks else "", where)]
    return list({finding.subject + finding.check: finding for finding in found}.values())


def _plain(node: yaml.Node, done: dict[int, object]) -> object:
    """Return mappings, lists and text (None for null) of a node; aliases and circles are the same object."""
    if id(node) in done:
        return done[id(node)]
    if isinstance(node, yaml.MappingNode):
        mapping = done[id(node)] = _Mapping()
        mapping.line = node.start_mark.line + 1
        mapping.update((str(key.value), _plain(value, done)) for key, value in node.value)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items: list[object] = []
        done[id(node)] = items
        items += [_plain(item, done) for item in node.value]
        return items
    return None if node.tag.endswith(":null") else str(node.value)


def _pods(root: _Mapping) -> Iterator[tuple[_Mapping, int]]:
    """Return each pod's specification, and how many such pods a job over several nodes has; 1 where it is none."""
    several = root.get("kind") in _JOBS
    waiting: list[tuple[object, int]] = [(root, 1)]
    done: set[int] = set()
    while waiting:
        item, pods = waiting.pop()
        if id(item) in done:
            continue
        done.add(id(item))
        if isinstance(item, list):
            waiting += [(part, pods) for part in item]
        elif isinstance(item, _Mapping):
            for key in _COUNTS if several else ():
                pods *= (
                    int(count)
                    if isinstance(count := item.get(key), str) and re.fullmatch("[1-9][0-9]{0,4}", count)
                    else 1
                )
            if isinstance(item.get("containers"), list):
                yield item, pods
            waiting += [(part, pods) for part in item.values()]


def _at(item: object, *path: str) -> object:
    for key in path:
        item = item.get(key) if isinstance(item, _Mapping) else None
    return item


def _list(item: object) -> list[_Mapping]:
    return [part for part in item if isinstance(part, _Mapping)] if isinstance(item, list) else []


def _pod(pod: _Mapping, nodes: int, wants_rdma: bool, other: bool, name: str) -> Iterator[Finding]:
    for container in _list(pod.get("containers")):
        resources = {
            **_mapping(_at(container, "resources", "requests")),
            **_mapping(_at(container, "resources", "limits")),
        }
        gpus = resources.get("nvidia.com/gpu")
        if gpus is None or "image" not in container or _TOOLS.search(str(container.get("command"))):
            continue
        known = isinstance(gpus, str) and re.fullmatch("[0-9]{1,3}", gpus)
        count = int(str(gpus)) if known else 8
        where = f"{name}:{container.line}"
        subject = f"{where} {container.get('name', 'container')}"
        rdma = any(_RDMA.search(key) for key in resources)
        if count > 1 and (known or nodes > 1 or rdma or wants_rdma):
            lacking = _shm(pod, container)
            if lacking:
                yield SHM.judge(subject, "drift", "memory at /dev/shm", lacking, where)
        privileged = _at(container, "securityContext", "privileged") == "true"
        if not count or privileged or other or not (rdma or wants_rdma or (nodes > 1 and count > 3)):
            continue
        devices = any(str(_at(v, "hostPath", "path"))[:4] == "/dev" for v in _list(pod.get("volumes")))
        if not rdma and not (devices and "/dev/infiniband" in str(container.get("volumeMounts"))):
            yield RDMA.judge(subject, "drift", "an RDMA resource", "none is requested", where)
        added = _at(container, "securityContext", "capabilities", "add")
        user = [_at(item, "securityContext", key) for key in ("runAsUser", "runAsNonRoot") for item in (container, pod)]
        if not re.search(r"IPC_LOCK|ALL|\ue000", str(added)):
            yield IPC_LOCK.judge(subject, "drift", "IPC_LOCK", "the capability is not added", where)
        elif "true" in user[2:] or next((value for value in user[:2] if value), "0") != "0":
            why = "A capability that is added is effective for user 0 alone, so this user's memlock stays limited."
            fix = (
                "Run the container as user 0. Where containerd itself has LimitMEMLOCK=infinity, nothing is to be done."
            )
            yield IPC_LOCK.judge(subject, "drift", "user 0", "IPC_LOCK of another user", where, fix, why=why)


def _mapping(item: object) -> Mapping[str, object]:
    return item if isinstance(item, _Mapping) else {}


def _shm(pod: _Mapping, container: _Mapping) -> str:
    """Return what a container has at /dev/shm in place of memory; "" where it is well or not known."""
    mounts = _list(container.get("volumeMounts"))
    paths = [str(mount.get("mountPath", "")).rstrip("/") for mount in mounts]
    if pod.get("hostIPC") == "true" or any("\ue000" in path or "$" in path for path in paths):
        return ""
    if "/dev/shm" not in paths:
        return "" if "/dev" in paths else "nothing is mounted there"
    volume = next(
        (v for v in _list(pod.get("volumes")) if v.get("name") == mounts[paths.index("/dev/shm")].get("name")), None
    )
    if volume is None or "emptyDir" not in volume or _at(volume, "emptyDir", "medium") is not None:
        return ""
    return "an emptyDir on disk"


def _services(root: _Mapping, name: str) -> Iterator[Finding]:
    """Judge the services of a compose file."""
    for key, service in _mapping(root.get("services")).items():
        if not isinstance(service, _Mapping) or {"<<", "extends", "shm_size"} & {*service} or service.get("ipc"):
            continue
        devices = _list(_at(service, "deploy", "resources", "reservations", "devices"))
        reserved = [d for d in devices if "gpu" in str(d.get("capabilities"))]
        gpus = service.get("gpus") or (service.get("runtime") == "nvidia" and "all")
        counts = [d.get("count", d.get("device_ids", "all")) for d in reserved] + ([gpus] if gpus else [])
        several = any(count != "1" and not (isinstance(count, list) and len(count) == 1) for count in counts)
        if several and "/dev/shm" not in str(service) and not _TOOLS.search(str(service.get("command"))):
            where, fix = f"{name}:{service.line}", "Write shm_size: 16gb, or ipc: host."
            yield SHM.judge(f"{where} {key}", "drift", "shm_size or ipc: host", "neither is set", where, fix)


def _docker(words: Sequence[str], where: str) -> Iterator[Finding]:
    """Judge `docker run`."""
    text = " ".join(words)
    if words[:1] == ["sudo"]:
        words = words[1:]
    if not words or words[0].rpartition("/")[2] not in _DOCKER or "run" not in words[1:3] or _TOOLS.search(text):
        return
    if re.search(r"(?i)\$\{?\w*(?:OPT|ARG|FLAG|PARAM)", text):
        return
    gpus = re.search(r"--gpus[= ]\"?(\S+)|--runtime[= ]nvidia|nvidia\.com/gpu=all", text)
    if gpus and not re.fullmatch("1|device=[^,]*", gpus.group(1) or "") and not re.search("--ipc|shm", text):
        fix = "Add --ipc=host or --shm-size=16g."
        yield SHM.judge(f"{where} {words[0]} run", "drift", "--ipc=host or --shm-size", "neither is given", where, fix)
    if gpus and "/dev/infiniband" in text and not re.search("memlock|IPC_LOCK|--privileged|--cap-add[= ]ALL", text):
        fix = "Add --ulimit memlock=-1."
        yield IPC_LOCK.judge(f"{where} {words[0]} run", "drift", "--ulimit memlock=-1", "it is not given", where, fix)


def _launch(words: Sequence[str], tasks: str, where: str) -> Iterator[Finding]:
    """Judge a launch of nccl-tests. tasks: of a node, as the batch script requests."""
    program = next((number for number, word in enumerate(words) if re.search(r"(?:^|/)\w+_perf$", word)), None)
    if not program:
        return
    text, options = " ".join(words[:program]), " ".join(words[program:])
    slurm = words[0].rpartition("/")[2] == "srun"
    per_node = re.search(rf"ppr:(\d+):node|(?:{'|'.join(_PER_NODE)}{'' if slurm else '|-N'})[= ](\d+)", text)
    processes = next((group for group in per_node.groups() if group), "") if per_node else tasks
    counts = [re.search(rf"(?:^| )(?:{option})[= ]?(\d+)", options) for option in ("-g|--ngpus", "-t|--nthreads")]
    each = 1
    for match in counts:
        each *= int(match.group(1)) if match else 1
    if processes and int(processes) > 1 and each > 1 and int(processes) * each > 8:
        have = f"{processes} processes x {each} GPUs = {int(processes) * each} GPUs a node"
        yield LAUNCH.judge(f"{where} {words[program]}", "drift", "at most 8 GPUs a node", have, where)
