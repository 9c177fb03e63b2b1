# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of lines that no rule has read, how much they tell: which of them stand among the few that are printed."""

from __future__ import annotations

import re
from typing import Tuple

from . import connection

# Begins of NCCL's lines, what they are, and how much they tell: 0 little, 2 what somebody looks for.
_ABOUT: Tuple[Tuple[str, int, str], ...] = (
    ("Channel ", 2, "the order of ranks in the ring of this channel, and how many channels there are"),
    ("Bootstrap timings", 2, "seconds of the ranks' first meeting, over TCP"),
    ("NET/OFI Selected", 3, ""),
    ("NET/", 2, ""),
    ("TUNER/", 2, ""),
    ("Comm config", 1, ""),
    ("GPU/", 1, "ways from this device: hops, GB/s and the kind of path to each other one"),
    ("Setting affinity", 1, ""),
    ("P2P Chunksize", 0, ""),
    ("threadThresholds", 0, ""),
    ("MNNVL busId", 0, "the NVLink domain of the GPU; a UUID of zeros is none"),
    ("Using non-device net plugin", 0, ""),
    ("Initialized NET plugin", 0, ""),
    ("Attribute ", 0, ""),
    ("Connection to proxy", 0, ""),
    ("New proxy", 0, ""),
    ("Proxy", 0, ""),
    ("[Proxy", 0, ""),
    ("proxyProgress", 0, ""),
    ("ncclProxy", 0, ""),
    ("ncclPoll", 0, ""),
    ("resp.opId", 0, ""),
    ("Received and", 0, ""),
    ("Allocated ", 0, ""),
    ("Mem ", 0, ""),
    ("RAS ", 0, ""),
    ("Topology detection", 0, ""),
    ("Retrieving state", 0, ""),
    ("Algorithm ", 0, ""),
    ("Protocol ", 0, ""),
    ("Max NThreads", 0, ""),
    ("UDS: ", 0, ""),
    ("Check P2P Type", 2, "whether GPUs of the node reach each other directly: 1 yes, 0 no"),
    ("NVLS Head", 2, "ranks that are one head of NVLS, one of each node"),
    ("MNNVL", 2, ""),
    ("Initialized state", 0, ""),
    ("Loading unnamed", 0, ""),
    ("TOPO/NET", 0, ""),
    ("ncclTopoPopulateNics", 1, ""),
    ("Pattern ", 1, ""),
)
_WAY = re.compile(connection.LINE)
_ALLOCATES = re.compile(r"[\w/]+\.(?:cc|h|cu):\d+ (?:(?:\w+ )?(?:\w+ )?Alloc|Cuda|memory|Mem|NCCL|->)|=====|\w+ +\| ")
# What a line of a program tells by, and how much that is.
_RATE = re.compile(
    r"\b(?:[KMGT]i?[Bb](?:ps|its?)?/s(?:ec)?|[KMGT]bps|[KMGT]?FLOPS?|TFLOPs?|tokens?/s|samples?/s|it/s|s/it|busbw|algbw|"
    r"throughput|latency|bandwidth|elapsed time|iter_time|step_time|seconds per|BW average|BW peak|size\s*\(B\))",
    re.IGNORECASE,
)
_RELEASE = re.compile(
    r"\b(?:py)?(?:torch|cuda|cudnn|nccl|rccl|rocm|driver|ofed|libfabric|efa|ucx|openmpi|mpi|vllm|sglang|deepspeed|"
    r"megatron|transformers|accelerate|ray|python|kernel|ubuntu|nvidia-smi|triton|jax|tensorflow|horovod|lightning|"
    r"nvidia|version|image)\b.{0,40}?\d+\.\d+",
    re.IGNORECASE,
)
_WIRES = re.compile(
    r"\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS|NVLink|NVSwitch|mlx5_\w+|InfiniBand|RoCE|GPU\d|Tesla|GeForce|RTX|[AHBLV]\d{2,3}|"
    r"MI\d{3}|link_layer|Rate:|PORT_ACTIVE|ib\d|GPUDirect|RDMA|EFA|GID)\b"
)
_SHAPE = re.compile(
    r"(?:world|tensor|pipeline|data|expert|model)[_ -]?(?:model[_ -])?(?:parallel|size)|nproc|nnodes|"
    r"num_?(?:gpu|node|proc)|n_?gpus|_rank|\branks?\b|\bnodes?\b|master|rendezvous|\b[tpde]p[=:_ ]|"
    r"backend|hostfile|\bnp \d|all-?reduce",
    re.IGNORECASE,
)
_SETTING = re.compile(r"\b[A-Z][A-Z0-9_]{3,}['\"]?\s?[=:]\s?\S|--[a-z][\w-]+[= ]\S|\w=\S")


def about(text: str, whole: bool = False) -> str:
    """What a line of NCCL's is; "" where nothing is known of its kind. whole: its begin is there, and was read."""
    way = _WAY.match(text)
    if way is not None and whole:
        return ""
    if way is not None:
        return "a connection from rank %s to rank %s by %s; the beginning of the line is not there, so whose it is" % (
            way.group("source", "target", "path")
        )
    return next((what for begin, _weight, what in _ABOUT if text.startswith(begin)), "")


def weight(text: str, nccl: bool) -> int:
    """How much a line tells. 0: little."""
    if nccl:
        if _ALLOCATES.match(text):
            return 0
        return next((much for begin, much, _what in _ABOUT if text.startswith(begin)), 1)
    much = 3 if _RATE.search(text) else 0
    much += 2 if _RELEASE.search(text) else 0
    much += 2 if _WIRES.search(text) else 0
    much += 1 if _SHAPE.search(text) else 0
    return much + (1 if much == 0 and _SETTING.search(text) else 0)
