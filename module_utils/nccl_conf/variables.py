# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Table of the variables that NCCL reads, with their versions, and of ones that it never read.

From the sources of 2.3.5 to 2.30.7 and the binaries of 2.31.2 and 2.32.3. An installed library shows what it
reads (library); this table adds what that does not show: kinds, history, successors and the names of plugins.
"""

from __future__ import annotations

import difflib
import re
from typing import Collection, Dict, FrozenSet, NamedTuple, Optional

from .net_plugins import PLUGINS, SHARP
from .version import Version, parse_version


class Variable(NamedTuple):
    """One variable.

    kind: "int" (NCCL's strtoll, base 0), "bool", "float", "string", "level" (a path type such as PXB), or "unknown"
        (seen only in a binary).
    since: first release that reads it.   removed: first release that does not; None while it is read.
        Both None for a variable that is not the library's.
    reader: "library", or the program that reads it.
    """

    name: str
    kind: str
    since: Optional[Version]
    removed: Optional[Version]
    reader: str


NCCL_TESTS = "nccl-tests"
BUILD = "builds and scripts"
# Plugin, or library beside NCCL -> prefixes or names of its variables.
_PLUGINS = {
    **{plugin.owner: " ".join(plugin.prefixes) for plugin in PLUGINS},
    "profiler plugins": "NCCL_PROFILER_LATENCY_ NCCL_PROFILER_SUMMARY_ NCCL_PROFILE_",
    "tuner plugins": "NCCL_TUNER_CONFIG_",
    "NCCL Inspector": "NCCL_INSPECTOR_",
    "NCCLX": "NCCL_CTRAN_",
    "NVSHMEM": "NVSHMEM_",
}
# Names by which builds and scripts call NCCL's version and places; no release reads one (NCCL_CUDA_PATH has a row).
_BUILD = re.compile(
    "NCCL_(?:[A-Z0-9_]+_)?(?:VERSION|VER|HOME|ROOT|ROOT_DIR|DIRS?|PATHS?|PREFIX|INCLUDE|INC|LIBS?|LIBRARY|LIBRARIES|STATIC|REPO"
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

# The release that brought them, their kind, and the names, with the release that removed one behind a hyphen.
_LIBRARY = """
2.0.5 int CHECKS_DISABLE-2.3.5
2.1.0 int SINGLE_RING_THRESHOLD-2.3.0
2.3.5 int BUFFSIZE CHECK_POINTERS GDR_FLUSH_DISABLE GROUP_CUDA_STREAM IB_CUDA_SUPPORT-2.4.2 IB_DISABLE
    IB_GDR_LEVEL-2.4.2 IB_GID_INDEX IB_RETRY_CNT IB_SL IB_TC IB_TIMEOUT LL_THRESHOLD-2.5.6 MAX_NRINGS MIN_NRINGS
    NET_GDR_READ NTHREADS P2P_DISABLE SHM_DISABLE THREAD_THRESHOLD-2.5.6 level P2P_LEVEL string COMM_ID DEBUG
    DEBUG_FILE DEBUG_SUBSYS IB_HCA LAUNCH_MODE RINGS-2.5.6 SOCKET_FAMILY SOCKET_IFNAME
2.4.2 int TREE_THRESHOLD-2.5.6 level NET_GDR_LEVEL
2.4.6 int IGNORE_CPU_AFFINITY
2.4.8 int NSOCKS_PERTHREAD SOCKET_NTHREADS
2.5.6 int CROSS_NIC LL128_NTHREADS MAX_NCHANNELS MIN_NCHANNELS string ALGO GRAPH-2.6.4 HOSTID PROTO THREAD_THRESHOLDS
2.6.4 int COLLNET_ENABLE GRAPH_DUMP_FILE_RANK IB_AR_THRESHOLD TOPO_DUMP_FILE_RANK string GRAPH_DUMP_FILE GRAPH_FILE
    TOPO_DUMP_FILE TOPO_FILE
2.7.3 int LL128_BUFFSIZE LL_BUFFSIZE MAX_P2P_NCHANNELS MIN_P2P_NCHANNELS P2P_READ_ENABLE
2.8.3 int IB_PKEY IB_USE_INLINE NET_SHARED_BUFFERS SHARED_BUFF_COUNT-2.9.6
2.9.6 int GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_TAIL_ENABLE-2.12.7 SET_STACK_SIZE
2.9.9 int COLLNET_NODE_THRESHOLD NVB_DISABLE NVB_PRECONNECT
2.10.3 int AGG_CHANNEL_SIZE-2.20.3 IB_QPS_PER_CONNECTION string AGG_ALLOC_MODE-2.13.4 NET
2.11.4 int GRAPH_HELPER_DISABLE GRAPH_REGISTER string NET_PLUGIN
2.12.7 bool SET_THREAD_NAME int CHUNK_SIZE GDRCOPY_SYNC_ENABLE IB_PCI_RELAXED_ORDERING IGNORE_DISABLED_P2P
    NCHANNELS_PER_NET_PEER NET_DISABLE_INTRA NET_SHARED_COMMS P2P_PXN_LEVEL PXN_DISABLE string PROXY_PROFILE-2.23.4
2.12.10 int L1_SHARED_MEMORY_CARVEOUT
2.12.12 int P2P_DIRECT_DISABLE
2.13.4 int CREATE_THREAD_CONTEXT-2.30.7 DMABUF_ENABLE GRAPH_MIXING_SUPPORT P2P_USE_CUDA_MEMCPY SHM_LOCALITY
    SHM_MEMCPY_MODE-2.30.7 SHM_USE_CUDA_MEMCPY-2.30.7 WORK_FIFO_DEPTH-2.22.3 string CUDA_PATH-2.21.5
2.14.3 int COMM_BLOCKING NCCL_ALLOC_P2P_NET_LL_BUFFERS-2.16.5 P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE PROXY_DUMP_SIGNAL
2.15.1 int CGA_CLUSTER_SIZE NET_FORCE_FLUSH
2.16.2 int IB_ADAPTIVE_ROUTING MEM_SYNC_DOMAIN P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE PROXY_APPEND_BATCH_SIZE
2.16.5 int ALLOC_P2P_NET_LL_BUFFERS PROGRESS_APPENDOP_FREQ
2.17.1 int MAX_CTAS MIN_CTAS NVLS_ENABLE NVLS_NCHANNELS
2.18.1 int COMM_SPLIT_SHARE_RESOURCES CUMEM_ENABLE IB_MERGE_VFS IB_SPLIT_DATA_ON_QPS NET_OVERHEAD
2.19.1 int LOCAL_REGISTER string TUNER_PLUGIN
2.19.4 bool WARN_ENABLE_DEBUG_INFO int CONNECT_ROUND_MAX_PEERS REPORT_CONNECT_PROGRESS
2.20.3 int IB_MERGE_NICS MNNVL-2.21.5 NVLSTREE_MAX_CHUNKSIZE
2.21.5 int IB_ROCE_VERSION_NUM MNNVL_ENABLE NVLS_CHUNKSIZE string IB_ADDR_FAMILY IB_ADDR_RANGE
2.22.3 int IB_FIFO_TC IB_ROUTABLE_FLID_GID_INDEX RUNTIME_CONNECT UNPACK_DOUBLE_NCHANNELS WORK_ARGS_BYTES
    WORK_FIFO_BYTES
2.23.4 int CUMEM_HOST_ENABLE IB_ECE_ENABLE IB_RETURN_ASYNC_EVENTS MNNVL_CLIQUE_ID OOB_NET_ENABLE PAT_ENABLE
    UID_STAGGER_RATE UID_STAGGER_THRESHOLD string CONF_FILE OOB_NET_IFNAME PROFILER_PLUGIN
2.24.3 int IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_WARN_RAIL_LOCAL LEGACY_CUDA_REGISTER
    NET_OPTIONAL_RECV_COMPLETION RAS_ENABLE RAS_TIMEOUT_FACTOR SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC string
    NET_FORCE_MERGE NET_MERGE_LEVEL RAS_ADDR
2.25.1 int MNNVL_UUID
2.26.2 int LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL NET_GDR_C2C NET_PLUGIN_REF_COUNT string DEBUG_TIMESTAMP_FORMAT
    DEBUG_TIMESTAMP_LEVELS
2.27.3 int COMM_SHRINK_SHARE_RESOURCES IB_DATA_DIRECT LL128_C2C NVLINK_UTIL_CENTRIC_SCHED_ENABLE PXN_C2C SOCKET_INLINE
    SOCKET_MIN_TASKSIZE SOCKET_RCVBUF SOCKET_SNDBUF SYM_CTAS WIN_ENABLE WIN_STRIDE string CTA_POLICY SYM_KERNEL
2.27.5 int MNNVL_SCATTER_NETS_ENABLE
2.28.3 int NVTX_DISABLE SET_CPU_STACK_SIZE SINGLE_PROC_MEM_REG_ENABLE string NETDEVS_POLICY PROXY_CPUSET
2.28.7 int GIN_COUNTER_POOL_SIZE-2.30.3 GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH
    GIN_NCONTEXTS-2.30.3 GIN_PROXY_QUEUE_SIZE GIN_SIGNAL_POOL_SIZE-2.30.3 GIN_TYPE MNNVL_RAIL_PER_HOST
    P2P_SCHEDULE_GROUP_SIZE string ENV_PLUGIN
2.29.2 int ALLGATHERV_ENABLE ENABLE_VERSION_CHECK IPC_USE_ABSTRACT_SOCKET MULTI_SEGMENT_REGISTER NUM_RMA_CTX
    P2P_EPOCH_ENABLE P2P_PER_CHANNEL_NET_BW RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE SOCKET_POLL_TIMEOUT_MSEC
    SYM_CE_THRESHOLD SYM_NOWIN_ENABLE
2.29.7 int DISABLE_MEM_MANAGER GDAKI_USE_RELIABLE_DB GIN_EXCLUSIVE_CONTEXTS-2.30.3 GIN_NCONNECTIONS
    GIN_PLUGIN_REF_COUNT IB_DEVICE_PCI_ORDER IB_PREPOST_RECEIVE_WORK_REQUESTS IB_RECEIVER_SIDE_MATCHING_SCHEME
    IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY
    LSA_TEAM_SIZE SYM_GIN_KERNELS_ENABLE string CHECK_MODE GIN_PLUGIN NO_CACHE
2.30.3 bool PARAM_DUMP_ALL int ELASTIC_BUFFER_REGISTER GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC
    IB_OOO_RQ IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
    IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
    IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IGNORE_COLLNET_MISMATCH
    IGNORE_NET_MISMATCH MNNVL_CROSS_CLIQUE MULTI_RANK_GPU_ENABLE P2P_MAX_PEERS SYM_TMA_ENABLE string IBVERBS_LIB
2.30.4 int SYM_REUSE_SYSMEM_HANDLES
2.30.7 int DEV_API_JIT GIN_IB_TC GRAPH_STREAM_ORDERING IB_QUERY_PORT_SPEED IB_SUBNET_AWARE_ROUTING
    IB_SUBNET_PREFIX_LEN MLOPART_RDMA_ENABLE-2.32.3 NET_GDR_MLOPART-2.32.3 RMA_DISABLE RMA_PLUGIN_REF_COUNT
    SHADOW_MEMPOOL_MAX_SIZE SYM_RS_GIN_CHUNK_SIZE TOPO_SPLIT_MLOPART string NET_MERGE_POLICY RMA_PLUGIN SOCKET_MAGIC
2.31.2 unknown CE_COLL_AG_MULTICAST_THRESHOLD CFT_ENABLE DIAGNOSTICS_ECC_THRESHOLD ENQUEUE_REARCH_ENABLE
    GDRCOPY_USE_INTERNAL_DMABUF GIN_IB_OOO_OPT GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH HIER_CE_COLL_NUM_CTX
    IB_EVENT_BASED_LB IB_EVENT_BASED_LB_REMOTE IB_PKEY_VALUE IB_WQE_LATENCY_REPORT IB_WQE_LATENCY_THRESHOLD_NS
    NUM_RMA_INT_CTX P2P_PER_CHANNEL_REG_NET_BW RMA_EAGER_INIT RMA_MULTI_CTX_THRESHOLD RUN_DIAGNOSTICS
    RUN_RAS_DIAGNOSTICS TOPO_SCATTER_START_NET-2.32.3
2.32.3 string DEBUG_LEVELS unknown CE_CHUNK_SIZE CE_INTRA_GPU_MEMCPY_ENABLE DIAGNOSTICS_IB_BW_TIMEOUT GDAKI_FORCE_MCST
    GIN_GDAKI_LAG_AWARE_DISABLE HIER_CE_COLL_AG_RAIL_RING_ENABLE IB_RAIL_POLICY IB_SORT_MERGE_NICS NVLS_UB_SIZE
    PROGRESS_COUNTERS PROGRESS_COUNTER_MONITOR_POLL_MS PROGRESS_COUNTER_MONITOR_STALE_MS
    PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC RMA_IB_WR_BATCHSIZE
"""
# Kind, and the names.
_SHARP = """
int IBEXT_DISABLE IB_IS_GLOBAL SHARP_COLL_TRACE SHARP_DISABLE_ALLGATHER SHARP_DISABLE_REDUCE_SCATTER
    SHARP_GROUP_SIZE_THRESH SHARP_MAX_COMMS SHARP_V3_DATATYPES string PLUGIN_P2P SHARP_DISABLE UCX_TLS
"""
_TESTS = """
string TESTS_ALLTOALLV_MATRIX_FILE TESTS_SPLIT TESTS_SPLIT_MASK bool TESTS_ALLTOALLV_PRINT_SUMMARY int TESTS_DEVICE
    float TESTS_ALLTOALLV_MATRIX_SCALE TESTS_ALLTOALLV_SPREAD TESTS_MIN_BW
"""


def _table() -> Dict[str, Variable]:
    table = {}
    for reader, text in (("library", _LIBRARY), (SHARP, _SHARP), (NCCL_TESTS, _TESTS)):
        since, kind = None, ""
        for word in text.split():
            name, _hyphen, removed = ("NCCL_" + word).partition("-")
            if word[0] in "0123456789":
                since = parse_version(word)
            elif word.islower():
                kind = word
            else:
                gone = parse_version(removed) if removed else None
                table[name] = Variable(name, kind, since, gone, reader)
    return table


VARIABLES: Dict[str, Variable] = _table()


def reader(name: str) -> Optional[str]:
    """Return a variable's reader: "library" (some release), the name of a plugin or program; None if unknown."""
    variable = VARIABLES.get(name)
    if variable is not None:
        return variable.reader
    for plugin, prefixes in _PLUGINS.items():
        for prefix in prefixes.split():
            if name.startswith(prefix) and (len(name) > len(prefix) or prefix[-1] != "_"):
                return plugin
    return BUILD if _BUILD.fullmatch(name) else None


def misspelt(name: str) -> Optional[str]:
    """Return the variable that a name of none resembles; the prefix that all have in common does not count."""
    prefix = "NCCL_"
    if name in VARIABLES or not name.startswith(prefix) or reader(name) is not None:
        return None
    found = similar(name[len(prefix) :], [other[len(prefix) :] for other in VARIABLES], 0.8)
    return prefix + found if found else None


def similar(name: str, names: Collection[str], least: float) -> Optional[str]:
    """Return the name that resembles this one most.   least: how much, 0 to 1."""
    found = difflib.get_close_matches(name, names, 1, least) if len(name) <= 100 else []
    return found[0] if found else None


def known_names(version: Version) -> FrozenSet[str]:
    """Names that the library of this version reads, as far as the table goes (OLDEST to NEWEST)."""
    return frozenset(
        name
        for name, variable in VARIABLES.items()
        if variable.since is not None
        and variable.since <= version
        and (variable.removed is None or version < variable.removed)
    )
