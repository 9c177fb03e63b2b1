# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of the switch ports that the RoCE rails are plugged into, as LLDP tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .fault import Fault, rail_nic, said
from .machine import LabError, Machine, Netdev, SwitchPort

PLATFORMS = ("hgx-h200",)


def _netdev(machine: Machine, rail: int) -> Netdev:
    address = machine.rail(rail).address
    return next(netdev for netdev in machine.netdevs if netdev.address == address)


def _switch(rail: int, change: Callable[[SwitchPort], object]) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        heard = _netdev(machine, rail).switch
        if not heard:
            raise LabError(f"{machine.hostname}: rail {rail} hears no switch")
        change(heard[0])

    return apply


def _small_frames(port: SwitchPort) -> None:
    port.mfs = 1518


def _no_pfc(port: SwitchPort) -> None:
    port.pfc = []


def _more_pfc(port: SwitchPort) -> None:
    port.pfc = [3, 4]


def _best_effort(port: SwitchPort) -> None:
    port.dscp = [[code, 0 if code == 26 else priority] for code, priority in port.dscp]


def _one_class(port: SwitchPort) -> None:
    port.classes = [0] * 6 + [6, 6]


def _no_dcbx(port: SwitchPort) -> None:
    port.dcbx = False


def _silence(machine: Machine) -> None:
    _netdev(machine, 1).switch = []


def _bridge(machine: Machine) -> None:
    heard = _netdev(machine, 0).switch
    heard.append(replace(heard[0], name="leaf-9", chassis="44:38:39:ff:00:09"))


def _garble(machine: Machine) -> None:
    machine.lldpd = "garbled"


def _stop(machine: Machine) -> None:
    machine.lldpd = "stopped"


def _fault(
    name: str,
    description: str,
    check: str,
    subject: Callable[[Machine], str],
    change: Callable[[Machine], None],
    state: str = "drift",
    consequences: tuple[str, ...] = (),
) -> Fault:
    return Fault(name, description, check, subject, change, state, consequences, PLATFORMS)


_OF_A_PORT = (
    _fault("lldp-silent", "rail 1 hears no switch", "lldp.neighbour", rail_nic(1), _silence, state="unknown"),
    _fault(
        "lldp-two-switches",
        "rail 0 hears two switches: something between bridges them",
        "lldp.neighbour",
        rail_nic(0),
        _bridge,
        state="unknown",
    ),
    _fault(
        "switch-mtu",
        "the switch port of rail 4 takes frames of 1518 bytes",
        "lldp.mtu",
        rail_nic(4),
        _switch(4, _small_frames),
    ),
    _fault("switch-pfc-off", "the switch port of rail 6 has no PFC", "lldp.pfc", rail_nic(6), _switch(6, _no_pfc)),
    _fault(
        "switch-pfc-more",
        "the switch port of rail 7 has PFC on priority 4, too",
        "lldp.pfc",
        rail_nic(7),
        _switch(7, _more_pfc),
    ),
    _fault(
        "switch-dscp",
        "the switch port of rail 5 gives DSCP 26 priority 0",
        "lldp.dscp",
        rail_nic(5),
        _switch(5, _best_effort),
    ),
    _fault(
        "switch-ets",
        "the switch port of rail 7 has priority 3 in one class with best effort",
        "lldp.ets",
        rail_nic(7),
        _switch(7, _one_class),
    ),
    _fault(
        "switch-no-dcbx",
        "the switch port of rail 4 sends no DCBX, those of the others do",
        "lldp.pfc",
        rail_nic(4),
        _switch(4, _no_dcbx),
        state="unknown",
        consequences=("lldp.dscp", "lldp.ets"),
    ),
)
_HIDDEN = tuple(fault.name for fault in _OF_A_PORT)
CATALOGUE = (
    *_OF_A_PORT,
    Fault(
        "lldpd-garbled",
        "lldpcli prints half of its answer",
        "lldp.agent",
        said("lldp"),
        _garble,
        state="unknown",
        platforms=PLATFORMS,
        excludes=(*_HIDDEN, "lldpd-stopped"),
    ),
    Fault(
        "lldpd-stopped",
        "lldpd does not run, and the inventory asks for neighbours",
        "lldp.agent",
        said("lldp"),
        _stop,
        state="unknown",
        platforms=PLATFORMS,
        excludes=_HIDDEN,
        site=lambda machine: {"busbar_lldp": "required"},
    ),
)
