# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings in the flash of NICs, on cards of the lab: what is found, written, reset, and what a killed run leaves."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    BOOT_ID,
    Host,
    Output,
    ParseError,
    ReadError,
    ToolMissing,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import module, pending, tools, wanted
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import plan as nic_firmware
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import read as firmware_read
from ansible_collections.busbar.fabric.plugins.module_utils.firmware.nv_settings import Value
from ansible_collections.busbar.fabric.plugins.module_utils.firmware.read import NicsState, SettingsWanted
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rails
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import NicSetting, Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import Chain

from lab.toolkit import firmware_tools
from tests import golden_rows, goldens, readings
from tests.trees import tool

RAIL_0, RAIL_1 = "0000:11:00.0", "0000:21:00.0"
ASKED = {"LINK_TYPE": "IB", "ATS_ENABLED": False, "ROCE_CC_PRIO_MASK": 255}
FIRST, SECOND = "11111111-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


class Killed(BaseException):
    """The run ends here, as by SIGKILL."""


class Node(Host):
    """A node whose tools are the lab's, called and not started. ``moments``: how many are left before it is killed."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), str(root))
        self.calls: list[str] = []
        self.missing: set[str] = set()
        self.moments: int | None = None

    def tick(self) -> None:
        if self.moments is not None:
            self.moments -= 1
            if self.moments < 0:
                raise Killed

    def tool(self, name: str) -> str:
        if name in self.missing or name.startswith("mlx") or name == "flint":
            raise ToolMissing(name, "is not installed")
        return name

    def run(
        self, argv: Sequence[str], timeout: float | None = None, leaves: bool = False, limit: int | None = None
    ) -> Output:
        self.tool(argv[0])
        self.calls.append(" ".join(argv))
        self.tick()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = firmware_tools.main(argv, self.hardware_root)
        self.tick()
        return Output(" ".join(argv), code, said.getvalue(), "")

    @property
    def state(self) -> Any:
        return firmware_tools.load(self.hardware_root)

    def change(self, edit: Callable[[Any], object]) -> None:
        state = self.state
        edit(state)
        firmware_tools.save(self.hardware_root, state)

    def reboot(self, boot: str = SECOND, what: str = "reboot") -> None:
        firmware_tools.spend(self.hardware_root, what)
        (Path(self.hardware_root) / BOOT_ID.lstrip("/")).write_text(boot + "\n")


def setting(value: int, default: int | None = None, **more: Any) -> dict[str, Any]:
    return {"default": value if default is None else default, "current": value, "next": value, **more}


def card(address: str) -> Any:
    return {
        "type": "ConnectX7",
        "psid": "MT_0000000838",
        "functions": [address],
        "flash": "28.43.8002",
        "running": "28.43.8002",
        "settings": {
            "LINK_TYPE_P1": setting(1, words={"1": "IB", "2": "ETH"}),
            "ATS_ENABLED": setting(0, words={"0": "False", "1": "True"}),
            "ROCE_CC_PRIO_MASK_P1": setting(255),
            "PCI_WR_ORDERING": setting(0, words={"0": "per_mkey", "1": "force_relax"}, hidden=True),
            "MEMIC_BAR_SIZE": setting(0, read_only=True),
        },
    }


@pytest.fixture
def node(tmp_path: Path, infiniband: Topology, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Eight cards as they are wanted, and an undeclared one, whose settings are all wrong; nobody uses the node."""
    monkeypatch.setattr(busy, "read", lambda *_question: busy.Busy(()))
    cards = {nic.pci: card(nic.pci) for nic in infiniband.nics}
    cards["0000:f1:00.0"] = card("0000:f1:00.0")
    for one in cards["0000:f1:00.0"]["settings"].values():
        one.update(default=9, current=9, next=9)
    firmware_tools.save(str(tmp_path), cards)
    boot = tmp_path / BOOT_ID.lstrip("/")
    boot.parent.mkdir(parents=True)
    boot.write_text(FIRST + "\n")
    return Node(tmp_path)


class Role:
    """The role on a node, with what the inventory declares."""

    def __init__(self, node: Node, topology: Topology, profile: Profile, settings: dict[str, Any], **more: Any) -> None:
        self.node, self.topology, self.profile = node, topology, profile
        self.asked = SettingsWanted((wanted.profile_settings(profile), wanted.parse(settings)), **more)

    def asking(self, settings: dict[str, Any], **more: Any) -> Role:
        return Role(self.node, self.topology, self.profile, settings, **more)

    def read(self) -> NicsState:
        matched = rails.match(self.topology, self.profile)
        return firmware_read.read(self.node, self.topology, self.profile, matched, self.asked, {})

    def plan(self) -> Plan:
        return nic_firmware.plan(self.read())

    def bad(self) -> dict[str, str]:
        return {finding.id: finding.state for finding in self.plan().findings if not finding.ok}

    def run(self, most: str = "driver", check: bool = False) -> dict[str, Any]:
        return module.bring_to(self.node, self.topology, self.profile, self.asked, most, check)


@pytest.fixture
def role(node: Node, infiniband: Topology, hgx_h100: Profile) -> Role:
    return Role(node, infiniband, hgx_h100, ASKED)


def live(address: str = RAIL_0) -> str:
    return f"nic_firmware.settings[live]@{address}"


def persisted(address: str = RAIL_0) -> str:
    return f"nic_firmware.settings[persisted]@{address}"


def wrong(node: Node, name: str = "ATS_ENABLED", value: int = 1, address: str = RAIL_0, **more: Any) -> None:
    """Somebody has set it, and the card was reset since."""
    node.change(lambda cards: cards[address]["settings"][name].update(current=value, next=value, **more))


def found(plan: Plan, identity: str) -> Finding:
    return next(finding for finding in plan.findings if finding.id == identity)


def states(result: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["state"] for finding in result["findings"]}


def settings_of(node: Node, address: str = RAIL_0) -> dict[str, int]:
    return {name: one["next"] for name, one in node.state[address]["settings"].items()}


# -- what is found ---------------------------------------------------------------------------------------------------


def test_cards_as_wanted_have_no_finding_and_one_question_each(role: Role) -> None:
    plan = role.plan()
    assert (role.bad(), plan.changed, plan.reboot) == ({}, False, ())
    assert [finding.check for finding in plan.findings].count("nic_firmware.settings") == 16
    assert len([call for call in role.node.calls if " query" in call]) == 16  # twice planned, eight cards
    assert not any("fwreset" in call or "flint" in call or "f1:00.0" in call for call in role.node.calls)


# Of a machine that is none.
OPTIONS: dict[str, Any] = {
    **{name: option.get("default") for name, option in module.SPEC.items()},
    "profile": {"description": "x", "gpus": {"count": 0, "models": []}, "rails": []},
    "fabric": "infiniband",
}


def test_the_module_looks_at_nothing_where_nothing_is_wanted(node: Node) -> None:
    found = module.work(node, OPTIONS, False)
    assert (found["findings"], found["passed"], found["notes"], node.calls) == ([], [], [], [])


def test_what_a_killed_run_left_at_work_is_waited_for_and_judged_by_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    given = {**OPTIONS, "settings": {"LINK_TYPE": "IB"}}
    with locks.hold(node, "nic_firmware.lock"):
        with pytest.raises(BlockingIOError):
            module.work(node, given, False)
        # Who only looks is in nobody's way.
        assert not module.work(node, given, True)["changed"]
    assert not module.work(node, given, False)["changed"]


def card_0(**changes: Any) -> Callable[[Node], None]:
    return lambda node: node.change(lambda cards: cards[RAIL_0].update(changes))


def off(**more: Any) -> Callable[[Node], None]:
    return lambda node: wrong(node, **more)


def without(tool: str) -> Callable[[Node], None]:
    return lambda node: node.missing.add(tool)


RAIL_1_OFF = off(address=RAIL_1)
# What is done to the cards, and what a run may disturb.
CASES: list[tuple[str, list[Callable[[Node], None]], str]] = [
    ("as wanted", [], "driver"),
    ("one off", [off()], "driver"),
    ("one off, nothing allowed", [off()], "none"),
    # A reboot does not bring it: that is no reason for another.
    ("needs power", [off(needs="power")], "reboot"),
    ("never loads", [off(needs="never")], "reboot"),
    # It costs no other card anything.
    ("refuses to be written", [off(), RAIL_1_OFF, card_0(refuses="Bad parameter")], "driver"),
    ("does not answer", [card_0(silent=True), RAIL_1_OFF], "driver"),
    ("no mstconfig", [without("mstconfig")], "driver"),
    ("does not tell what it runs with", [card_0(next_only=True)], "driver"),
]


def history(role: Role, most: str) -> list[Any]:
    """What is planned, and what comes of a run, another one, one after a reboot, and one after power was off."""
    rows = golden_rows.plan(role.plan())
    for step in ("run", "again", "rebooted", "off and on"):
        if step == "rebooted":
            role.node.reboot()
        if step == "off and on":
            role.node.reboot("33333333-0000-4000-8000-000000000003", "power")
        result = role.run(most)
        rows.append([step, "changed" if result["changed"] else "unchanged", *result["repaired"]])
        rows += [[finding["id"], finding["state"], finding["because"]] for finding in result["findings"]]
        left = {"reboots": len(result["reboot_required"]), "ATS_ENABLED": settings_of(role.node)["ATS_ENABLED"]}
        rows.append(left | {"pending": os.path.exists(role.node.system(pending.STORE))})
    return rows


@pytest.mark.golden
@pytest.mark.parametrize(("case", "changes", "most"), CASES)
def test_what_comes_of_runs(role: Role, case: str, changes: list[Callable[[Node], None]], most: str) -> None:
    for change in changes:
        change(role.node)
    goldens.check("nic_firmware", case, history(role, most))


@pytest.mark.golden
def test_what_comes_of_runs_in_a_virtual_machine(role: Role) -> None:
    role.topology = replace(role.topology, virtualization=Virtualization(True, "kvm", "/proc/cpuinfo"))
    wrong(role.node)
    goldens.check("nic_firmware", "virtual machine", history(role, "reboot"))
    assert role.node.calls == []


# -- what cannot be, or must not be ----------------------------------------------------------------------------------


def test_a_setting_that_is_hidden_or_read_only_is_unsupported(role: Role) -> None:
    role = role.asking({"PCI_WR_ORDERING": 0, "MEMIC_BAR_SIZE": 3, "ATS_ENABLED": 0})
    plan = role.plan()
    assert set(role.bad().values()) == {"unsupported"}
    one, other = (found(plan, f"nic_firmware.supported[persisted]@{address}") for address in (RAIL_0, RAIL_1))
    assert (one.because, other.because) == (None, one.id)
    assert f"mstconfig -d {RAIL_0} query" in one.fix
    assert one.have == "MEMIC_BAR_SIZE: 0, read-only; PCI_WR_ORDERING: not shown"
    assert not plan.changed
    role.run()
    assert not os.path.exists(role.node.system(pending.STORE))


def test_what_is_recommended_is_asked_of_cards_that_show_it_only(role: Role) -> None:
    role = role.asking({}, usual=Chain())
    assert role.bad() == {}
    card_0_shows = {"hidden": False, "current": 1}
    role.node.change(lambda cards: cards[RAIL_0]["settings"]["PCI_WR_ORDERING"].update(card_0_shows))
    wrong(role.node, "LINK_TYPE_P1", 2, RAIL_1)
    assert set(role.bad()) == {live(), live(RAIL_1), persisted(RAIL_1)}


def test_burned_firmware_that_a_reset_would_load_stops_it(role: Role) -> None:
    wrong(role.node)
    role.node.change(lambda cards: cards[RAIL_0].update(flash="28.47.1088"))
    result = role.run("reboot")
    image = f"nic_firmware.image[persisted]@{RAIL_0}"
    assert (states(result), result["reboot_required"]) == ({image: "drift", live(): "drift"}, [])
    assert result["findings"][0]["have"] == "28.47.1088 in flash, 28.43.8002 runs"
    assert f"mstfwreset -d {RAIL_0} -y reset" in result["findings"][0]["fix"]
    # As it advises, the site says that this one is meant.
    role.asked = replace(role.asked, firmware={"MT_0000000838": "28.47.1088"})
    result = role.run("reboot")
    assert (states(result), len(result["reboot_required"])) == ({live(): "drift"}, 1)


def test_check_mode_writes_nothing_and_promises_no_more_than_a_run_does(role: Role) -> None:
    wrong(role.node)
    wrong(role.node, address=RAIL_1)
    role.node.change(lambda cards: cards[RAIL_1].update(flash="28.47.1088"))
    before = role.node.state
    for most in ("none", "driver"):
        told = role.run(most, check=True)
        assert (role.node.state, os.path.exists(role.node.system(pending.STORE))) == (before, False)
    assert told["repaired"] == [persisted(), persisted(RAIL_1)]
    assert role.run()["repaired"] == told["repaired"]


def test_settings_of_a_port_that_nobody_has_declared_are_left_alone(role: Role) -> None:
    """The card of rail 0 has a second port, which is not a rail."""
    nic, *others = role.topology.nics
    other = "0000:11:00.1"
    second = nic._replace(pci=other, role="storage", device=nic.device._replace(address=other))
    role.topology = replace(role.topology, nics=(nic, second, *others))
    of_second = {"LINK_TYPE_P2": setting(2, words={"1": "IB", "2": "ETH"}), "ROCE_CC_PRIO_MASK_P2": setting(255)}
    role.node.change(lambda cards: cards[RAIL_0]["settings"].update(of_second))
    # The port that nobody has declared keeps its link type.
    assert role.bad() == {}
    wrong(role.node)
    assert set(role.bad()) == {live(), persisted()}


def test_with_a_record_that_makes_no_sense_nothing_is_written(role: Role) -> None:
    path = Path(role.node.system(pending.STORE))
    path.parent.mkdir(parents=True)
    wrong(role.node)
    for text in ("", "{", "[]", '{"format": 2, "cards": {}}', '{"format": 1, "cards": {"a": {"boot": 1}}}', "[" * 5000):
        path.write_text(text)
        result = role.run("reboot")
        assert states(result) == {
            f"nic_firmware.tool[live]@{pending.STORE}": "unknown",
            persisted(): "drift",
            live(): "unknown",
        }
        assert (result["changed"], path.read_text()) == (False, text)


ROCE = ["CNP_802P_PRIO_P1=6", "CNP_DSCP_P1=48", "LINK_TYPE_P1=2", "LINK_TYPE_P2=1", "ROCE_CC_PRIO_MASK_P1=255"]


@pytest.mark.parametrize(
    ("settings", "layers", "usual", "of_ports"),
    [
        # What is said of one port counts for more.
        ({"LINK_TYPE_P2": "ETH", "LINK_TYPE": "IB"}, ("", ""), Chain(), ["LINK_TYPE_P1=IB", "LINK_TYPE_P2=ETH"]),
        ({}, ("Ethernet", "InfiniBand"), Chain(cnp_dscp=48, cnp_priority=6), ROCE),
        ({}, ("Ethernet",), Chain(), ["LINK_TYPE_P1=2", "ROCE_CC_PRIO_MASK_P1=255"]),
    ],
)
def test_what_a_card_is_to_have(settings: Any, layers: tuple[str, ...], usual: Chain, of_ports: list[str]) -> None:
    of = wanted.card_settings([wanted.parse(settings)], dict(enumerate(layers, 1)), usual)
    assert [one.argument for one in of] == sorted(["ATS_ENABLED=0", "PCI_WR_ORDERING=0", *of_ports])


def test_a_profile_wants_settings_with_its_reasons_and_the_site_counts_for_more(role: Role) -> None:
    link_type = NicSetting("ETH", "the leaves are Ethernet")
    of_profile = {"ATS_ENABLED": NicSetting(True, "guests use it"), "LINK_TYPE_P1": link_type}
    role.profile = replace(role.profile, nic_firmware=of_profile)
    finding = found(role.asking({}).plan(), persisted())
    assert (finding.want, finding.have) == ("ATS_ENABLED=1 LINK_TYPE_P1=ETH", "ATS_ENABLED=False(0) LINK_TYPE_P1=IB(1)")
    assert finding.why.startswith("guests use it; the leaves are Ethernet; ")
    finding = found(role.asking({"LINK_TYPE": "IB"}).plan(), persisted())
    assert (finding.want, finding.have) == ("ATS_ENABLED=1 LINK_TYPE_P1=IB", "ATS_ENABLED=False(0)")
    worded = replace(role.profile, name="mine", nic_firmware={"LINK_TYPE": NicSetting("-y", "x")})
    with pytest.raises(ParseError, match=r"profile mine: nic_firmware\.LINK_TYPE is '-y', expected a number"):
        wanted.profile_settings(worded)


# -- killed ----------------------------------------------------------------------------------------------------------


def test_killed_at_any_moment_settings_are_old_or_new(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each call of a tool, each setting that a card takes, and each write of a file.

    Two cards are enough.
    """
    node = role.node
    role.topology = replace(role.topology, nics=role.topology.nics[:2])
    for address in set(node.state) - {RAIL_0, RAIL_1}:
        Path(f"{node.hardware_root}{firmware_tools.CARDS}/{address}.json").unlink()
    save, write = firmware_tools.save, apply.write
    broken = {RAIL_0: {"ATS_ENABLED": 1, "LINK_TYPE_P1": 2, "ROCE_CC_PRIO_MASK_P1": 0}, RAIL_1: {"LINK_TYPE_P1": 2}}
    fresh = json.dumps(node.state)

    def ticking(step: Callable[..., Any]) -> Callable[..., Any]:
        def ticks(*given: Any) -> Any:
            node.tick()
            done = step(*given)
            node.tick()
            return done

        return ticks

    monkeypatch.setattr(firmware_tools, "save", ticking(save))
    monkeypatch.setattr(apply, "write", ticking(write))
    moment = 0
    while True:
        node.moments = None
        save(node.hardware_root, json.loads(fresh))
        Path(node.system(pending.STORE)).unlink(missing_ok=True)
        node.reboot(FIRST)
        for address, values in broken.items():
            for name, value in values.items():
                wrong(node, name, value, address, needs="reboot")
        node.moments = moment
        try:
            role.run()
            break
        except Killed:
            node.moments = None
        for address, values in broken.items():
            wants = {"ATS_ENABLED": 0, "LINK_TYPE_P1": 1, "ROCE_CC_PRIO_MASK_P1": 255}
            now = settings_of(node, address)
            assert all(now[name] in (value, wants[name]) for name, value in values.items())
        role.run("reboot")
        node.reboot()
        assert states(role.run("reboot")) == {}
        moment += 1
    assert moment > 20


# -- the tools themselves ---------------------------------------------------------------------------------------------

FOLDER = readings.FOLDER / "firmware.nv_settings.parse_text"
NEW, OLD = ((FOLDER / f"synthetic-{which}-release.txt").read_text() for which in ("new", "old"))
ETH = Value("ETH(2)", 2, "ETH")


def test_nvidias_name_of_the_tool_will_do(tmp_path: Path) -> None:
    tool(tmp_path, "/usr/bin/mlxconfig", f"cat <<'END'\n{OLD}\nEND")
    host = Host(str(tmp_path), str(tmp_path))
    settings, command = tools.query(host, "0000:3b:00.0", ["LINK_TYPE_P1"])
    assert (settings["LINK_TYPE_P1"].current, command) == (ETH, "mlxconfig -d 0000:3b:00.0 -e query LINK_TYPE_P1")
    with pytest.raises(ToolMissing, match="mstflint: is not installed, nor is flint"):
        tools.flash(host, "0000:3b:00.0")


@pytest.mark.parametrize(
    "said", ["-E- The Device doesn't support LINK_TYPE_P1 parameter", "-E- Unknown Parameter: LINK_TYPE_P1"]
)
def test_a_setting_that_a_card_does_not_have_is_absent(tmp_path: Path, said: str) -> None:
    tool(tmp_path, "/usr/bin/mstconfig", f'echo "{said}"; exit 3')
    assert tools.query(Host(str(tmp_path), str(tmp_path)), "0000:3b:00.0", ["LINK_TYPE_P1"])[0] == {}


@pytest.mark.parametrize(("script", "name", "message"), readings.cases("firmware_no_answer"))
def test_what_is_no_answer_is_an_error(tmp_path: Path, script: str, name: str, message: str) -> None:
    tool(tmp_path, "/usr/bin/mstconfig", script)
    with pytest.raises(ReadError, match=message):
        tools.query(Host(str(tmp_path), str(tmp_path)), "0000:3b:00.0", [name])
