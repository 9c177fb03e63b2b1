# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ib_write_bw and ib_write_lat on simulated nodes: texts are those of perftest 6.06, and the options that Busbar gives.

Both ends meet by TCP, as the real ones do; a node that is a tree has an address of the loopback network for that. The
figures follow from how both nodes are configured at that moment and from what is between them (nccl_model/fabric.py),
as those of the lab's nccl-tests do. The counters that the real ones would move are moved. Nothing here is a
measurement, and every output says so.
"""

from __future__ import annotations

import fcntl
import getopt
import glob
import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from .. import qos
from .iproute import interfaces
from .nccl_model import fabric, pcie
from .roce_program import Stop, read
from .roce_tools import active_mtu

_LINE = "-" * 87
# A slot carries somewhat more than NCCL reckons with.
_SLOT = 1.15
# IPv4 20, UDP 8, BTH 12, RETH 16, ICRC 4.
_IP_HEADERS = 60
# How long a test takes here, and for how many it is counted.
_SECONDS, _SLICES, _TESTED = 0.2, 4, 5
_NO_ANSWER = (
    " Completion with error at client",
    " Failed status 12: wr_id 0 syndrom 0x81",
    "scnt=128, ccnt=0",
    " Failed to complete run_iter_bw function successfully",
)
_GONE = (
    "ethernet_read_keys: Couldn't read remote address",
    " Unable to read to socket/rdma_cm",
    " Failed to exchange data between server and clients",
)
_GIDS = (" Found Incompatibility issue with GID types.", " Please Try to use a different IP version.")


@dataclass(frozen=True)
class State:
    """What one end says of itself. layer: of fabric.HEADERS.   gbps: of the link.   slot: GB/s of PCIe.

    mtu: RDMA's.   switch: MTU of the switch port behind it, 0 where there is none to ask.   gid: kind of the one that
    was asked for.   dscp: of what it sends.   table: priority of each DSCP.   pfc: mask of priorities.
    """

    host: str
    device: str
    layer: str
    gbps: float
    slot: float
    read_request: int
    mtu: int
    switch: int = 0
    gid: str = ""
    dscp: int = 0
    table: tuple[int, ...] = ()
    pfc: int = 0

    def priority(self, dscp: int) -> int:
        return self.table[dscp] if self.table else 0


@dataclass(frozen=True)
class Result:
    """What comes of a test. figure: Gb/s from the client to the server.   microseconds: of a small write.

    error, of_server: what client and server print instead.
    """

    figure: float = 0.0
    mtu: int = 0
    microseconds: float = 0.0
    lossless: bool = True
    error: tuple[str, ...] = ()
    of_server: tuple[str, ...] = ()


class End:
    """One end: the roots of its node, its RDMA device and the options."""

    def __init__(self, root: str, system: str, given: Mapping[str, str]) -> None:
        self.root, self.system, self.given, self.device = root, system, given, given.get("-d", "")
        self.directory = f"{root}/sys/class/infiniband/{self.device}"
        self.address = os.path.basename(os.path.realpath(f"{self.directory}/device"))
        self.folder = f"{system}/run/busbar-lab/perftest"
        os.makedirs(f"{self.folder}/running", exist_ok=True)
        # A tree has its hardware beside its system, and no network.
        self.networked = os.path.realpath(root).startswith(os.path.realpath(system).rstrip("/") + "/")
        self.fabric = fabric.read(f"{system.rstrip('/')}{fabric.PLACE}")

    def state(self) -> State:
        layer = "RoCE" if read(f"{self.directory}/ports/1/link_layer") == "Ethernet" else "IB"
        name, function = f"{self.system}/etc/hostname", f"{self.directory}/device"
        common: dict[str, Any] = {
            "host": read(name) if self.system != "/" and os.path.exists(name) else socket.gethostname().split(".")[0],
            "device": self.device,
            "layer": layer,
            "gbps": float(read(f"{self.directory}/ports/1/rate").split()[0]),
            "slot": pcie.slot(function) * _SLOT,
            "read_request": pcie.read_request(function),
        }
        if layer == "IB":
            return State(**common, mtu=active_mtu(self.root, self.device))
        port, below = qos.load(self.root, qos.state_path(self.address)), os.listdir(f"{function}/net")
        forced = pcie.read(f"{self.directory}/tc/1/traffic_class").rpartition("=")[2]
        return State(
            **common,
            mtu=active_mtu(self.root, self.device),
            switch=int(interfaces(self.root)[below[0]]["switch"]),
            gid=pcie.read(f"{self.directory}/ports/1/gid_attrs/types/{self.given.get('-x', '0')}"),
            # A class that is forced on the device goes before the program's own.
            dscp=int(forced or self.given.get("--tclass", "0")) >> 2,
            table=tuple(port.table) if port.trust == "dscp" else (),
            pfc=port.pfc,
        )


def run(system: str, root: str, argv: list[str]) -> int:
    """Raises getopt.GetoptError and Stop."""
    options, hosts = getopt.gnu_getopt(argv[1:], "Fd:i:p:u:x:q:s:n:D:f:h", ["report_gbits", "tclass=", "help"])
    given = dict(options)
    if "--help" in given:
        print("Usage: (simulated)  -d DEVICE  -i PORT  -p PORT  -x GID  --tclass=CLASS  --report_gbits  [HOST]")
        return 1
    end = End(root, system, given)
    if not os.path.isdir(end.directory):
        raise Stop(1, f"IB device {end.device} not found", " Unable to find the Infiniband/RoCE device")
    shown = read(f"{end.directory}/ports/1/state").partition(": ")[2].capitalize()
    if shown != "Active":
        raise Stop(1, f" Port number 1 state is {shown}", " Couldn't set the link layer")
    mine, port = end.state(), int(given.get("-p", 18515))
    if mine.host in end.fabric.sockets:
        raise Stop(1, " Couldn't get context for the device")
    is_bw = argv[0] == "ib_write_bw"
    result = _client(end, mine, hosts[0], port, is_bw) if hosts else _server(end, mine, port)
    _print(is_bw, end, mine, result, is_server=not hosts)
    return 0


# -- both ends meet --------------------------------------------------------------------------------------------------


def _send(peer: IO[str], data: object) -> None:
    """Send one line of JSON."""
    with suppress(OSError):
        peer.write(json.dumps(data) + "\n")
        peer.flush()


def _receive(peer: IO[str], otherwise: tuple[str, ...] = _GONE) -> Any:
    """Raises Stop, with what is printed ``otherwise``, where the other end has gone."""
    line = ""
    with suppress(OSError):
        line = peer.readline()
    if not line:
        raise Stop(1, *otherwise)
    return json.loads(line)


def _server(end: End, mine: State, port: int) -> Result:
    with _listen(end, port) as listener:
        print("\n" + "*" * 36 + "\n* Waiting for client to connect... *\n" + "*" * 36, flush=True)
        connected, _ = listener.accept()
    with connected, connected.makefile("rw", encoding="utf-8") as peer:
        theirs = State(**_receive(peer))
        _send(peer, asdict(mine))
        _send(peer, _transfer(end, mine, is_server=True))
        result = Result(**_receive(peer))
        if not result.error:
            _count(end, mine, theirs, result, is_server=True)
    return result


def _client(end: End, mine: State, host: str, port: int, is_bw: bool) -> Result:
    with _connect(end, host, port) as connected, connected.makefile("rw", encoding="utf-8") as peer:
        _send(peer, asdict(mine))
        theirs = State(**_receive(peer))
        opposed = max(_transfer(end, mine, is_server=False), _receive(peer, _NO_ANSWER))
        result = measure(end.fabric, mine, theirs, opposed)
        _send(peer, asdict(result))
        if is_bw or result.error:
            _count(end, mine, theirs, result, is_server=False)
    return result


def _listen(end: End, port: int) -> socket.socket:
    try:
        return socket.create_server(("" if end.networked else _loopback(end.system), port))
    except OSError:
        problem = " Unable to open file descriptor for socket connection"
        raise Stop(1, f"Couldn't listen to port {port}", problem) from None


def _connect(end: End, host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host if end.networked else _loopback(_find(end, host)), port))
    except OSError:
        problem = "Unable to open file descriptor for socket connection Unable to init the socket connection"
        raise Stop(1, f"Couldn't connect to {host}:{port}", problem) from None


def _loopback(system: str) -> str:
    """Return the address of a node that is a tree: one of 127.1.0.0 and above that follows from its path."""
    first, second, third, _ = zlib.crc32(os.path.realpath(system).encode()).to_bytes(4, "big")
    return f"127.{first % 254 + 1}.{second}.{third % 254 + 1}"


def _find(end: End, host: str) -> str:
    """Return the system root of the lab's node that has this address or name."""
    lab = os.path.dirname(os.path.dirname(os.path.realpath(end.root)))
    for path in glob.glob(f"{glob.escape(lab)}/*/hw{qos.NETDEVS}"):
        if any(netdev["ipv4"].partition("/")[0] == host for netdev in json.loads(read(path)).values()):
            return f"{path[: -len(f'hw{qos.NETDEVS}')]}sys"
    return f"{lab}/{host}/sys"


def _transfer(end: End, mine: State, is_server: bool) -> float:
    """Return the share of the time that another test had this device full in the other direction."""
    crash, place, seen = end.fabric.crash, f"{end.folder}/running/{os.getpid()}", 0
    qos.replace(place, json.dumps({"device": end.device, "sends": not is_server}))
    try:
        for turn in range(_SLICES):
            if turn == 1 and crash and crash["host"] == mine.host:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_SECONDS / _SLICES)
            seen += _is_opposed(end, sends=is_server)
    finally:
        os.unlink(place)
    return seen / _SLICES


def _is_opposed(end: End, sends: bool) -> bool:
    """Return whether another test of this device sends, or receives."""
    folder = f"{end.folder}/running"
    for name in os.listdir(folder):
        if name.isdigit() and int(name) != os.getpid() and os.path.isdir(f"/proc/{name}"):
            with suppress(FileNotFoundError):
                if json.loads(read(f"{folder}/{name}")) == {"device": end.device, "sends": sends}:
                    return True
    return False


# -- what comes of it ------------------------------------------------------------------------------------------------


def measure(between: fabric.Fabric, client: State, server: State, opposed: float) -> Result:
    """opposed: share of the time that the other direction was full, too."""
    if client.layer != server.layer:
        return Result(error=(" Unable to Connect the HCA's through the link",))
    if client.layer == "RoCE" and (not client.gid or client.gid != server.gid):
        return Result(error=_GIDS, of_server=_GIDS)
    mtu = min(client.mtu, server.mtu)
    if client.layer == "RoCE" and mtu + _IP_HEADERS > min(client.switch, server.switch):
        # The switch drops each of them without a word.
        return Result(error=_NO_ANSWER, of_server=_GONE)
    found = []
    for end in (client, server):
        port = min(fabric.wire(end.gbps, mtu, end.layer), end.slot)
        found.append(fabric.ways(between, end.host, end.device, port, end.read_request))
    rate = min(found[0].sends, found[1].receives) * fabric.between(between, client.host, server.host)
    rate *= 1 - opposed * (1 - min(end.both for end in found))
    lossless = _is_lossless(between, client, server)
    typical = 2.1 if mtu >= fabric.LARGE_MTU else 2.4
    return Result(rate * 8 * (1 if lossless else fabric.LOSSY), mtu, typical, lossless)


def _is_lossless(between: fabric.Fabric, sender: State, receiver: State) -> bool:
    if {sender.host, receiver.host} & set(between.lossy):
        return False
    if sender.layer == "IB":
        return True
    out, into = sender.priority(sender.dscp), receiver.priority(sender.dscp)
    return out == into and bool(sender.pfc >> out & 1 and receiver.pfc >> into & 1)


def traffic(system: str, address: str) -> dict[str, int]:
    """Return what the tests have added to the counters of ethtool -S."""
    found: dict[str, int] = json.loads(pcie.read(f"{system}/var/lib/busbar-lab/traffic-{address}.json") or "{}")
    return found


def _count(end: End, mine: State, theirs: State, result: Result, is_server: bool) -> None:
    """Move the counters of this end."""
    files: dict[str, int] = {}
    seen: dict[str, int] = {}
    if result.error:
        files = {"hw_counters/local_ack_timeout_err": 7} if result.error == _NO_ANSWER else {}
    else:
        size = int(result.figure * 1e9 / 8 * _TESTED)
        sent, received = (0, size) if is_server else (size, 0)
        for way, count in (("xmit", sent), ("rcv", received)):
            files |= {f"counters/port_{way}_data": count // 4, f"counters/port_{way}_packets": count // result.mtu}
        files |= fabric.errors(end.fabric, mine.host, mine.device, sent, received)
        if mine.layer == "RoCE":
            way, dscp = ("rx", theirs.dscp) if is_server else ("tx", mine.dscp)
            name = f"{way}_prio{mine.priority(dscp)}"
            seen = {f"{name}_bytes": size, f"{name}_packets": size // result.mtu}
        if not result.lossless:
            lost = ("out_of_sequence",) if is_server else ("packet_seq_err", "local_ack_timeout_err")
            files |= {f"hw_counters/{name}": 412 for name in lost}
            seen |= {"rx_discards_phy": 412} if is_server else {}
    with open(f"{end.folder}/{end.device}.counters", "w") as lock:
        # Both directions of a device may be tested at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, more in files.items():
            path = f"{end.directory}/ports/1/{name}"
            if more:
                qos.replace(path, f"{int(read(path)) + more}\n")
        if seen:
            counts, folder = traffic(end.system, end.address), f"{end.system}/var/lib/busbar-lab"
            os.makedirs(folder, exist_ok=True)
            more_of = {name: counts.get(name, 0) + more for name, more in seen.items()}
            qos.replace(f"{folder}/traffic-{end.address}.json", json.dumps({**counts, **more_of}))


def _print(is_bw: bool, end: End, mine: State, result: Result, is_server: bool) -> None:
    given = end.given
    print(f"{_LINE}\n                    RDMA_Write {'BW' if is_bw else 'Latency'} Test")
    print(" simulated: no figure here is a measurement")
    print(f" Dual-port       : OFF\t\tDevice         : {end.device}")
    if result.error:
        print(_LINE, flush=True)
        raise Stop(1, *(result.of_server if is_server and result.of_server else result.error))
    print(
        f" Mtu             : {result.mtu}[B]\n Link type       : {'IB' if mine.layer == 'IB' else 'Ethernet'}\n{_LINE}"
    )
    size = int(given.get("-s", 65536 if is_bw else 2))
    if is_bw:
        messages = result.figure * 1e9 / 8 / size
        print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
        count = int(_TESTED * messages)
        print(f" {size:<7}    {count:<10}       0.00               {result.figure:<7.2f}\t\t   {messages / 1e6:<7.6f}")
    else:
        typical = result.microseconds
        print(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
            "   99% percentile[usec]   99.9% percentile[usec] "
        )
        times = [typical - 0.1, typical + 3, typical, typical + 0.02, 0.05, typical + 0.3, typical + 2]
        print(f" {size:<7} {given.get('-n', '1000')}          " + "        ".join(f"{time_:<7.2f}" for time_ in times))
    print(_LINE, flush=True)
