# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare the variables of the roles that set up and test the network; ``site_values.py`` has all of them."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import ADDRESS_FAMILIES
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import policy as multirail
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.checks import WHEN
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import OWNERS, TRUSTS

from .busbw_bars import COLLECTIVES, SCOPES
from .site_value import Decision, Value

PARALLELISM = ("tensor", "pipeline", "data", "micro_batch", "sequence", "hidden", "layers")


# A default of None, or an empty text or mapping, of roce_qos: not requested, or derived from busbar_roce.
class Lldp:
    busbar_lldp = Value("str", "auto", choices=("auto", "none", "required"))
    """RoCE fabrics only: `auto` judges the LLDP data that the rails receive, and prints a note if there is none;
    `required` requires an agent and a neighbour of every rail; `none` requires nothing (`docs/cabling.md#lldp`)."""
    busbar_lldp_dcbx = Value("bool", False)
    "Whether a switch port that sends no DCBX, and so does not announce its PFC and DSCP map, is a finding."


class Mtu:
    busbar_mtu = Value(
        "int", decision=Decision("RoCE: it has to match the switches", "a note; the rails' MTU is not judged")
    )
    """RoCE fabrics only: MTU of the rails in bytes, 1280 to 65535, now and after a boot; unset: not checked. RDMA sends
    4096 bytes at once from 4192 on (`docs/roce.md`)."""


class Multirail:
    multirail_policy = Value(
        "str",
        "",
        choices=("", *multirail.POLICIES, "custom"),
        decision=Decision(
            "RoCE with several rails: sites route rails differently; `none` sets nothing",
            "a note; ARP and routes are not judged",
        ),
    )
    """ARP and source routing per Ethernet rail: `oci`, `nvidia` or `custom` values of arp_ignore, arp_announce and
    rp_filter, `nvidia` with a routing table for each rail (`docs/roce.md`); `none` removes Busbar's files for it;
    empty: not judged, and they stay."""
    multirail_values = Value("dict", keys={key: Value("int") for key in multirail.KEYS})
    """Only with `custom`: `arp_ignore`, `arp_announce`, `rp_filter`, `accept_local`, each with a number; unset:
    Busbar's file stays."""
    multirail_source_routing = Value("bool")
    "Only with `custom`: a routing table for each rail, and a rule for the rail's address; unset: Busbar's files stay."
    multirail_gateway = Value("str", "", choices=("", *multirail.GATEWAYS))
    """Default gateway in each rail's table: the `first` or the `last` address of the rail's subnet, or `none`; empty
    leaves what is there."""


class RoceQos:
    busbar_roce = Value(
        "dict",
        keys={
            "dscp": Value("int"),
            "priority": Value("int"),
            "cnp_dscp": Value("int"),
            "cnp_priority": Value("int"),
            "address_family": Value("str", choices=ADDRESS_FAMILIES),
        },
        decision=Decision(
            "RoCE: DSCP, priority and PFC have to match the switches", "a note; PFC, ECN and DSCP are not judged"
        ),
    )
    """RoCE fabrics only: `dscp` (0 to 63) and `priority` (0 to 7; else `dscp` / 8) of the lossless queue, `cnp_dscp`
    (48) and `cnp_priority` (6) of congestion notifications, `address_family` of the rails (`ipv4`, `ipv6`):
    `docs/roce.md`. Unset: not judged, Busbar's files stay; `{}` removes them."""
    roce_qos_trust = Value("str", "", choices=("", *TRUSTS))
    "What the NIC takes the priority from; empty: `dscp` if `busbar_roce` has one."
    roce_qos_dscp2prio = Value("dict", {})
    "Entries of the map beside those of `busbar_roce`, DSCP to priority. Entries that are not named stay."
    roce_qos_pfc = Value("list", elements="int")
    "Priorities with PFC, all others without; `[]` for a lossy fabric; unset: that of `busbar_roce`."
    roce_qos_ecn = Value("list", elements="int")
    "Priorities with ECN (marking and reaction), others stay; `[]`: none; unset: that of `busbar_roce`."
    roce_qos_prio2tc = Value("list", elements="int")
    "Traffic class of each of the eight priorities; unset: not checked."
    roce_qos_tsa = Value("list")
    """Algorithm of each of the eight traffic classes, `strict`, `ets` or `vendor`; together with
    `roce_qos_tc_bandwidth` or unset."""
    roce_qos_tc_bandwidth = Value("list", elements="int")
    "Per cent for each of the eight traffic classes; 100 over those of `ets`, 0 for the others."
    roce_qos_cable_length = Value("int")
    "Longest cable of the rails in metres, from which the driver sizes the buffers; unset: not checked."
    roce_qos_prio2buffer = Value("list", elements="int")
    "Receive buffer of each of the eight priorities. From then on the driver sizes none automatically."
    roce_qos_buffer_size = Value("list", elements="int")
    "Bytes of each of the eight receive buffers. From then on the driver sizes none automatically."
    roce_qos_tos = Value("int")
    "Default ToS of rdma_cm; unset: `dscp` of `busbar_roce` * 4 + 2."
    roce_qos_traffic_class = Value("int")
    "Traffic class forced upon every queue pair of the device; -1 for none; unset: not checked."
    roce_qos_dcbx = Value("str", "", choices=OWNERS)
    """Owner of the port's DCBX: `os` takes it over from the firmware, `firmware` leaves it to the switch; empty: the
    kernel, and a port that the firmware owns is reported."""
    roce_qos_pause_off = Value("bool", True)
    "Switch global pause off if PFC is configured."


class Perftest:
    busbar_verify = Value("bool", False)
    "Let `site.yml` prove the network between idle nodes, too; the same for all of `gpu_nodes` (`docs/verify.md`)."
    busbar_firmware = Value("dict", {})
    "Firmware of the rails' NICs, PSID to version, such as `MT_0000000838: 28.43.8002`; by default that of most nodes."
    perftest_rounds = Value("int", 1)
    "Partners of each node."
    perftest_seconds = Value("int", 5)
    "Seconds of each bandwidth test, 3 or more."
    perftest_timeout = Value("int", 120)
    "Seconds for all tests of a pass, the wait for the other end included."
    perftest_share = Value("float", 0.9)
    "Minimum bandwidth, as a share of what the rail's rate carries, 0 to 1."
    perftest_latency = Value("float")
    "Maximum latency in microseconds; 0: no bar; unset: by link layer and rate (`docs/verify.md`)."
    perftest_memory = Value("str", "auto", choices=("auto", "host"))
    "Memory of the transfers. `auto`: the GPU's if `ib_write_bw` is built with CUDA."
    perftest_results_path = Value("str", "busbar-results/verify")
    "Directory on the control node for figures and counters, from where the run was started; empty: none."


class IbFabric:
    busbar_fabric_hosts = Value("list", [])
    """Nodes that sweep the InfiniBand planes that they have a port in, by their names in the inventory
    (`docs/fabric.md`): two, so that one may be down. Empty: no fabric is swept. The same for all nodes, as are all
    values that begin with `busbar_fabric_`."""
    busbar_fabric_plan = Value("str", "")
    """Cabling plan: a CSV on the control node, from where the run was started; empty: the plan derived from the
    profile's rails (`docs/cabling.md`)."""
    busbar_fabric_oversubscription = Value("float", 1.0)
    "Maximum ratio of a leaf's bandwidth to hosts to its bandwidth to spines."
    busbar_fabric_partitions = Value("list", [])
    "Partition keys that every rail has to have, such as `'0x8001'`, where bit 15 means full member; empty: not judged."
    busbar_fabric_managers = Value("list", [])
    "GUIDs of the ports, or descriptions of the nodes, that may run a subnet manager; empty: any."
    busbar_fabric_routing_engine = Value("str", "")
    """Routing engine that every plane has to be routed by, as opensm's log names it (`ftree`, `updn`); empty: not
    judged. It can be read only if a node of `busbar_fabric_hosts` runs the subnet manager."""
    busbar_fabric_adaptive_routing = Value("bool")
    """Whether adaptive routing has to be on, or off, on every switch; unset: not judged. It can be read only if
    `ib_fabric_dumps` has ibdiagnet's `db_csv`."""
    ib_fabric_devices = Value("list", [])
    """Ports of this node to sweep from, such as `mlx5_0:1`; empty: all that are active. Set for each node of
    `busbar_fabric_hosts`."""
    ib_fabric_dumps = Value("path", "")
    """Directory on this node with outputs of infiniband-diags or `ibdiagnet2.db_csv`, each folder in it a plane; they
    are judged in place of a sweep."""
    ib_fabric_seconds = Value("int", 120)
    "Seconds for the sweep of one plane."
    ib_fabric_interval = Value("int", 300)
    "Seconds from one sweep to the next; within them the last sweep is judged, and the run reports that."


class Sharp:
    busbar_sharp = Value("bool", False)
    """Whether jobs use SHARP, reduction in the InfiniBand switches: `site.yml` then checks what that needs, and changes
    nothing (`docs/fabric.md#sharp`)."""
    sharp_directories = Value("list", [])
    """Directories of `libsharp_coll.so` and of the network plugin on the nodes; empty: those of HPC-X and NVIDIA's
    packages."""
    sharp_manager = Value("str", "")
    """The aggregation manager `sharp_am`, as a node reaches it over IPoIB: `HOST` or `HOST:PORT` (6126); empty: a node
    cannot check it, which is `unknown`."""
    sharp_nodes = Value("int", 0)
    "Maximum nodes of a job, for the thresholds; 0: all of `gpu_nodes`."


class NcclBenchmark:
    nccl_benchmark_collectives = Value("list", list(COLLECTIVES), choices=COLLECTIVES)
    "What is measured on each node; an empty list measures nothing."
    nccl_benchmark_min_bytes = Value("str", "1M")
    "Smallest message, in bytes or with K, M or G."
    nccl_benchmark_max_bytes = Value("str", "8G")
    "Largest message; sizes double from the smallest. The bar is for this one."
    busbar_model_parameters = Value("str", "")
    "Size of your model, such as `7B`: its gradients in BF16 are measured as one message, too."
    busbar_model_parallelism = Value("dict", {}, keys={key: Value("int") for key in PARALLELISM})
    """How your model is trained, for the sizes of its messages between nodes: over how many ranks it is split
    (`tensor`, `pipeline`, `data`), and `micro_batch`, `sequence`, `hidden` and `layers`. Leave out what you do not know
    (`docs/bars.md`)."""
    busbar_baseline_max_age_days = Value("int", 30)
    "Maximum age of a stored result in days: with `--check` an older one is `unknown`."
    busbar_measure_budget = Value("int", 0)
    """Node-minutes that `busbar measure` may spend on idle nodes per night (`docs/benchmark.md`); 0: it measures
    nothing. The same for all nodes."""
    nccl_benchmark_when = Value("str", "changed", choices=WHEN)
    """`changed` measures if the stored result is missing, not good or too old, or if driver, NCCL, build, `nccl.conf`,
    kernel, firmware or GPUs have changed; else the stored result is judged. `always` measures in every run, `never` in
    none."""
    nccl_benchmark_iterations = Value("int", 20)
    "Measured iterations of each size."
    nccl_benchmark_timeout = Value("int", 600)
    "Time limit of each program in seconds."
    nccl_benchmark_environment = Value("dict", {}, private=True)
    "Variables for the programs, such as `NCCL_NVLS_ENABLE`; only NCCL's own are logged, and none is stored."
    nccl_benchmark_results_path = Value("str", "busbar-results")
    "Directory on the control node for results and plots, from where the run was started; empty: none."
    nccl_benchmark_scope = Value("str", "node", choices=SCOPES)
    """What is measured besides the node itself: `pair` (disjoint pairs within a leaf), `rail` (each rail of such pairs
    alone), `leaf` (all nodes of a leaf), `nvlink_domain` (the trays of an NVLink domain, over their NVLinks) or
    `cluster` (all nodes, and how it scales): `docs/benchmark.md`."""
    nccl_benchmark_launcher = Value("str", "mpirun", choices=("mpirun", "srun"))
    """Launcher of a program on several nodes: Open MPI's `mpirun`, over ssh from the first node to the others, or
    Slurm's `srun`."""
    nccl_benchmark_launcher_options = Value("list", [])
    "More options of the launcher, such as `--mca`; none that choose hosts or counts."
    nccl_benchmark_repeats = Value("int", 3)
    "How often each program is run between nodes: the median counts, and the spread is judged."
    nccl_benchmark_qps = Value("list", [], elements="int")
    """Queue pairs per connection (`NCCL_IB_QPS_PER_CONNECTION`) with which all-reduce is measured, too, in the scopes
    `leaf` and `cluster`, such as 1, 2 and 4. The number that jobs use is compared with the best."""
    nccl_benchmark_node_repeats = Value("int", 1)
    "The same within a node. `busbar benchmark --against` judges only figures of three repeats or more."
    nccl_benchmark_localise = Value("bool", True)
    """If a bar between nodes is missed, search at once for the slow node, rail, rank or leaf (`docs/repair.md`);
    `false`: the finding has the command."""
    nccl_benchmark_address = Value("str", "")
    """How the launcher reaches this node; empty: its name in the inventory, with `srun` the node's name in Slurm
    (`drain_slurm_node`, else the short name)."""
    busbar_leaf = Value("str", "")
    """Leaf switch, or group of them, of this node: nodes with the same value are tested with each other first. If no
    node has a value, all are treated as one leaf."""
