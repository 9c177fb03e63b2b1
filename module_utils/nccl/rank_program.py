# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rank guard: parent process of each rank's program on every node, sent there as ``python3 -c``.

It reports its rank, CPUs, GPU and variables, and the NICs' counters; it binds the program to the CPUs of its GPU; and
it ends the program, and all that this has started, at the limit or when the launcher's process above it ends. Two
guards run, one below the other, in case one is killed. Requires Python 3.6 or later and its standard library.

    --limit SECONDS --root DIRECTORY -- PROGRAM [ARGUMENT...]
"""

import contextlib
import ctypes
import fcntl
import glob
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

MARK = "#busbar-rank "
# A write of this much to a pipe is whole (PIPE_BUF), also beside the other ranks of the node.
LINE_LIMIT = 4000
# Seconds from SIGTERM to SIGKILL, and from that until what does not die is given up. With the launcher's own time to
# notice, all of it has to fit into ten seconds.
TERM_GRACE = 1.0
KILL_WAIT = 4.0
POLL = 0.1
TIMED_OUT, LOST, NOT_STARTED = 124, 125, 126
CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
RANK = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMIX_RANK")
WORLD = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
# Of these the value is reported. Of the others a digest is, so that a different value on one node is seen.
REPORTED = re.compile(
    r"NCCL_(ALGO|PROTO|DEBUG|DEBUG_SUBSYS|NET|NET_GDR_LEVEL|NET_GDR_READ|IB_HCA|IB_DISABLE|IB_GID_INDEX|IB_TC|IB_SL"
    r"|IB_TIMEOUT|IB_RETRY_CNT|IB_QPS_PER_CONNECTION|IB_SPLIT_DATA_ON_QPS|IB_PCI_RELAXED_ORDERING|IB_ADAPTIVE_ROUTING"
    r"|SOCKET_IFNAME|SOCKET_FAMILY|CROSS_NIC|P2P_DISABLE|P2P_LEVEL|SHM_DISABLE|NVLS_ENABLE|COLLNET_ENABLE"
    r"|MIN_NCHANNELS|MAX_NCHANNELS|MIN_CTAS|MAX_CTAS|BUFFSIZE|DMABUF_ENABLE|CUMEM_ENABLE|IGNORE_CPU_AFFINITY)"
)


def number(names: Tuple[str, ...]) -> Optional[int]:
    """The first of the variables that is set; None where none is."""
    for name in names:
        if re.match(r"[0-9]{1,7}$", os.environ.get(name, "")):
            return int(os.environ[name])
    return None


def text(path: str) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def cpus(ranges: str) -> Set[int]:
    """The CPUs of ``0-3,8``."""
    found = set()  # type: Set[int]
    for part in ranges.split(","):
        match = re.match(r"([0-9]{1,6})(?:-([0-9]{1,6}))?$", part)
        if match:
            found.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return found


def ranges(found: Set[int]) -> str:
    """``0-3,8`` for the CPUs 0, 1, 2, 3 and 8."""
    parts = []  # type: List[List[int]]
    for cpu in sorted(found):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join("%d" % first if first == last else "%d-%d" % (first, last) for first, last in parts)


class Gpu:
    """address: on the PCI bus.   usable: the device file can be opened, which a cgroup may forbid."""

    def __init__(self, root: str, address: str) -> None:
        lines = text("%sproc/driver/nvidia/gpus/%s/information" % (root, address)).splitlines()
        said = {name.strip(): value.strip() for name, _colon, value in (line.partition(":") for line in lines)}
        self.address = address.lower()
        self.uuid = said.get("GPU UUID", "")
        device = "%ssys/bus/pci/devices/%s" % (root, self.address)
        self.cpus = text(device + "/local_cpulist")
        try:
            os.close(os.open("%sdev/nvidia%s" % (root, said.get("Device Minor", "")), os.O_RDWR | os.O_CLOEXEC))
            self.usable = True
        except OSError:
            self.usable = False


def selected(gpus: List[Gpu]) -> List[Gpu]:
    """Return the usable GPUs that CUDA_VISIBLE_DEVICES selects, in CUDA's order."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return gpus
    found = []
    for word in words.split(","):
        word = word.strip()
        if re.match(r"[0-9]{1,4}$", word):
            chosen = gpus[int(word) : int(word) + 1]
        else:
            chosen = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(chosen) != 1:
            break  # CUDA takes none from the first invalid one on
        found += chosen
    return found


def rails(root: str) -> Dict[str, List[int]]:
    """RDMA device -> bytes sent and received by its ports since the node began. The counters are of four bytes."""
    found = {}
    for port in sorted(glob.glob(root + "sys/class/infiniband/*/ports/*")):
        values = [text("%s/counters/%s" % (port, name)) for name in ("port_xmit_data", "port_rcv_data")]
        factor = 4
        if not all(values):
            values = [text("%s/hw_counters/%s" % (port, name)) for name in ("tx_bytes", "rx_bytes")]
            factor = 1
        if all(re.match(r"[0-9]{1,20}$", value) for value in values):
            device, number_ = port.split("/")[-3], port.split("/")[-1]
            name = device if number_ == "1" else "%s:%s" % (device, number_)
            found[name] = [int(value) * factor for value in values]
    return found


def variables(job: str) -> Dict[str, str]:
    """NCCL's variables as the program will find them."""
    found = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith("NCCL_"):
            digest = hashlib.sha256((job + value).encode("utf-8", "surrogateescape")).hexdigest()[:8]
            found[name[:64]] = value[:80] if REPORTED.fullmatch(name) and len(value) <= 80 else "#" + digest
    return found


class Guard:
    def __init__(self, limit: float, root: str) -> None:
        self.end = time.monotonic() + limit
        self.root = root.rstrip("/") + "/"
        self.keeper = Keeper(self.end)
        self.rank, self.local_rank = number(RANK), number(LOCAL_RANK)
        self.host = socket.gethostname().partition(".")[0].lower()
        step = "%s.%s" % (os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", ""))
        self.job = os.environ.get("PMIX_NAMESPACE") or step
        # A closed stdout must not end the guard.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def report(self, what: str, **said: Any) -> None:
        said.update(what=what, host=self.host, rank=self.rank)
        line = MARK + json.dumps(said, sort_keys=True, separators=(",", ":"))
        if len(line) > LINE_LIMIT:
            line = MARK + json.dumps({"what": "cut", "host": self.host, "rank": self.rank})
        # Behind the end of what the program has printed, also where that is half a line. The launcher reads blocks,
        # and mixes those of several ranks: a line that goes into an empty pipe is in one block.
        for _attempt in range(20):
            try:
                if struct.unpack("i", fcntl.ioctl(1, termios.FIONREAD, b"\0\0\0\0"))[0] == 0:
                    break
            except OSError:
                break
            time.sleep(0.05)
        try:
            # If the reader is stopped, drop the line: a full pipe would block past the limit.
            if select.select([], [1], [], 1.0)[1]:
                os.write(1, ("\n%s\n" % line).encode("ascii"))
        except OSError:
            pass

    def introduce(self) -> None:
        """Report this rank, and bind the program to the CPUs next to its GPU."""
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        addresses = sorted(map(os.path.basename, glob.glob(self.root + "proc/driver/nvidia/gpus/*")))
        gpus = [Gpu(self.root, address) for address in addresses]
        seen = selected([gpu for gpu in gpus if gpu.usable])
        mine = seen[self.local_rank] if self.local_rank is not None and self.local_rank < len(seen) else None
        near = cpus(mine.cpus) & os.sched_getaffinity(0) if mine else set()
        if near:
            os.sched_setaffinity(0, near)
        self.report(
            "begin",
            world=number(WORLD),
            job=self.job[:64],
            pmix="PMIX_RANK" in os.environ,
            cpus=ranges(os.sched_getaffinity(0)),
            gpus=len(gpus),
            visible=len(seen),
            gpu=mine.address if mine else "",
            gpu_cpus=mine.cpus if mine else "",
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", "")[:200],
        )
        self.report("variables", variables=variables(self.job))
        self.count()

    def count(self) -> None:
        if self.local_rank == 0:
            self.report("rails", rails=rails(self.root))

    def run(self, argv: List[str]) -> int:
        """Runs the program below two keepers: whichever of them is killed, the other ends what is left."""
        code, why, left = self.keeper.supervise(lambda: leave(Keeper(self.end).supervise(lambda: become(argv))[0]))
        self.report("end", rc=None if why else code, why=why, left=left)
        self.count()
        return code


class Keeper:
    """End a process and all that it has started: at the limit, by a signal, and when our parent ends."""

    def __init__(self, end: float) -> None:
        """end: on the monotonic clock, in seconds."""
        self.end = end
        self.parent = os.getppid()
        self.signal = 0
        for caught in CAUGHT:
            signal.signal(caught, self.stop)

    def stop(self, caught: int, _frame: Any) -> None:
        self.signal = caught

    def supervise(self, start: Callable[[], Any]) -> Tuple[int, str, int]:
        """Start a process. Return exit code (128 + n for a signal), why it had to be ended, how many do not die.

        start: runs in the new process; it does not return.
        """
        # Orphans become our children instead of init's.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = os.fork()
        if child == 0:
            start()
        why, code = "", None  # type: Tuple[str, Optional[int]]
        while code is None and not why:
            why = self.reason()
            code = self.reap(child)
            if code is None and not why:
                time.sleep(POLL)
        left = self.end_all(child)
        if code is not None:
            return code, "", left
        return 128 + self.signal if self.signal else TIMED_OUT if time.monotonic() >= self.end else LOST, why, left

    def reason(self) -> str:
        """Why the process has to be ended now; "" for no reason."""
        if os.getppid() != self.parent:
            return "the launcher's process above it is gone"
        if self.signal:
            return "signal %d" % self.signal
        return "the limit is reached" if time.monotonic() >= self.end else ""

    def reap(self, child: int) -> Optional[int]:
        """Takes in what has ended. The exit code of the process; None while it runs."""
        code = None
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == child:
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        except ChildProcessError:
            pass
        return code

    def end_all(self, child: int) -> int:
        """Ends every process below this one. How many do not die, as in a driver's call that does not return."""
        begin = time.monotonic()
        told = set()  # type: Set[int]
        while True:
            self.reap(child)
            below = descendants(os.getpid())
            if not below or time.monotonic() >= begin + TERM_GRACE + KILL_WAIT:
                return len(below)
            late = time.monotonic() >= begin + TERM_GRACE
            for pid in below:
                # A stopped process handles SIGTERM only when it continues.
                for sent in [signal.SIGKILL] if late else [signal.SIGTERM, signal.SIGCONT] if pid not in told else []:
                    with contextlib.suppress(OSError):
                        os.kill(pid, sent)
                told.add(pid)
            time.sleep(0.02)


def prctl(option: int, value: int) -> None:
    word = ctypes.c_ulong
    if ctypes.CDLL(None, use_errno=True).prctl(option, word(value), word(0), word(0), word(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become(argv: List[str]) -> None:
    """The program in the place of this process; it ends with its parent, whatever ends that."""
    parent = os.getppid()
    try:
        for caught in (*CAUGHT, signal.SIGPIPE):
            signal.signal(caught, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, ("rank guard: %s: %s\n" % (argv[0], error.strerror)).encode("utf-8", "replace"))
    finally:
        os._exit(NOT_STARTED)


def leave(code: int) -> None:
    """End this process."""
    raise SystemExit(code)


def descendants(top: int) -> List[int]:
    """Every living process below one."""
    children = {}  # type: Dict[int, List[int]]
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = text("/proc/%s/stat" % name).rpartition(")")[2].split()
            if len(fields) > 1 and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found = []  # type: List[int]
    left = [top]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def main(argv: List[str]) -> int:
    options, program = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    given = dict(zip(options[::2], options[1::2]))
    guard = Guard(float(given["--limit"]), given.get("--root", "/"))
    guard.introduce()
    return guard.run(program)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
