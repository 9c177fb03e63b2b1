# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ib_write_bw and ib_write_lat on simulated nodes: options and texts are those of perftest 6.06.

Both ends meet by a socket, as the real ones do: nodes that have a network by TCP, those of a lab of trees by a file of
the server's node. The figures follow from how both nodes are configured at that moment and from what is between them
(nccl_model: ways.py, fabric.py), as those of the lab's nccl-tests do. The counters that the real ones would move are
moved. Nothing here is a measurement, and every output says so.
"""

from __future__ import annotations

import fcntl
import getopt
import glob
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from .. import qos
from .iproute import interfaces
from .nccl_model import fabric, pcie, ways
from .roce_program import Stop, read

_LINE = "-" * 87
_SIMULATED = " simulated: no figure here is a measurement"
# A slot carries somewhat more than NCCL reckons with.
_SLOT = 1.15
# IPv4 20, UDP 8, BTH 12, RETH 16, ICRC 4.
_IP_HEADERS = 60
# How long a test takes here, and for how many it is counted.
_SECONDS, _SLICES, _TESTED = 0.2, 4, 5
_ETHERNET = {"RoCE": "Ethernet", "IB": "IB"}
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
_LOST_OF_SENDER = ("packet_seq_err", "local_ack_timeout_err")
_LONG = (
    "bidirectional",
    "report-both",
    "report_gbits",
    "tclass=",
    "use_cuda=",
    "use_cuda_bus_id=",
    "use_cuda_dmabuf",
    "help",
    "version",
)


@dataclass(frozen=True)
class State:
    """What one end says of itself. layer: of ways.HEADERS.   gbps: of the link.   slot: GB/s of PCIe.

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
class Answer:
    """What comes of a test. figures: Gb/s from the client to the server, and back; 0 for what was not asked.

    error, of_server: what client and server print instead.
    """

    figures: tuple[float, float] = (0.0, 0.0)
    mtu: int = 0
    microseconds: float = 0.0
    lossless: bool = True
    error: tuple[str, ...] = ()
    of_server: tuple[str, ...] = ()


@dataclass(frozen=True)
class End:
    """One end: the roots of its node, its RDMA device and what was asked of it."""

    root: str
    system: str
    device: str
    given: Mapping[str, str]

    @property
    def directory(self) -> str:
        return f"{self.root}/sys/class/infiniband/{self.device}"

    @property
    def address(self) -> str:
        return os.path.basename(os.path.realpath(f"{self.directory}/device"))

    @property
    def both_ways(self) -> bool:
        return bool(self.given.keys() & {"-b", "--bidirectional"})

    @property
    def folder(self) -> str:
        path = f"{self.system}/run/busbar-lab/perftest"
        os.makedirs(path, exist_ok=True)
        return path

    @property
    def networked(self) -> bool:
        """Whether the node has a network: its hardware is inside of its system then, and a tree has it beside that."""
        return os.path.realpath(self.root).startswith(os.path.realpath(self.system).rstrip("/") + "/")

    def fabric(self) -> fabric.Fabric:
        """Raises Stop."""
        try:
            return fabric.read(f"{self.system.rstrip('/')}{fabric.PLACE}")
        except ValueError as error:
            raise Stop(1, f"lab: {error}") from error

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
            path = f"{self.root}{qos.STATE}/active_mtu/{self.device}"
            return State(**common, mtu=int(read(path)) if os.path.exists(path) else 4096)
        path = qos.state_path(self.address)
        port = qos.load(self.root, path) if os.path.exists(self.root + path) else qos.Port()
        below = os.listdir(f"{function}/net")
        kind = f"{self.directory}/ports/1/gid_attrs/types/{int(self.given.get('-x', 0))}"
        return State(
            **common,
            mtu=port.stale_mtu or qos.active_mtu(min(qos.shown(self.root, name, "mtu") for name in below)),
            switch=int(interfaces(self.root)[below[0]]["switch"]),
            gid=read(kind) if os.path.exists(kind) else "",
            dscp=self._traffic_class() >> 2,
            table=tuple(port.table) if port.trust == "dscp" else (),
            pfc=port.pfc,
        )

    def _traffic_class(self) -> int:
        """Of what leaves here: a class that is forced on the device goes before the program's own."""
        path = f"{self.directory}/tc/1/traffic_class"
        forced = read(path).rpartition("=")[2] if os.path.exists(path) else ""
        return int(forced) if forced.isdigit() else int(self.given.get("--tclass", 0))


def run(system: str, root: str, argv: list[str]) -> int:
    """Raises getopt.GetoptError and Stop."""
    program, short = argv[0], "Fd:i:p:u:x:q:s:n:D:f:bhV"
    options, hosts = getopt.gnu_getopt(argv[1:], short, _LONG)
    given = dict(options)
    if given.keys() & {"-h", "--help"}:
        print(_usage(program))
        return 1
    if given.keys() & {"-V", "--version"}:
        print("Version: 6.06 (simulated)")
        return 0
    if any(name.startswith("--use_cuda") for name in given):
        raise Stop(
            1, f"{program}: unrecognized option '--use_cuda'", " Invalid Command line. Please check command rerun "
        )
    device = given.get("-d", "")
    if not os.path.isdir(f"{root}/sys/class/infiniband/{device}"):
        raise Stop(1, f"IB device {device} not found", " Unable to find the Infiniband/RoCE device")
    end = End(root, system, device, given)
    state = read(f"{end.directory}/ports/1/state").partition(": ")[2].capitalize()
    if state != "Active":
        raise Stop(
            1,
            f" Port number 1 state is {state}",
            " Couldn't set the link layer",
            " Couldn't get context for the device",
        )
    mine = end.state()
    if mine.host in end.fabric().sockets:
        raise Stop(1, " Couldn't get context for the device")
    port = int(given.get("-p", 18515))
    answer = _client(program, end, mine, hosts[0], port) if hosts else _server(end, mine, port)
    return _print(program, end, answer, is_server=not hosts)


# -- both ends meet --------------------------------------------------------------------------------------------------


class Peer:
    """The other end: one line of JSON for each thing that is said."""

    def __init__(self, connected: socket.socket) -> None:
        self._stream = connected.makefile("rw", encoding="utf-8")

    def say(self, data: object) -> None:
        with suppress(OSError):
            self._stream.write(json.dumps(data) + "\n")
            self._stream.flush()

    def hear(self, otherwise: tuple[str, ...] = _GONE) -> Any:
        """Raises Stop, with what is printed ``otherwise``, where the other end has gone."""
        try:
            line = self._stream.readline()
        except OSError:
            line = ""
        if not line:
            raise Stop(1, *otherwise)
        return json.loads(line)


def _server(end: End, mine: State, port: int) -> Answer:
    with _listening(end, port) as listener:
        print("\n" + "*" * 36 + "\n* Waiting for client to connect... *\n" + "*" * 36, flush=True)
        connected, _ = listener.accept()
    with connected:
        peer = Peer(connected)
        said = peer.hear()
        peer.say({"state": asdict(mine), "both_ways": end.both_ways})
        _agree(end, said)
        opposed = _transfer(end, mine, end.both_ways, is_server=True)
        peer.say({"opposed": opposed})
        answer = _heard(peer.hear())
        if not answer.error:
            _count(end, mine, _state(said["state"]), answer, is_server=True)
    return answer


def _client(program: str, end: End, mine: State, host: str, port: int) -> Answer:
    with _connected(end, host, port) as connected:
        peer = Peer(connected)
        peer.say({"state": asdict(mine), "both_ways": end.both_ways})
        said = peer.hear()
        _agree(end, said)
        theirs = _state(said["state"])
        opposed = _transfer(end, mine, end.both_ways, is_server=False)
        opposed = max(opposed, peer.hear(_NO_ANSWER)["opposed"])
        answer = measure(end.fabric(), mine, theirs, end.both_ways, opposed)
        peer.say(asdict(answer))
        if program == "ib_write_bw" or answer.error:
            _count(end, mine, theirs, answer, is_server=False)
    return answer


def _state(data: dict[str, Any]) -> State:
    return State(**{**data, "table": tuple(data["table"])})


def _heard(data: dict[str, Any]) -> Answer:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Answer(**values)


def _agree(end: End, said: Mapping[str, Any]) -> None:
    """What is asked of one end only leaves the other waiting for it until somebody gives up."""
    if said["both_ways"] != end.both_ways:
        raise Stop(1, " Failed to exchange data between server and clients")


@contextmanager
def _listening(end: End, port: int) -> Iterator[socket.socket]:
    """Until the first has come: that is whom the server serves."""
    if end.networked:
        with socket.socket(socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError:
                _taken(port)
            listener.listen(1)
            yield listener
        return
    with open(f"{end.folder}/{port}.lock", "w") as lock, _at(end.folder) as here, socket.socket(socket.AF_UNIX) as one:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _taken(port)
        new, place = f"{here}/{port}.new", f"{here}/{port}.listen"
        with suppress(FileNotFoundError):
            os.unlink(new)
        one.bind(new)
        one.listen(1)
        os.replace(new, place)
        try:
            yield one
        finally:
            os.unlink(place)


def _connected(end: End, host: str, port: int) -> socket.socket:
    connecting = socket.socket(socket.AF_INET if end.networked else socket.AF_UNIX)
    try:
        if end.networked:
            connecting.connect((host, port))
        else:
            folder = f"{_find(end, host)}/run/busbar-lab/perftest"
            with _at(folder) as there:
                connecting.connect(f"{there}/{port}.listen")
    except OSError:
        connecting.close()
        raise Stop(
            1,
            f"Couldn't connect to {host}:{port}",
            "Unable to open file descriptor for socket connection Unable to init the socket connection",
        ) from None
    return connecting


@contextmanager
def _at(folder: str) -> Iterator[str]:
    """A name of the folder that is short enough for a socket's. Raises OSError."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _taken(port: int) -> NoReturn:
    raise Stop(1, f"Couldn't listen to port {port}", " Unable to open file descriptor for socket connection")


def _find(end: End, host: str) -> str:
    """The system root of the lab's node that has this address or name; "" for none."""
    lab = os.path.dirname(os.path.dirname(os.path.realpath(end.root)))
    for path in glob.glob(f"{glob.escape(lab)}/*/hw{qos.NETDEVS}"):
        netdevs = json.loads(read(path))
        if any(one["ipv4"].partition("/")[0] == host for one in netdevs.values()):
            return f"{path[: -len(f'hw{qos.NETDEVS}')]}sys"
    return f"{lab}/{host}/sys" if os.path.isdir(f"{lab}/{host}/hw") else ""


# -- while it runs ---------------------------------------------------------------------------------------------------


def _transfer(end: End, mine: State, both_ways: bool, is_server: bool) -> float:
    """Share of the time that this device was full in the other direction, too: by another test, or by this one."""
    crash = end.fabric().crash
    running = f"{end.folder}/running"
    os.makedirs(running, exist_ok=True)
    place, seen = f"{running}/{os.getpid()}", 0
    qos.replace(place, json.dumps({"device": end.device, "sends": not is_server}))
    try:
        for turn in range(_SLICES):
            if turn == 1 and crash and crash["host"] == mine.host:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_SECONDS / _SLICES)
            seen += both_ways or _others(end, sends=is_server)
    finally:
        os.unlink(place)
    return seen / _SLICES


def _others(end: End, sends: bool) -> bool:
    """Whether another test of this device sends, or receives."""
    folder = f"{end.folder}/running"
    for name in os.listdir(folder):
        if name.isdigit() and int(name) != os.getpid() and os.path.isdir(f"/proc/{name}"):
            with suppress(FileNotFoundError):
                if json.loads(read(f"{folder}/{name}")) == {"device": end.device, "sends": sends}:
                    return True
    return False


# -- what comes of it ------------------------------------------------------------------------------------------------


def measure(between: fabric.Fabric, client: State, server: State, both_ways: bool, opposed: float) -> Answer:
    """opposed: share of the time that the other direction was full, too."""
    if client.layer != server.layer:
        return Answer(error=(" Unable to Connect the HCA's through the link",))
    if client.layer == "RoCE" and (not client.gid or client.gid != server.gid):
        said = (" Found Incompatibility issue with GID types.", " Please Try to use a different IP version.")
        return Answer(error=said, of_server=said)
    mtu = min(client.mtu, server.mtu)
    if client.layer == "RoCE" and mtu + _IP_HEADERS > min(client.switch, server.switch):
        # The switch drops each of them without a word.
        return Answer(error=_NO_ANSWER, of_server=_GONE)
    there = _one_way(between, client, server, mtu, opposed)
    back = _one_way(between, server, client, mtu, opposed) if both_ways else 0.0
    typical = 2.1 if mtu >= ways.LARGE_MTU else 2.4
    return Answer((there, back), mtu, typical, _lossless(between, client, server))


def _one_way(between: fabric.Fabric, sender: State, receiver: State, mtu: int, opposed: float) -> float:
    """Gb/s."""
    found = [
        ways.ways(between, one.host, one.device, min(ways.wire(one.gbps, mtu, one.layer), one.slot), one.read_request)
        for one in (sender, receiver)
    ]
    rate = min(found[0].sends, found[1].receives) * ways.between(between, sender.host, receiver.host)
    rate *= 1 - opposed * (1 - min(one.both for one in found))
    return rate * 8 * (1 if _lossless(between, sender, receiver) else ways.LOSSY)


def _lossless(between: fabric.Fabric, sender: State, receiver: State) -> bool:
    if {sender.host, receiver.host} & set(between.lossy):
        return False
    if sender.layer == "IB":
        return True
    out, into = sender.priority(sender.dscp), receiver.priority(sender.dscp)
    return out == into and bool(sender.pfc >> out & 1 and receiver.pfc >> into & 1)


# -- counters --------------------------------------------------------------------------------------------------------


def traffic(system: str, address: str) -> dict[str, int]:
    """What the tests have added to the counters of ethtool -S."""
    path = f"{system}/var/lib/busbar-lab/traffic-{address}.json"
    found: dict[str, int] = json.loads(read(path)) if os.path.exists(path) else {}
    return found


def _count(end: End, mine: State, theirs: State, answer: Answer, is_server: bool) -> None:
    """Moves the counters of this end."""
    if answer.error:
        if not is_server and answer.error == _NO_ANSWER:
            _move(end, {"hw_counters/local_ack_timeout_err": 7}, {})
        return
    there, back = (int(figure * 1e9 / 8 * _TESTED) for figure in answer.figures)
    sent, received = (back, there) if is_server else (there, back)
    files = {"counters/port_xmit_data": sent // 4, "counters/port_rcv_data": received // 4}
    files |= {"counters/port_xmit_packets": sent // answer.mtu, "counters/port_rcv_packets": received // answer.mtu}
    files |= ways.errors(end.fabric(), mine.host, mine.device, sent, received)
    seen: dict[str, int] = {}
    if mine.layer == "RoCE":
        for way, count, dscp in (("tx", sent, mine.dscp), ("rx", received, theirs.dscp)):
            name = f"{way}_prio{mine.priority(dscp)}"
            seen |= {f"{name}_bytes": count, f"{name}_packets": count // answer.mtu} if count else {}
    if not answer.lossless:
        if sent:
            files |= {f"hw_counters/{name}": 412 for name in _LOST_OF_SENDER}
        if received:
            files["hw_counters/out_of_sequence"] = 412
            seen["rx_discards_phy"] = 412
    _move(end, files, seen)


def _move(end: End, files: Mapping[str, int], seen: Mapping[str, int]) -> None:
    """files: counters below the port's directory.   seen: those of ethtool -S."""
    with open(f"{end.folder}/{end.device}.counters", "w") as lock:
        # Both directions of a device may be tested at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, more in files.items():
            path = f"{end.directory}/ports/1/{name}"
            if more:
                qos.replace(path, f"{int(read(path)) + more}\n")
        if seen:
            counts = traffic(end.system, end.address)
            folder = f"{end.system}/var/lib/busbar-lab"
            os.makedirs(folder, exist_ok=True)
            more_of = {name: counts.get(name, 0) + more for name, more in seen.items()}
            qos.replace(f"{folder}/traffic-{end.address}.json", json.dumps({**counts, **more_of}))


# -- what is printed -------------------------------------------------------------------------------------------------


def _print(program: str, end: End, answer: Answer, is_server: bool) -> int:
    is_bw, given = program == "ib_write_bw", end.given
    pairs = int(given.get("-q", 1))
    print(_LINE)
    kind = f"{'Bidirectional ' if end.both_ways else ''}BW" if is_bw else "Latency"
    print(f"                    RDMA_Write {kind} Test")
    print(_SIMULATED)
    print(f" Dual-port       : OFF\t\tDevice         : {end.device}")
    print(f" Number of qps   : {pairs}\t\tTransport type : IB")
    print(" Connection type : RC\t\tUsing SRQ      : OFF")
    if answer.error:
        print(_LINE)
        raise Stop(1, *(answer.of_server if is_server and answer.of_server else answer.error))
    print(f" Mtu             : {answer.mtu}[B]\n Link type       : {_ETHERNET[end.state().layer]}")
    if "-x" in given:
        print(f" GID index       : {given['-x']}")
    print(" Max inline data : 0[B]\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet")
    print(_LINE)
    size = int(given.get("-s", 65536 if is_bw else 2))
    if is_bw:
        local, remote = answer.figures[::-1] if is_server else answer.figures
        _print_row(size, sum(answer.figures), given)
        for title, figure in (("Local", local), ("Remote", remote)):
            if "--report-both" in given and end.both_ways:
                print(f"{_LINE}\n\n {title} results: \n{_LINE}")
                _print_row(size, figure, given)
    else:
        typical = answer.microseconds
        print(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
            "   99% percentile[usec]   99.9% percentile[usec] "
        )
        times = [typical - 0.1, typical + 3, typical, typical + 0.02, 0.05, typical + 0.3, typical + 2]
        print(f" {size:<7} {given.get('-n', '1000')}          " + "        ".join(f"{one:<7.2f}" for one in times))
    print(_LINE)
    sys.stdout.flush()
    return 0


def _print_row(size: int, gbps: float, given: Mapping[str, str]) -> None:
    unit, rate = ("Gb", gbps) if "--report_gbits" in given else ("MB", gbps * 119.209)
    messages = gbps * 1e9 / 8 / size
    print(f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]")
    count = int(_TESTED * messages)
    print(f" {size:<7}    {count:<10}       0.00               {rate:<7.2f}\t\t   {messages / 1e6:<7.6f}")


def _usage(program: str) -> str:
    return (
        f"Usage: (simulated)\n  {program}            start a server and wait for connection\n"
        f"  {program} <host>     connect to server at <host>\n\nOptions:\n  -d, --ib-dev=<dev>  Use IB device <dev>\n"
        "  -x, --gid-index=<index>  Test uses GID with GID index\n"
        "      --tclass=<value>  Set the Traffic Class in GRH (if GRH is in use)"
    )
