# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Questions of the buyers of GPU clusters, and the checks that answer them.

The 59 checks of ClusterMAX's ``cmax audit`` 0.2.1 (clustermax on PyPI), the red lines that its log has beside them, and
the expectations that clustermax.ai publishes.

Answers that differ on purpose name the rule, the reason and an experiment that the buyer can repeat on a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole

AUDIT, LOG, EXPECTED = "audit", "line of the log", "expectation"


_FALSE, _TRUE = ("false", "no", "0"), ("true", "yes", "1")
# Statuses that are not good.
_STATUSES = ("fail", "warning", "unknown", "latent", "host-patch-required", "manual")


def _lower(value: object) -> str:
    return str(value).strip().lower()


def _is_false(value: object) -> bool:
    return _lower(value) in _FALSE


def _is_true(value: object) -> bool:
    return _lower(value) in _TRUE


def _is_not_false(value: object) -> bool:
    return not _is_false(value)


def _is_bad(value: object) -> bool:
    return _lower(value) in (*_FALSE, *_STATUSES)


@dataclass(frozen=True)
class Criterion:
    """One question.

    key: the value's path in audit.values.json, or the words of a line or of an expectation.   subject: in our words.
    checks: ids of the checks that answer it: the first has to pass on every host, the others wherever they were made.
    proof: how to get a result that lacks.   link: link layer of the rails that it concerns, "" for any.
    optional: a host without a result is not asked.   unneeded: why it then needs none, also where the tool has failed.
    owner: who answers it instead; the checks are then only evidence.
    rule: what the tool tests, where another answer is right, with the ``reason`` and the ``experiment``.
    failure: whether a value is one for the tool.   path: of the value in audit.values.json, where the key is none.
    """

    key: str
    subject: str
    checks: tuple[str, ...] = ()
    owner: str = ""
    proof: str = ""
    link: str = ""
    optional: bool = False
    unneeded: str = ""
    rule: str = ""
    reason: str = ""
    experiment: str = ""
    failure: Callable[[object], bool] = _is_bad
    kind: str = AUDIT
    path: str = ""


def _above(limit: int) -> Callable[[object], bool]:
    def is_above(value: object) -> bool:
        number = whole(_lower(value).removeprefix("-"))
        return number is None or (number > limit and not _lower(value).startswith("-"))

    return is_above


def _lacks_path(value: object) -> bool:
    """Return whether gpus.gpuDirectRdmaPath names neither DMA-BUF nor NVIDIA's open driver."""
    return not isinstance(value, dict) or not any(_is_true(value.get(name)) for name in ("dmaBuf", "nvidiaOpen"))


def _is_shared(value: object) -> bool:
    """Return whether security.nvlinkBoundary leaves open that GPUs of other tenants are in the domain."""
    found = value if isinstance(value, dict) else {}
    if _is_true(found.get("domainExclusive")) or _is_false(found.get("nvidiaGpuPresent")):
        return False
    return not (_is_false(found.get("nvlinkExposed")) and _is_false(found.get("targetIsVm")))


_BENCHMARK = (
    "measure it: playbooks/benchmark.yml -e nccl_benchmark_scope=%s -e busbar_findings_path=FILE; name FILE here, too"
)
_GATE = "switch the gate on: gate_stages (docs/gate.md)"
_FABRIC = "sweep it: playbooks/fabric.yml -e busbar_findings_path=FILE; name FILE here, too"
_SITE = "ask it: site.yml --check -e busbar_findings_path=FILE; name FILE here, too"
PROVIDER, TENANT = "the provider's platform team", "whoever builds the job's image"
_VENDOR = "the burn-in of the hardware's vendor"
_NODES = "the provider's node image"
_DPU = "whoever operates the BlueField DPUs"
_SLURM = "whoever operates Slurm"
_PEERMEM = (
    "nvidia_peermem gives the NIC the GPU's memory as DMA-BUF does, and is the only way with NVIDIA's closed driver;"
    " which driver is installed is the provider's choice, and with the open one DMA-BUF is used"
)
_PERFTEST = "ansible-playbook playbooks/verify.yml: ib_write_bw with GPU memory reaches the rate of the rail"
_PAIRS = "measure it: playbooks/verify.yml -e busbar_findings_path=FILE; name FILE here, too"
_CONTAINER = "in a job: busbar preflight --container-image IMAGE --findings FILE; name FILE here, too"
_MINIMUM = "set busbar_minimum_versions: [bulletins], then audit: busbar drift --findings FILE"


def _expected(
    subject: str, *checks: str, owner: str = "", proof: str = "", link: str = "", optional: bool = False
) -> Criterion:
    return Criterion(subject, subject, checks, owner, proof, link, optional, kind=EXPECTED)


def _others(owner: str, *rows: tuple[str, str], checks: tuple[str, ...] = ()) -> tuple[Criterion, ...]:
    return tuple(Criterion(key, subject, checks, owner) for key, subject in rows)


def _minimum(name: str, check: str, subject: str, optional: bool = True) -> Criterion:
    key = f"securityVersions.{name}.status"
    proof = _MINIMUM + "; a host without it has no result" * optional
    return Criterion(key, subject, (check,), proof=proof, optional=optional)


_DCGM = Criterion(
    "healthChecks.dcgmSlurm",
    "GPU health decides in Slurm's HealthCheckProgram",
    ("gate.wired", "gate.program", "gate.verdict"),
    proof=_GATE,
    rule="the name or text of HealthCheckProgram has to contain dcgm",
    reason="the gate reads the same counters of the driver by nvidia-smi, and the network path beside them",
    experiment="busbar gate --run -i INVENTORY --json",
)
CRITERIA = (
    Criterion(
        "gpus.pcieAcs.enabled",
        "PCIe ACS is off between GPUs and NICs",
        ("pcie_path.acs",),
        failure=_is_not_false,
    ),
    Criterion(
        "gpus.gpuDirectRdmaPath",
        "NICs reach GPU memory directly",
        ("gpudirect.path", "gpudirect.persisted", "gpudirect.blocked"),
        rule="passes only with NVIDIA's open driver or a file dma_buf* below /sys/module/nvidia",
        reason=_PEERMEM,
        experiment=_PERFTEST,
        failure=_lacks_path,
    ),
    Criterion(
        "gpus.gpuDirectRdmaPath.nvidiaPeermemLegacy",
        "GPUDirect RDMA by DMA-BUF, not nvidia_peermem",
        ("gpudirect.path", "gpudirect.legacy"),
        rule="a loaded nvidia_peermem is deprecated",
        reason=_PEERMEM,
        experiment=_PERFTEST,
        failure=_is_not_false,
    ),
    Criterion(
        "networking.ncclAutoConfig",
        "nccl.conf overrides nothing that NCCL chooses better",
        ("nccl_conf.file", "nccl_conf.environment"),
    ),
    Criterion(
        "networking.hcaNamingValid",
        "NCCL uses every rail's HCA",
        ("nccl_conf.file", "nccl_conf.rails", "nccl_conf.device_name", "platform.rail_device"),
        rule="HCAs have to be called mlx5_N or roce_pN_railN",
        reason=(
            "NCCL takes every device that libibverbs lists (net_ib/init.cc); a name counts only in NCCL_IB_HCA, where"
            " nccl.conf has each rail's exact name"
        ),
        experiment="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET all_reduce_perf -b 8M -e 8M -g 8 | grep 'NET/IB : Using'",
    ),
    Criterion(
        "nccl_topo_file.status",
        "NCCL's topology file reaches containers",
        ("nccl_conf.container_view", "nccl_conf.topo_file", "nccl_conf.containers"),
        proof=_CONTAINER,
        optional=True,
    ),
    Criterion(
        "nccl_ib_qps.status",
        "queue pairs per connection on a fabric of several tiers",
        ("nccl_cluster.queue_pairs",),
        proof=f"set nccl_benchmark_qps: [1, 2, 4] and {_BENCHMARK % 'cluster'}",
        rule="NCCL_IB_QPS_PER_CONNECTION has to be 2 or more with two tiers",
        reason=(
            "NCCL's default is 1, and how many are right depends on how the fabric spreads flows: measured, not guessed"
        ),
        experiment="ansible-playbook playbooks/benchmark.yml -e nccl_benchmark_scope=cluster with 1, 2 and 4",
    ),
    Criterion(
        "networking.topologyConfigured",
        "the scheduler knows the fabric's topology",
        owner=f"{_SLURM}; busbar fabric topology FILE compares the output of scontrol show topology with the fabric",
    ),
    Criterion(
        "vm_iommu.status",
        "the IOMMU passes GPUs and NICs through",
        ("iommu.domains", "iommu.args"),
    ),
    Criterion(
        "securityVersions.connectxFirmware.status",
        "NIC firmware has the security fixes",
        ("platform.firmware_minimum", "platform.rail_firmware"),
        proof=_MINIMUM,
    ),
    Criterion(
        "software.nccl.installed",
        "NCCL is installed",
        ("nccl_conf.library",),
        proof="list the libraries of jobs: busbar_nccl_libraries",
    ),
    Criterion(
        "healthChecks.nhcInstalled",
        "unhealthy nodes get no jobs",
        ("gate.wired", "gate.program", "gate.verdict"),
        proof=_GATE,
        rule="a program called nhc has to be installed",
        reason="Slurm's HealthCheckProgram is this suite's gate, which checks GPUs, NVLinks, rails and the PCIe path",
        experiment="scontrol show config | grep HealthCheckProgram; busbar gate --run -i INVENTORY; or gate_nhc: true",
    ),
    _DCGM,
    Criterion(
        "security.guestKernel.newerInstalled",
        "the running kernel is the one of the next boot",
        ("reboot.pending", "ofed.dkms"),
        proof=_SITE,
        failure=_is_not_false,
    ),
    Criterion(
        "ufm-profile",
        "the fabric's manager and partitions are those declared",
        ("ib_fabric.manager", "ib_fabric.partition"),
        owner="whoever operates the subnet manager: keys and rate limits of tenants",
        path="security.ufmSecuredBareMetalCloud.status",
    ),
    Criterion(
        "nvlink-boundary",
        "NVLink domains are of one tenant",
        ("platform.nvlinks", "node_health.fabric_state"),
        owner=PROVIDER,
        failure=_is_shared,
        path="security.nvlinkBoundary",
    ),
    Criterion(
        "bmc-ipmi",
        "tenants cannot reach BMCs",
        owner=PROVIDER,
        failure=_is_not_false,
        path="security.bmcIpmi.exposed",
    ),
    Criterion(
        "pcie-passthrough",
        "passed-through devices are isolated and cleared",
        owner=PROVIDER,
        failure=_is_not_false,
        path="security.pciePassthrough.hostVerificationRequired",
    ),
    *_others(_DPU, ("securityVersions.dpuHostIsolation.status", "hosts cannot control their BlueField DPU")),
    *_others(
        _DPU,
        ("securityVersions.virtioNetBluefield.status", "VIRTIO-net controller of BlueField is patched"),
        ("securityVersions.virtioNetBluefield.exposure", "an idle VIRTIO-net controller is patched"),
    ),
    _minimum("nvidiaDriver", "platform.driver_minimum", "the NVIDIA driver has the security fixes", False),
    _minimum(
        "nvidiaContainerToolkit", "platform.container_toolkit_minimum", "the container toolkit has the security fixes"
    ),
    _minimum("cudaToolkit", "platform.cuda_minimum", "the CUDA toolkit has the security fixes"),
    _minimum("runc", "platform.runc_minimum", "runc has the security fixes"),
    _minimum("dcgm", "platform.dcgm_minimum", "DCGM has the security fixes"),
    Criterion(
        "gpus.gdrcopy.installed",
        "GDRCopy where NCCL uses it",
        ("nccl_conf.gdrcopy",),
        optional=True,
        unneeded="NCCL uses GDRCopy only with NCCL_GDRCOPY_ENABLE=1 (its default is 0), which nothing sets here",
    ),
    Criterion(
        "arm_smmu_virtualization.status",
        "guests on Grace have the SMMU's command queues",
        ("iommu.command_queue",),
        optional=True,
        unneeded="no host is a guest on Grace with an SMMUv3",
    ),
    *_others(
        _NODES,
        ("securityVersions.docker.status", "Docker has the security fixes"),
        ("securityVersions.dcgmExporter.status", "the DCGM exporter has the security fixes"),
        ("security.fragnesia.status", "the kernel has the fix of CVE-2026-46300"),
        ("containers.nvidiaContainerToolkit", "the container toolkit is installed"),
        ("containers.enroot", "enroot is installed"),
        ("containers.enrootImportWorks", "enroot imports an image"),
        ("containers.dockerOnWorkers", "Docker is installed on nodes"),
        ("containers.singularity", "Apptainer is installed"),
        ("software.nvhpc.status", "NVIDIA's HPC SDK is installed and supported"),
        ("software.ncu.installed", "Nsight Compute is installed"),
        ("software.ncu.profilingEnabled", "users may profile GPUs"),
        ("software.lmod.modulesStatus", "modules of Lmod exist"),
        ("software.perf.installed", "perf is installed"),
        ("gpu_controls.vboost.allowed", "vBoost may be set"),
        ("hbm_memory_exposure.status", "the system does not use GPU memory as its own"),
        ("healthChecks.dcgmInstalled", "DCGM is installed"),
        ("healthChecks.monitoringStack.dcgmExporter", "the DCGM exporter runs"),
    ),
    Criterion(
        "software.perf.perfEventParanoid",
        "perf_event_paranoid permits perf",
        owner=_NODES,
        failure=_above(1),
    ),
    Criterion(
        "software.perf.kptrRestrict",
        "perf sees the kernel's symbols",
        owner=_NODES,
        failure=_above(0),
    ),
    *_others(
        PROVIDER,
        ("security.januscape.status", "nested virtualisation is off or patched (CVE-2026-53359)"),
        ("access.sudoAvailable", "sudo without a password"),
        ("access.userManagement", "users and groups can be managed"),
        ("access.externalIdp.detected", "an identity provider is connected"),
        ("storage.rwxStatus", "shared storage can be written by several pods"),
        ("kubelet_cpu_manager_policy.status", "the kubelet pins CPUs"),
    ),
    *_others(
        _SLURM,
        ("access.sshToComputeNodes", "nodes are reached by ssh"),
        ("access.slurmCommandsOk", "Slurm's commands answer"),
        ("slurm.accounting.sacctAvailable", "sacct answers"),
        ("containers.workerCheckOk", "the audit could run a container on a node"),
        ("containers.pyxisRuntimeWorks", "srun has the options of Pyxis"),
        ("software.cudaVisibleDevicesStatus", "the scheduler sets CUDA_VISIBLE_DEVICES"),
    ),
    # -- lines that the log prints in red, and no check grades ---------------------------------------------------------
    Criterion(
        "NCCL_IB_GID_INDEX not set in /etc/nccl.conf",
        "NCCL uses RoCE v2 on every rail",
        ("platform.rail_gid", "nccl_conf.file", "nccl_conf.gid_index"),
        link="Ethernet",
        rule="RoCE needs NCCL_IB_GID_INDEX=3",
        reason=(
            "since NCCL 2.21 the default is -1 and each port's index is looked up (net_ib/connect.cc); a fixed 3 breaks"
            " when an address is added or a link flaps (NVIDIA/nccl issues 1333, 2157, 2183)"
        ),
        experiment="add an address to a rail, then run NCCL_DEBUG=INFO all_reduce_perf with and without the index",
        kind=LOG,
    ),
    Criterion(
        "No valid PKeys found",
        "every rail is in the declared partition",
        ("platform.rail_partition",),
        link="InfiniBand",
        rule="every HCA has to have a partition",
        reason="of ports that carry no jobs it proves nothing, and RoCE has no partitions",
        experiment="cat /sys/class/infiniband/*/ports/1/pkeys/0 of the rails",
        kind=LOG,
    ),
    Criterion(
        "only nvidia_peermem detected (legacy path)",
        "GPUDirect RDMA works",
        ("gpudirect.path",),
        rule="nvidia_peermem is a legacy path",
        reason=_PEERMEM,
        experiment=_PERFTEST,
        kind=LOG,
    ),
    replace(_DCGM, key="HealthCheckProgram is NOT dcgm-based", kind=LOG),
    Criterion("NCU profiling restricted", "users may profile GPUs", owner=_NODES, kind=LOG),
    # -- expectations (clustermax.ai/expectations: slurm, health-checks; criteria: networking) -------------------------
    _expected("no GPU is off the bus, no Xid", "node_health.xid", "node_health.gpu_count", "platform.gpu_count"),
    _expected("no uncorrectable ECC errors", "node_health.ecc"),
    _expected("no pending or failed row remap", "node_health.row_remap", "node_health.memory_repair"),
    _expected("GPUs have full PCIe links", "platform.gpu_pcie", "platform.pcie_link", "node_health.pcie_replay"),
    _expected("NICs have full PCIe links", "platform.rail_pcie", "platform.pcie_link", "node_health.aer"),
    _expected("NVLinks up and without errors", "platform.nvlinks", "node_health.nvlink_errors"),
    _expected("rails up at full rate", "platform.rail_rate", "platform.rail_state"),
    _expected("no link flaps", "node_health.port_counters", "node_health.port_link_downed"),
    _expected("no growing errors of ports", "node_health.port_counters", "node_health.port_errors"),
    _expected("GPUs neither hot nor slowed", "node_health.temperature", "node_health.throttle"),
    _expected("PFC and DSCP for RoCE", "roce_qos.pfc", "roce_qos.trust", "roce_qos.unit", link="Ethernet"),
    _expected("MTU of RoCE rails", "netdev_mtu.live", "netdev_mtu.persisted", link="Ethernet"),
    _expected(
        *("cables and errors of the fabric", "ib_fabric.host", "ib_fabric.sweep", "ib_fabric.errors"),
        proof=_FABRIC,
        link="InfiniBand",
    ),
    _expected("jobs may lock memory", "host_limits.daemon", "host_limits.unit"),
    _expected(
        "all-reduce within each node at its bar", "nccl_perf.busbw", "nccl_perf.transport", proof=_BENCHMARK % "node"
    ),
    _expected("all-reduce between nodes at its bar", "nccl_cluster.bar", proof=_BENCHMARK % "cluster"),
    _expected("RDMA bandwidth of pairs", "perftest.bandwidth", "perftest.latency", proof=_PAIRS),
    _expected("SHARP where it is offered", "sharp.proof", "sharp.gain", optional=True),
    _expected("host and device copies (nvbandwidth)", owner=_VENDOR),
    _expected("GPU burn-in and tests for silent corruption", owner=_VENDOR),
    _expected("a training framework runs (Megatron, TorchTitan)", owner=TENANT),
)
