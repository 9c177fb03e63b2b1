# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lines that are none of NCCL's say of a job's end: PyTorch's and JAX's exceptions, launchers, the scheduler."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Optional, Tuple

from .failures import Failure, failure
from .quotes import shortened

_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: ?"
    r"WorkNCCL\((?:SeqNum=(?P<number>\d{1,20}), )?OpType=(?P<op>\w{1,60})"
)
_WORK = re.compile(r"Timeout at NCCL work: (?P<number>\d{1,20})")
# The rank of the job, and that of a process group, which is what an exception's own text may mean.
_JOB_RANK = re.compile(r"\[rank(\d{1,8})\]")
_SAYS_RANK = re.compile(r"\[(?:[^\]]* )?Rank (\d{1,8})\]|^\s*\[(\d{1,8})\] is setting up")
# A process group that is not of all ranks: its rank 0 is any rank of the job.
_PART = re.compile(r"\[PG [^\]]{0,60}\((?!default_pg)[^)\]]{1,80}\) ?Rank \d")
_PROGRESS = re.compile(
    r"\[PG (?P<group>[^\]]{1,80}?) ?Rank \d+\] .{0,260}[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), "
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
# PyTorch's ranks tell each other of a timeout, each with how far it came itself.
_SIGNALLED = re.compile(r"dump signal due to a collective timeout from +(?:rank (?P<by>\d{1,8})|this local rank)")
# PyTorch's own head of a line, and what a progress bar before it has.
_HEAD = re.compile(r"\[rank\d{1,8}\]:\[[EFW](?:\d{3,4})? ")
_BAR = ("it/s", "s/it", "%|")
_DIED = re.compile(r"terminated with exception: CUDA error: (?P<error>.{1,80})")
# Of PyTorch, and of programs that write as NCCL and NVSHMEM do.
_CUDA = re.compile(
    r"(?:CUDA error|[Cc]uda failure)(?:: | (?:\S{1,200} )?')(?P<error>"
    r"CUDA driver version is insufficient for CUDA runtime version|[a-z][a-z ,-]{5,80}(?:ECC|CUDA)?[a-z -]{0,60})"
)
_EXIT = (
    # A task of Slurm's is a rank, or a launcher of some: the line does not say which.
    re.compile(r"error: (?P<host>[\w.-]{1,120}: tasks? [\d,\-]{1,200}): (?P<how>.{1,80})$"),
    re.compile(
        r"process rank (?P<rank>\d{1,8}) with PID \d+ on node (?P<host>[\w.-]{1,120}) exited on (?P<how>signal .{1,40})"
    ),
    re.compile(
        r"Worker IP address: (?P<host>[\w.:-]{1,120}) .{0,80}?Worker PID: (?P<pid>\d{1,10}) Worker exit type: "
        r"(?P<how>SYSTEM_ERROR|USER_ERROR|NODE_OUT_OF_MEMORY)"
    ),
    re.compile(
        r"(?:--local[-_]rank[= ](?P<local>\d{1,5})\b.{0,1500})?exits with return code = (?P<how>-?[1-9]\d{0,4})"
    ),
    re.compile(r"failed \(exitcode: (?P<how>-?\d{1,5})\) local_rank: (?P<local>\d{1,5}) \(pid: (?P<pid>\d{1,10})\)"),
    re.compile(r"(?P<how>[Ss]ignal \d{1,2} \(SIG[A-Z]{2,6}\)) received by PID (?P<pid>\d{1,10})"),
    re.compile(r"[Pp]rocess \d+ terminated with (?P<how>signal SIG[A-Z]{2,6}|exit code -?\d{1,5})"),
)
# What ended the job from outside: the line proves it.
_ENDED = (
    ("oom", re.compile(r"oom[-_]kill|OOMKilled|[Oo]ut [Oo]f [Mm]emory: Killed process")),
    ("time_limit", re.compile(r"CANCELLED AT .*DUE TO TIME LIMIT")),
    ("cancelled", re.compile(r"(?:STEP|JOB) \S{1,40} ON \S{1,200} CANCELLED AT")),
    ("node_failure", re.compile(r"[Nn]ode failure on|DUE TO NODE FAILURE|lost communication with a remote daemon")),
)
_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]{1,40})\): (?P<code>\d{1,4})")
_SXID = re.compile(
    r"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]{7,20})\): (?P<code>\d{1,6}), Fatal"
)
_FALLEN = re.compile(r"NVRM: GPU (?P<device>[0-9a-fA-F:.]{7,20}): GPU has fallen off the bus")
# A port that another process has.
_IN_USE = re.compile(r"ddress (?:is )?already in use|EADDRINUSE|ddress in use")
_PORT = re.compile(
    r"(?:\[::\]|\d{1,3}(?:\.\d{1,3}){3}|localhost|\*|\bport|\btcp)[:=, '\"]{1,3}(?P<port>\d{2,5})\b|"
    r":(?P<last>\d{4,5})\b"
)
# A host whose name is not known.
_NO_NAME = re.compile(
    r"[Cc]ould not resolve hostname (?P<name>[\w.-]{1,200})|getaddrinfo.{0,20}\(?(?:host|name|for)?[:= ]{1,3}['\"]?"
    r"(?P<other>[A-Za-z][\w.-]{2,200}\.[\w.-]{1,80})"
)
# RDMA connections that other programs than NCCL make.
_QUEUE_PAIR = re.compile(r"(?:modify|transition\w*|moving|change) (?:the )?QP\b|ibv_modify_qp|ibv_create_ah")
_WHY = re.compile(
    r"(?P<why>[Cc]onnection timed out|[Nn]etwork is unreachable|[Nn]o route to host|[Hh]ost is down|"
    r"[Ii]nvalid argument|[Nn]o such device|[Cc]annot allocate memory|[Pp]ermission denied|[Oo]peration not permitted|"
    r"(?:errno|error|ret)[:= ]{1,3}-?\d{1,4})"
)
_RDMA = re.compile(r"\b(?P<device>(?:mlx\d|bnxt_re|irdma|efa|ionic|rdmap|roce|hns)_?\w{0,20})\b")
_DGID = re.compile(r"dgid=(?:::ffff:)?(?P<peer>[0-9a-fA-F:.]{4,45})")
_EXCEPTION = re.compile(
    r"NCCL [eE]rror\b(?P<place> in: [^\s,]{1,300})?(?: \d)?(?:[,:] (?!in:)(?P<what>[a-z][^(,\n]{3,60}))?"
)
_VERSION = re.compile(r", NCCL version (?P<version>\d[\d.]{2,11})")
_RESULT = re.compile(
    r"ncclResult=\d|nccl(?P<what>UnhandledCuda|System|Internal|Remote)Error\b|ncclInvalid(?:Usage|Argument)\b|"
    r"NCCL operation \w{1,60}.*? failed|NCCL_ERROR_[A-Z_]{3,40}"
)
# JAX and TensorFlow quote NCCL's last warning.
_QUOTED = re.compile(r"[Ll]ast NCCL warning\(error\)[^:']{0,60}(?:: |')(?P<text>.{3,300}?)'?\.?(?:\s*\[|$)")
_STORE = re.compile(
    r"store->get\('(?P<code>[^']{1,80})'\) got error|client socket has (?:timed out|failed to connect to"
    r" any)|DistStoreError|Timed out after \d+ seconds waiting for clients|(?:recvValue|sendBytes|recvVector) failed on"
    r" SocketImpl|server socket has failed to (?:listen|bind) on any|RendezvousConnectionError|RendezvousTimeoutError"
)
_LIBFABRIC = re.compile(
    r"libfabric:\d+:.{1,200}<(?:warn|critical|alert)> ?(?P<text>.{0,200}"
    r"(?:[Ff]ail|[Ee]rror|not support|[Uu]nable|[Cc]annot|[Ii]nvalid|[Uu]nreachable|[Tt]imed out).{0,100})"
)
_SHARP_HOST = re.compile(r"\[([\w.-]{1,255})[:\]]")
_STUCK = re.compile(
    r"watchdog got stuck for \d+ ?seconds|Heartbeat monitor timed out|"
    r"Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang"
)
_TEST = re.compile(r"(?:(?P<host>[\w.-]{1,120}): )?Test (?P<lib>NCCL|CUDA) failure \S+ '(?P<error>[^']{1,200})'")


def _own(line: str) -> str:
    """A line of PyTorch's without a progress bar before its head."""
    head = _HEAD.search(line)
    if head is not None and any(mark in line[: head.start()] for mark in _BAR):
        return line[head.start() :]
    return line


def _watchdog(line: str) -> Optional[Failure]:
    match = _WATCHDOG.search(line)
    if match is None:
        work = _WORK.search(line)
        return Failure("watchdog", _own(line)[:400], "collective number %s" % work.group("number")) if work else None
    number = match.group("number")
    return Failure("watchdog", _own(line)[:400], match.group("op") + (" number %s" % number if number else ""))


def progress(line: str) -> Optional[Failure]:
    """How far a rank came in a process group, as a line of PyTorch's says it."""
    match = _PROGRESS.search(line)
    if match is None:
        return None
    said = match.group("enqueued"), match.group("completed"), match.group("group").strip()
    signalled = _SIGNALLED.search(line)
    known = int(said[1]) <= max(int(said[0]), 0)  # else a number that nobody has set
    code = "%s %s of %s" % said if known else ""
    if signalled is not None:
        return Failure("signalled", line[:400], code, signalled.group("by") or "")
    return Failure("progress", line[:400], code) if known else None


def _left(line: str) -> Optional[Failure]:
    return Failure("left", _text(line))


def _died(line: str) -> Optional[Failure]:
    match = _DIED.search(line)
    return Failure("cuda", _text(line), match.group("error").strip()) if match else None


def _cuda(line: str) -> Optional[Failure]:
    match = _CUDA.search(line)
    if match and match.group("error").startswith("unhandled cuda error"):
        # NCCL's own word for it: the warning before it names the error.
        return Failure("exception", _text(line), "unhandled cuda error")
    if match and ("NVLink SHARP" in line or "ulticast" in line):
        # The error is CUDA's word for what NVSwitches did not do.
        return Failure("fabric_manager", _text(line), "NVLS")
    return Failure("cuda", _text(line), match.group("error").strip()) if match else None


def _outside(line: str) -> Optional[Failure]:
    kind = next((kind for kind, pattern in _ENDED if pattern.search(line)), None)
    return Failure(kind, _text(line)) if kind else None


def _xid(line: str) -> Optional[Failure]:
    match = _XID.search(line)
    return Failure("xid", _text(line), match.group("code"), device=match.group("device")) if match else None


def _fallen(line: str) -> Optional[Failure]:
    match = _FALLEN.search(line)
    return Failure("xid", _text(line), "79", device=match.group("device")) if match else None


def _sxid(line: str) -> Optional[Failure]:
    match = _SXID.search(line)
    return Failure("sxid", _text(line), match.group("code"), device=match.group("device")) if match else None


def _in_use(line: str) -> Optional[Failure]:
    said = _IN_USE.search(line)
    if said is None:
        return None
    match = _PORT.search(line[: said.start()])
    return Failure("port_in_use", _text(line), (match.group("port") or match.group("last")) if match else "")


def _no_name(line: str) -> Optional[Failure]:
    match = _NO_NAME.search(line)
    if match is None or not (match.group("name") or match.group("other")):
        return None
    return Failure("unresolved", _text(line), (match.group("name") or match.group("other"))[:60])


def _queue_pair(line: str) -> Optional[Failure]:
    if not _QUEUE_PAIR.search(line) or ("ail" not in line and "rror" not in line):
        return None
    why, device, peer = _WHY.search(line), _RDMA.search(line), _DGID.search(line)
    return Failure(
        "queue_pair",
        _text(line),
        why.group("why") if why else "",
        peer.group("peer") if peer else "",
        device.group("device") if device else "",
    )


def _exit(line: str) -> Optional[Failure]:
    for pattern in _EXIT:
        match = pattern.search(line)
        if match:
            said = match.groupdict()
            rank = said.get("rank")
            local = said.get("local") and "local rank %s" % said["local"]
            parts = said.get("host"), local, said.get("pid") and "pid %s" % said["pid"]
            where = " ".join(part for part in parts if part)
            return Failure("exit", _text(line), said["how"].strip(), where, rank=int(rank) if rank else None)
    return None


def _test(line: str) -> Optional[Failure]:
    """nccl-tests ends where a call fails: of CUDA's that is the failure itself, of NCCL's a warning names it."""
    match = _TEST.search(line)
    if match is None:
        return None
    kind = "cuda" if match.group("lib") == "CUDA" else "test"
    return Failure(kind, _text(line), match.group("error"), match.group("host") or "")


def _memory(line: str) -> Optional[Failure]:
    return Failure("cuda", _text(line), "out of memory")


def _quoted(line: str) -> Optional[Failure]:
    match = _QUOTED.search(line)
    said = failure(match.group("text").strip()) if match else None
    return said if said is not None and said.kind != "warning" else None


def _store(line: str) -> Optional[Failure]:
    match = _STORE.search(line)
    if match is None:
        return None
    code = "port" if match.group().startswith("server socket") else (match.group("code") or "")[:60]
    return Failure("store", _text(line), code)


def _of_sharp(line: str) -> Optional[Failure]:
    """A line of SHARP's own library: ``[HOST:0:PID - FILE:LINE][TIME] ERROR TEXT``."""
    said = failure(_text(line))
    host = _SHARP_HOST.match(line)
    return replace(said, peer=host.group(1)) if said is not None and said.kind == "sharp" and host else None


def _libfabric(line: str) -> Optional[Failure]:
    match = _LIBFABRIC.search(line)
    return Failure("libfabric", match.group("text").strip(" :")) if match else None


def _stuck(line: str) -> Optional[Failure]:
    if _STUCK.search(line) is None:
        return None
    return Failure("stuck", _text(_own(line)))


def _exception(line: str) -> Optional[Failure]:
    match = _EXCEPTION.search(line)
    if match and (match.group("what") or match.group("place")):
        return Failure("exception", _text(line), (match.group("what") or "").strip())
    return Failure("exception", _text(line)) if _RESULT.search(line) else None


def _text(line: str) -> str:
    return shortened(line.strip())


# What stands in a line -> what is made of the line. The first that makes something of it decides.
_SAYS: Tuple[Tuple[str, Callable[[str], Optional[Failure]]], ...] = (
    ("Watchdog caught", _watchdog),
    ("Timeout at NCCL work", _watchdog),
    ("ast enqueued", progress),
    ("terminated with exception", _died),
    ("has NOT been destroyed before we destruct", _left),
    *((mark, _outside) for mark in ("oom", "OOMKilled", "Killed process", "CANCELLED AT", "ode failure on")),
    *((mark, _outside) for mark in ("NODE FAILURE", "lost communication")),
    ("NVRM: Xid", _xid),
    ("has fallen off", _fallen),
    ("SXid (", _sxid),
    *((mark, _in_use) for mark in ("ddress already in use", "ddress is already", "EADDRINUSE", "ddress in use")),
    *((mark, _no_name) for mark in ("resolve hostname", "getaddrinfo")),
    *((mark, _queue_pair) for mark in (" QP", "ibv_modify_qp", "ibv_create_ah")),
    ("libfabric:", _libfabric),
    *(
        (mark, _exit)
        for mark in (
            "error: ",
            "exited on",
            "exit type",
            "exitcode",
            "received by PID",
            "terminated with",
            "exits with",
        )
    ),
    *(("Test %s failure" % library, _test) for library in ("NCCL", "CUDA")),
    *((mark, _of_sharp) for mark in ("SHArP", "SAT tree", "Begin job id")),
    ("Duplicate GPU detected", lambda line: failure(_text(line))),
    *((mark, _memory) for mark in ("torch.OutOfMemoryError", "Error: CUDA out of memory")),
    ("NCCL warning(error)", _quoted),
    ("mismatch between collectives", lambda line: Failure("mismatch", line.strip()[:1500], "PyTorch")),
    ("o algorithm/protocol", lambda line: failure(_text(line))),
    ("bus error encountered", lambda line: failure(_text(line))),
    *((mark, _cuda) for mark in ("CUDA error", "uda failure")),
    *((mark, _store) for mark in ("store->get", "client socket has", "DistStoreError", "waiting for clients")),
    *((mark, _store) for mark in ("on SocketImpl", "server socket has", "RendezvousConnection", "RendezvousTimeout")),
    *((mark, _stuck) for mark in ("watchdog got stuck", "Heartbeat monitor", "watchdog hang")),
    *((mark, _exception) for mark in ("NCCL error", "NCCL Error", "NCCL operation", "NCCL_ERROR_", "ncclResult=")),
    *((mark, _exception) for mark in ("ncclUnhandledCuda", "ncclSystem", "ncclInternal", "ncclRemote", "ncclInvalid")),
)
# One of these is in every line that none of NCCL's wrote, and that says something.
MARKS = tuple(mark.encode() for mark, _says in _SAYS) + (b"CCL version", b"Last error:")
# One of these is in every mark: to look for a few in a block is quicker than for all in each line.
COARSE = (
    *(b"rror", b"CCL", b"nccl", b"atch", b"ast ", b"ermina", b"oom", b"OOM", b"Kill", b"CANC", b"ode ", b"NODE"),
    *(b"lost ", b"Xid", b"libfabric:", b"exit", b"PID", b"Memory", b"memory", b"failure", b"Dupli", b"bus "),
    *(b"SHArP", b"algorithm/", b"SAT tree", b"Begin job", b"NOT been"),
    *(b"resolve host", b"getaddrinfo"),
    *(b"fallen", b"ddress ", b"EADDR", b" QP", b"modify_qp", b"create_ah"),
    *(b"store-", b"socket", b"DistSt", b"clients", b"Socket", b"Rendez", b"Heart"),
)


def said_elsewhere(line: str, last_error: bool) -> Optional[Failure]:
    """What a line that is none of NCCL's says of a job's end. last_error: the line before was ``Last error:``."""
    said = None
    if last_error:
        said = failure(_JOB_RANK.sub("", line, count=1).strip(": \r"))
    else:
        for mark, says in _SAYS:
            if mark in line:
                said = says(line)
                if said is not None:
                    break
    return replace(said, rank=_rank(line)) if said is not None and said.rank is None else said


def ranked(said: Failure, before: str) -> Failure:
    """The failure with the rank that what stands before it on the line names."""
    return replace(said, rank=_rank(before))


def _rank(line: str) -> Optional[int]:
    match = _JOB_RANK.search(line) or (_SAYS_RANK.search(line) if _PART.search(line) is None else None)
    if match is None:
        return None
    return int(next(group for group in match.groups() if group is not None))


def exception_version(line: str) -> Optional[str]:
    """The release that an exception of PyTorch's names: ``2.19.3``."""
    match = _VERSION.search(line)
    return match.group("version") if match else None
