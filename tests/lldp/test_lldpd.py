# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a real lldpd hears of switch ports, and what the suite makes of it."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import neighbour
from ansible_collections.busbar.fabric.plugins.module_utils.lldp import plan as ports
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.neighbour import LldpState
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import LldpIntent, RailPort
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig, resolve

from tests.lldp.conftest import Bed
from tests.lldp.frames import HEALTHY, IEEE_8021, applications, ets, frame, frame_size, organisation, pfc

WANT = LldpIntent(mtu=9000, roce=PortConfig(chain=resolve({"dscp": 26, "priority": 3}, {})))
SIZE, ETS, PFC, DSCP = HEALTHY
# Interface at the switch -> what is sent there; s6 sends nothing.
SENT = {
    "s0": frame(0, "swp1", *HEALTHY),
    "s1": frame(1, "swp1", SIZE, ETS, pfc([3, 4]), DSCP),
    "s2": frame(2, "swp1", SIZE, ETS, PFC, applications([(26, 0), (48, 6)])),
    "s3": frame(3, "swp1", frame_size(1518), ETS, PFC, DSCP),
    "s4": frame(4, "swp1", SIZE, ets((0,) * 8), PFC, DSCP),
    # A TLV that is cut short, one of nobody's, and a name with markup, an escape and more than fits.
    "s5": frame(5, "<b>1</b>", SIZE, ETS, organisation(IEEE_8021, 11, b"\x08"), DSCP, name="\x1b[31m<i>" + "x" * 240),
    "s7": frame(7, "swp1", *HEALTHY),
    "s8": frame(8, "swp1", SIZE, ETS, pfc([]), DSCP),
}


@pytest.fixture(scope="module")
def heard(bed: Bed) -> LldpState:
    bed.send(SENT)
    return neighbour.read(bed.host)


def port(number: int, rail: int | None = None) -> RailPort:
    pci = f"0000:1{number}:00.0"
    return RailPort(number if rail is None else rail, f"{pci} mlx5_{number} h{number}", pci, f"h{number}", "", 9000)


def found(heard: LldpState, *own: RailPort) -> list[tuple[str, str, str]]:
    """Check, state and interface of what is not ok."""
    findings = ports.plan(heard, own, WANT).findings
    return [(one.check, one.state, one.subject.split()[-1]) for one in findings if not one.ok]


def test_a_healthy_port_has_nothing_to_report_and_every_check_passes(heard: LldpState) -> None:
    plan = ports.plan(heard, [port(0)], WANT)
    checks = [f"lldp.{check}" for check in ("agent", "neighbour", "mtu", "pfc", "dscp", "ets")]
    assert [(one.check, one.state) for one in plan.findings] == [(check, "ok") for check in checks]
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("number", "check", "state", "have"),
    [
        (1, "lldp.pfc", "drift", "leaf-1 swp1: PFC 3,4"),
        (2, "lldp.dscp", "drift", "leaf-2 swp1: DSCP 26 to 0"),
        (3, "lldp.mtu", "drift", "leaf-3 swp1 accepts frames of 1518 bytes"),
        (4, "lldp.ets", "drift", "leaf-4 swp1: class 0 has priority 3 and 0,1,2,4,5,6,7, which are without PFC"),
        (6, "lldp.neighbour", "unknown", "has no LLDP neighbour"),
    ],
)
def test_a_wrong_port_is_one_finding(heard: LldpState, number: int, check: str, state: str, have: str) -> None:
    [wrong] = [one for one in ports.plan(heard, [port(0), port(number)], WANT).findings if not one.ok]
    assert (wrong.check, wrong.state, wrong.have, wrong.subject) == (check, state, have, port(number).label)


def test_of_a_bond_each_member_is_judged(heard: LldpState) -> None:
    assert found(heard, port(7, 0), port(8, 0)) == [("lldp.pfc", "drift", "h8")]
    assert [one.port for one in ports.port_neighbours(heard, [port(7, 0), port(8, 0)], WANT)] == ["swp1", "swp1"]


def test_what_a_switch_says_is_cut_and_printable_and_what_makes_no_sense_is_unknown(heard: LldpState) -> None:
    [said] = ports.port_neighbours(heard, [port(5)], WANT)
    assert said.port == "<b>1</b>"
    assert said.name.startswith("\\x1b[31m<i>xxx")
    assert len(said.name) <= 255
    assert all(text.isprintable() for text in said if isinstance(text, str))
    assert found(heard, port(5)) == [("lldp.pfc", "unknown", "h5")]
