# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which variables NCCL reads, from which version to which, and which ones it never read.

From the sources of 2.3.5 to 2.30.7 and the binaries of 2.31.2 and 2.32.3. An installed library says for itself what
it reads (library); this table adds what it cannot say: kinds, history, successors and the names of plugins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional, Tuple

from ..core.host import ParseError

Version = Tuple[int, int, int]

# The table knows the releases in this range and nothing about others.
OLDEST = (2, 3, 5)
NEWEST = (2, 32, 3)


@dataclass(frozen=True)
class Variable:
    """One variable.

    kind: "int" (NCCL's strtoll, base 0), "bool", "float", "string", "level" (a path type such as PXB), or "unknown"
        (seen only in a binary).
    since: first release that reads it.   removed: first release that does not; None while it is read.
        Both None for a variable that is not the library's.
    reader: "library", or the program that reads it.
    remark: the successor of a removed variable, or what else to know; may be empty.
    """

    name: str
    kind: str
    since: Optional[Version]
    removed: Optional[Version]
    reader: str
    remark: str


SHARP_PLUGIN = "nccl-rdma-sharp-plugins"
OFI_PLUGIN = "aws-ofi-nccl"
NCCL_TESTS = "nccl-tests"

GOOGLE_PLUGIN = "Google's network plugin (TCPX, FasTrak, gIB)"
BUILD = "builds and scripts"

# Variables of plugins and of the libraries that they bring along. The first prefix that fits decides.
_PLUGIN_PREFIXES = (
    ("OFI_NCCL_", OFI_PLUGIN),
    ("FI_", OFI_PLUGIN),
    ("SHARP_COLL_", SHARP_PLUGIN),
    ("UCX_", SHARP_PLUGIN),
    *((prefix, GOOGLE_PLUGIN) for prefix in ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX", "NCCL_SHIMNET_", "NCCL_GIB_")),
    *((name, GOOGLE_PLUGIN) for name in ("NCCL_DYNAMIC_CHUNK_SIZE", "NCCL_USE_SNAP")),
    ("NCCL_TUNER_CONFIG_", "tuner plugins"),
    ("NCCL_INSPECTOR_", "NCCL Inspector"),
    ("NCCL_PROFILE_", "profiler plugins"),
    ("NCCL_SPCX_", "the Spectrum-X plugin"),
    ("NCCL_CTRAN_", "NCCLX"),
)
# Names by which builds and scripts call NCCL's version and places; no release reads one (NCCL_CUDA_PATH has a row).
_BUILD = re.compile(
    "NCCL_(?:[A-Z0-9_]+_)?(?:VERSION|VER|HOME|ROOT|ROOT_DIR|DIR|PATH|PREFIX|INCLUDE|INC|LIBS?|LIBRARY|LIBRARIES|STATIC|REPO"
    "|UR[IL]|BRANCH|TAG|COMMIT|REF|PKG|PACKAGE|SRC|BUILD|BIN|IMAGE|CONTAINER|CHECKSUM|SHA256)|NCCL_TESTS_[A-Z0-9_]+"
)

# PyTorch's old names; it reads them with a warning, before NCCL reads its files (ProcessGroupNCCL.hpp).
PYTORCH = ("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")

# Names that spread by copying and that no release, binary or SHARP plugin reads: what to do instead.
NEVER: Dict[str, str] = {
    "NCCL_ALLREDUCE_ALGO": "From 2.24 on NCCL_ALGO takes a list for one function: NCCL_ALGO=allreduce:Ring.",
    "NCCL_IB_RELAXED_ORDERING": "The variable is called NCCL_IB_PCI_RELAXED_ORDERING; its default is automatic.",
    "NCCL_IB_SHARP_ENABLE": "SHARP is switched on by NCCL_COLLNET_ENABLE=1 and a network plugin that supports it.",
    "NCCL_MAX_RINGS": "Channels are limited by NCCL_MAX_CTAS (2.17 and later).",
    "NCCL_NCHANNELS_PER_NET": "The variable is called NCCL_NCHANNELS_PER_NET_PEER.",
    "NCCL_NCHUNKS_COARSE": "There is nothing like it: remove the line.",
    "NCCL_SHARP_CAPABLE": "There is nothing like it: remove the line.",
    "NCCL_SHARP_ENABLE": "SHARP is switched on by NCCL_COLLNET_ENABLE=1 and a network plugin that supports it; "
    "the plugin's NCCL_SHARP_DISABLE=1 switches it off.",
    "NCCL_TIMEOUT": "NCCL has no such limit: set the timeout where the job calls init_process_group.",
}

_REMARKS: Dict[str, str] = {
    "NCCL_AGG_ALLOC_MODE": "Remove the line.",
    "NCCL_AGG_CHANNEL_SIZE": "Remove the line.",
    "NCCL_CHECKS_DISABLE": "Checks are off unless NCCL_CHECK_POINTERS=1: remove the line.",
    "NCCL_CREATE_THREAD_CONTEXT": "Remove the line.",
    "NCCL_CUDA_PATH": "The driver library is found by the loader: remove the line.",
    "NCCL_GDRCOPY_TAIL_ENABLE": "Remove the line.",
    "NCCL_GRAPH": "Use NCCL_GRAPH_FILE.",
    "NCCL_IBEXT_DISABLE": "It stops the plugin's IBext transport, which NCCL_IB_DISABLE does not.",
    "NCCL_IB_CUDA_SUPPORT": "Use NCCL_NET_GDR_LEVEL, or leave GPUDirect to NCCL.",
    "NCCL_IB_GDR_LEVEL": "Use NCCL_NET_GDR_LEVEL, or leave GPUDirect to NCCL.",
    "NCCL_LL_THRESHOLD": "NCCL chooses the protocol itself: remove the line.",
    "NCCL_MNNVL": "Use NCCL_MNNVL_ENABLE.",
    "NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS": "Use NCCL_ALLOC_P2P_NET_LL_BUFFERS.",
    "NCCL_PROXY_PROFILE": "Use a profiler plugin, NCCL_PROFILER_PLUGIN.",
    "NCCL_RINGS": "Use NCCL_GRAPH_FILE.",
    "NCCL_SHARED_BUFF_COUNT": "Use NCCL_NET_SHARED_BUFFERS.",
    "NCCL_SHARP_DISABLE": "The plugin compares with the text 1.",
    "NCCL_SINGLE_RING_THRESHOLD": "NCCL chooses the algorithm itself: remove the line.",
    "NCCL_THREAD_THRESHOLD": "Use NCCL_THREAD_THRESHOLDS.",
    "NCCL_TREE_THRESHOLD": "NCCL chooses the algorithm itself: remove the line.",
    "NCCL_WORK_FIFO_DEPTH": "Use NCCL_WORK_FIFO_BYTES.",
}

# name kind since, and removed where it is not read any more
_LIBRARY = """
NCCL_AGG_ALLOC_MODE string 2.10.3 2.13.4
NCCL_AGG_CHANNEL_SIZE int 2.10.3 2.20.3
NCCL_ALGO string 2.5.6
NCCL_ALLGATHERV_ENABLE int 2.29.2
NCCL_ALLOC_P2P_NET_LL_BUFFERS int 2.16.5
NCCL_BUFFSIZE int 2.3.5
NCCL_CE_CHUNK_SIZE unknown 2.32.3
NCCL_CE_COLL_AG_MULTICAST_THRESHOLD unknown 2.31.2
NCCL_CE_INTRA_GPU_MEMCPY_ENABLE unknown 2.32.3
NCCL_CFT_ENABLE unknown 2.31.2
NCCL_CGA_CLUSTER_SIZE int 2.15.1
NCCL_CHECKS_DISABLE int 2.0.5 2.3.5
NCCL_CHECK_MODE string 2.29.7
NCCL_CHECK_POINTERS int 2.3.5
NCCL_CHUNK_SIZE int 2.12.7
NCCL_COLLNET_ENABLE int 2.6.4
NCCL_COLLNET_NODE_THRESHOLD int 2.9.9
NCCL_COMM_BLOCKING int 2.14.3
NCCL_COMM_ID string 2.3.5
NCCL_COMM_SHRINK_SHARE_RESOURCES int 2.27.3
NCCL_COMM_SPLIT_SHARE_RESOURCES int 2.18.1
NCCL_CONF_FILE string 2.23.4
NCCL_CONNECT_ROUND_MAX_PEERS int 2.19.4
NCCL_CREATE_THREAD_CONTEXT int 2.13.4 2.30.7
NCCL_CROSS_NIC int 2.5.6
NCCL_CTA_POLICY string 2.27.3
NCCL_CUDA_PATH string 2.13.4 2.21.5
NCCL_CUMEM_ENABLE int 2.18.1
NCCL_CUMEM_HOST_ENABLE int 2.23.4
NCCL_DEBUG string 2.3.5
NCCL_DEBUG_FILE string 2.3.5
NCCL_DEBUG_LEVELS string 2.32.3
NCCL_DEBUG_SUBSYS string 2.3.5
NCCL_DEBUG_TIMESTAMP_FORMAT string 2.26.2
NCCL_DEBUG_TIMESTAMP_LEVELS string 2.26.2
NCCL_DEV_API_JIT int 2.30.7
NCCL_DIAGNOSTICS_ECC_THRESHOLD unknown 2.31.2
NCCL_DIAGNOSTICS_IB_BW_TIMEOUT unknown 2.32.3
NCCL_DISABLE_MEM_MANAGER int 2.29.7
NCCL_DMABUF_ENABLE int 2.13.4
NCCL_ELASTIC_BUFFER_REGISTER int 2.30.3
NCCL_ENABLE_VERSION_CHECK int 2.29.2
NCCL_ENQUEUE_REARCH_ENABLE unknown 2.31.2
NCCL_ENV_PLUGIN string 2.28.7
NCCL_GDAKI_FORCE_MCST unknown 2.32.3
NCCL_GDAKI_USE_RELIABLE_DB int 2.29.7
NCCL_GDRCOPY_ENABLE int 2.9.6
NCCL_GDRCOPY_FIFO_ENABLE int 2.9.6
NCCL_GDRCOPY_FLUSH_ENABLE int 2.9.6
NCCL_GDRCOPY_SYNC_ENABLE int 2.12.7
NCCL_GDRCOPY_TAIL_ENABLE int 2.9.6 2.12.7
NCCL_GDRCOPY_USE_INTERNAL_DMABUF unknown 2.31.2
NCCL_GDR_FLUSH_DISABLE int 2.3.5
NCCL_GIN_COUNTER_POOL_SIZE int 2.28.7 2.30.3
NCCL_GIN_ENABLE int 2.28.7
NCCL_GIN_ERROR_QUERY_SEC int 2.28.7
NCCL_GIN_EXCLUSIVE_CONTEXTS int 2.29.7 2.30.3
NCCL_GIN_GDAKI_LAG_AWARE_DISABLE unknown 2.32.3
NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC int 2.30.3
NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC int 2.30.3
NCCL_GIN_GDAKI_NIC_HANDLER int 2.28.7
NCCL_GIN_GDAKI_QP_DEPTH int 2.28.7
NCCL_GIN_IB_OOO_OPT unknown 2.31.2
NCCL_GIN_IB_TC int 2.30.7
NCCL_GIN_NCONNECTIONS int 2.29.7
NCCL_GIN_NCONTEXTS int 2.28.7 2.30.3
NCCL_GIN_PLUGIN string 2.29.7
NCCL_GIN_PLUGIN_REF_COUNT int 2.29.7
NCCL_GIN_PROXY_NTHREADS unknown 2.31.2
NCCL_GIN_PROXY_POLL_BATCH unknown 2.31.2
NCCL_GIN_PROXY_QUEUE_SIZE int 2.28.7
NCCL_GIN_SIGNAL_POOL_SIZE int 2.28.7 2.30.3
NCCL_GIN_TYPE int 2.28.7
NCCL_GRAPH string 2.5.6 2.6.4
NCCL_GRAPH_DUMP_FILE string 2.6.4
NCCL_GRAPH_DUMP_FILE_RANK int 2.6.4
NCCL_GRAPH_FILE string 2.6.4
NCCL_GRAPH_HELPER_DISABLE int 2.11.4
NCCL_GRAPH_MIXING_SUPPORT int 2.13.4
NCCL_GRAPH_REGISTER int 2.11.4
NCCL_GRAPH_STREAM_ORDERING int 2.30.7
NCCL_GROUP_CUDA_STREAM int 2.3.5
NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE unknown 2.32.3
NCCL_HIER_CE_COLL_NUM_CTX unknown 2.31.2
NCCL_HOSTID string 2.5.6
NCCL_IBVERBS_LIB string 2.30.3
NCCL_IB_ADAPTIVE_ROUTING int 2.16.2
NCCL_IB_ADDR_FAMILY string 2.21.5
NCCL_IB_ADDR_RANGE string 2.21.5
NCCL_IB_AR_THRESHOLD int 2.6.4
NCCL_IB_CUDA_SUPPORT int 2.3.5 2.4.2
NCCL_IB_DATA_DIRECT int 2.27.3
NCCL_IB_DEVICE_PCI_ORDER int 2.29.7
NCCL_IB_DISABLE int 2.3.5
NCCL_IB_ECE_ENABLE int 2.23.4
NCCL_IB_EVENT_BASED_LB unknown 2.31.2
NCCL_IB_EVENT_BASED_LB_REMOTE unknown 2.31.2
NCCL_IB_FIFO_TC int 2.22.3
NCCL_IB_GDR_LEVEL int 2.3.5 2.4.2
NCCL_IB_GID_INDEX int 2.3.5
NCCL_IB_HCA string 2.3.5
NCCL_IB_MERGE_NICS int 2.20.3
NCCL_IB_MERGE_VFS int 2.18.1
NCCL_IB_MQP_RETRY_ALL int 2.24.3
NCCL_IB_MQP_RETRY_CNT int 2.24.3
NCCL_IB_MQP_RETRY_SLEEP_MSEC int 2.24.3
NCCL_IB_OOO_RQ int 2.30.3
NCCL_IB_PCI_RELAXED_ORDERING int 2.12.7
NCCL_IB_PKEY int 2.8.3
NCCL_IB_PKEY_VALUE unknown 2.31.2
NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS int 2.29.7
NCCL_IB_QPS_PER_CONNECTION int 2.10.3
NCCL_IB_QUERY_PORT_SPEED int 2.30.7
NCCL_IB_RAIL_POLICY unknown 2.32.3
NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME int 2.29.7
NCCL_IB_RESILIENCY_PORT_FAILOVER int 2.29.7
NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS int 2.29.7
NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY int 2.29.7
NCCL_IB_RESILIENCY_PORT_RECOVERY int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX int 2.30.3
NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY int 2.30.3
NCCL_IB_RETRY_CNT int 2.3.5
NCCL_IB_RETURN_ASYNC_EVENTS int 2.23.4
NCCL_IB_ROCE_VERSION_NUM int 2.21.5
NCCL_IB_ROUTABLE_FLID_GID_INDEX int 2.22.3
NCCL_IB_SL int 2.3.5
NCCL_IB_SORT_MERGE_NICS unknown 2.32.3
NCCL_IB_SPLIT_DATA_ON_QPS int 2.18.1
NCCL_IB_SUBNET_AWARE_ROUTING int 2.30.7
NCCL_IB_SUBNET_PREFIX_LEN int 2.30.7
NCCL_IB_TC int 2.3.5
NCCL_IB_TIMEOUT int 2.3.5
NCCL_IB_USE_INLINE int 2.8.3
NCCL_IB_WARN_RAIL_LOCAL int 2.24.3
NCCL_IB_WQE_LATENCY_REPORT unknown 2.31.2
NCCL_IB_WQE_LATENCY_THRESHOLD_NS unknown 2.31.2
NCCL_IGNORE_COLLNET_MISMATCH int 2.30.3
NCCL_IGNORE_CPU_AFFINITY int 2.4.6
NCCL_IGNORE_DISABLED_P2P int 2.12.7
NCCL_IGNORE_NET_MISMATCH int 2.30.3
NCCL_IPC_USE_ABSTRACT_SOCKET int 2.29.2
NCCL_L1_SHARED_MEMORY_CARVEOUT int 2.12.10
NCCL_LAUNCH_MODE string 2.3.5
NCCL_LAUNCH_ORDER_IMPLICIT int 2.26.2
NCCL_LAUNCH_RACE_FATAL int 2.26.2
NCCL_LEGACY_CUDA_REGISTER int 2.24.3
NCCL_LL128_BUFFSIZE int 2.7.3
NCCL_LL128_C2C int 2.27.3
NCCL_LL128_NTHREADS int 2.5.6
NCCL_LL_BUFFSIZE int 2.7.3
NCCL_LL_THRESHOLD int 2.3.5 2.5.6
NCCL_LOCAL_REGISTER int 2.19.1
NCCL_LSA_TEAM_SIZE int 2.29.7
NCCL_MAX_CTAS int 2.17.1
NCCL_MAX_NCHANNELS int 2.5.6
NCCL_MAX_NRINGS int 2.3.5
NCCL_MAX_P2P_NCHANNELS int 2.7.3
NCCL_MEM_SYNC_DOMAIN int 2.16.2
NCCL_MIN_CTAS int 2.17.1
NCCL_MIN_NCHANNELS int 2.5.6
NCCL_MIN_NRINGS int 2.3.5
NCCL_MIN_P2P_NCHANNELS int 2.7.3
NCCL_MLOPART_RDMA_ENABLE int 2.30.7 2.32.3
NCCL_MNNVL int 2.20.3 2.21.5
NCCL_MNNVL_CLIQUE_ID int 2.23.4
NCCL_MNNVL_CROSS_CLIQUE int 2.30.3
NCCL_MNNVL_ENABLE int 2.21.5
NCCL_MNNVL_RAIL_PER_HOST int 2.28.7
NCCL_MNNVL_SCATTER_NETS_ENABLE int 2.27.5
NCCL_MNNVL_UUID int 2.25.1
NCCL_MULTI_RANK_GPU_ENABLE int 2.30.3
NCCL_MULTI_SEGMENT_REGISTER int 2.29.2
NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS int 2.14.3 2.16.5
NCCL_NCHANNELS_PER_NET_PEER int 2.12.7
NCCL_NET string 2.10.3
NCCL_NETDEVS_POLICY string 2.28.3
NCCL_NET_DISABLE_INTRA int 2.12.7
NCCL_NET_FORCE_FLUSH int 2.15.1
NCCL_NET_FORCE_MERGE string 2.24.3
NCCL_NET_GDR_C2C int 2.26.2
NCCL_NET_GDR_LEVEL level 2.4.2
NCCL_NET_GDR_MLOPART int 2.30.7 2.32.3
NCCL_NET_GDR_READ int 2.3.5
NCCL_NET_MERGE_LEVEL string 2.24.3
NCCL_NET_MERGE_POLICY string 2.30.7
NCCL_NET_OPTIONAL_RECV_COMPLETION int 2.24.3
NCCL_NET_OVERHEAD int 2.18.1
NCCL_NET_PLUGIN string 2.11.4
NCCL_NET_PLUGIN_REF_COUNT int 2.26.2
NCCL_NET_SHARED_BUFFERS int 2.8.3
NCCL_NET_SHARED_COMMS int 2.12.7
NCCL_NO_CACHE string 2.29.7
NCCL_NSOCKS_PERTHREAD int 2.4.8
NCCL_NTHREADS int 2.3.5
NCCL_NUM_RMA_CTX int 2.29.2
NCCL_NUM_RMA_INT_CTX unknown 2.31.2
NCCL_NVB_DISABLE int 2.9.9
NCCL_NVB_PRECONNECT int 2.9.9
NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE int 2.27.3
NCCL_NVLSTREE_MAX_CHUNKSIZE int 2.20.3
NCCL_NVLS_CHUNKSIZE int 2.21.5
NCCL_NVLS_ENABLE int 2.17.1
NCCL_NVLS_NCHANNELS int 2.17.1
NCCL_NVLS_UB_SIZE unknown 2.32.3
NCCL_NVTX_DISABLE int 2.28.3
NCCL_OOB_NET_ENABLE int 2.23.4
NCCL_OOB_NET_IFNAME string 2.23.4
NCCL_P2P_DIRECT_DISABLE int 2.12.12
NCCL_P2P_DISABLE int 2.3.5
NCCL_P2P_EPOCH_ENABLE int 2.29.2
NCCL_P2P_LEVEL level 2.3.5
NCCL_P2P_LL_THRESHOLD int 2.14.3
NCCL_P2P_MAX_PEERS int 2.30.3
NCCL_P2P_NET_CHUNKSIZE int 2.14.3
NCCL_P2P_NVL_CHUNKSIZE int 2.16.2
NCCL_P2P_PCI_CHUNKSIZE int 2.16.2
NCCL_P2P_PER_CHANNEL_NET_BW int 2.29.2
NCCL_P2P_PER_CHANNEL_REG_NET_BW unknown 2.31.2
NCCL_P2P_PXN_LEVEL int 2.12.7
NCCL_P2P_READ_ENABLE int 2.7.3
NCCL_P2P_SCHEDULE_GROUP_SIZE int 2.28.7
NCCL_P2P_USE_CUDA_MEMCPY int 2.13.4
NCCL_PARAM_DUMP_ALL bool 2.30.3
NCCL_PAT_ENABLE int 2.23.4
NCCL_PROFILER_PLUGIN string 2.23.4
NCCL_PROGRESS_APPENDOP_FREQ int 2.16.5
NCCL_PROGRESS_COUNTERS unknown 2.32.3
NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS unknown 2.32.3
NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS unknown 2.32.3
NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC unknown 2.32.3
NCCL_PROTO string 2.5.6
NCCL_PROXY_APPEND_BATCH_SIZE int 2.16.2
NCCL_PROXY_CPUSET string 2.28.3
NCCL_PROXY_DUMP_SIGNAL int 2.14.3
NCCL_PROXY_PROFILE string 2.12.7 2.23.4
NCCL_PXN_C2C int 2.27.3
NCCL_PXN_DISABLE int 2.12.7
NCCL_RAS_ADDR string 2.24.3
NCCL_RAS_ENABLE int 2.24.3
NCCL_RAS_TIMEOUT_FACTOR int 2.24.3
NCCL_REPORT_CONNECT_PROGRESS int 2.19.4
NCCL_RINGS string 2.3.5 2.5.6
NCCL_RMA_DISABLE int 2.30.7
NCCL_RMA_EAGER_INIT unknown 2.31.2
NCCL_RMA_IB_WR_BATCHSIZE unknown 2.32.3
NCCL_RMA_MULTI_CTX_THRESHOLD unknown 2.31.2
NCCL_RMA_PLUGIN string 2.30.7
NCCL_RMA_PLUGIN_REF_COUNT int 2.30.7
NCCL_RMA_PROXY_DUMP_SIGNAL int 2.29.2
NCCL_RMA_PROXY_QUEUE_SIZE int 2.29.2
NCCL_RUNTIME_CONNECT int 2.22.3
NCCL_RUN_DIAGNOSTICS unknown 2.31.2
NCCL_RUN_RAS_DIAGNOSTICS unknown 2.31.2
NCCL_SET_CPU_STACK_SIZE int 2.28.3
NCCL_SET_STACK_SIZE int 2.9.6
NCCL_SET_THREAD_NAME bool 2.12.7
NCCL_SHADOW_MEMPOOL_MAX_SIZE int 2.30.7
NCCL_SHARED_BUFF_COUNT int 2.8.3 2.9.6
NCCL_SHM_DISABLE int 2.3.5
NCCL_SHM_LOCALITY int 2.13.4
NCCL_SHM_MEMCPY_MODE int 2.13.4 2.30.7
NCCL_SHM_USE_CUDA_MEMCPY int 2.13.4 2.30.7
NCCL_SINGLE_PROC_MEM_REG_ENABLE int 2.28.3
NCCL_SINGLE_RING_THRESHOLD int 2.1.0 2.3.0
NCCL_SOCKET_FAMILY string 2.3.5
NCCL_SOCKET_IFNAME string 2.3.5
NCCL_SOCKET_INLINE int 2.27.3
NCCL_SOCKET_MAGIC string 2.30.7
NCCL_SOCKET_MIN_TASKSIZE int 2.27.3
NCCL_SOCKET_NTHREADS int 2.4.8
NCCL_SOCKET_POLL_TIMEOUT_MSEC int 2.29.2
NCCL_SOCKET_RCVBUF int 2.27.3
NCCL_SOCKET_RETRY_CNT int 2.24.3
NCCL_SOCKET_RETRY_SLEEP_MSEC int 2.24.3
NCCL_SOCKET_SNDBUF int 2.27.3
NCCL_SYM_CE_THRESHOLD int 2.29.2
NCCL_SYM_CTAS int 2.27.3
NCCL_SYM_GIN_KERNELS_ENABLE int 2.29.7
NCCL_SYM_KERNEL string 2.27.3
NCCL_SYM_NOWIN_ENABLE int 2.29.2
NCCL_SYM_REUSE_SYSMEM_HANDLES int 2.30.4
NCCL_SYM_RS_GIN_CHUNK_SIZE int 2.30.7
NCCL_SYM_TMA_ENABLE int 2.30.3
NCCL_THREAD_THRESHOLD int 2.3.5 2.5.6
NCCL_THREAD_THRESHOLDS string 2.5.6
NCCL_TOPO_DUMP_FILE string 2.6.4
NCCL_TOPO_DUMP_FILE_RANK int 2.6.4
NCCL_TOPO_FILE string 2.6.4
NCCL_TOPO_SCATTER_START_NET unknown 2.31.2 2.32.3
NCCL_TOPO_SPLIT_MLOPART int 2.30.7
NCCL_TREE_THRESHOLD int 2.4.2 2.5.6
NCCL_TUNER_PLUGIN string 2.19.1
NCCL_UID_STAGGER_RATE int 2.23.4
NCCL_UID_STAGGER_THRESHOLD int 2.23.4
NCCL_UNPACK_DOUBLE_NCHANNELS int 2.22.3
NCCL_WARN_ENABLE_DEBUG_INFO bool 2.19.4
NCCL_WIN_ENABLE int 2.27.3
NCCL_WIN_STRIDE int 2.27.3
NCCL_WORK_ARGS_BYTES int 2.22.3
NCCL_WORK_FIFO_BYTES int 2.22.3
NCCL_WORK_FIFO_DEPTH int 2.13.4 2.22.3
"""

# name kind
_SHARP = """
NCCL_IBEXT_DISABLE int
NCCL_IB_IS_GLOBAL int
NCCL_PLUGIN_P2P string
NCCL_SHARP_COLL_TRACE int
NCCL_SHARP_DISABLE string
NCCL_SHARP_DISABLE_ALLGATHER int
NCCL_SHARP_DISABLE_REDUCE_SCATTER int
NCCL_SHARP_GROUP_SIZE_THRESH int
NCCL_SHARP_MAX_COMMS int
NCCL_SHARP_V3_DATATYPES int
NCCL_UCX_TLS string
"""

_TESTS = """
NCCL_TESTS_ALLTOALLV_MATRIX_FILE string
NCCL_TESTS_ALLTOALLV_MATRIX_SCALE float
NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY bool
NCCL_TESTS_ALLTOALLV_SPREAD float
NCCL_TESTS_DEVICE int
NCCL_TESTS_MIN_BW float
NCCL_TESTS_SPLIT string
NCCL_TESTS_SPLIT_MASK string
"""

_VERSION = re.compile(r"([0-9]{1,4})[.]([0-9]{1,4})[.]([0-9]{1,4})")


def parse_version(text: str) -> Version:
    """``2.27.7`` as (2, 27, 7). Raises ParseError on anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ParseError("%r is not a NCCL version, expected a form like 2.27.7" % text[:40])
    return int(match.group(1)), int(match.group(2)), int(match.group(3))


def format_version(version: Version) -> str:
    return "%d.%d.%d" % version


def _table() -> Dict[str, Variable]:
    table = {}
    for line in _LIBRARY.split("\n")[1:-1]:
        name, kind, since, *removed = line.split()
        gone = parse_version(removed[0]) if removed else None
        table[name] = Variable(name, kind, parse_version(since), gone, "library", _REMARKS.get(name, ""))
    for reader, text in ((SHARP_PLUGIN, _SHARP), (NCCL_TESTS, _TESTS)):
        for line in text.split("\n")[1:-1]:
            name, kind = line.split()
            table[name] = Variable(name, kind, None, None, reader, _REMARKS.get(name, ""))
    return table


VARIABLES: Dict[str, Variable] = _table()


def reader(name: str) -> Optional[str]:
    """Who reads a variable: "library" (some release of it), the name of a plugin or program, None for nobody known."""
    variable = VARIABLES.get(name)
    if variable is not None:
        return variable.reader
    for prefix, plugin in _PLUGIN_PREFIXES:
        if name.startswith(prefix) and (len(name) > len(prefix) or prefix[-1] != "_"):
            return plugin
    return BUILD if _BUILD.fullmatch(name) else None


def known_names(version: Version) -> FrozenSet[str]:
    """Names that the library of this version reads, as far as the table goes (OLDEST to NEWEST)."""
    return frozenset(
        name
        for name, variable in VARIABLES.items()
        if variable.since is not None
        and variable.since <= version
        and (variable.removed is None or version < variable.removed)
    )
