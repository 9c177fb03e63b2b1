# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What code, text or place of a line add to the meaning of its event, where a whole log is read."""

from __future__ import annotations

from typing import Tuple

from .event import CAUSE, EFFECT, REPORT, Detail

OF_REPORTS: Tuple[Detail, ...] = (
    Detail(
        "handshake",
        text="wrong type",
        why="the two ends use different kinds of connection: ranks chose different networks, or run different releases",
        fix="compare the lines `Using network`, NET/Plugin and NCCL version of all ranks; give all nodes one NCCL, one "
        "plugin, and the same NCCL_NET and NCCL_IB_HCA",
    ),
    Detail(
        "cuda",
        code="out of memory",
        fix="`nvidia-smi` on that node shows who has the memory; leave NCCL some of it (vLLM: "
        "--gpu-memory-utilization, JAX: XLA_PYTHON_CLIENT_MEM_FRACTION), or use smaller batches",
    ),
    Detail(
        "xid",
        code="45$",
        tier=REPORT,
        why="a program's channel was torn down: usually after another error of the GPU, or the end of its process",
    ),
    Detail(
        "xid",
        code="(?:13|31|43|68|69)$",
        tier=CAUSE,
        why="an error of a kernel or request of a program on this GPU, less often of the GPU",
        fix="run the program with CUDA_LAUNCH_BLOCKING=1, or under `compute-sanitizer`; "
        "on one GPU only: drain the node",
    ),
    Detail(
        "xid",
        code="79$",
        why="the GPU has fallen off the bus: slot, power, heat or the GPU",
        fix="drain and restart the node; have the GPU replaced if it recurs",
    ),
    Detail(
        "xid",
        code="(?:74|149)$",
        why="an error of NVLink",
        fix="drain the node; `nvidia-smi nvlink -e` and -s name the link and the GPU at its end; reset the GPUs",
    ),
    Detail(
        "xid",
        code="(?:48|94|95|63|64)$",
        why="an error of the GPU's memory (ECC, row remapping)",
        fix="drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU, and replace it where rows cannot be "
        "remapped",
    ),
    Detail(
        "xid",
        code="(?:62|119|120|140|109|110)$",
        why="the GPU or its firmware (GSP) halted",
        fix="drain the node and reset the GPU; `nvidia-bug-report.sh` for the vendor if it recurs",
    ),
    Detail(
        "xid",
        code="154$",
        why="the driver's recovery action for this GPU changed",
        fix="drain the node, and do what the line names (reset or reboot)",
    ),
    Detail(
        "order",
        text="KeyboardInterrupt|Ctrl-C|SIGINT|signal: 2$|Received 2 death",
        why="a user or a script interrupted the job (SIGINT, as by Ctrl-C)",
        fix="nothing, if that was meant; otherwise see which shell, script or limit of time sends SIGINT",
    ),
    Detail(
        "exit",
        code="signal 11$",
        tier=CAUSE,
        causes="a crash in native code (SIGSEGV), which may follow from an earlier failure",
    ),
    Detail(
        "exit",
        code="signal 7$",
        tier=CAUSE,
        causes="SIGBUS: /dev/shm is full or too small (containers: "
        "--shm-size, --ipc=host), less often a file that was cut off",
    ),
    Detail(
        "net_plugin",
        text="annot allocate memory|RC: -?12\\b",
        causes="the job's limit of locked memory (`ulimit -l`), or of memory that the NIC can register",
    ),
    Detail(
        "exit",
        code="signal 9$",
        tier=EFFECT,
        causes="SIGKILL: out of memory of the host or of the cgroup, or the scheduler or a user ended it",
        fix="`dmesg -T | grep -i oom` on its node, and the memory limit of its cgroup or pod",
    ),
    Detail(
        "exit",
        code="signal [48]$",
        tier=CAUSE,
        causes="an instruction or arithmetic error in native code: usually a build for another CPU",
    ),
    Detail(
        "exception",
        text=r"inline_container\.cc|PytorchStreamWriter",
        why="PyTorch could not write a checkpoint to its end: usually the file system is full, or a quota is reached",
        fix="`df -h` and `df -i` of the checkpoint's directory, and the quota of its owner",
    ),
    Detail("exit", code="signal (?:1|2|3|15)$", causes="it was told to end"),
    Detail(
        "exit",
        code="signal 6$",
        causes="the process ended itself (abort, a failed check, an exception in C++): its lines before show why",
    ),
    Detail(
        "exit", code="exit code 127$", tier=CAUSE, causes="the program, or a library of it, was not found", proven=True
    ),
    Detail("exit", code="exit code 126$", tier=CAUSE, causes="the program may not be executed", proven=True),
    Detail(
        "store",
        text="waiting for clients",
        causes="a process was not started, ended before it came, came too "
        "late, or has another MASTER_ADDR, MASTER_PORT or WORLD_SIZE",
    ),
    Detail(
        "store",
        text="failed on SocketImpl",
        why="a connection to PyTorch's store, which is usually in the process of rank 0, broke after it was made",
        fix="see how the process of rank 0 ended, and its own log",
        causes="the process that holds the store ended first; less often the connection was cut",
    ),
    Detail(
        "mismatch",
        code="PyTorch",
        why="PyTorch compared the ranks' calls before they reached NCCL, and they differ",
        fix="look in the program for what only some ranks call: the traceback of each rank names its call",
        causes="a branch, another number of steps, or a collective that not all ranks call",
        proven=True,
    ),
)
