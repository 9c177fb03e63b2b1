# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""InfiniBand planes on this machine: Debian's own ibsim, opensm and infiniband-diags over described fabrics.

An ibsim process holds one plane and an opensm manages it, so that planes know as little of each other as on a site.
A Machine is a host with HCAs in some planes: a root in which the tools are the real ones, started on the HCA that
``-C DEV -P N`` names. All processes end with the one that started them, also where that is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests import debian, trees

from .description import End, Fabric, Node, netfile

PRELOAD = "/usr/lib/*/umad2sim/libumad2sim.so"
PROGRAMS = {
    "ibsim": "ibsim-utils",
    PRELOAD: "ibsim-utils",
    "opensm": "opensm",
    "ibnetdiscover": "infiniband-diags",
    "setpriv": "util-linux",
}
TOOLS = ("ibnetdiscover", "iblinkinfo", "ibqueryerrors", "perfquery", "saquery", "sminfo", "smpquery")
# Else what has happened is in the log only once there is enough of it, and a standby waits for most of a minute.
CONF = "force_log_flush TRUE\nsminfo_polling_timeout 300\npolling_retry_number 2\n"
PROMPT = b"sim> "
# A wait for the slowest machine, in seconds.
PATIENCE = 300.0
WRAPPER = """\
#!/bin/sh
# The real tool on the simulated HCA that -C names; without, on the first.
device={first}
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $word in
    -C | --Ca) device=$1; shift; left=$((left - 1)) ;;
    -P | --Port) shift; left=$((left - 1)) ;;
    *) set -- "$@" "$word" ;;
    esac
done
case $device in
{cases}
*) exec {tool} -C "$device" "$@" ;;
esac
# umad2sim writes a /sys of its own where it is started, and leaves it there when it is killed.
cd {folder} || exit
export IBSIM_SOCKNAME SIM_HOST
LD_PRELOAD={preload} exec {tool} "$@"
"""


def wait(for_what: str, ready: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"waited {seconds} s for {for_what}"
        time.sleep(0.05)


def _program(name: str) -> str:
    found = shutil.which(name, path=debian.PLACES)
    assert found, f"{name} is not installed"
    return found


def preload() -> str:
    (path,) = Path("/").glob(PRELOAD[1:])
    return str(path)


class Manager:
    """An opensm on a node of a plane."""

    def __init__(self, plane: Plane, node: Node, priority: int, more: Sequence[str]) -> None:
        self.node = node
        self.priority = priority
        self.more = more
        self.top = plane.top / f"opensm-{node.id}"
        self.top.mkdir(exist_ok=True)
        self.log = self.top / "log"
        self.log.unlink(missing_ok=True)
        environment = {**plane.environment(node), "OSM_CACHE_DIR": str(self.top), "OSM_TMP_DIR": str(self.top)}
        (self.top / "conf").write_text(CONF)
        options = {"-F": self.top / "conf", "-f": self.log, "-g": f"0x{node.port_guid:x}", "-p": priority, "-s": 2}
        argv = [_program("opensm"), *itertools.chain(*options.items()), *more]
        with (self.top / "out").open("ab") as out:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)],
                env=environment,
                cwd=self.top,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(600)

    def stop(self) -> None:
        """An end that tells the others, within seconds."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


class Plane:
    """One ibsim with a fabric, which what is done here changes as well; managers are started apart."""

    def __init__(self, fabric: Fabric, top: Path, *, limits: Sequence[str] = ()) -> None:
        """limits: of ibsim, where the fabric has more than 2,048 nodes, 256 switches or 13,312 ports."""
        top.mkdir(parents=True, exist_ok=True)
        self.fabric = fabric
        self.top = top
        self.limits = limits
        # An abstract socket, of which a name may be no longer than 107 bytes with what is added to it.
        self.socket = f"busbar-{os.getpid()}-{id(self):x}"
        self.managers: list[Manager] = []
        self.start()

    def start(self) -> None:
        path = self.top / "netfile"
        path.write_text(netfile(self.fabric))
        with (self.top / "ibsim.err").open("wb") as err:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", _program("ibsim"), "-s", *self.limits, str(path)],
                env={"PATH": debian.PLACES, "IBSIM_SOCKNAME": self.socket},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
        self._answer()
        said = (self.top / "ibsim.err").read_text(errors="replace")
        assert "ibwarn" not in said, said

    @property
    def eye(self) -> Node:
        """The first host's HCA: what the fixtures look at the plane from, and manage it from."""
        return self.fabric.nodes[min(self.fabric.rails.values())]

    def environment(self, node: Node) -> dict[str, str]:
        """For a program that is to run on a node."""
        return {
            "PATH": debian.PLACES,
            "LC_ALL": "C",
            "IBSIM_SOCKNAME": self.socket,
            "SIM_HOST": node.name,
            "LD_PRELOAD": preload(),
        }

    def _answer(self) -> str:
        assert self.process.stdout is not None
        stream, said = self.process.stdout.fileno(), b""
        deadline = time.monotonic() + PATIENCE
        while not said.endswith(PROMPT):
            ready = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(stream, 65536) if ready else b""
            assert data, f"ibsim gave no prompt: {said!r} {(self.top / 'ibsim.err').read_text(errors='replace')}"
            said += data
        return said[: -len(PROMPT)].decode(errors="replace")

    def console(self, line: str) -> str:
        """What ibsim answers to a line of its console. A refusal is an AssertionError."""
        assert len(line) < 120, f"ibsim's console reads no line as long as {line!r}"
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        said = self._answer()
        assert not re.search("not found|can't|bad |invalid|no previous|not linked|missing|not valid", said), said
        return said

    def _at(self, end: End) -> str:
        return f'"{self.fabric.nodes[end.guid].name}"[{end.port}]'

    def cut(self, end: End) -> End:
        """Takes out the cable at a port, and returns its other end."""
        self.console(f"Unlink {self._at(end)}")
        return self.fabric.cut(end)

    def connect(self, a: End, z: End) -> None:
        self.console(f"Link {self._at(a)} {self._at(z)}")
        self.fabric.connect(a, z)

    def swap(self, a: End, b: End) -> None:
        """What is cabled to port a goes to port b, and the reverse."""
        far_a, far_b = self.cut(a), self.cut(b)
        self.connect(a, far_b)
        self.connect(b, far_a)

    def count(self, end: End, **counters: int) -> None:
        """Sets counters of a port, by the names that perfquery prints."""
        for name, value in counters.items():
            self.console(f"PerformanceSet {self._at(end)} PortCounters.{name}={value}")

    def drop(self, node: Node, percent: int) -> None:
        """Loses a part of the MADs to a node from now on."""
        self.console(f'Error "{node.name}" {percent}')

    def manage(self, node: Node, *more: object, priority: int = 0) -> Manager:
        # ibsim knows no timeouts: who asks a manager that is not ready to answer waits for ever. Others ask later.
        running = [each for each in self.managers if each.runs]
        for each in running:
            each.process.send_signal(signal.SIGSTOP)
        manager = Manager(self, node, priority, [str(word) for word in more])
        self.managers.append(manager)
        wait("the manager to start", lambda: "Setting IS_SM" in manager.said())
        for each in running:
            each.process.send_signal(signal.SIGCONT)
        return manager

    def active(self) -> int:
        """How many ports are active, without port 0 of switches, as ibsim itself says."""
        return len(re.findall(r"\]\s+\d*x? ?.*Active/LinkUp", self.console("Dump"))) - len(self.fabric.switches())

    def states(self) -> dict[str, str]:
        """Port GUID of a subnet manager -> 3 for a master, 2 for a standby, as the master itself has it."""
        argv, environment = [_program("saquery"), "SMIR"], self.environment(self.eye)
        done = subprocess.run(
            argv, env=environment, cwd=self.top, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return dict(re.findall(r"GUID\.+0x([0-9a-f]+)[^G]*SMState\.+(\d)", done.stdout))

    def settle_managers(self) -> None:
        """Until the master knows a standby.

        A question that is lost while both start is waited for for ever, since ibsim knows no timeouts: then both anew.
        """
        for _ in range(15):
            deadline = time.monotonic() + PATIENCE / 15
            while time.monotonic() < deadline:
                if sorted(self.states().values()) == ["2", "3"]:
                    self.settle()
                    return
                time.sleep(0.1)
            before, self.managers = self.managers, []
            for manager in before:
                manager.kill()
            for manager in before:
                self.manage(manager.node, *manager.more, priority=manager.priority)
                self.settle()
        raise AssertionError(f"the managers do not know each other: {self.states()}")

    def settle(self) -> None:
        """Until the managers have brought up every link of the description, and have nothing left to do."""
        wait("active links", lambda: self.active() == len(self.fabric.cables))
        wait("quiet managers", self._quiet)

    def _quiet(self) -> bool:
        """A sweep takes some tens of milliseconds, and ends with a line in the log."""
        said = [manager.said() for manager in self.managers]
        time.sleep(0.1)
        running = [manager for manager in self.managers if manager.runs]
        ended = all(re.search("SUBNET UP|STANDBY state", manager.said()) for manager in running)
        return ended and said == [manager.said() for manager in self.managers]

    def stop(self) -> None:
        for manager in self.managers:
            manager.kill()
        self.managers = []
        self.process.kill()
        self.process.wait(600)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def planes(*fabrics: Fabric, top: Path) -> Iterator[list[Plane]]:
    """An ibsim for each fabric, all with links up by an opensm on the first host's HCA."""
    running: list[Plane] = []
    try:
        for fabric in fabrics:
            plane = Plane(fabric, top / fabric.name)
            running.append(plane)
            plane.manage(plane.fabric.nodes[min(fabric.rails.values())])
        for plane in running:
            plane.settle()
        yield running
    finally:
        for plane in running:
            plane.stop()


class Machine:
    """A host with an HCA a rail, as root directories: the tools in /usr/sbin, its HCAs in /sys."""

    def __init__(self, name: str, planes: Sequence[Plane], top: Path) -> None:
        self.top = top
        rails = [
            (rail, plane, plane.fabric.nodes[guid])
            for plane in planes
            for (host, rail), guid in plane.fabric.rails.items()
            if host == name
        ]
        self.devices = {f"mlx5_{rail}": (plane, node) for rail, plane, node in sorted(rails, key=lambda one: one[0])}
        (top / "tmp").mkdir(parents=True)
        self.write_tools()
        self.write_hardware()

    def write_tools(self) -> None:
        for tool in TOOLS:
            self.shim(tool, self.wrapper(tool))

    def shim(self, tool: str, text: str) -> None:
        trees.put(self.top, f"usr/sbin/{tool}", text, 0o755)

    def wrapper(self, tool: str) -> str:
        cases = "\n".join(
            f"{device}) IBSIM_SOCKNAME={shlex.quote(plane.socket)} SIM_HOST={node.name} ;;"
            for device, (plane, node) in self.devices.items()
        )
        return WRAPPER.format(
            first=next(iter(self.devices)),
            cases=cases,
            tool=_program(tool),
            preload=preload(),
            folder=shlex.quote(str(self.top / "tmp")),
        )

    def write_hardware(self) -> None:
        """/sys of the HCAs, with active ports."""
        for number, (device, (_, node)) in enumerate(self.devices.items()):
            function = trees.pci_function(
                self.top, f"pci0000:00/0000:{0x10 + number:02x}:00.0", kind="0x020700", ids="15b3:101b"
            )
            guid, port = (":".join(re.findall("....", one)) for one in (node.id, f"{node.port_guid:016x}"))
            files = {"gids/0": f"fe80:0000:0000:0000:{port}", "pkeys/0": "0xffff"}
            path = trees.rdma_device(self.top, device, function, rate="200 Gb/sec (4X HDR)", **files)
            trees.lines(path, {"node_guid": guid, "sys_image_guid": guid, "node_desc": node.description})
