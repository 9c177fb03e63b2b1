# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ib_write_bw and ib_write_lat on simulated nodes of one lab of trees: options and texts are those of perftest 6.06.

Both ends meet in files of the server's node. The rate follows from how both nodes are configured at that moment: the
smaller MTU, the priority that the packets really have on each side, and whether that is lossless. The counters that the
real ones would move are moved. Nothing here is a measurement, and every output says so.
"""

from __future__ import annotations

import getopt
import glob
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import qos
from .iproute import interfaces
from .roce_program import Stop, read

_LINE = "-" * 87
_SIMULATED = " simulated: no figure here is a measurement"
# host.md 2.4: of the wire's bytes, payload is MTU in MTU and headers; what a card loses on its own.
_HEADERS, _CARD = 82, 0.99
# Four times the packets for the same bytes: the card's packet rate, not the wire, is the limit (field.md 5).
_SMALL = 0.85
# Without PFC under load RoCE goes back to the lost packet again and again.
_LOSSY = 0.35
# IPv4 20, UDP 8, BTH 12, RETH 16, ICRC 4.
_IP_HEADERS = 60
_SECONDS = 0.2
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
    "report_gbits",
    "tclass=",
    "use_cuda=",
    "use_cuda_bus_id=",
    "use_cuda_dmabuf",
    "help",
    "version",
)


@dataclass
class End:
    """One end: the root of its node, its RDMA device and what was asked of it."""

    root: str
    system: str
    device: str
    gid: int
    traffic_class: int

    @property
    def directory(self) -> str:
        return f"{self.root}/sys/class/infiniband/{self.device}"

    @property
    def port(self) -> qos.Port:
        path = qos.state_path(self.address)
        return qos.load(self.root, path) if os.path.exists(self.root + path) else qos.Port()

    @property
    def address(self) -> str:
        return os.path.basename(os.path.realpath(f"{self.directory}/device"))

    @property
    def mtu(self) -> int:
        below = os.listdir(f"{self.directory}/device/net")
        return self.port.stale_mtu or qos.active_mtu(min(qos.shown(self.root, name, "mtu") for name in below))

    @property
    def switch(self) -> int:
        """The MTU of the switch port behind it."""
        return int(interfaces(self.root)[os.listdir(f"{self.directory}/device/net")[0]]["switch"])

    @property
    def rate(self) -> float:
        return float(read(f"{self.directory}/ports/1/rate").split()[0])

    def dscp(self) -> int:
        """Of what leaves here: a class that is forced on the device goes before the program's own."""
        path = f"{self.directory}/tc/1/traffic_class"
        forced = read(path).rpartition("=")[2] if os.path.exists(path) else ""
        return (int(forced) if forced.isdigit() else self.traffic_class) >> 2

    def priority(self, dscp: int) -> int:
        return self.port.table[dscp] if self.port.trust == "dscp" else 0

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def run(program: str, system: str, root: str, arguments: list[str]) -> int:
    """Raises getopt.GetoptError and Stop."""
    short = "Fd:i:p:u:x:q:s:n:D:f:hV"
    options, hosts = getopt.gnu_getopt(arguments, short, _LONG)
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
    end = End(root, system, device, int(given.get("-x", 0)), int(given.get("--tclass", 0)))
    state = read(f"{end.directory}/ports/1/state").partition(": ")[2].capitalize()
    if state != "Active":
        raise Stop(
            1,
            f" Port number 1 state is {state}",
            " Couldn't set the link layer",
            " Couldn't get context for the device",
        )
    port = int(given.get("-p", 18515))
    return _client(program, end, hosts[0], port, given) if hosts else _server(program, end, port, given)


# -- both ends meet --------------------------------------------------------------------------------------------------


def _meeting(system: str, port: int) -> str:
    folder = f"{system}/run/busbar-lab/perftest"
    os.makedirs(folder, exist_ok=True)
    return f"{folder}/{port}"


def _server(program: str, end: End, port: int, given: Mapping[str, str]) -> int:
    here = _meeting(end.system, port)
    waiting = f"{here}.listen"
    if os.path.exists(waiting) and _alive(json.loads(read(waiting))["pid"]):
        raise Stop(1, f"Couldn't listen to port {port}", " Unable to open file descriptor for socket connection")
    for left in (f"{here}.answer", waiting):
        if os.path.exists(left):
            os.unlink(left)
    _put(waiting, {"pid": os.getpid(), "end": end.to_dict(), "program": program})
    print("\n" + "*" * 36 + "\n* Waiting for client to connect... *\n" + "*" * 36, flush=True)
    while not os.path.exists(f"{here}.answer"):
        time.sleep(0.02)
    answer = json.loads(read(f"{here}.answer"))
    for left in (f"{here}.answer", waiting):
        os.unlink(left)
    return _print(program, end, answer, given, is_server=True)


def _client(program: str, end: End, host: str, port: int, given: Mapping[str, str]) -> int:
    server = _find(end, host)
    meeting = _meeting(server, port) if server else ""
    if not server or not os.path.exists(f"{meeting}.listen"):
        _refused(host, port)
    said = json.loads(read(f"{meeting}.listen"))
    if not _alive(said["pid"]) or os.path.exists(f"{meeting}.answer"):
        _refused(host, port)
    answer = _measure(program, end, End(**said["end"]))
    time.sleep(_SECONDS)
    _put(f"{meeting}.answer", answer)
    return _print(program, end, answer, given)


def _refused(host: str, port: int) -> None:
    raise Stop(
        1,
        f"Couldn't connect to {host}:{port}",
        "Unable to open file descriptor for socket connection Unable to init the socket connection",
    )


def _find(end: End, host: str) -> str | None:
    """The system root of the lab's node that has this address."""
    lab = os.path.dirname(os.path.dirname(os.path.realpath(end.root)))
    for path in glob.glob(f"{glob.escape(lab)}/*/hw{qos.NETDEVS}"):
        netdevs = json.loads(read(path))
        if any(one["ipv4"].partition("/")[0] == host for one in netdevs.values()):
            return f"{path[: -len(f'hw{qos.NETDEVS}')]}sys"
    return None


def _alive(pid: int) -> bool:
    return os.path.isdir(f"/proc/{pid}")


def _put(path: str, data: object) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as stream:
        json.dump(data, stream)
    os.replace(f"{path}.new", path)


# -- what comes of it ------------------------------------------------------------------------------------------------


def _measure(program: str, sender: End, receiver: End) -> dict[str, Any]:
    """What both ends print, and the counters moved on both."""
    kinds = [_gid_kind(end) for end in (sender, receiver)]
    if "" in kinds or kinds[0] != kinds[1]:
        return {"error": [" Found Incompatibility issue with GID types.", " Please Try to use a different IP version."]}
    mtu = min(sender.mtu, receiver.mtu)
    if mtu + _IP_HEADERS > min(sender.switch, receiver.switch):
        # The switch drops each of them without a word.
        _count(sender, {"local_ack_timeout_err": 7})
        return {"error": _NO_ANSWER, "of_server": _GONE}
    dscp = sender.dscp()
    out, into = sender.priority(dscp), receiver.priority(dscp)
    lossless = out == into and sender.port.pfc >> out & 1 and receiver.port.pfc >> into & 1
    rate = min(sender.rate, receiver.rate) * _CARD * mtu / (mtu + _HEADERS)
    rate *= (1 if mtu >= 4096 else _SMALL) * (1 if lossless else _LOSSY)
    if program == "ib_write_bw":
        sent = int(rate * 1e9 / 8 * 5)
        count_traffic(sender, {f"tx_prio{out}_bytes": sent, f"tx_prio{out}_packets": sent // mtu})
        count_traffic(receiver, {f"rx_prio{into}_bytes": sent, f"rx_prio{into}_packets": sent // mtu})
        if not lossless:
            _count(sender, dict.fromkeys(_LOST_OF_SENDER, 412))
            _count(receiver, {"out_of_sequence": 412})
            count_traffic(receiver, {"rx_discards_phy": 412})
    return {"rate": rate, "mtu": mtu, "microseconds": 2.1 if mtu >= 4096 else 2.4}


def _gid_kind(end: End) -> str:
    path = f"{end.directory}/ports/1/gid_attrs/types/{end.gid}"
    return read(path) if os.path.exists(path) else ""


def traffic(system: str, address: str) -> dict[str, int]:
    """What the tests have added to the counters of ethtool -S."""
    path = f"{system}/var/lib/busbar-lab/traffic-{address}.json"
    found: dict[str, int] = json.loads(read(path)) if os.path.exists(path) else {}
    return found


def count_traffic(end: End, more: Mapping[str, int]) -> None:
    counts = traffic(end.system, end.address)
    folder = f"{end.system}/var/lib/busbar-lab"
    os.makedirs(folder, exist_ok=True)
    _put(f"{folder}/traffic-{end.address}.json", {**counts, **{k: counts.get(k, 0) + v for k, v in more.items()}})


def _count(end: End, more: Mapping[str, int]) -> None:
    for name, number in more.items():
        path = f"{end.directory}/ports/1/hw_counters/{name}"
        qos.replace(path, f"{int(read(path)) + number}\n")


# -- what is printed -------------------------------------------------------------------------------------------------


def _print(program: str, end: End, answer: Mapping[str, Any], given: Mapping[str, str], is_server: bool = False) -> int:
    is_bw = program == "ib_write_bw"
    pairs = int(given.get("-q", 1))
    print(_LINE)
    print(f"                    RDMA_Write {'BW' if is_bw else 'Latency'} Test")
    print(_SIMULATED)
    print(f" Dual-port       : OFF\t\tDevice         : {end.device}")
    print(f" Number of qps   : {pairs}\t\tTransport type : IB")
    print(" Connection type : RC\t\tUsing SRQ      : OFF")
    if "error" in answer:
        print(_LINE)
        raise Stop(1, *answer["of_server" if is_server and "of_server" in answer else "error"])
    print(f" Mtu             : {answer['mtu']}[B]\n Link type       : Ethernet\n GID index       : {end.gid}")
    print(" Max inline data : 0[B]\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet")
    print(_LINE)
    size = int(given.get("-s", 65536 if is_bw else 2))
    if is_bw:
        unit, rate = ("Gb", answer["rate"]) if "--report_gbits" in given else ("MB", answer["rate"] * 119.209)
        messages = answer["rate"] * 1e9 / 8 / size
        print(f" #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]")
        print(
            f" {size:<7}    {int(5 * messages):<10}       0.00               {rate:<7.2f}\t\t   {messages / 1e6:<7.6f}"
        )
    else:
        typical = answer["microseconds"]
        print(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
            "   99% percentile[usec]   99.9% percentile[usec] "
        )
        times = [typical - 0.1, typical + 3, typical, typical + 0.02, 0.05, typical + 0.3, typical + 2]
        print(f" {size:<7} {given.get('-n', '1000')}          " + "        ".join(f"{one:<7.2f}" for one in times))
    print(_LINE)
    sys.stdout.flush()
    return 0


def _usage(program: str) -> str:
    return (
        f"Usage: (simulated)\n  {program}            start a server and wait for connection\n"
        f"  {program} <host>     connect to server at <host>\n\nOptions:\n  -d, --ib-dev=<dev>  Use IB device <dev>\n"
        "  -x, --gid-index=<index>  Test uses GID with GID index\n"
        "      --tclass=<value>  Set the Traffic Class in GRH (if GRH is in use)"
    )
