# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare every variable that an inventory may set for the suite; ``intent.py`` checks an inventory against it.

``make docs`` writes from here the roles' defaults, the options of their argument specs, the tables of variables in
their README.md, and those of docs/variables.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import DISRUPTIONS
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import FABRICS
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import ADDRESS_FAMILIES
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.checks import WHEN
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.checks import FLAVOURS as OFED_FLAVOURS
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import OWNERS, TRUSTS

# "node" is measured in any case.
SCOPES = ("node", *cluster_member.SCOPES)
BENCHMARK_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
PARALLELISM = ("tensor", "pipeline", "data", "micro_batch", "sequence", "hidden", "layers")


@dataclass(frozen=True)
class Decision:
    """A decision that only the site can make. Values with equal decisions are one row of docs/variables.md.

    because: why it has no right default. without: what a run does without a decision.
    """

    because: str
    without: str


@dataclass(frozen=True)
class Value:
    """One variable of an inventory.

    type, elements: as in Ansible's argument specs; elements of a list only.
    default: None is "unset", where an empty text or list would mean something else. A required value has none.
    choices: all that it may be; of a list, what its elements may be. Empty: anything of the type.
    keys: of a dict, the keys that are known. None: any.
    says: what the value means, and its unit, in sentences of Markdown without links; a page is `docs/NAME.md`. No
        braces of templates: Ansible would evaluate them in argument specs.
    decision: where a site has to decide, why.
    private: it may hold secrets whatever its names are: neither printed nor quoted, see intent.printable_values.
    """

    type: str
    default: Any = None
    required: bool = False
    choices: tuple[str | int, ...] = ()
    keys: Mapping[str, Value] | None = None
    elements: str = "str"
    says: str = ""
    decision: Decision | None = None
    private: bool = False


_HEALTHY = Decision("they define a healthy node", "the run stops")
_NCCL = Decision(
    "variables differ by version, and only a library can prove them; either will do", "a finding, `unknown`"
)

# Role -> the variables in its README.md; values that begin with the role's name are its defaults.
# "site" is of the whole run, "perftest" of what is proven between nodes, "drift_timer" of the control node.
# A default of None, or an empty text or mapping, of roce_qos: not requested, or derived from busbar_roce.
PARTS: dict[str, dict[str, Value]] = {
    "site": {
        "busbar_platform": Value(
            "str",
            required=True,
            says="Profile of a healthy node: a file in `profiles/` beside the inventory, else one of the suite's.",
            decision=_HEALTHY,
        ),
        "busbar_fabric": Value(
            "str",
            "",
            choices=("", *sorted(FABRICS)),
            says="Link layer of the compute fabric; needed if the profile exists with both.",
            decision=_HEALTHY,
        ),
        "busbar_max_disruption": Value(
            "str",
            "none",
            choices=DISRUPTIONS,
            says="Highest disruption of a node that a run may cause.",
            decision=Decision("the site decides what may disturb its jobs", "nothing that stops traffic is done"),
        ),
        "busbar_accepted": Value(
            "list",
            [],
            elements="dict",
            says="Deviations that are accepted: `check` (an id or a pattern such as `platform.*`), `reason`, `owner`"
            " and `until` (the last day, YYYY-MM-DD) of each, and optionally a `subject`. They are shown"
            " and counted, and fail no run (`docs/drift.md#accepted-deviations`).",
        ),
        "busbar_findings_path": Value(
            "path", "", says="File on the control node to which all findings are written as JSON, with mode 0600."
        ),
        "busbar_role_verdict": Value(
            "bool",
            True,
            says="Whether a role prints its findings at its end and fails on what is not ok. The suite's playbooks set"
            " it to `false` and print one verdict on all roles; such a playbook ends with"
            " `busbar.fabric.verdict`.",
        ),
        "busbar_engine": Value(
            "str",
            "ssh",
            choices=("ssh", "slurm"),
            says="How `busbar drift` queries the nodes: `ssh`, or Slurm by one step over all of them (`docs/scale.md`);"
            " the same for all nodes.",
        ),
        "busbar_engine_overlap": Value(
            "bool",
            False,
            says="With `busbar_engine: slurm`, also query nodes on which jobs run, if Slurm allows it.",
        ),
        "busbar_hardware_root": Value(
            "path", "/", says="Where `/sys` and `/proc` are; another directory is a simulated node."
        ),
        "busbar_system_root": Value("path", "/", says="Where `/etc`, `/usr`, `/home` and `/root` are."),
        "busbar_task_timeout": Value(
            "int",
            7200,
            says="Seconds for one task on one node in `site.yml` and `verify.yml`. A task that takes longer fails on"
            " that node alone. The value has to be higher than the time limits of builds and benchmarks.",
        ),
        "busbar_audit_first": Value(
            "bool",
            True,
            says="Whether `site.yml` audits every host in one query first, and runs a role only on hosts where the"
            " audit found work. With `false` it runs all roles on all hosts, which finds the same, but takes a"
            " hundred times as long on a healthy fleet.",
        ),
        "busbar_lock_minutes": Value(
            "int", 240, says="Age in minutes from which the lock of another control node's run is ignored."
        ),
        "busbar_lock_break": Value(
            "str",
            "",
            says="Id of a run whose locks are ignored, as the finding `lock.held` names it; for the command line"
            " (`-e`).",
        ),
    },
    "platform": {
        "platform_cross_checks": Value(
            "list", ["nvidia_smi_topo"], choices=("nvidia_smi_topo",), says="Second sources to compare with sysfs."
        ),
        "platform_nccl_topo_file": Value(
            "path",
            "",
            says="A file from `NCCL_TOPO_DUMP_FILE`, or the cloud's `NCCL_TOPO_FILE`, on the node; compared with sysfs"
            " if it is set.",
        ),
    },
    "mofed": {
        "mofed_flavour": Value(
            "str",
            "doca-ofed",
            choices=OFED_FLAVOURS,
            says="Whose RDMA drivers: `doca-ofed`, `mlnx-ofed` (24.10 and earlier), or `inbox`, those of the"
            " distribution.",
        ),
        "mofed_version": Value(
            "str",
            "",
            says="Release of DOCA (`3.2.1`) or MLNX_OFED (`24.10-2.1.8.0`). Nothing is installed before it is set.",
            decision=Decision(
                "the site decides on a release and its key; with `mofed_manage: false` OFED is only checked",
                "a finding, `unknown`",
            ),
        ),
        "mofed_package": Value("str", "", says="Metapackage; empty: `doca-ofed` or `mlnx-ofed-all`, by the flavour."),
        "mofed_manage": Value(
            "bool",
            True,
            says="With `false` everything is checked and nothing is changed, for hosts whose OFED is installed by"
            " other means.",
        ),
        "mofed_repository_url": Value(
            "str",
            "https://linux.mellanox.com/public/repo",
            says="Top of the vendor's repositories, or of a mirror of them.",
        ),
        "mofed_repository_key": Value(
            "str",
            "",
            says="Public key of the repository, armoured, as `lookup('ansible.builtin.file', 'GPG-KEY.asc')` reads it"
            " from a file. Nothing is installed without it.",
        ),
        "mofed_archive": Value(
            "str",
            "",
            says="Instead of a repository: path on the control node, or URL, of an archive that contains one.",
        ),
        "mofed_archive_sha256": Value(
            "str", "", says="SHA-256 of the archive; an archive with another checksum is not unpacked."
        ),
        "mofed_archive_repository": Value(
            "str", "DEBS", says="Path of the repository in the archive, below its one top directory."
        ),
        "mofed_third_party": Value(
            "list",
            [],
            choices=("lustre",),
            says="File systems whose RDMA modules the site builds for this OFED itself.",
        ),
    },
    "iommu": {
        "iommu_passthrough": Value(
            "bool",
            True,
            says="Require that GPUs and NICs reach each other without translation; `false` requires nothing.",
        ),
    },
    "nic_firmware": {
        "nic_firmware_settings": Value(
            "dict",
            {},
            says="Flash settings of the rails' NICs, by the names of `mstconfig`, to a number or one of"
            " its words, such as `{LINK_TYPE: ETH, ROCE_CC_PRIO_MASK: 255}`; without `_P1` for all declared ports"
            " (`docs/drivers.md#nic-settings`). They have priority over those of the profile.",
        ),
        "nic_firmware_recommended": Value(
            "bool",
            False,
            says="Also require what is right for every training node on bare metal, if the NIC has it: the fabric's"
            " `LINK_TYPE`, `PCI_WR_ORDERING` and `ATS_ENABLED` 0; on RoCE `ROCE_CC_PRIO_MASK` 255, and `CNP_DSCP` and"
            " `CNP_802P_PRIO` of `busbar_roce`.",
        ),
        "nic_firmware_devices": Value(
            "list",
            [],
            says="PCI addresses of further ports, whose cards get the same settings. No other card is touched.",
        ),
    },
    "pcie_path": {
        "pcie_path_clear_acs": Value(
            "bool",
            True,
            says="Clear SrcValid, ReqRedir, CmpltRedir and UpstreamFwd of ACS on bridges between GPUs and NICs."
            " `false` requires nothing, as on a host that passes its devices to virtual machines.",
        ),
        "pcie_path_max_read_request": Value(
            "int",
            4096,
            choices=(0, 128, 256, 512, 1024, 2048, 4096),
            says="Maximum read request of the compute NICs in bytes; 0 requires nothing.",
        ),
        "pcie_path_persist": Value("bool", True, says="Set both again at every boot."),
    },
    "host_limits": {
        "host_limits_nofile": Value("int", 1048576, says="Minimum limit on open files."),
        "host_limits_shm": Value(
            "str", "8G", says="Minimum size of `/dev/shm`, in bytes or with K, M or G; empty requires nothing."
        ),
        "host_limits_container_runtimes": Value(
            "list",
            [],
            choices=("docker", "containerd", "kubelet"),
            says="Container runtimes that the node has. Their limits are written and checked; nothing is restarted"
            " (`docs/containers.md`).",
        ),
        "host_limits_kubernetes_rdma_resources": Value(
            "list",
            [],
            says="Only with `kubelet`: resources that an RDMA device plugin has to provide, such as"
            " `rdma/hca_shared_devices_a`.",
        ),
    },
    "lldp": {
        "busbar_lldp": Value(
            "str",
            "auto",
            choices=("auto", "none", "required"),
            says="RoCE fabrics only: `auto` judges the LLDP data that the rails receive, and prints a note if there"
            " is none; `required` requires an agent and a neighbour of every rail; `none` requires nothing"
            " (`docs/cabling.md#lldp`).",
        ),
        "busbar_lldp_dcbx": Value(
            "bool",
            False,
            says="Whether a switch port that sends no DCBX, and so does not announce its PFC and DSCP map, is a"
            " finding.",
        ),
        "busbar_lldp_neighbours": Value(
            "str",
            "",
            says="Table of the rails' switch ports, for hosts without LLDP: a CSV `host,port,chassis,port_id`"
            " on the control node, relative to where the run starts, as switches export it (`docs/cabling.md`).",
        ),
    },
    "node_health": {
        "node_health_power_limit": Value(
            "int",
            0,
            says="Power cap of each GPU in watts; 0 for the GPU's own default (`docs/health.md`).",
        ),
    },
    "mtu": {
        "busbar_mtu": Value(
            "int",
            says="RoCE fabrics only: MTU of the rails in bytes, 1280 to 65535, now and after a boot; unset: not"
            " checked. RDMA sends 4096 bytes at once from 4192 on (`docs/roce.md`).",
            decision=Decision("RoCE: it has to match the switches", "a note; the rails' MTU is not judged"),
        ),
    },
    "multirail": {
        "multirail_policy": Value(
            "str",
            "",
            choices=("", *multirail.POLICIES, "custom"),
            says="ARP and source routing per Ethernet rail: `oci`, `nvidia` or `custom`"
            " values of arp_ignore, arp_announce and rp_filter, `nvidia` with a routing table for each rail"
            " (`docs/roce.md`); `none` removes Busbar's files for it; empty: not judged, and they stay.",
            decision=Decision(
                "RoCE with several rails: sites route rails differently; `none` sets nothing",
                "a note; ARP and routes are not judged",
            ),
        ),
        "multirail_values": Value(
            "dict",
            keys={key: Value("int") for key in multirail.KEYS},
            says="Only with `custom`: `arp_ignore`, `arp_announce`, `rp_filter`, `accept_local`, each with a"
            " number; unset: Busbar's file stays.",
        ),
        "multirail_source_routing": Value(
            "bool",
            says="Only with `custom`: a routing table for each rail, and a rule for the"
            " rail's address; unset: Busbar's files stay.",
        ),
        "multirail_gateway": Value(
            "str",
            "",
            choices=("", *multirail.GATEWAYS),
            says="Default gateway in each rail's table: the `first` or the `last` address of the rail's subnet, or"
            " `none`; empty leaves what is there.",
        ),
    },
    "roce_qos": {
        "busbar_roce": Value(
            "dict",
            keys={
                "dscp": Value("int"),
                "priority": Value("int"),
                "cnp_dscp": Value("int"),
                "cnp_priority": Value("int"),
                "address_family": Value("str", choices=ADDRESS_FAMILIES),
            },
            says="RoCE fabrics only: `dscp` (0 to 63) and `priority` (0 to 7; else `dscp` / 8) of the lossless queue,"
            " `cnp_dscp` (48) and `cnp_priority` (6) of congestion notifications, `address_family` of the rails"
            " (`ipv4`, `ipv6`): `docs/roce.md`. Unset: not judged, Busbar's files stay; `{}` removes them.",
            decision=Decision(
                "RoCE: DSCP, priority and PFC have to match the switches", "a note; PFC, ECN and DSCP are not judged"
            ),
        ),
        "roce_qos_trust": Value(
            "str",
            "",
            choices=("", *TRUSTS),
            says="What the NIC takes the priority from; empty: `dscp` if `busbar_roce` has one.",
        ),
        "roce_qos_dscp2prio": Value(
            "dict",
            {},
            says="Entries of the map beside those of `busbar_roce`, DSCP to priority. Entries that are not named stay.",
        ),
        "roce_qos_pfc": Value(
            "list",
            elements="int",
            says="Priorities with PFC, all others without; `[]` for a lossy fabric; unset: that of `busbar_roce`.",
        ),
        "roce_qos_ecn": Value(
            "list",
            elements="int",
            says="Priorities with ECN (marking and reaction), others stay; `[]`: none; unset: that of `busbar_roce`.",
        ),
        "roce_qos_prio2tc": Value(
            "list", elements="int", says="Traffic class of each of the eight priorities; unset: not checked."
        ),
        "roce_qos_tsa": Value(
            "list",
            says="Algorithm of each of the eight traffic classes, `strict`, `ets` or `vendor`; together with"
            " `roce_qos_tc_bandwidth` or unset.",
        ),
        "roce_qos_tc_bandwidth": Value(
            "list",
            elements="int",
            says="Per cent for each of the eight traffic classes; 100 over those of `ets`, 0 for the others.",
        ),
        "roce_qos_cable_length": Value(
            "int",
            says="Longest cable of the rails in metres, from which the driver sizes the buffers; unset: not checked.",
        ),
        "roce_qos_prio2buffer": Value(
            "list",
            elements="int",
            says="Receive buffer of each of the eight priorities. From then on the driver sizes none automatically.",
        ),
        "roce_qos_buffer_size": Value(
            "list",
            elements="int",
            says="Bytes of each of the eight receive buffers. From then on the driver sizes none automatically.",
        ),
        "roce_qos_tos": Value("int", says="Default ToS of rdma_cm; unset: `dscp` of `busbar_roce` * 4 + 2."),
        "roce_qos_traffic_class": Value(
            "int", says="Traffic class forced upon every queue pair of the device; -1 for none; unset: not checked."
        ),
        "roce_qos_dcbx": Value(
            "str",
            "",
            choices=OWNERS,
            says="Owner of the port's DCBX: `os` takes it over from the firmware, `firmware` leaves it to the switch;"
            " empty: the kernel, and a port that the firmware owns is reported.",
        ),
        "roce_qos_pause_off": Value("bool", True, says="Switch global pause off if PFC is configured."),
    },
    "nvidia_peermem": {
        "busbar_gpudirect": Value(
            "str",
            "auto",
            choices=("auto", "peermem", "dmabuf", "off"),
            says="How NICs reach the GPUs' memory. `auto`: DMA-BUF with the open GPU kernel modules and kernel 5.12 or"
            " later, else nvidia_peermem; `off` requires none.",
        ),
    },
    "nccl_conf": {
        "busbar_nccl_libraries": Value(
            "list",
            [],
            says="Every `libnccl.so.2` that jobs on the node use, virtual environments included; one that other users"
            " may change is proven as `nobody` (`docs/security.md#on-the-node`).",
            decision=_NCCL,
        ),
        "busbar_nccl_version": Value(
            "str",
            "",
            says="Version to lint against if no library can be listed (jobs bring their own).",
            decision=_NCCL,
        ),
        "busbar_management_interface": Value(
            "str", "", says="Interface for NCCL's bootstrap; else that of the default route."
        ),
        "nccl_conf_path": Value("path", "/etc/nccl.conf", says="The file; NCCL itself reads no other place."),
        "nccl_conf_backup": Value("bool", True, says="Keep a dated copy beside every file that is replaced."),
        "nccl_conf_extra": Value(
            "dict",
            says="The site's own variables, name to value; linted. Unset: those in the file stay; `{}` removes them.",
        ),
        "nccl_conf_accepted": Value(
            "dict",
            {},
            says="Variables that jobs may get from other places than nccl.conf (`nccl_conf.environment` in"
            " `docs/findings.md`): `NAME` or `NAME=VALUE`, to the reason.",
        ),
        "nccl_conf_containers": Value(
            "list",
            [],
            choices=("enroot", "docker", "kubernetes"),
            says="Runtimes that get a file with which their containers see nccl.conf.",
        ),
    },
    "nccl_tests": {
        "nccl_tests_path": Value("path", "/opt/nccl-tests", says="Directory of the build."),
        "nccl_tests_commit": Value(
            "str",
            "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432",
            says="The commit, 40 hex digits; by default that of release 2.19.6. Empty: nothing is checked or built.",
        ),
        "nccl_tests_repository": Value(
            "str", "https://github.com/NVIDIA/nccl-tests.git", says="Repository that git clones if there is no tarball."
        ),
        "nccl_tests_tarball": Value(
            "path", "", says="Archive of the sources on the node, for sites without access to the repository."
        ),
        "nccl_tests_sha256": Value("str", "", says="SHA-256 of the tarball."),
        "nccl_tests_cuda_home": Value(
            "path", "", says="Directory of the CUDA toolkit; empty: the usual places are searched."
        ),
        "nccl_tests_mpi": Value(
            "str",
            "auto",
            choices=("auto", "required", "off"),
            says="Build with MPI if it is installed (`auto`), always (`required`), or never (`off`).",
        ),
        "nccl_tests_mpi_home": Value(
            "path", "", says="Directory of the MPI; empty: mpicc and the usual places are searched."
        ),
        "nccl_tests_build_timeout": Value("int", 1800, says="Seconds for fetching and building."),
        "nccl_tests_distribute": Value(
            "bool",
            False,
            says="`false`: each host builds for itself. `true`: one of several equal hosts builds, and the others get"
            " a copy through the control node, which they run as root: only where root on one of them may as well"
            " be root on all (`docs/security.md`). Hosts are equal in commit, archive, CUDA, NCCL, MPI, GPU"
            " architecture, CPU architecture, OS release, glibc and libstdc++.",
        ),
    },
    "gate": {
        "gate_stages": Value(
            "list",
            choices=("health", "prolog", "epilog"),
            says="When Slurm runs the gate on the node: as `health` (HealthCheckProgram), `prolog`, `epilog`; an empty"
            " list removes the gate's files; unset: they are not judged, and stay (`docs/gate.md`).",
        ),
        "gate_fail": Value(
            "str",
            "open",
            choices=("open", "closed"),
            says="If the gate cannot judge the node (a tool hangs): `open` leaves the node in service,"
            " `closed` takes it out. It is recorded in any case.",
        ),
        "gate_budget": Value("int", 10, says="Seconds for a check, 4 to 45; a Prolog and an Epilog have half of them."),
        "gate_max_share": Value(
            "float",
            0.1,
            says="Maximum share of a partition's nodes that the gate drains at a time, 0 to 1; at least one,"
            " never all. 0: the gate drains none.",
        ),
        "gate_ignore": Value(
            "list", [], says="Checks that keep no node out, such as `nccl_conf.file`; they are recorded."
        ),
        "gate_scontrol": Value("path", "", says="`scontrol` on the nodes, if it is in none of the usual places."),
    },
    "reboot": {
        "reboot_timeout": Value(
            "int",
            1200,
            says="Seconds that a node has to come back from a reboot (only with `busbar_max_disruption: reboot`).",
        ),
        "busbar_reboot_batches": Value(
            "list",
            [1, "10%"],
            elements="raw",
            says="How many nodes are rebooted at once, batch by batch; only from the command line (`-e`).",
        ),
    },
    "drain": {
        "busbar_drain": Value(
            "str",
            "none",
            choices=("none", "slurm"),
            says="With `slurm`, a node is drained before a reboot, and resumed after its checks have passed.",
        ),
        "drain_timeout": Value(
            "int", 0, says="Seconds to wait for the jobs on a node; 0: a node with jobs is not drained."
        ),
        "drain_slurm_host": Value("str", "", says="Host on which `scontrol` works; empty: the node itself."),
        "drain_slurm_node": Value("str", "", says="The node's name in Slurm; empty: its short name in the inventory."),
    },
    "remediate": {
        "busbar_remediate_max_share": Value(
            "float",
            0.05,
            says="Maximum share of `gpu_nodes` that remediation repairs or keeps out of service at once, 0 to 1;"
            " at least one node.",
        ),
        "busbar_remediate_batches": Value(
            "list",
            [1, "10%"],
            elements="raw",
            says="How many nodes are repaired at once, batch by batch; only from the command line (`-e`).",
        ),
        "busbar_remediate_max_attempts": Value(
            "int", 2, says="Repair attempts for the same finding of the same node within the window."
        ),
        "busbar_remediate_window_days": Value(
            "int", 14, says="Days of the window. A finding that returns within it is left to a person."
        ),
        "busbar_remediate_quarantine": Value(
            "bool",
            False,
            says="Drain a node whose fault no role can repair; needs `busbar_drain`.",
        ),
    },
    "perftest": {
        "busbar_verify": Value(
            "bool",
            False,
            says="Let `site.yml` prove the network between idle nodes, too; the same for all of `gpu_nodes`"
            " (`docs/verify.md`).",
        ),
        "busbar_firmware": Value(
            "dict",
            {},
            says="Firmware of the rails' NICs, PSID to version, such as `MT_0000000838: 28.43.8002`; by default that of"
            " most nodes.",
        ),
        "perftest_rounds": Value("int", 1, says="Partners of each node."),
        "perftest_seconds": Value("int", 5, says="Seconds of each bandwidth test, 3 or more."),
        "perftest_timeout": Value(
            "int", 120, says="Seconds for all tests of a pass, the wait for the other end included."
        ),
        "perftest_share": Value(
            "float", 0.9, says="Minimum bandwidth, as a share of what the rail's rate carries, 0 to 1."
        ),
        "perftest_latency": Value(
            "float",
            says="Maximum latency in microseconds; 0: no bar; unset: by link layer and rate (`docs/verify.md`).",
        ),
        "perftest_memory": Value(
            "str",
            "auto",
            choices=("auto", "host"),
            says="Memory of the transfers. `auto`: the GPU's if `ib_write_bw` is built with CUDA.",
        ),
        "perftest_results_path": Value(
            "str",
            "busbar-results/verify",
            says="Directory on the control node for figures and counters, from where the run was started; empty: none.",
        ),
    },
    "ib_fabric": {
        "busbar_fabric_hosts": Value(
            "list",
            [],
            says="Nodes that sweep the InfiniBand planes that they have a port in, by their names in the inventory"
            " (`docs/fabric.md`): two, so that one may be down. Empty: no fabric is swept. The same for all nodes, as"
            " are all values that begin with `busbar_fabric_`.",
        ),
        "busbar_fabric_plan": Value(
            "str",
            "",
            says="Cabling plan: a CSV on the control node, from where the run was started; empty: the plan derived"
            " from the profile's rails (`docs/cabling.md`).",
        ),
        "busbar_fabric_oversubscription": Value(
            "float", 1.0, says="Maximum ratio of a leaf's bandwidth to hosts to its bandwidth to spines."
        ),
        "busbar_fabric_partitions": Value(
            "list",
            [],
            says="Partition keys that every rail has to have, such as `'0x8001'`, where bit 15 means full member;"
            " empty: not judged.",
        ),
        "busbar_fabric_managers": Value(
            "list",
            [],
            says="GUIDs of the ports, or descriptions of the nodes, that may run a subnet manager; empty: any.",
        ),
        "busbar_fabric_routing_engine": Value(
            "str",
            "",
            says="Routing engine that every plane has to be routed by, as opensm's log names it (`ftree`, `updn`);"
            " empty: not judged. It can be read only if a node of `busbar_fabric_hosts` runs the subnet manager.",
        ),
        "busbar_fabric_adaptive_routing": Value(
            "bool",
            says="Whether adaptive routing has to be on, or off, on every switch; unset: not judged. It can be read"
            " only if `ib_fabric_dumps` has ibdiagnet's `db_csv`.",
        ),
        "ib_fabric_devices": Value(
            "list",
            [],
            says="Ports of this node to sweep from, such as `mlx5_0:1`; empty: all that are active. Set for each node"
            " of `busbar_fabric_hosts`.",
        ),
        "ib_fabric_dumps": Value(
            "path",
            "",
            says="Directory on this node with outputs of infiniband-diags or `ibdiagnet2.db_csv`, each folder in it a"
            " plane; they are judged in place of a sweep.",
        ),
        "ib_fabric_seconds": Value("int", 120, says="Seconds for the sweep of one plane."),
        "ib_fabric_interval": Value(
            "int",
            300,
            says="Seconds from one sweep to the next; within them the last sweep is judged, and the run reports that.",
        ),
    },
    "sharp": {
        "busbar_sharp": Value(
            "bool",
            False,
            says="Whether jobs use SHARP, reduction in the InfiniBand switches: `site.yml` then checks what that"
            " needs, and changes nothing (`docs/fabric.md#sharp`).",
        ),
        "sharp_directories": Value(
            "list",
            [],
            says="Directories of `libsharp_coll.so` and of the network plugin on the nodes; empty: those of HPC-X and"
            " NVIDIA's packages.",
        ),
        "sharp_manager": Value(
            "str",
            "",
            says="The aggregation manager `sharp_am`, as a node reaches it over IPoIB: `HOST` or `HOST:PORT` (6126);"
            " empty: a node cannot check it, which is `unknown`.",
        ),
        "sharp_nodes": Value("int", 0, says="Maximum nodes of a job, for the thresholds; 0: all of `gpu_nodes`."),
    },
    "nccl_benchmark": {
        "nccl_benchmark_collectives": Value(
            "list",
            list(BENCHMARK_COLLECTIVES),
            choices=BENCHMARK_COLLECTIVES,
            says="What is measured on each node; an empty list measures nothing.",
        ),
        "nccl_benchmark_min_bytes": Value("str", "1M", says="Smallest message, in bytes or with K, M or G."),
        "nccl_benchmark_max_bytes": Value(
            "str", "8G", says="Largest message; sizes double from the smallest. The bar is for this one."
        ),
        "busbar_model_parameters": Value(
            "str",
            "",
            says="Size of your model, such as `7B`: its gradients in BF16 are measured as one message, too.",
        ),
        "busbar_model_parallelism": Value(
            "dict",
            {},
            keys={key: Value("int") for key in PARALLELISM},
            says="How your model is trained, for the sizes of its messages between nodes: over how many ranks it is"
            " split (`tensor`, `pipeline`, `data`), and `micro_batch`, `sequence`, `hidden` and `layers`. Leave out"
            " what you do not know (`docs/bars.md`).",
        ),
        "busbar_baseline_max_age_days": Value(
            "int",
            30,
            says="Maximum age of a stored result in days: with `--check` an older one is `unknown`.",
        ),
        "busbar_measure_budget": Value(
            "int",
            0,
            says="Node-minutes that `busbar measure` may spend on idle nodes per night (`docs/benchmark.md`); 0: it"
            " measures nothing. The same for all nodes.",
        ),
        "nccl_benchmark_when": Value(
            "str",
            "changed",
            choices=WHEN,
            says="`changed` measures if the stored result is missing, not good or too old, or if driver, NCCL, build,"
            " `nccl.conf`, kernel, firmware or GPUs have changed; else the stored result is judged. `always` measures"
            " in every run, `never` in none.",
        ),
        "nccl_benchmark_iterations": Value("int", 20, says="Measured iterations of each size."),
        "nccl_benchmark_timeout": Value("int", 600, says="Time limit of each program in seconds."),
        "nccl_benchmark_environment": Value(
            "dict",
            {},
            says="Variables for the programs, such as `NCCL_NVLS_ENABLE`; only NCCL's own are logged, and none is"
            " stored.",
            private=True,
        ),
        "nccl_benchmark_results_path": Value(
            "str",
            "busbar-results",
            says="Directory on the control node for results and plots, from where the run was started; empty: none.",
        ),
        "nccl_benchmark_scope": Value(
            "str",
            "node",
            choices=SCOPES,
            says="What is measured besides the node itself: `pair` (disjoint pairs within a leaf), `rail` (each rail"
            " of such pairs alone), `leaf` (all nodes of a leaf), `nvlink_domain` (the trays of an NVLink"
            " domain, over their NVLinks) or `cluster` (all nodes, and how it scales): `docs/benchmark.md`.",
        ),
        "nccl_benchmark_launcher": Value(
            "str",
            "mpirun",
            choices=("mpirun", "srun"),
            says="Launcher of a program on several nodes: Open MPI's `mpirun`, over ssh from the first node to the"
            " others, or Slurm's `srun`.",
        ),
        "nccl_benchmark_launcher_options": Value(
            "list", [], says="More options of the launcher, such as `--mca`; none that choose hosts or counts."
        ),
        "nccl_benchmark_repeats": Value(
            "int", 3, says="How often each program is run between nodes: the median counts, and the spread is judged."
        ),
        "nccl_benchmark_node_repeats": Value(
            "int",
            1,
            says="The same within a node. `busbar benchmark --against` judges only figures of three repeats or more.",
        ),
        "nccl_benchmark_localise": Value(
            "bool",
            True,
            says="If a bar between nodes is missed, search at once for the slow node, rail, rank or leaf"
            " (`docs/repair.md`); `false`: the finding has the command.",
        ),
        "nccl_benchmark_address": Value(
            "str",
            "",
            says="How the launcher reaches this node; empty: its name in the inventory, with `srun` the node's name in"
            " Slurm (`drain_slurm_node`, else the short name).",
        ),
        "busbar_leaf": Value(
            "str",
            "",
            says="Leaf switch, or group of them, of this node: nodes with the same value are tested with each"
            " other first. If no node has a value, all are treated as one leaf.",
        ),
    },
    "drift_timer": {
        "drift_timer_state": Value(
            "str",
            "present",
            choices=("present", "absent"),
            says="`absent` stops the timer and removes both units; the user and the history stay.",
        ),
        "drift_timer_schedule": Value("str", "02:00", says="When `busbar drift` runs, as in systemd.time(7)."),
        "drift_timer_delay": Value("str", "10m", says="Maximum random delay that is added to that time."),
        "drift_timer_user": Value(
            "str",
            "busbar",
            says="User that audits the nodes; created if missing, with the home `/var/lib/busbar-drift`.",
        ),
        "drift_timer_directory": Value(
            "path",
            "",
            says="Working directory of the service: the checkout, or the directory with the site's inventory. An"
            " `ansible.cfg` there is used. Has to be set.",
        ),
        "drift_timer_command": Value(
            "list",
            [],
            says="Command of busbar, with an absolute path, such as `[/usr/bin/python3, -m, busbar]` in a"
            " clone; empty: `busbar` beside the Ansible that runs the role.",
        ),
        "drift_timer_inventory": Value(
            "list", [], says="Inventories, relative to the directory unless absolute. Has to be set."
        ),
        "drift_timer_options": Value(
            "list",
            ["--html", "/var/lib/busbar-drift/drift.html"],
            says="More options of `busbar drift` (`docs/drift.md`).",
        ),
        "drift_timer_keep_days": Value("int", 400, says="Days that runs are stored, 8 or more."),
        "drift_timer_notify": Value(
            "list",
            [],
            says="Program and arguments, such as mail; it gets a run that differs from the previous one, or that"
            " failed, on standard input.",
        ),
        "drift_timer_webhook_file": Value(
            "path", "", says="File with the https address to which such a run is posted."
        ),
        "drift_timer_environment": Value(
            "dict",
            {},
            says="Variables of the service, such as `ANSIBLE_VAULT_PASSWORD_FILE`. No passwords: everybody can read a"
            " unit.",
        ),
        "drift_timer_measure_schedule": Value(
            "str",
            says="When `busbar measure` runs (`docs/benchmark.md`), such as `*-*-* 03..05:00`; empty removes its timer;"
            " unset: one that is there stays.",
        ),
        "drift_timer_measure_options": Value("list", [], says="More options of `busbar measure`."),
    },
}
# They configure the run, and nothing of a node: no file, digest or comparison depends on them.
OF_RUN = frozenset(
    ("busbar_max_disruption", "busbar_findings_path", "busbar_engine", "busbar_engine_overlap", "busbar_task_timeout")
    + ("busbar_accepted", "busbar_role_verdict")
    + ("busbar_audit_first", "busbar_lock_minutes", "busbar_lock_break", "busbar_measure_budget")
    + tuple(name for name in PARTS["remediate"])
    + ("busbar_reboot_batches", "reboot_timeout", "drain_timeout")
    + ("perftest_results_path", "nccl_benchmark_results_path", "nccl_conf_backup")
)
VALUES: dict[str, Value] = {name: value for part in PARTS.values() for name, value in part.items()}


def of_role(role: str) -> dict[str, Value]:
    """Return the values that are defaults and arguments of a role: those that begin with its name."""
    return {name: value for name, value in PARTS.get(role, {}).items() if name.startswith(f"{role}_")}
