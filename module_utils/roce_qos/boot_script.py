# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Program of busbar-roce-qos@.service: restore a port's RoCE settings with the role's reader and planner.

It runs when the port's netdev appears: at boot, after a reload of the driver, and for a new virtual function. No
process uses the link then, and a changed PFC mask may bounce it; if one does, that setting is left and reported. A
bounce adds no netdev, so that it starts nothing.
Sources: systemd.device(5); kernel drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..change import apply, guard, written
from ..change.busy import Busy
from ..core import locks
from ..core.finding import printable
from ..core.host import Host, ParseError, ReadError
from ..core.plan import FileChange, Plan
from ..machine import pci, topology
from ..machine.rails import Rails
from . import chain, plan, read
from .chain import PortConfig
from .port import Port, ports

# Below the system root: the last result of each port, until the next boot.
RESULTS = "/run/busbar-roce-qos"
# Seconds that a netdev's RDMA device may come after it.
PATIENCE = 30.0
# States that no run of this unit could fix: the role's live findings report them.
_NOT_OURS = ("unsupported", "not_owned")


class Intent(NamedTuple):
    """Wanted state of the ports; a file of the node holds it as JSON with these keys.

    ports: PCI address -> whether an RDMA device belongs to it.
    roce, settings: as the options of the module roce_qos, by their names.
    hardware_root, system_root: as Host takes them.
    """

    ports: Mapping[str, bool]
    roce: Mapping[str, Any]
    settings: Mapping[str, Any]
    hardware_root: str = "/"
    system_root: str = "/"

    def want(self) -> PortConfig:
        """Return the wanted settings. Raises ParseError."""
        return PortConfig.from_values(chain.resolve(self.roce, self.settings), self.settings)


class Result(NamedTuple):
    """Result of a run for one port. said: lines for people.

    state: ok, failed, started for a run that has not ended; unread if it is not known, and ``said`` has the reason.
    """

    state: str
    said: Tuple[str, ...] = ()


def parse_intent(text: str) -> Intent:
    """Parse the JSON that the role writes. Raises ParseError."""
    data = _mapping(text)
    data.pop(written.KEY, None)
    for name, value in data.items():
        if not isinstance(value, str if name.endswith("_root") else dict):
            raise ParseError("is not what the role writes: its %s is %.80r" % (name, value))
    try:
        intent = Intent(**data)
    except TypeError as error:
        raise ParseError("is not what the role writes: %s" % error) from error
    return intent._replace(ports={pci.parse_address(one): bool(rdma) for one, rdma in intent.ports.items()})


def parse_result(text: str) -> Result:
    """Parse the JSON that a run writes below RESULTS. Raises ParseError."""
    data = _mapping(text)
    if data.get("state") not in ("ok", "failed", "started") or not isinstance(data.get("said"), list):
        raise ParseError("is not what busbar-roce-qos@.service writes")
    return Result(str(data["state"]), tuple(map(str, data["said"])))


def _mapping(text: str) -> Dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("is not JSON: %s" % error) from error
    if not isinstance(data, dict):
        raise ParseError("is not a JSON object")
    return data


def result_path(address: str) -> str:
    """Return the path below the system root. address: of the port's PCI function."""
    return "%s/%s.json" % (RESULTS, address)


def main(arguments: Sequence[str]) -> int:
    """Run for one port. arguments: path of the Intent's file, PCI address of the netdev's function.

    Return the exit status: 0 if all is as wanted afterwards.
    """
    path, function = arguments
    try:
        intent = parse_intent(Host().read_system(path) or "")
        host = Host(intent.hardware_root, intent.system_root)
        address = _port_of(host, function)
        if address not in intent.ports:
            sys.stdout.write("%s: not a rail, nothing to set\n" % function)
            return 0
        # Runs for a port and for its virtual functions come one after another.
        with locks.hold(host, "roce_qos-%s.lock" % address, math.inf):
            _note(host, address, Result("started"))
            result = bring(host, intent, address)
            _note(host, address, result)
    except ParseError as error:
        result = Result("failed", ("%s: %s" % (path, error),))
    except ReadError as error:
        result = Result("failed", (str(error),))
    for line in result.said:
        (sys.stderr if result.state == "failed" else sys.stdout).write(printable(line) + "\n")
    return 0 if result.state == "ok" else 1


def bring(host: Host, intent: Intent, address: str, patience: float = PATIENCE) -> Result:
    """Wait for one port and set it. patience: seconds. Raises ParseError and ReadError."""
    port = _wait(host, address, intent.ports[address], patience)
    if port is None:
        return Result("failed", ("%s: no netdev came within %g s: look at dmesg" % (address, patience),))
    wanted = intent.want()
    users: List[Busy] = []

    def permit(found: Plan) -> Plan:
        if all(command.disruption == "none" for command in found.commands):
            return found
        if not users:
            reasons, problems, _idle = guard.read(host, [address], ())
            users.append(Busy(tuple(reasons), tuple(problems)))
        return found.block(users[0].against)

    done, failed = plan.execute(host, read.read(host, (port,), wanted), wanted, permit)
    after = permit(plan.plan(read.read(host, (port,), wanted), wanted, failed))
    wrong = [finding for finding in after.findings if not finding.ok]
    said = ["%s of %s: %s; wanted: %s; %s" % (one.check, one.subject, one.have, one.want, one.fix) for one in wrong]
    good = all(finding.state in _NOT_OURS for finding in wrong)
    return Result("ok" if good else "failed", (*map(str, done), *said))


def _wait(host: Host, address: str, has_rdma: bool, patience: float) -> Optional[Port]:
    """Return the port, once its netdev and its RDMA device are there; None without a netdev in time."""
    end = time.monotonic() + patience
    while True:
        machine = topology.read(host, ask_nvidia_smi=False)
        # As if it were the only rail: of a bond the other members come with it.
        rail = dict(enumerate(nic for nic in machine.nics if nic.pci == address))
        found = [port for port in ports(machine, Rails(rail, {}, None)) if port.pci == address and port.netdev]
        if time.monotonic() > end or any(port.rdma is not None or not has_rdma for port in found):
            return found[0] if found else None
        time.sleep(0.5)


def _port_of(host: Host, function: str) -> str:
    """Return the function, or the physical function of a virtual one on its host."""
    physical = host.realpath("%s/%s/physfn" % (pci.DEVICES, pci.parse_address(function)))
    return function if physical is None else physical.rpartition("/")[2]


def _note(host: Host, address: str, result: Result) -> None:
    text = json.dumps({"state": result.state, "said": result.said}) + "\n"
    apply.write(host, FileChange(result_path(address), None, text))
