# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare the variables of the roles that set up a node; ``site_values.py`` has all of them."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.driver.nvidia_options import INITIATED
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import READ_REQUESTS
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.checks import FLAVOURS as OFED_FLAVOURS

from .site_value import Decision, Value

_NCCL = Decision(
    "variables differ by version, and only a library can prove them; either will do", "a finding, `unknown`"
)


class Platform:
    platform_cross_checks = Value("list", ["nvidia_smi_topo"], choices=("nvidia_smi_topo",))
    "Second sources to compare with sysfs."
    platform_nccl_topo_file = Value("path", "")
    "A file from `NCCL_TOPO_DUMP_FILE`, or the cloud's `NCCL_TOPO_FILE`, on the node; compared with sysfs if it is set."


class Mofed:
    mofed_flavour = Value("str", "doca-ofed", choices=OFED_FLAVOURS)
    "Whose RDMA drivers: `doca-ofed`, `mlnx-ofed` (24.10 and earlier), or `inbox`, those of the distribution."
    mofed_version = Value(
        "str",
        "",
        decision=Decision(
            "the site decides on a release and its key; with `mofed_manage: false` OFED is only checked",
            "a finding, `unknown`",
        ),
    )
    "Release of DOCA (`3.2.1`) or MLNX_OFED (`24.10-2.1.8.0`). Nothing is installed before it is set."
    mofed_package = Value("str", "")
    "Metapackage; empty: `doca-ofed` or `mlnx-ofed-all`, by the flavour."
    mofed_manage = Value("bool", True)
    "With `false` everything is checked and nothing is changed, for hosts whose OFED is installed by other means."
    mofed_repository_url = Value("str", "https://linux.mellanox.com/public/repo")
    "Top of the vendor's repositories, or of a mirror of them."
    mofed_repository_key = Value("str", "")
    """Public key of the repository, armoured, as `lookup('ansible.builtin.file', 'GPG-KEY.asc')` reads it from a file.
    Nothing is installed without it."""
    mofed_archive = Value("str", "")
    "Instead of a repository: path on the control node, or URL, of an archive that contains one."
    mofed_archive_sha256 = Value("str", "")
    "SHA-256 of the archive; an archive with another checksum is not unpacked."
    mofed_archive_repository = Value("str", "DEBS")
    "Path of the repository in the archive, below its one top directory."
    mofed_third_party = Value("list", [], choices=("lustre",))
    "File systems whose RDMA modules the site builds for this OFED itself."


class Iommu:
    iommu_passthrough = Value("bool", True)
    "Require that GPUs and NICs reach each other without translation; `false` requires nothing."


class NicFirmware:
    nic_firmware_settings = Value("dict", {})
    """Flash settings of the rails' NICs, by the names of `mstconfig`, to a number or one of its words, such as
    `{LINK_TYPE: ETH, ROCE_CC_PRIO_MASK: 255}`; without `_P1` for all declared ports (`docs/drivers.md#nic-settings`).
    They have priority over those of the profile."""
    nic_firmware_recommended = Value("bool", False)
    """Also require what is right for every training node on bare metal, if the NIC has it: the fabric's `LINK_TYPE`,
    `PCI_WR_ORDERING` and `ATS_ENABLED` 0; on RoCE `ROCE_CC_PRIO_MASK` 255, and `CNP_DSCP` and `CNP_802P_PRIO` of
    `busbar_roce`."""


class PciePath:
    pcie_path_clear_acs = Value("bool", True)
    """Clear SrcValid, ReqRedir, CmpltRedir and UpstreamFwd of ACS on bridges between GPUs and NICs. `false` requires
    nothing, as on a host that passes its devices to virtual machines."""
    pcie_path_acs_owner = Value("str", "unit", choices=("unit", "kernel"))
    """What sets ACS at boot: a unit of systemd, or the kernel by `pci=config_acs=` (Linux 6.11 and later, after a
    reboot). Beside Data Direct functions only the kernel does it (`docs/profiles.md#data-direct`)."""
    pcie_path_max_read_request = Value("int", -1, choices=(-1, 0, *READ_REQUESTS))
    "Maximum read request of the compute NICs in bytes; 0 requires nothing; -1: that of the profile, or else 4096."
    pcie_path_persist = Value("bool", True)
    "Set both again at every boot."


class HostLimits:
    host_limits_nofile = Value("int", 1048576)
    "Minimum limit on open files."
    host_limits_shm = Value("str", "8G")
    "Minimum size of `/dev/shm`, in bytes or with K, M or G; empty requires nothing."
    host_limits_container_runtimes = Value("list", [], choices=("docker", "containerd", "kubelet"))
    """Container runtimes that the node has. Their limits are written and checked; nothing is restarted
    (`docs/containers.md`)."""
    host_limits_kubernetes_rdma_resources = Value("list", [])
    "Only with `kubelet`: resources that an RDMA device plugin has to provide, such as `rdma/hca_shared_devices_a`."


class NodeHealth:
    node_health_power_limit = Value("int", 0)
    "Power cap of each GPU in watts; 0 for the GPU's own default (`docs/health.md`)."


class NvidiaPeermem:
    busbar_gpudirect = Value("str", "auto", choices=("auto", "peermem", "dmabuf", "off"))
    """How NICs reach the GPUs' memory. `auto`: DMA-BUF with the open GPU kernel modules and kernel 5.12 or later, else
    nvidia_peermem; `off` requires none."""
    busbar_gpu_initiated = Value("list", choices=INITIATED)
    """Traffic that GPUs of jobs start themselves: `gin` (NCCL's GIN, DeepEP 2), `nvshmem`, `deepep` (DeepEP 1, by
    IBGDA). What it needs is checked, and for `deepep` options of the NVIDIA driver are written
    (`docs/plugins.md#gpu-initiated-traffic`). Unset: nothing is judged, and options that are there stay; `[]` removes
    them."""


class NcclConf:
    busbar_nccl_libraries = Value("list", [], decision=_NCCL)
    """Every `libnccl.so.2` that jobs on the node use, virtual environments included; one that other users may change is
    proven as `nobody` (`docs/security.md#on-the-node`)."""
    busbar_nccl_version = Value("str", "", decision=_NCCL)
    "Version to lint against if no library can be listed (jobs bring their own)."
    busbar_management_interface = Value("str", "")
    "Interface for NCCL's bootstrap; else that of the default route."
    busbar_nccl_net_plugin = Value("str")
    """Network plugin that jobs use: `spcx`, `mrc`, `ibext`, `ofi`, `gib` or another name, the path of its library, or
    `none` for NCCL's own networks (`docs/plugins.md`). It is written to nccl.conf; the benchmark reports whether it
    measured with it. Unset: a line that is there stays; empty: no line."""
    nccl_conf_path = Value("path", "/etc/nccl.conf")
    "The file; NCCL itself reads no other place."
    nccl_conf_backup = Value("bool", True)
    "Keep a dated copy beside every file that is replaced."
    nccl_conf_extra = Value("dict")
    "The site's own variables, name to value; linted. Unset: those in the file stay; `{}` removes them."
    nccl_conf_accepted = Value("dict", {})
    """Variables that jobs may get from other places than nccl.conf (`nccl_conf.environment` in `docs/findings.md`):
    `NAME` or `NAME=VALUE`, to the reason."""
    nccl_conf_containers = Value("list", [], choices=("enroot", "docker", "kubernetes"))
    "Runtimes that get a file with which their containers see nccl.conf."


class NcclTests:
    nccl_tests_path = Value("path", "/opt/nccl-tests")
    "Directory of the build."
    nccl_tests_commit = Value("str", "a0b82b2260cf5152b9f8c061bbf7eaf0ba096432")
    "The commit, 40 hex digits; by default that of release 2.19.6. Empty: nothing is checked or built."
    nccl_tests_repository = Value("str", "https://github.com/NVIDIA/nccl-tests.git")
    "Repository that git clones if there is no tarball."
    nccl_tests_tarball = Value("path", "")
    "Archive of the sources on the node, for sites without access to the repository."
    nccl_tests_sha256 = Value("str", "")
    "SHA-256 of the tarball."
    nccl_tests_cuda_home = Value("path", "")
    "Directory of the CUDA toolkit; empty: the usual places are searched."
    nccl_tests_mpi = Value("str", "auto", choices=("auto", "required", "off"))
    "Build with MPI if it is installed (`auto`), always (`required`), or never (`off`)."
    nccl_tests_mpi_home = Value("path", "")
    "Directory of the MPI; empty: mpicc and the usual places are searched."
    nccl_tests_build_timeout = Value("int", 1800)
    "Seconds for fetching and building."


class Watch:
    watch_enabled = Value("bool", False)
    """Whether `busbar watch` runs on the node as a service; with `false` its program and unit are removed
    (`docs/watch.md`)."""
    watch_patience = Value("int", 300)
    "Seconds without a working GPU after which a job is reported as stalled; longer than the longest checkpoint."
    watch_interval = Value("int", 5)
    "Seconds between two samples."
    watch_window = Value("int", 60)
    "Seconds in which a link that comes back has flapped; after them it is reported as down."
    watch_inspector = Value("path", "")
    """Directory on the node in which NCCL's Inspector writes (`NCCL_INSPECTOR_DUMP_DIR` of the jobs); read when a job
    stalls. Empty: none."""


class Gate:
    gate_stages = Value("list", choices=("health", "prolog", "epilog"))
    """When Slurm runs the gate on the node: as `health` (HealthCheckProgram), `prolog`, `epilog`; an empty list removes
    the gate's files; unset: they are not judged, and stay (`docs/gate.md`)."""
    gate_fail = Value("str", "open", choices=("open", "closed"))
    """If the gate cannot judge the node (a tool hangs): `open` leaves the node in service, `closed` takes it out. It is
    recorded in any case."""
    gate_budget = Value("int", 10)
    "Seconds for a check, 4 to 45; a Prolog and an Epilog have half of them."
    gate_max_share = Value("float", 0.1)
    """Maximum share of a partition's nodes that the gate drains at a time, 0 to 1; at least one, never all. 0: the gate
    drains none."""
    gate_ignore = Value("list", [])
    "Checks that keep no node out, such as `nccl_conf.file`; they are recorded."
    gate_nhc = Value("bool", False)
    """Whether `/usr/sbin/nhc` runs the gate's health check, for audits that look for a program of that name; needs
    `health` in `gate_stages`. Another program's file of that name is left alone, and reported."""
    gate_scontrol = Value("path", "")
    "`scontrol` on the nodes, if it is in none of the usual places."
