# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What to do about an error of CUDA, by CUDA's own words for it: our sentences."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from . import signals
from .process import Process
from .quotes import Quote

_KERNEL = (
    "usually a kernel of the program or of NCCL made an invalid access: CUDA reports it at a later call, so NCCL may"
    " be the first to meet it",
    "run it with CUDA_LAUNCH_BLOCKING=1, or under `compute-sanitizer`, to see which kernel it is; if it occurs on one"
    " GPU only, whatever program runs there: `dmesg -T | grep -i xid` on its node",
)
_NO_KERNELS = (
    "usually this NCCL, or the program, was not built for this model of GPU, or for the CUDA that is loaded",
    "`nvidia-smi --query-gpu=name,compute_cap --format=csv` shows the GPU model: take a release of NCCL and of the"
    " framework that was built for it (own builds: NVCC_GENCODE, TORCH_CUDA_ARCH_LIST), and see by `ldd` or"
    " `grep libnccl /proc/PID/maps` which libnccl.so.2 is loaded",
)
_DRIVER = (
    "the GPU's driver is older than the CUDA that NCCL or the program was built for",
    "`nvidia-smi` on the node shows the driver and the newest CUDA that it runs: a newer driver there (a container has"
    " the node's), or an image or wheel for that CUDA",
)
_BUSY = (
    "CUDA gives this process no GPU: usually another process has it exclusively, or the driver wants it reset",
    "on the node: `nvidia-smi -q | grep -i 'compute mode'` (Default), `nvidia-smi` for processes that are left over,"
    " `dmesg -T | grep -i -E 'xid|reset'`; then reset the GPU with nothing running on it",
)
# CUDA's words, or their beginning -> why, and what to do.
_ERRORS: Dict[str, Tuple[str, str]] = {
    "an illegal memory access": _KERNEL,
    "unspecified launch failure": _KERNEL,
    "misaligned address": _KERNEL,
    "an illegal instruction": _KERNEL,
    "device-side assert": (
        "a check in a kernel failed, usually one of the program: an index or label that is out of range",
        "read the line with `Assertion` and `block: [..], thread: [..]` above it: it names the kernel and the check;"
        " look at the data of that step on that rank; CUDA_LAUNCH_BLOCKING=1 gives the call",
    ),
    "invalid device ordinal": (
        "the program requests a GPU number that this process does not see",
        "compare the number of processes of a node (nproc_per_node, mpirun -N, nccl-tests: processes times -g) with"
        " `nvidia-smi -L` and CUDA_VISIBLE_DEVICES in the job",
    ),
    "no CUDA-capable device": (
        "this process sees no GPU",
        "`nvidia-smi -L` and CUDA_VISIBLE_DEVICES in the job itself; containers: --gpus all, or the device"
        " plugin's request",
    ),
    "named symbol not found": _NO_KERNELS,
    "invalid device function": _NO_KERNELS,
    "no kernel image": _NO_KERNELS,
    "device kernel image is invalid": _NO_KERNELS,
    "invalid resource handle": (
        "usually a stream, event or handle of another GPU or of an earlier, failed context was used",
        "check whether something failed before it; if not, check that each process sets its GPU (torch.cuda.set_device)"
        " before it makes streams and process groups",
    ),
    "CUDA driver version is insufficient": _DRIVER,
    "the provided PTX was compiled": _DRIVER,
    "forward compatibility was attempted": _DRIVER,
    "all CUDA-capable devices are busy": _BUSY,
    "CUDA-capable device(s) is/are busy": _BUSY,
    "uncorrectable ECC": (
        "the GPU's memory lost data: inspect the GPU or the node, not the network",
        "drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg -T | grep -i xid` there; reset the GPU",
    ),
    "unspecified driver error": _BUSY,
    "driver shutting down": (
        "the process was already ending while NCCL was still in use",
        "look at what ended it: its own lines before, another thread's exception, the launcher's signal",
    ),
    "initialization error": (
        "CUDA could not start in this process: usually it was used before a fork, or driver and devices are not ready",
        "start workers by spawn and not fork, or touch CUDA only in the children; `nvidia-smi` in the job itself",
    ),
    "operation not permitted": (
        "the process may not do this: usually memory that GPUs share, for which a container needs rights",
        "on NVL72: an IMEX channel in the container (`ls /dev/nvidia-caps-imex-channels`), nvidia-imex on all nodes;"
        " else NCCL_CUMEM_ENABLE=0 or NCCL_MNNVL_ENABLE=0 as a test",
    ),
    "peer access is not supported": (
        "these GPUs, this driver or this virtual machine have no direct way between the GPUs",
        "`nvidia-smi topo -p2p r` on the node; NCCL_P2P_DISABLE=1 uses the host's memory",
    ),
    "peer mapping resources": (
        "a GPU has more peers than CUDA can map, such as more than 8 in one process",
        "one process for each GPU, or fewer GPUs in one process",
    ),
    "system not yet initialized": (
        "CUDA is not ready on this machine: usually it has NVSwitches, and the Fabric Manager is not running, not"
        " ready yet, or not of the driver's version",
        "`systemctl status nvidia-fabricmanager` on that node, its version against `cat /proc/driver/nvidia/version`,"
        " and `nvidia-smi -q | grep -A 3 Fabric` (State: Completed, Status: Success)",
    ),
    "the launch timed out": (
        "a kernel ran longer than the driver allows: usually a GPU that drives a display, or a kernel that hangs",
        "`nvidia-smi -q | grep -i display` on the node; else see which kernel hangs by py-spy and"
        " CUDA_LAUNCH_BLOCKING=1",
    ),
}


def look_after(words: str) -> Optional[Tuple[str, str]]:
    """Why, and what to do, of an error in CUDA's words."""
    return next((advice for begin, advice in _ERRORS.items() if words.startswith(begin)), None)


_ASKED = re.compile(
    r"Tried to allocate (?P<asked>\d{1,9}(?:\.\d{1,4})?) (?P<unit>[KMGTPE]iB)\b.{0,40}?"
    r"total capac\w{1,6} of (?P<all>\d{1,9}(?:\.\d{1,4})?) (?P<of>[KMGTPE]iB)"
)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def absurd(text: str) -> str:
    """``184.13 GiB of a GPU of 79.14 GiB``, where a program asks for more memory than the GPU has; "" of others."""
    match = _ASKED.search(text)
    if match is None:
        return ""
    asked = float(match.group("asked")) * 1024 ** _UNITS.index(match.group("unit"))
    if asked <= float(match.group("all")) * 1024 ** _UNITS.index(match.group("of")):
        return ""
    return "%s %s of a GPU of %s %s" % match.group("asked", "unit", "all", "of")


def shared_memory(processes: Sequence[Process]) -> List[str]:
    """What processes say of kernels that want more shared memory than a GPU has: CUDA may refuse to start them."""
    said = {note.text for process in processes for note in process.notes if "shared memory on the GPU" in note.text}
    return sorted(said)[:1]


def in_vain(quotes: Sequence[Quote], source: int, order: int) -> List[Quote]:
    """What programs report of waits for a peer that ran out, before a line."""
    return [one for one in quotes if one.source == source and one.order < order and "did not send in time" in one.about]


def waited_before(quotes: Sequence[Quote], source: int, order: int) -> str:
    """A program's report, before a failure, that it waited for a peer in vain; "" where there is none."""
    said = in_vain(quotes, source, order)
    if not said:
        return ""
    others = " (and %s)" % ", ".join(said[0].others) if said[0].others else ""
    text = said[0].text[:160].replace(";", ",") + others
    return "before it, line %d: %s, and the failure may be how that wait ended" % (said[0].order, text)


def failed_check(words: str, quotes: Sequence[Quote], order: int) -> str:
    """The check in a kernel by which the program failed, where a line before says it."""
    if not words.startswith("device-side assert"):
        return ""
    said = [one for one in quotes if one.kind == signals.ERROR and one.order < order and "Assertion" in one.text]
    return "the check that failed in a kernel (line %d): %s" % (said[0].order, said[0].text[:220]) if said else ""
