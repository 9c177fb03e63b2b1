# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of a run of nccl-tests, on one node and between nodes, and of its repeats."""

from __future__ import annotations

from ..core.check import Check

# NCCL's log at this level is the proof of a run's transport.
PROOF = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
# These measure whatever nccl_benchmark_when is.
_ROLE = "run site.yml --tags nccl_benchmark -e nccl_benchmark_when=%s for this host, not in check mode"
# Of a run on one node.
AGAIN = "then " + _ROLE % "always"
WHEN = ("changed", "always", "never")

IDLE = Check(
    "nccl_perf.idle",
    severity="minor",
    why="a benchmark beside a job slows both, and its result is meaningless",
    fix="drain the node or wait for the job, " + AGAIN,
)
"Is the node idle; nothing is measured on a node in use"

RAN = Check(
    "nccl_perf.ran",
    severity="critical",
    why="a benchmark that hangs or fails is a job that hangs or fails",
    fix="read stdout and stderr in the run's directory, run the command by hand with NCCL_DEBUG=INFO; " + AGAIN,
)
"Did the program succeed, in time"

FRESH = Check(
    "nccl_perf.fresh",
    why="a result that is old, or of another driver, library or setting, does not prove the node's current state",
    fix=_ROLE % "changed",
)
"""Is the stored result of this command, recent, and of the node's current driver, NCCL, build, `nccl.conf`, kernel
and arguments, firmware and GPUs"""

SIZES = Check(
    "nccl_perf.sizes",
    why="nccl-tests silently reduces the largest size where GPU memory is short; small sizes prove no bandwidth",
    fix="free the GPUs' memory or set a smaller largest size; " + AGAIN,
)
"Was every size measured"

RANKS = Check(
    "nccl_perf.ranks",
    severity="critical",
    why="without MPI each process runs alone, ends with 0, and the fabric was never used",
    fix="build nccl-tests with MPI=1, check the launcher's host list and processes per host; " + AGAIN,
)
"Did every GPU of every host take part in the same job"

CORRECT = Check(
    "nccl_perf.correct",
    severity="critical",
    why="wrong or unchecked sums silently corrupt a training run",
    fix="find the node by halving the host list, check its GPUs (Xid, ECC) and NVLinks; " + AGAIN,
)
"Was every value checked and right"

NONZERO = Check(
    "nccl_perf.nonzero",
    severity="critical",
    why="a bus bandwidth of 0 is what a single rank prints: nothing was exchanged",
    fix="build nccl-tests with MPI=1 and start it through the launcher; " + AGAIN,
)
"Was anything exchanged between the GPUs"

BUSBW = Check(
    "nccl_perf.busbw",
    why="below the bar something on the path is slow: a link, a NIC, GPUDirect, or a fallback transport",
    fix="run all of site.yml for the host; read in the NCCL_DEBUG=INFO output which transport NCCL uses (P2P, SHM or"
    " NET) and which variables it has read; look for throttling in nvidia-smi -q -d PERFORMANCE; between nodes compare"
    " pairs; " + AGAIN,
)
"Does the bus bandwidth reach its bar"

# Of a run between nodes: no role of a single one fixes it.
BETWEEN_AGAIN = "then run playbooks/benchmark.yml again"
BETWEEN_FRESH = "run playbooks/benchmark.yml"
TRANSPORT = Check(
    "nccl_perf.transport",
    severity="critical",
    why="a bandwidth between nodes proves the network only if NCCL's own log of that run shows its transport",
    fix="see that %s reach every rank (Busbar's launcher passes them on; your own launcher needs -x or --export), that"
    " no NCCL_DEBUG_FILE is set, and that every rank is in the log of the run's directory; "
    % " and ".join(PROOF)
    + BETWEEN_AGAIN,
)
"Does NCCL's own log of the run prove the transport of every rank"

NETWORK = Check(
    "nccl_perf.network",
    severity="critical",
    why="over TCP a GPU node moves a tenth of what its HCAs can: such a run is not ok, whatever bar it clears",
    fix="run `ibv_devinfo` on the nodes: it has to show every HCA with state PORT_ACTIVE; then run site.yml for them; "
    + BETWEEN_AGAIN,
)
"Did the run go over RDMA, and not over sockets"

HCAS = Check(
    "nccl_perf.hcas",
    why="each idle HCA is bandwidth that was paid for and is not used",
    fix="see why: run site.yml --tags platform,nccl_conf for the node; " + BETWEEN_AGAIN,
)
"Did NCCL use every HCA that it is expected to, on every node"

GDR = Check(
    "nccl_perf.gdr",
    why="without GPUDirect RDMA every byte goes through the host's memory: about half of the bandwidth, and CPU time",
    fix="see why: run site.yml --tags nvidia_peermem,pcie_path,iommu for the node; " + BETWEEN_AGAIN,
)
"Had every connection between nodes GPUDirect RDMA"

RAILS = Check(
    "nccl_perf.rails",
    why="a rail whose counters do not rise carries no data, whatever NCCL reports",
    fix="on the node: `ibstat` and `ethtool` for that HCA, its cable and its switch port; test its rail:"
    " ansible-playbook playbooks/verify.yml -i INVENTORY --limit NODE,OTHER_NODE; " + BETWEEN_AGAIN,
)
"Did the counters of every rail rise by the data of the run"
NVLINK = Check(
    "nccl_perf.nvlink",
    severity="critical",
    why="if NVLink between trays is off, NCCL silently uses the network, at a tenth of the bandwidth",
    fix="see why: run site.yml --tags node_health for these nodes: imex.* and node_health.fabric_state; "
    + BETWEEN_AGAIN,
)
"""Did the data between trays of an NVLink domain go over NVLink, and not over the network: by NCCL's own log and the \
rails' counters; checked in scope nvlink_domain"""

# What to do where the figure is too low, though all of it went over NVLink.
SLOW = (
    "measure nccl_benchmark_scope: node on each of the trays; check `nvidia-smi nvlink -s` and `nvidia-smi nvlink -e`"
    " (every link up, no errors) and throttling in `nvidia-smi -q -d PERFORMANCE`; check links and errors of the"
    " switch trays (NMX-C); " + BETWEEN_AGAIN
)

SPREAD = Check(
    "nccl_perf.spread",
    why="repeats that differ this much indicate an intermittent cause: another job, a link that flaps, throttling",
    fix="repeat it on fewer nodes to find the cause; look for other traffic on the same leaf, symbol errors and link"
    " flaps, and for throttling in `nvidia-smi -q -d PERFORMANCE`; then measure again",
)
"Do repeats of the run reach the same bus bandwidth, within 10 %"

OUTLIER = Check(
    "nccl_perf.outlier",
    why="if one collective takes five times as long, every GPU of a job waits that long",
    fix="look at the network counters for pauses and retransmissions, and for other traffic; then measure again",
)
"Did no repeat take more than five times as long as the others"
