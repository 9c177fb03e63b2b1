# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watch a node: sample GPUs and ports every few seconds, report jobs that stall and links that flap, keep one day.

The command ``busbar watch`` runs it, and on nodes of the role ``watch`` systemd does (service.py).

nvidia-smi runs all the time and prints a sample every few seconds, which costs a hundredth of starting it each time.
Which processes use GPUs is asked only while some GPU looks as if it waited.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from ..core import orphans, trusted
from ..core.child import kill_group, reap
from ..core.finding import printable
from ..core.host import Host, ParseError, ReadError, attempt, search_path
from ..core.number import whole
from ..health.kernel_log_rules import BY_NAME, match_line
from . import job_state, ports, read
from .evidence import Evidence, collect
from .ring import FOLDER, Ring

# Seconds between two questions for processes, where a GPU waits and where none does; after which a tool hangs; between
# two starts of a tool that ended.
ASK_WAITING, ASK_ELSE, HANGS, RESTART = 30.0, 300.0, 20.0, 60.0
# Seconds between two records of samples.
RECORD = 60.0
_DEVICES = "/sys/class/infiniband"
_BLIND = "nvidia-smi gives no samples"


class Settings(NamedTuple):
    """interval: seconds between samples.   patience: seconds without a working GPU after which a job is stalled.

    window: seconds in which a link that comes back has flapped.   folder: of the ring.   nvidia_smi: name or path.
    inspector: directory with the records of NCCL's Inspector; "" for none.
    """

    interval: float = 5.0
    patience: float = 300.0
    window: float = 60.0
    folder: str = FOLDER
    nvidia_smi: str = "nvidia-smi"
    inspector: str = ""


class Event(NamedTuple):
    """kind: of job_state or ports, or ``Xid``.   at, since: seconds since 1970.   text: a sentence for people."""

    kind: str
    at: float
    since: float
    text: str
    details: Dict[str, object]


Say = Callable[[Event], None]


class Watch:
    """The state of one watch. Raises ReadError where nvidia-smi or the folder cannot be used, OSError for the ring."""

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings, self.say, self.host = settings, say, Host()
        self.program = self.host.tool(settings.nvidia_smi)
        self.ring = Ring(settings.folder)
        doubt = trusted.doubt(os.path.abspath(settings.folder)) if os.geteuid() == 0 else ""
        if doubt:
            raise ReadError(settings.folder, f"is not written to as root, because {doubt}; {trusted.WAY_OUT}")
        self.jobs = job_state.Watcher(settings.patience)
        self.ports = ports.PortWatcher(settings.window)
        self.processes: Dict[str, read.Process] = {}
        self.asked = self.recorded = self.inquired = float("-inf")
        self.name = socket.gethostname()
        self.kmsg = _kernel_log()

    # -- samples -------------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Watch until ``until``. Raises ReadError, OSError."""
        while not until():
            started = time.monotonic()
            self._sample(until)
            if not until():
                times = _utc(time.monotonic()), _utc(started)
                self._event(Event("blind", *times, f"{_BLIND}; it is started again", {}))
                self._wait(max(started + RESTART, time.monotonic()), until)

    def _wait(self, end: float, until: Callable[[], bool]) -> None:
        while time.monotonic() < end and not until():
            self.take(time.monotonic(), [])
            time.sleep(min(self.settings.interval, max(0.0, end - time.monotonic())))

    def _sample(self, until: Callable[[], bool]) -> None:
        """Take the samples of one nvidia-smi, until it ends or hangs."""
        argv = [self.program, f"--query-gpu={','.join(read.FIELDS)}", "--format=csv,noheader,nounits"]
        argv.append(f"--loop-ms={int(self.settings.interval * 1000)}")
        quiet, environment = subprocess.DEVNULL, {"PATH": search_path(), "LC_ALL": "C", "HOME": "/"}
        smi = subprocess.Popen(
            argv, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=environment, start_new_session=True
        )
        if smi.stdout is None:
            raise AssertionError("Popen was asked for a pipe")
        with smi.stdout as lines:
            try:
                self._read(lines.fileno(), until)
            finally:
                # One that waits in the driver does not die, and is not waited for.
                kill_group(smi.pid)
                reap(smi, time.monotonic() + 0.5)

    def _read(self, stream: int, until: Callable[[], bool]) -> None:
        """Take samples until the stream ends or nothing comes. One is complete where a GPU comes a second time."""
        os.set_blocking(stream, False)
        gpus: Dict[str, job_state.Gpu] = {}
        rest, last = b"", time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not until():
                if not selector.select(timeout=1.0):
                    if time.monotonic() - last > HANGS + self.settings.interval:
                        return
                    # The last line of a sample is followed by nothing for a while.
                    if gpus and time.monotonic() - last > self.settings.interval / 2:
                        self.take(last, list(gpus.values()))
                        gpus = {}
                    continue
                data = os.read(stream, 1 << 16)
                if not data:
                    return
                last = time.monotonic()
                *lines, rest = (rest + data)[-(1 << 20) :].split(b"\n")
                for line in lines:
                    with suppress(ParseError):
                        gpu = read.gpu_line(line.decode(errors="replace"))
                        if gpu.pci in gpus:
                            self.take(last, list(gpus.values()))
                            gpus = {}
                        gpus[gpu.pci] = gpu

    def take(self, moment: float, gpus: List[job_state.Gpu]) -> None:
        """Judge a sample, and store it at times. gpus: [] where nothing is known of them: then jobs are not judged.

        moment: of the monotonic clock, by which all is judged: a clock that is set makes no stall.
        """
        at = _utc(moment)
        waits = self.jobs.is_any_late() or any(job_state.state_of(gpu) == job_state.WAITS for gpu in gpus)
        if gpus and moment >= self.asked + (ASK_WAITING if waits else ASK_ELSE):
            self.asked, self.processes = moment, self._processes()
        gpus = read.with_processes(gpus, self.processes)
        begun, ended = self.jobs.take(moment, gpus) if gpus else ([], [])
        for stall in (one._replace(since=_utc(one.since), at=at) for one in begun):
            evidence = self._evidence(stall, moment)
            text = "; ".join([describe(stall, self.name), *(one.text for one in evidence)])
            details = {**stall._asdict(), "evidence": [one._asdict() for one in evidence]}
            self._event(Event(stall.kind, at, stall.since, text, details))
        for stall in ended:
            text = f"{stall.job} works again, or ended, after {moment - stall.since:.0f} s"
            self._event(Event(f"{stall.kind}: over", at, _utc(stall.since), text, {"job": stall.job}))
        with suppress(ReadError):
            for port in self.ports.take(moment, self._ports()):
                dated = port._replace(since=_utc(port.since), at=at)
                text = f"{port.port}: {port.kind}" + (f" after {port.seconds:.0f} s" if port.seconds else "")
                self._event(Event(port.kind, at, dated.since, text, dated._asdict()))
        for message in self._kernel_messages():
            self._kernel_event(at, message)
        if moment >= self.recorded + RECORD:
            self.recorded = moment
            self.ring.add(at, {"gpus": [list(gpu[:4]) for gpu in gpus]})

    def _evidence(self, stall: job_state.Stall, moment: float) -> List[Evidence]:
        """Return what RAS and Inspector report of the job. That takes seconds: once a minute at most."""
        if moment < self.inquired + RECORD:
            return []
        self.inquired = moment
        pids = {process.pid for process in self.processes.values() if process.job == stall.job}
        return collect(self.host, stall, pids, self.settings.inspector)

    def _event(self, event: Event) -> None:
        self.ring.add(event.at, {"kind": event.kind, "since": event.since, "text": event.text, **event.details})
        self.say(event)

    # -- the node ------------------------------------------------------------------------------------------------------

    def _processes(self) -> Dict[str, read.Process]:
        """Return a process of each GPU that has one; the last answer where there is no other."""
        query = f"--query-compute-apps={','.join(read.PROCESS_FIELDS)}"
        argv = [self.settings.nvidia_smi, query, "--format=csv,noheader,nounits"]
        text = attempt(lambda: self.host.query(argv, HANGS), argv[0], [])
        if text is None:
            return self.processes
        found: Dict[str, read.Process] = {}
        for pid, gpu in read.process_lines(text):
            stat: List[bytes] = []
            with suppress(OSError):
                stat = orphans.read_stat(pid)
            rank = read.rank_of(orphans.environment(pid))
            # Of several processes on a GPU one with a rank counts.
            if gpu not in found or (found[gpu].rank is None and rank is not None):
                found[gpu] = read.Process(pid, read.job_of(self._text(f"/proc/{pid}/cgroup"), stat), rank)
        return found

    def _ports(self) -> Dict[str, read.Port]:
        found = {}
        for device in self.host.listdir(_DEVICES):
            for port in self.host.listdir(f"{_DEVICES}/{device}/ports"):
                folder = f"{_DEVICES}/{device}/ports/{port}"
                downed = whole(self._text(f"{folder}/counters/link_downed"))
                found[f"{device}/{port}"] = read.Port(self._text(f"{folder}/state"), downed)
        return found

    def _text(self, path: str) -> str:
        """Return a file's text, "" where it cannot be read."""
        return attempt(lambda: self.host.read(path, "replace"), path, []) or ""

    def _kernel_messages(self) -> List[str]:
        found = []
        with suppress(OSError):
            while self.kmsg is not None:
                record = os.read(self.kmsg, 1 << 13)
                if not record:
                    break
                found.append(record.partition(b";")[2].decode(errors="replace"))
        return found

    def _kernel_event(self, at: float, message: str) -> None:
        """Report an Xid, or what the driver of a NIC has logged."""
        xid = read.xid_of(message)
        rule, device = match_line(message[: read.LINE]) or ("", "") if "mlx5" in message else ("", "")
        if xid is not None:
            self._event(Event("Xid", at, at, "%s: Xid %d" % xid, dict(zip(("gpu", "number"), xid))))
        elif rule.startswith("nic.") and BY_NAME[rule].severity:
            text = f"{device or 'a NIC'}: {BY_NAME[rule].meaning}"
            self._event(Event("NIC", at, at, text, {"device": device, "rule": rule}))


def _utc(moment: float) -> float:
    """Return seconds since 1970, by the clock as it is now, of a moment of the monotonic clock."""
    return time.time() - time.monotonic() + moment


def _kernel_log() -> Optional[int]:
    """Return a descriptor of what the kernel will log from now on; None where it may not be read."""
    with suppress(OSError):
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(handle, 0, os.SEEK_END)
        return handle
    return None


def describe(stall: job_state.Stall, host: str) -> str:
    """Return a sentence: what the job does, where and since when, who is late, what to run."""
    minutes = (stall.at - stall.since) / 60
    what = {
        job_state.STOPPED: "waits for a rank that runs nothing",
        job_state.SLOW: "waits for a late rank in every step",
        job_state.ALL_WAIT: "waits on all its GPUs here: the late rank is on another node, or ranks differ in order",
        job_state.NONE_RUNS: "runs no kernel: it loads data, compiles, or its ranks are in a deadlock",
    }[stall.kind]
    late = [f"rank {one.rank}" if one.rank is not None else f"the rank on {one.pci}" for one in stall.late]
    pids = [str(one.pid) for one in stall.late if one.pid is not None]
    who = f": {', '.join(late)}" + (f" (PID {', '.join(pids)})" if pids else "") if late else ""
    collect = [*(f"py-spy dump --pid {pid}" for pid in pids[:1]), f"busbar hang {host} -i INVENTORY"]
    return f"{host}: {stall.job} {what}{who}, for {minutes:.1f} min; collect: {'; '.join(collect)}"


def main(arguments: Sequence[str]) -> None:
    """Watch until a signal ends it; print each event. arguments: ``--patience 300``, for each of Settings."""
    parser = argparse.ArgumentParser(prog="busbar watch", description="Report stalled jobs and flapping links.")
    for name, value in Settings()._asdict().items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    try:
        settings = Settings(**vars(parser.parse_args(arguments)))
        Watch(settings, _print).run(lambda: False)
    except (ReadError, OSError) as error:
        sys.exit("busbar watch: %s" % error)


def _print(event: Event) -> None:
    print(printable("%s: %s" % (event.kind, event.text)), flush=True)
