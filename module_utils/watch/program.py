# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watch a node: sample GPUs and ports every few seconds, report jobs that stall and links that flap, keep one day.

nvidia-smi runs all the time and prints a sample every few seconds, which costs a hundredth of starting it each time.
Which processes use GPUs is asked only while some GPU looks as if it waited.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ..core import trusted
from ..core.host import ParseError, ReadError
from ..core.number import whole
from . import job_state, ports, read
from .ring import Ring

# Seconds between two questions for processes, where a GPU waits and where none does; after which a tool hangs; between
# two starts of a tool that ended.
ASK_WAITING, ASK_ELSE, HANGS, RESTART = 30.0, 300.0, 20.0, 60.0
# Seconds between two records of samples.
RECORD = 60.0
_KMSG = "/dev/kmsg"
_BLIND = "nvidia-smi gives no samples"


@dataclass(frozen=True)
class Settings:
    """interval: seconds between samples.   patience: seconds without a working GPU after which a job is stalled.

    window: seconds in which a link that comes back has flapped.   folder: of the ring.   roots: of files and programs.
    """

    interval: float = 5.0
    patience: float = 300.0
    window: float = 60.0
    folder: str = "/var/lib/busbar/watch"
    hardware_root: str = "/"
    nvidia_smi: str = "nvidia-smi"


class Event(NamedTuple):
    """kind: of job_state or ports, or ``Xid``.   at, since: seconds since 1970.   text: a sentence for people."""

    kind: str
    at: float
    since: float
    text: str
    details: Dict[str, object]


Say = Callable[[Event], None]


def tool(name: str) -> str:
    """Return the path of nvidia-smi. Raises ReadError where it is not there, or root would run another user's."""
    path = shutil.which(name)
    if path is None:
        raise ReadError(name, "is not there: install the NVIDIA driver")
    doubt = trusted.doubt(path) if os.geteuid() == 0 else ""
    if doubt:
        raise ReadError(path, f"{doubt}, so root does not run it")
    return path


class Watch:
    """The state of one watch. Raises what ``tool`` raises, and OSError for the ring."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings, self.program, self.say = settings, tool(settings.nvidia_smi), say
        self.ring = Ring(settings.folder)
        self.jobs = job_state.Watcher(settings.patience)
        self.ports = ports.PortWatcher(settings.window)
        self.processes: Dict[str, read.Process] = {}
        self.asked = 0.0
        self.recorded = 0.0
        self.kmsg = self._kernel_log()

    # -- samples -------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Watch until ``until``. Raises OSError."""
        argv = [self.program, f"--query-gpu={','.join(read.FIELDS)}", "--format=csv,noheader,nounits"]
        argv.append(f"--loop-ms={int(self.settings.interval * 1000)}")
        while not until():
            started = time.time()
            with subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as smi:
                try:
                    self._read(smi, until)
                finally:
                    smi.kill()
            now = time.time()
            if not until():
                self._event(Event("blind", now, started, f"{_BLIND}; it is started again", {}))
                self._wait(max(0.0, RESTART - (now - started)), until)

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        end = time.time() + seconds
        while time.time() < end and not until():
            self.take(time.time(), [])
            time.sleep(min(self.settings.interval, max(0.0, end - time.time())))

    def _read(self, smi: subprocess.Popen[bytes], until: Callable[[], bool]) -> None:
        """Take samples until the tool ends or hangs. A sample is complete where a GPU comes a second time."""
        if smi.stdout is None:
            raise AssertionError("Popen was asked for a pipe")
        os.set_blocking(smi.stdout.fileno(), False)
        gpus: Dict[str, job_state.Gpu] = {}
        rest, last = b"", time.time()
        with selectors.DefaultSelector() as selector:
            selector.register(smi.stdout, selectors.EVENT_READ)
            while not until():
                if not selector.select(timeout=1.0):
                    if time.time() - last > HANGS + self.settings.interval:
                        return
                    # The last line of a sample is followed by nothing for a while.
                    if gpus and time.time() - last > self.settings.interval / 2:
                        self.take(last, list(gpus.values()))
                        gpus = {}
                    continue
                data = os.read(smi.stdout.fileno(), 1 << 16)
                if not data:
                    return
                last = time.time()
                *lines, rest = (rest + data)[-(1 << 20) :].split(b"\n")
                for line in lines:
                    with suppress(ParseError):
                        gpu = read.gpu_line(line.decode(errors="replace"))
                        if gpu.pci in gpus:
                            self.take(last, list(gpus.values()))
                            gpus = {}
                        gpus[gpu.pci] = gpu

    def take(self, at: float, gpus: List[job_state.Gpu]) -> None:
        """Judge a sample, and store it at times."""
        waits = any(job_state.state_of(gpu) == job_state.WAITS for gpu in gpus)
        if gpus and at - self.asked >= (ASK_WAITING if waits else ASK_ELSE):
            self.asked, self.processes = at, self._processes()
        gpus = read.with_processes(gpus, self.processes)
        begun, ended = self.jobs.take(at, gpus)
        for stall in begun:
            self._event(Event(stall.kind, at, stall.since, describe(stall), asdict(stall)))
        for stall in ended:
            text = f"{stall.job} works again, or ended, after {at - stall.since:.0f} s"
            self._event(Event(f"{stall.kind}: over", at, stall.since, text, {"job": stall.job}))
        for port in self.ports.take(at, self._ports()):
            text = f"{port.port}: {port.kind}" + (f" after {port.seconds:.0f} s" if port.seconds else "")
            self._event(Event(port.kind, at, port.since, text, port._asdict()))
        for pci, number in self._xids():
            self._event(Event("Xid", at, at, f"{pci}: Xid {number}", {"gpu": pci, "number": number}))
        if at - self.recorded >= RECORD:
            self.recorded = at
            self.ring.add(at, {"gpus": [list(gpu[:4]) for gpu in gpus]})

    def _event(self, event: Event) -> None:
        self.ring.add(event.at, {"kind": event.kind, "since": event.since, "text": event.text, **event.details})
        self.say(event)

    # -- the node ------------------------------------------------------------------------------------------------------

    def _processes(self) -> Dict[str, read.Process]:
        """Return a process of each GPU that has one."""
        argv = [self.program, f"--query-compute-apps={','.join(read.PROCESS_FIELDS)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANGS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        found: Dict[str, read.Process] = {}
        for pid, gpu in read.process_lines(done.stdout.decode(errors="replace")):
            cgroup = self._file(f"/proc/{pid}/cgroup").decode(errors="replace")
            parent = read.parent_of(self._file(f"/proc/{pid}/stat").decode(errors="replace"))
            rank = read.rank_of(self._file(f"/proc/{pid}/environ"))
            # Of several processes on a GPU one with a rank counts.
            if gpu not in found or (found[gpu].rank is None and rank is not None):
                found[gpu] = read.Process(pid, read.job_of(cgroup, parent), rank)
        return found

    def _ports(self) -> Dict[str, read.Port]:
        found = {}
        top = os.path.join(self.settings.hardware_root, "sys/class/infiniband")
        with suppress(OSError):
            for device in sorted(os.listdir(top)):
                for port in sorted(os.listdir(os.path.join(top, device, "ports"))):
                    folder = f"/sys/class/infiniband/{device}/ports/{port}"
                    state = self._file(f"{folder}/state").decode(errors="replace").strip()
                    downed = self._file(f"{folder}/counters/link_downed").decode(errors="replace").strip()
                    found[f"{device}/{port}"] = read.Port(state, whole(downed))
        return found

    def _file(self, path: str) -> bytes:
        with suppress(OSError), open(os.path.join(self.settings.hardware_root, path.lstrip("/")), "rb") as stream:
            return stream.read(1 << 18)
        return b""

    def _kernel_log(self) -> Optional[int]:
        with suppress(OSError):
            handle = os.open(os.path.join(self.settings.hardware_root, _KMSG.lstrip("/")), os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(handle, 0, os.SEEK_END)
            return handle
        return None

    def _xids(self) -> List[Tuple[str, int]]:
        found = []
        with suppress(OSError):
            while self.kmsg is not None:
                record = os.read(self.kmsg, 1 << 13)
                if not record:
                    break
                xid = read.xid_of(record.partition(b";")[2].decode(errors="replace"))
                found += [xid] if xid is not None else []
        return found


def describe(stall: job_state.Stall) -> str:
    """Return a sentence: what the job does, since when, who is late, what to run."""
    minutes = (stall.at - stall.since) / 60
    what = {
        job_state.STOPPED: "waits for a rank that runs nothing",
        job_state.SLOW: "waits for a late rank in every step",
        job_state.ALL_WAIT: "waits on all its GPUs here: the late rank is on another node, or ranks differ in order",
        job_state.NONE_RUNS: "runs no kernel: it loads data, compiles, or its ranks are in a deadlock",
    }[stall.kind]
    late = [f"rank {one.rank}" if one.rank is not None else f"the rank on {one.pci}" for one in stall.late]
    who = f": {', '.join(late)} (PID {', '.join(str(one.pid) for one in stall.late)})" if late else ""
    return f"{stall.job} {what}{who}, for {minutes:.1f} min; collect: py-spy dump --pid PID, busbar hang HOST"
