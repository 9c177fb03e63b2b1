# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How processes and GPUs of a job ended, in words: exit codes, signals, and what the kernel says of a GPU (Xid)."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..health import xid
from . import signal_numbers
from .failures import Failure
from .job import Process, Reported
from .jobs import names

_NUMBER = re.compile(r"^(?:(?:[Ee]xited with )?exit code |exitcode:? ?)?(?P<code>-?\d{1,5})\W*$")
_BY_ORDER = re.compile(r"^-15$|\b143$|[Ss]ignal (?:15|SIGTERM)|^Terminated|^SIGTERM|^1[45]3\b.*SIGTERM")
_SIGNAL = re.compile(r"[Ss]ignal (?P<number>\d{1,2})\b")

# What a wait returns whose communicator is aborted, and where such waits are.
_ENDED_WAIT = 3
_SOCKET = re.compile(r"(?:^|/)(?:\w*socket\w*|proxy|linux)\.(?:cc|cpp|cu):")

_PROCESS = re.compile(r"pid='?(?P<pid>\d{1,10})'?, name=(?P<name>[\w./-]{1,60})")
_RESET = re.compile(r"\b[Rr]eset(?: the)? gpu\b")
# Faults that a program does not make.
OWN_FAULT = (48, 62, 74, 79, 95, 119, 120)
# What an Xid asks for -> what to do.
_DO: Dict[Optional[str], str] = {
    xid.NOTHING: "nothing; see `nvidia-smi -q -d ECC,ROW_REMAPPER` and other lines of the kernel about this GPU",
    xid.RESTART: "usually an error of the program: run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; if it"
    " occurs on one GPU only, whatever runs there, drain the node",
    xid.SUPPORT: "send the archive of nvidia-bug-report.sh to NVIDIA's support; restart the node",
    xid.RESET: "drain the node, end what runs on that GPU, and reset it: `nvidia-smi --gpu-reset -i ADDRESS`; if it"
    " returns, have the GPU inspected",
    xid.WORKFLOW: "drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER`, `nvidia-smi nvlink -s` and `-e` on it show"
    " whether memory or a link is bad; reset the GPU, and have it inspected if the error returns",
    xid.REBOOT: "drain and reboot the node; if the GPU fails again, have its slot, power and cooling inspected",
    xid.VM: "restart the virtual machine",
    xid.POWER: "check the GPU's power cables and slot",
    None: "look the number up in NVIDIA's list of Xid errors, and see `nvidia-smi -q` on the node",
}


def ended_with(code: str) -> str:
    """``exit code 137 (signal 9, SIGKILL: ...)`` of what a launcher says."""
    number = _NUMBER.match(code)
    if number is None:
        signal = _SIGNAL.search(code)
        meant = signal_numbers.SIGNALS.get(int(signal.group("number")), "") if signal else ""
        return code.rstrip(". ") + (", %s" % meant if meant else "")
    meant = signal_numbers.meaning(int(number.group("code")))
    return "exit code %s" % number.group("code") + (", that is: %s" % meant if meant else "")


def meant(code: str) -> str:
    """``: signal 6, SIGABRT: ...`` of a code that reports it; "" of others."""
    return ended_with(code).partition(", that is")[2]


def signal_of(code: str) -> int:
    """The signal that a code or its words mean; 0 of others."""
    number, said = _NUMBER.match(code), _SIGNAL.search(code)
    if number is None:
        return int(said.group("number")) if said else 0
    told = _SIGNAL.search(signal_numbers.meaning(int(number.group("code"))))
    return int(told.group("number")) if told else 0


def killed(failures: Sequence[Reported]) -> str:
    """Whom launchers name as ended where memory gave out."""
    said = [one.failure for one in failures if one.failure.kind == "exit"]
    said = [one for one in said if "Out Of Memory" in one.code or "SIGKILL" in ended_with(one.code)]
    who = ["rank %d (%s)" % (one.rank, one.peer) if one.rank is not None else one.peer for one in said]
    return "ended by it, as a launcher reports: %s" % names([one for one in who if one], 8) if any(who) else ""


def gpu_failed(first: Reported, reported: Sequence[Reported]) -> bool:
    """Whether errors of CUDA come after the kernel's word that a GPU failed, on which they may be."""
    if first.failure.kind != "xid" or int(first.failure.code) in (63, 92, 121, 154, 160, 161):
        return False
    return all(one.source == first.source and one.order > first.order for one in reported)


def look_after(code: str) -> Optional[str]:
    """What to do about an end with this code or signal, where that tells more than that it ended."""
    said = ended_with(code)
    if "SIGKILL" in said or "Killed" in code:
        return (
            "`dmesg -T | grep -i -E 'oom|killed process'` on its node, and the limit of its cgroup or pod; if it shows"
            " nothing about memory: the scheduler's record of what ended it"
        )
    if "SIGBUS" in said:
        return "`df -h /dev/shm` in the job: containers need --shm-size=16g or --ipc=host; if not full: `dmesg -T`"
    if "SIGSEGV" in said or "SIGABRT" in said or "SIGILL" in said or "SIGFPE" in said:
        return (
            "read the last lines of that process and the stack that its crash handler printed; else a core:"
            " `ulimit -c unlimited`, `coredumpctl gdb`"
        )
    if "SIGTERM" in said or "SIGHUP" in said or "SIGINT" in said:
        return "it was ended on request: find what ended before it, and the scheduler's record (`sacct -j JOB`)"
    return (
        "read the last lines of that process, which show why: in the log of that rank or node (torchrun: --log-dir and"
        " --tee 3; srun: --output with %t)"
    )


def by_order(said: Failure) -> bool:
    """Whether a process was told to end: usually the launcher ends the others after the first failure."""
    return said.kind == "exit" and _BY_ORDER.search(said.code) is not None


def by_itself(said: Failure) -> bool:
    """Whether a process ended in a way that other failures of the log do not bring: killed from outside, or a crash."""
    text = ended_with(said.code) if said.kind == "exit" else ""
    return said.kind == "exit" and any(
        word in text for word in ("SIGKILL", "SIGBUS", "SIGSEGV", "Killed", "Segmentation", "Bus error", "SYSTEM_ERROR")
    )


def aborted(said: Failure) -> bool:
    """Whether a process ended itself by abort(), as PyTorch's watchdog does: never without a cause."""
    return said.kind == "exit" and ("SIGABRT" in ended_with(said.code) or "Aborted" in said.code)


def xid_said(reported: Sequence[Reported]) -> Tuple[str, str]:
    """What the kernel says of one number, and what to do."""
    number = int(reported[0].failure.code)
    meant, _action = xid.TABLE.get(number, ("not in NVIDIA's catalog", None))
    action = max((xid.asks(number, one.failure.text) for one in reported), key=xid.rank)
    gpus = names({_gpu(one) for one in reported if one.failure.device}, 8)
    text = "the kernel reports Xid %d of the GPU at PCI %s: %s" % (number, gpus, meant)
    programs = {"%(name)s (pid %(pid)s)" % match.groupdict()
                for match in (_PROCESS.search(one.failure.text) for one in reported) if match}  # fmt: skip
    text += "; met by %s" % names(programs, 4) if programs else ""
    if action == xid.NOTHING and any(_RESET.search(one.failure.text) for one in reported):
        action = xid.RESET  # the line itself asks for it
    return text, _DO[action]


def xid_follows(reported: Sequence[Reported], failures: Sequence[Reported]) -> bool:
    """Whether Xids of one number are but consequences of others of the same GPUs."""
    others: Dict[str, Set[int]] = {}
    for one in failures:
        if one.failure.kind == "xid":
            others.setdefault(_gpu(one), set()).add(int(one.failure.code))
    return all(_but_follows(int(one.failure.code), others[_gpu(one)]) for one in reported)


def _but_follows(number: int, others: Set[int]) -> bool:
    follows = any(number in xid.FOLLOWS.get(other, ()) for other in others)
    # A channel that is torn down has nothing about why.
    return follows or (number in (43, 45) and bool(others - {43, 45}))


def _gpu(one: Reported) -> str:
    return one.failure.device.replace("PCI:", "").partition(".")[0]


def shut_down(process: Process, aborted: bool = False) -> bool:
    """Whether what its calls returned goes with the abort of its communicators: calls that wait on sockets end so.

    aborted: another process of the job was, and nothing else failed.
    """
    return bool((process.ended or aborted) and process.calls) and all(
        call.result == _ENDED_WAIT and _SOCKET.search(call.place) for call in process.calls
    )


def launched(reported: Sequence[Reported]) -> List[Reported]:
    """The ends that say most first: a launcher's own word on who was first, then those that nobody ordered."""
    return sorted(reported, key=lambda one: ("the first" not in one.failure.text, by_order(one.failure)))
