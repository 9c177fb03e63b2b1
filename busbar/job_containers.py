# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find pods and containers of a job that lack what NCCL needs.

docs/containers.md describes what a container needs. Sources of pods' rules: Kubernetes (Manage HugePages, API reference
of resource claims), multus-cni#1091, libfabric's fi_efa(7), dra-driver-nvidia-gpu 0.4.1 (ComputeDomains).
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
POD_NETWORK = Check(
    "nccl_conf.lint.pod_network",
    why="With hostNetwork a pod has the node's interfaces; else its own, of other names than in the node's nccl.conf.",
    fix="Remove hostNetwork, or the annotation of the networks.",
)
"Do networks, hostNetwork and interfaces of a pod with GPUs fit together (busbar lint alone)"
HUGEPAGES = Check(
    "nccl_conf.lint.hugepages",
    why="Kubernetes gives a container the huge pages that it requests, and no others.",
    fix="Write resources: {limits: {hugepages-2Mi: 5120Mi, memory: ...}}.",
)
"Are huge pages requested where EFA takes its buffers from them, with a unit and with cpu or memory (busbar lint alone)"
CLAIM = Check(
    "nccl_conf.lint.resource_claim",
    why="A container gets only the claims that it lists. Without the channel of its ComputeDomain CUDA refuses to"
    " share memory between nodes.",
    fix="Name the ComputeDomain's template in resourceClaims of the pod, and that claim in resources.claims of the"
    " container.",
)
"Do pods claim the channel of the ComputeDomain that is in the same file (busbar lint alone)"
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
    roots = [root for document in job.documents if isinstance(root := _plain(document, {}), _Mapping)]
    domains = [root for root in roots if root.get("kind") == "ComputeDomain"]
    templates = {str(one.value_at("spec", "channel", "resourceClaimTemplate", "name")) for one in domains}
    variables = dict(sets)
    for root in roots:
        for pod, nodes, owner in _pods(root):
            containers = pod.items_at("containers")
            if any(_gpus(container) for container in containers):
                found += _networks(pod, owner, variables, name)
                found += _claims(pod, templates, name)
            for container in containers:
                found += _hugepages(container, variables, name)
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


def _pods(root: _Mapping) -> Iterator[tuple[_Mapping, int, _Mapping]]:
    """Yield each pod's specification, how many such pods a job over several nodes has, and what has its metadata.

    The number is 1 where it is no job over several nodes.
    """
    counts = _COUNTS if root.get("kind") in _KINDS.split() else ()
    waiting: list[tuple[object, int, _Mapping]] = [(root, 1, root)]
    done: set[int] = set()
    while waiting:
        item, pods, owner = waiting.pop()
        if id(item) in done:
            continue
        done.add(id(item))
        if isinstance(item, list):
            waiting += [(part, pods, owner) for part in item]
        elif isinstance(item, _Mapping):
            numbers = [str(item.value_at(*path)) for path in counts]
            pods *= next((int(number) for number in numbers if re.fullmatch("[1-9][0-9]{0,4}", number)), 1)
            if isinstance(item.get("containers"), list):
                yield item, pods, owner
            waiting += [(part, pods, item) for part in item.values()]


def _resources(container: _Mapping) -> dict[str, object]:
    parts = [container.value_at("resources", kind) for kind in ("requests", "limits")]
    return {key: value for part in parts if isinstance(part, _Mapping) for key, value in part.items()}


def _gpus(container: _Mapping) -> object:
    """Return how many GPUs a container requests, as it is written; None for none."""
    gpus = _resources(container).get("nvidia.com/gpu")
    return None if gpus == "0" else gpus


def _networks(pod: _Mapping, owner: _Mapping, sets: dict[str, str | None], name: str) -> Iterator[Finding]:
    """Judge more networks (Multus) of a pod. owner: the mapping with its metadata.   sets: variables of the job."""
    networks = str(owner.value_at("metadata", "annotations", "k8s.v1.cni.cncf.io/networks") or "")[:60]
    where, interface = f"{name}:{pod.line}", sets.get("NCCL_SOCKET_IFNAME")
    if not networks:
        return
    if pod.get("hostNetwork") == "true":
        have, lost = f"hostNetwork, so that {networks} is not attached", re.match(r"[=^]?net\d", interface or "")
        severity = "critical" if lost else "minor"
        have += f"; NCCL_SOCKET_IFNAME={interface} names an interface of it" if lost else ""
        yield POD_NETWORK.judge(f"{where} pod", "drift", "one of the two", have, where, severity=severity)
    elif interface is None and "/etc/nccl.conf" in [
        one.value_at("hostPath", "path") for one in pod.items_at("volumes")
    ]:
        have = "the node's nccl.conf, whose interfaces the pod does not have"
        fix = "Set NCCL_SOCKET_IFNAME in the pod's env, such as eth0, or net1 of the annotation."
        yield POD_NETWORK.judge(f"{where} pod", "drift", "NCCL_SOCKET_IFNAME", have, where, fix)


def _claims(pod: _Mapping, templates: set[str], name: str) -> Iterator[Finding]:
    """Judge the claims of a pod with GPUs. templates: of the ComputeDomains in the file."""
    of_pod = {str(one.get("name")): one.get("resourceClaimTemplateName") for one in pod.items_at("resourceClaims")}
    containers = [*pod.items_at("initContainers"), *pod.items_at("containers")]
    used = {str(claim.get("name")) for one in containers for claim in one.items_at("resources", "claims")}
    where, want = f"{name}:{pod.line}", f"a claim of {' or '.join(sorted(templates))}"
    for claim in sorted(used - of_pod.keys()):
        have = f"claim {claim} is not in resourceClaims of the pod, which the API refuses"
        yield CLAIM.judge(f"{where} pod", "drift", "an entry of resourceClaims", have, where)
    own = {claim for claim, template in of_pod.items() if template in templates}
    if templates and not own:
        have = "no claim" if not of_pod else f"claims of {', '.join(sorted(map(str, of_pod.values())))}"
        yield CLAIM.judge(f"{where} pod", "drift", want, have, where)
    elif own and not own & used:
        yield CLAIM.judge(f"{where} pod", "drift", want, f"no container lists {min(own)} in its claims", where)


def _hugepages(container: _Mapping, sets: dict[str, str | None], name: str) -> Iterator[Finding]:
    resources, where = _resources(container), f"{name}:{container.line}"
    pages = {key: str(value) for key, value in resources.items() if key.startswith("hugepages-")}
    bare = [f"{key}: {value}" for key, value in pages.items() if re.fullmatch("[0-9]{1,6}", value) and int(value)]
    subject = f"{where} {container.get('name', '')}"
    if pages and not resources.keys() & {"cpu", "memory"}:
        have = f"{min(pages)} without cpu and memory, which the API refuses"
        yield HUGEPAGES.judge(subject, "drift", "cpu or memory, too", have, where)
    elif bare:
        yield HUGEPAGES.judge(subject, "drift", "a unit, such as Mi", f"{bare[0]}, which are bytes", where)
    elif resources.get("vpc.amazonaws.com/efa", "0") != "0" and not pages and sets.get("FI_EFA_USE_HUGE_PAGE") != "0":
        have = "EFA and no huge pages, from which libfabric takes its buffers"
        yield HUGEPAGES.judge(subject, "drift", "hugepages-2Mi", have, where, severity="minor")


def _container(
    pod: _Mapping, container: _Mapping, nodes: int, wants_rdma: bool, other: bool, name: str
) -> Iterator[Finding]:
    """Judge a container with GPUs. other: it has another way to the network than an RDMA resource."""
    resources, gpus = _resources(container), _gpus(container)
    if gpus is None or "image" not in container or _TOOLS.search(str(container.get("command"))):
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
    known = parse_size(str(size))
    small = known is not None and known < 1 << 30
    return "an emptyDir on disk" if on_disk else f"an emptyDir of {size}" if small else ""
