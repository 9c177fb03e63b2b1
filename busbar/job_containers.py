# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find containers of a job that lack what NCCL needs.

docs/containers.md describes what a container needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.limits.container_runtimes import parse_size

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
    severity="minor",  # the node's runtime may have no limit
)
"May a container with RDMA devices lock memory (busbar lint alone)"
RDMA = Check(
    "nccl_conf.lint.rdma_resource",
    why="Without /dev/infiniband NCCL finds no RDMA device, and talks TCP between the nodes.",
    fix="Request the resource of your RDMA device plugin, such as rdma/hca_shared_devices_a: 1.",
)
"Has a container of a job over several nodes an RDMA device (busbar lint alone)"
_KINDS = (
    "PyTorchJob MPIJob JobSet TrainingRuntime ClusterTrainingRuntime LeaderWorkerSet RayCluster RayJob Job StatefulSet"
)
_COUNTS = (("replicas",), ("parallelism",), ("numNodes",), ("size",), ("mlPolicy", "numNodes"))
_RDMA = re.compile(r"rdma|hca|mlnx|roce|hostdev|infiniband|/ib", re.IGNORECASE)
# Other ways to a network (more interfaces, EFA, TCPX, dynamic resources), and TCP on purpose.
_OTHER = re.compile(r"cncf\.io/networks|networking\.gke\.io|vpc\.amazonaws\.com/efa|resourceClaims|tcpx|/gib")
_TCP = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
_TOOLS = re.compile(r"nvidia-smi|nvcc|dcgm")


class _Mapping(dict[str, object]):
    """A YAML mapping without its tags; line: where it begins, from 1."""

    line = 0

    def value_at(self, *path: str) -> object:
        """Return the value at the end of a path of keys, None without one."""
        item: object = self
        for key in path:
            item = item.get(key) if isinstance(item, _Mapping) else None
        return item

    def items_at(self, *path: str) -> list[_Mapping]:
        """Return the mappings of a list."""
        found = self.value_at(*path)
        return [part for part in found if isinstance(part, _Mapping)] if isinstance(found, list) else []


def judge(job: Job, text: str, name: str) -> list[Finding]:
    """Return the findings on containers of a job. name: of the file."""
    found: list[Finding] = []
    sets = [(item.name, item.value) for item in job.assignments]
    wants_rdma = any(variable.startswith("NCCL_IB_") for variable, _value in sets)
    other = bool(_OTHER.search(text)) or any(pair in _TCP for pair in sets)
    for document in job.documents:
        root = _plain(document, {})
        if isinstance(root, _Mapping):
            for pod, nodes in _pods(root):
                for container in pod.items_at("containers"):
                    found += _container(pod, container, nodes, wants_rdma, other, name)
    return list({finding.id: finding for finding in found}.values())


def _plain(node: yaml.Node, done: dict[int, object]) -> object:
    """Return mappings, lists and text (None for null) of a node; aliases and circles are the same object."""
    if id(node) in done or isinstance(node, yaml.ScalarNode):
        return done.get(id(node)) or (None if node.tag.endswith(":null") else str(node.value))
    if isinstance(node, yaml.MappingNode):
        mapping = done[id(node)] = _Mapping()
        mapping.line = node.start_mark.line + 1
        mapping.update((str(key.value), _plain(value, done)) for key, value in node.value)
        return mapping
    items = done[id(node)] = list[object]()
    items += [_plain(item, done) for item in node.value]
    return items


def _pods(root: _Mapping) -> Iterator[tuple[_Mapping, int]]:
    """Yield each pod's specification, and how many such pods a job over several nodes has; 1 where it is none."""
    counts = _COUNTS if root.get("kind") in _KINDS.split() else ()
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
            numbers = [str(item.value_at(*path)) for path in counts]
            pods *= next((int(number) for number in numbers if re.fullmatch("[1-9][0-9]{0,4}", number)), 1)
            if isinstance(item.get("containers"), list):
                yield item, pods
            waiting += [(part, pods) for part in item.values()]


def _container(
    pod: _Mapping, container: _Mapping, nodes: int, wants_rdma: bool, other: bool, name: str
) -> Iterator[Finding]:
    """Judge a container with GPUs. other: it has another way to the network than an RDMA resource."""
    parts = [container.value_at("resources", kind) for kind in ("requests", "limits")]
    resources = {key: value for part in parts if isinstance(part, _Mapping) for key, value in part.items()}
    gpus = resources.get("nvidia.com/gpu")
    if gpus in (None, "0") or "image" not in container or _TOOLS.search(str(container.get("command"))):
        return
    known = re.fullmatch("[0-9]{1,3}", str(gpus))
    count = int(str(gpus)) if known else 8
    subject, where = f"{name}:{container.line} {container.get('name', '')}", f"{name}:{container.line}"
    rdma = any(_RDMA.search(key) for key in resources)
    lacking = _shm(pod, container)
    if lacking and count > 1 and (known or nodes > 1 or rdma or wants_rdma):
        yield SHM.judge(subject, "drift", "memory at /dev/shm", lacking, where)
    privileged = container.value_at("securityContext", "privileged") == "true"
    if privileged or (other and not rdma) or not (rdma or wants_rdma or (nodes > 1 and count > 3)):
        return
    if not rdma and "/dev/infiniband" not in str(pod.get("volumes")):
        yield RDMA.judge(subject, "drift", "an RDMA resource", "none is requested", where)
    users = [str(item.value_at("securityContext", "runAsUser") or "") for item in (container, pod)]
    not_root = "true" in [item.value_at("securityContext", "runAsNonRoot") for item in (container, pod)]
    if not re.search("IPC_LOCK|ALL", str(container.value_at("securityContext", "capabilities", "add"))):
        yield IPC_LOCK.judge(subject, "drift", "IPC_LOCK", "the capability is not added", where)
    elif not_root or (users[0] or users[1] or "0") != "0":
        why = "A capability that is added is effective for user 0 alone, so this user's memlock stays limited."
        fix = "Run the container as user 0, or see that containerd itself has LimitMEMLOCK=infinity."
        yield IPC_LOCK.judge(subject, "drift", "user 0", "IPC_LOCK of another user", where, fix, why=why)


def _shm(pod: _Mapping, container: _Mapping) -> str:
    """Return what a container has at /dev/shm instead of memory; "" where it is well or not known."""
    mounts = {str(mount.get("mountPath", "")).rstrip("/"): mount for mount in container.items_at("volumeMounts")}
    if pod.get("hostIPC") == "true" or "/dev" in mounts or "$" in "".join(mounts):
        return ""
    if "/dev/shm" not in mounts:
        return "nothing is mounted there"
    volumes = [one for one in pod.items_at("volumes") if one.get("name") == mounts["/dev/shm"].get("name")]
    on_disk = volumes and "emptyDir" in volumes[0] and volumes[0].value_at("emptyDir", "medium") is None
    size = volumes[0].value_at("emptyDir", "sizeLimit") if volumes else None
    return "an emptyDir on disk" if on_disk else f"an emptyDir of {size}" if _small(size) else ""


def _small(size: object) -> bool:
    """Return whether a size such as ``64Mi`` is less than 1 GiB; False for an unknown form."""
    known = parse_size(str(size))
    return known is not None and known < 1 << 30
