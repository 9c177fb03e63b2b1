# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What went wrong, as warnings of NCCL's, PyTorch's exceptions and launchers' last lines say it.

A failure names what was reported, not its cause: the judgement says which causes fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Failure:
    """kind: one of the kinds of the rules below.   text: what was printed, cut.

    code: number or name that tells kinds of it apart: ``12`` of a completion, ``out of memory`` of CUDA.
    peer: address of the other side; "" where not said.   device: HCA; "" where not said.
    rank: that an exception, a watchdog or a launcher names; None else.
    """

    kind: str
    text: str
    code: str = ""
    peer: str = ""
    device: str = ""
    rank: Optional[int] = None


# Completion statuses of ibverbs (enum ibv_wc_status) that NCCL meets.
STATUSES = {
    1: "local length error",
    2: "local QP operation error",
    4: "local protection error",
    5: "flushed: the connection had failed before",
    6: "memory window bind error",
    7: "bad response",
    8: "local access error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "RNR retry counter exceeded",
    22: "general error",
}

# Only what has to be told apart. The first rule that fits decides.
_RULES: Tuple[Tuple[str, str], ...] = (
    (
        "completion",
        r"Got completion from peer (?P<peer>\S{1,100}?)(?:<\d+>)? with "
        r"(?:error|status=?) ?(?:\w{1,40}\()?(?P<code>\d{1,3})\)?"
        r"(?:.*\bhca (?P<device>\S{1,64}))?",
    ),
    (
        # Of a queue: it goes with a failed completion.
        "completion",
        r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:fatal )?event(?: on QP \([^)]*\))?[^:]*: "
        r"(?P<code>[\w -]{0,40}(?:work queue error|QP\b|access|request error))",
    ),
    (
        "port",
        r"NET/IB\w* ?: (?:(?P<device>[\w.-]{1,64}):\d+ )?(?:Got )?async (?:fatal )?event(?: on \w+ \([^)]*\))?"
        r"[^:]*: (?P<code>.{1,60})",
    ),
    ("queue_pair", r"Call to ibv_modify_qp failed with (?:error )?(?P<code>.{1,200})"),
    ("memory_limit", r"Call to ibv_(?:reg_mr\w*|create_cq|create_qp|alloc_pd)\w* failed.*Cannot allocate memory"),
    ("registration", r"Call to (?P<code>ibv_reg_\w{1,40}) failed"),
    ("verbs", r"Call to (?P<code>ibv_\w{1,40}) failed"),
    (
        "duplicate_gpu",
        r"Duplicate GPU detected ?: rank (?P<rank>\d{1,8}) and rank \d{1,8} both on CUDA device (?P<code>\w{1,20})",
    ),
    ("duplicate_gpu", r"Multiple Ranks are using the same GPU"),
    ("version", r"Mismatched NCCL version detected|NCCL version mismatch with remote peer"),
    (
        "no_interface",
        r"(?:Bootstrap|NET/Socket) ?: no (?:socket )?interface found|NET/IB\w* ?: No IP interface found|No "
        r"usable listening",
    ),
    ("no_interface", r"connecting to address  ?with family \d+ is neither"),
    ("bootstrap", r"Bootstrap Root ?: (?:rank \d+ of \d+ ranks has already|mismatch in)"),
    ("bootstrap", r"Invalid NCCL_COMM_ID|Net ?: No valid .* pair found"),
    (
        "shared_memory",
        r"shared memory segment|failed to extend /dev/shm|posix_fallocate failed|Error: failed to (?:create|"
        r"extend) shared mem",
    ),
    (
        "connect",
        r"(?:[Cc]onnect|PollConnect)(?:ing)?:? to (?P<peer>\S{1,100}?)(?:<\d+>)? .*?(?:failed|returned|error|exceeded)",
    ),
    (
        "connect",
        r"Call to connect (?:to (?P<peer>\S{1,100}?)(?:<\d+>)? )?(?:failed|timeout)|exceeded (?:error )?retr(?:ies|y)",
    ),
    ("closed", r"Connection closed by remote peer ?(?P<peer>\S{0,100}?)(?:<\d+>)?(?:\s|$)"),
    (
        "closed",
        r"Call to (?:send|recv|recv from|send to)\b.*?(?:to|from)? ?(?P<peer>\d\S{0,100}?)?(?:<\d+>)? ?failed ?: "
        r"(?:Connection reset|Broken pipe|Connection timed out)",
    ),
    (
        "consequence",
        r"Failed to CUDA |Proxy Call to rank|Socket recv failed while polling|Failed to execute operation|"
        r"\[Service thread\]|\[Proxy "
        r"[Ss]ervice|socket progress error|"
        r"ncclSocketInit: connecting|Accept/connect failed|ncclAsyncJobComplete|commReclaim|commDestroySync|"
        r"async(?:Job)? "
        r"failed|communicator encountered a fatal error",
    ),
    ("nvlink_p2p", r"P2P is disabled between NVLINK connected GPUs|failed to peer with device"),
    ("fabric_manager", r"(?P<code>MNNVL) .* not working"),
    ("fabric_manager", r"Failed to bind NVLink SHARP|Cuda failure (?:802|'system not yet init)"),
    ("driver_old", r"CUDA driver version is insufficient"),
    (
        "cuda",
        r"[Cc]uda failure (?:\w{1,40}:\d+ )?(?:\d{1,4} )?'(?P<code>[^']{1,100})'|CUDA error(?: ?: |"
        r"\s)(?P<error>[^\n]{1,80})",
    ),
    ("cuda", r"(?P<code>CUDA out of memory)"),
    (
        "driver",
        r"CUDA Driver version found is|driver version is insufficient|Failed to open libnvidia-ml|(?:Cuda|CUDA) driver",
    ),
    (
        "mismatch",
        r"[Mm]essage truncated|collective mismatch|Mismatched collective|posted incorrect receive info|"
        r"receiving \d+ bytes instead",
    ),
    ("algorithm", r"Unrecognized (?:element|prefix) token|No algorithm/protocol available"),
    ("no_network", r"Error: network (?P<code>\S{1,64}) not found|Failed to initialize any NET plugin"),
    ("no_transport", r"No transport found for rank|has no transport for"),
    ("no_pci_device", r"Could not find real path of (?P<device>[\w.-]{1,64}) \("),
    ("nvml", r"nvml\w{1,60}(?:\(\))? failed"),
    ("driver_functions", r"CUDA some PFN functions not found"),
    ("link_layer", r"incompatible (?:with the local|devices)|Detected mixed local (?:Net|CollNet) device counts"),
    ("handshake", r"socketFinalizeAccept: wrong (?:type|magic)|wrong type \d+ != \d+"),
    # Of a network that a plugin brings: NET/OFI. Last: what NCCL's own rules know says more.
    ("net_plugin", r"^NET/(?!IB|Socket\b|Plugin\b)(?P<code>\w{2,40})\b"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)
# Warnings that change nothing where a network is found all the same.
_HARMLESS = re.compile(
    r"dlvsym failed|Failed to open libibverbs|NET/IB ?: No device found|NCCL_SOCKET_NTHREADS is greater|"
    r"total number of sockets is greater|NCCL_WORK_FIFO_BYTES=|Missing \S* ?symbol|not able to (?:find|"
    r"load)|Cannot initialize CollNet|"
    r"Failed to open libnccl|NCCL_NET_MERGE_POLICY|has been set to \"1\" and communicator|non-fatal async event"
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>\d{1,20}), )?OpType=(?P<op>\w{1,60})"
)
# The rank of the job, and that of a process group, which is what an exception's own text may mean.
_JOB_RANK = re.compile(r"\[rank(\d{1,8})\]")
_SAYS_RANK = re.compile(r"\[(?:[^\]]* )?Rank (\d{1,8})\]")
_PROGRESS = re.compile(
    r"\[PG (?P<group>[^\]]{1,80}?) ?Rank \d+\] .{0,120}last enqueued (?:NCCL )?work: (?P<enqueued>\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>\d{1,18})"
)
_DIED = re.compile(r"terminated with exception: CUDA error: (?P<error>.{1,80})")
_EXIT = (
    re.compile(r"error: (?P<host>[\w.-]{1,120}): tasks? (?P<rank>\d{1,8})[\d,\-]*: (?P<how>.{1,80})$"),
    re.compile(
        r"process rank (?P<rank>\d{1,8}) with PID \d+ on node (?P<host>[\w.-]{1,120}) exited on (?P<how>signal .{1,40})"
    ),
    re.compile(
        r"Worker IP address: (?P<host>[\w.:-]{1,120}) .{0,80}?Worker PID: (?P<pid>\d{1,10}) Worker exit type: "
        r"(?P<how>SYSTEM_ERROR|USER_ERROR|NODE_OUT_OF_MEMORY)"
    ),
    re.compile(r"failed \(exitcode: (?P<how>-?\d{1,5})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"),
)
_EXCEPTION = re.compile(
    r"NCCL error(?: in: \S+?)?(?:[,:] (?P<what>[a-z][^(,]{3,60}))?(?: \(run with [^)]*\))?, NCCL version "
    r"(?P<version>[\d.]{3,12})"
)
_TEST = re.compile(r"Test (?P<lib>NCCL|CUDA) failure \S+ '(?P<error>[^']{1,200})'")


def failure(text: str) -> Optional[Failure]:
    """What a warning says; a Failure of kind "warning" where no rule knows it; None of what is harmless."""
    for kind, pattern in _COMPILED:
        match = pattern.search(text)
        if match is not None:
            said = match.groupdict()
            return Failure(
                kind,
                text[:400],
                (said.get("code") or said.get("error") or "").strip(),
                said.get("peer") or "",
                said.get("device") or "",
                int(said["rank"]) if said.get("rank") else None,
            )
    return None if _HARMLESS.search(text) else Failure("warning", text[:400])


# One of these is in every line that ``said_elsewhere`` makes something of.
MARKS = (b"rror", b"NCCL", b"ailed", b"atchdog", b"exit", b"ailure")


def said_elsewhere(line: str, last_error: bool) -> Optional[Failure]:
    """What a line that is none of NCCL's says of a job's end. last_error: the line before was ``Last error:``."""
    if last_error:
        return failure(line.strip())
    match = _WATCHDOG.search(line)
    if match:
        number = match.group("number")
        code = match.group("op") + (" number %s" % number if number else "")
        return Failure("watchdog", line[:400], code, rank=_rank(line))
    match = _PROGRESS.search(line)
    if match:
        code = "%s of %s" % (match.group("enqueued"), match.group("group").strip())
        return Failure("progress", line[:400], code, rank=_rank(line))
    match = _DIED.search(line)
    if match:
        return Failure("cuda", line.strip()[:400], match.group("error").strip(), rank=_rank(line))
    for pattern in _EXIT:
        match = pattern.search(line)
        if match:
            said = match.groupdict()
            rank = said.get("rank")
            where = " ".join(part for part in (said.get("host"), said.get("pid") and "pid %s" % said["pid"]) if part)
            return Failure("exit", line.strip()[:400], said["how"].strip(), where, rank=int(rank) if rank else None)
    match = _TEST.search(line)
    if match:
        return Failure("test", line.strip()[:400], match.group("error"))
    if "torch.OutOfMemoryError" in line or "CUDA out of memory" in line:
        return Failure("cuda", line.strip()[:400], "out of memory")
    match = _EXCEPTION.search(line)
    if match:
        return Failure("exception", line.strip()[:400], (match.group("what") or "").strip())
    return None


def _rank(line: str) -> Optional[int]:
    match = _JOB_RANK.search(line) or _SAYS_RANK.search(line)
    return int(match.group(1)) if match else None


def exception_version(line: str) -> Optional[str]:
    """The release that an exception of PyTorch's names: ``2.19.3``."""
    match = _EXCEPTION.search(line)
    return match.group("version") if match else None
