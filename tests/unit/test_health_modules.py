# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules and links of the rails as mlxlink tells of them: what is asked, what is read, and what that means."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    judge,
    judge_modules,
    judge_ports,
    mlxlink,
    node,
    record,
    system,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.mlxlink import Module, Reading
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

from tests import goldens, readings
from tests.trees import line, tool
from tests.unit import finding_rows
from tests.unit.conftest import built_in, machine
from tests.unit.test_health_ports import NIGHT, NOW, night, port

PORT = port()
NODE, PROFILE = machine(), built_in("hgx-h100", "infiniband")
WELL = Reading(52.0, 80.0, 0, 0.0, 10 * NIGHT)
READINGS = Path(__file__).parent / "readings"


def module(reading: Reading | None = WELL, **more: Any) -> Module:
    return Module(PORT.rail, PORT.pci, PORT.label, reading, **more)


def told(have: NodeState) -> list[Finding]:
    return list(judge_modules.plan(have, judge_ports.plan(have).findings).findings)


def bad(have: NodeState) -> list[tuple[str, str, str]]:
    """(check, state, severity) of what is not ok."""
    found = [one for one in told(have) if not one.ok]
    return [(one.check.removeprefix("node_health."), one.state, one.severity) for one in found]


def first(*modules: Module) -> NodeState:
    """A question before which there was none."""
    return NodeState(now=NOW, boot_id="boot-1", ports=mlxlink.with_errors((PORT,), modules), modules=modules)


def after(reading: Reading, errors: int, seconds: float = NIGHT) -> NodeState:
    """The question after one at which the port had so many errors."""
    have = night(replace(PORT, values={**PORT.values, mlxlink.ERRORS: errors}), seconds)
    return replace(have, ports=mlxlink.with_errors(have.ports, [module(reading)]), modules=(module(reading),))


@pytest.mark.parametrize(("degrees", "found"), readings.cases("health_module_temperature"))
def test_a_module_is_held_to_its_own_limit(degrees: float, found: list[list[str]]) -> None:
    assert [list(row) for row in bad(first(module(WELL._replace(degrees=degrees))))] == found


@pytest.mark.parametrize(("speed", "rate", "hours", "found"), readings.cases("health_module_rate"))
def test_before_the_first_night_the_ports_own_rate_counts(speed: str, rate: float, hours: float, found: bool) -> None:
    one = module(WELL._replace(errors=900, rate=rate, seconds=hours * 3600))
    have = replace(first(one), ports=(replace(PORT, speed=speed),))
    assert bad(have) == ([("bit_errors", "drift", "major")] if found else [])


OLD = WELL._replace(errors=9000, rate=1e-11)
HOT = WELL._replace(degrees=90.0)
SECOND = module()._replace(rail=2, pci="0000:2b:00.0", label="0000:2b:00.0 mlx5_1")
SILENT = SECOND._replace(reading=None, problem=Problem("mlxlink", "exited with 1: no"))
NIGHTS = {
    # What came since the last night counts, and no total; 3 in 125 minutes are 34 in a day.
    "first": first(module(OLD)),
    "soon again": after(OLD, 9000, 600.0),
    "no more errors": after(OLD, 9000),
    "34 errors": after(OLD, 9000 - 34),
    "35 errors": after(OLD, 9000 - 35),
    # Somebody has cleared the port since: its own rate says of when.
    "cleared": after(OLD._replace(seconds=3600.0), 9000),
    "cleared, and few errors": after(OLD._replace(errors=5, rate=0.0), 9000),
    # One cause is one finding.
    "counted by the port, too": replace(night(PORT, symbol_error=9000), modules=(module(OLD),)),
    "hot": first(module(OLD._replace(degrees=90.0))),
    "hot by a sensor": replace(
        first(module(HOT)), hot=(system.Sensor(PORT.pci, "Module0", 90.0, 80.0, "temp2_input"),)
    ),
    # What is well is said once, and only where every rail was compared.
    "well": first(module(), SECOND),
    "copper": first(module(), SECOND._replace(reading=WELL._replace(degrees=None, alarm=None))),
    "down": first(module(), SECOND._replace(reading=WELL._replace(errors=None, rate=None, seconds=None))),
    "silent": first(module(), SILENT),
    # All are silent for one reason.
    "all silent": first(module(None)._replace(problem=SILENT.problem), SILENT),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", NIGHTS)
def test_a_night(name: str) -> None:
    found = told(NIGHTS[name])
    well = sorted(one.check.removeprefix("node_health.") for one in found if one.ok)
    goldens.check("health_modules", name, [well, *finding_rows.rows(found, "node_health.")])


def test_where_it_is_not_installed_a_note_says_so_and_nothing_is_ok() -> None:
    plan = judge_modules.plan(replace(first(), modules=None), ())
    assert (plan.findings, "mlxlink is not installed" in plan.notes[0]) == ((), True)
    assert judge_modules.plan(first(module()), ()).notes == ()


@pytest.mark.parametrize(("section", "name", "value"), readings.cases("health_mlxlink_nonsense"))
def test_what_makes_no_sense_is_an_error(section: str, name: str | None, value: Any) -> None:
    data = json.loads((READINGS / "health.mlxlink.parse/synthetic-ndr-optics.txt").read_text())
    output = data["result"]["output"]
    (output if name is None else output[section])[name or section] = value
    with pytest.raises(ParseError):
        mlxlink.parse(json.dumps(data))
    with pytest.raises(ParseError, match="more than 1024 KiB"):
        mlxlink.parse(json.dumps(data) + " " * (1 << 20))


@pytest.fixture
def rails(tmp_path: Path) -> Path:
    """A node whose mlxlink writes down its calls, and says the same of every port."""
    output = READINGS / "health.mlxlink.parse/synthetic-ndr-optics.txt"
    tool(tmp_path, "usr/bin/mlxlink", f'echo "$*" >> {tmp_path}/calls; cat {output}; exit 1')
    return tmp_path


def read(root: Path, topology: Topology = NODE, clock: Callable[[], float] = lambda: 0.0) -> tuple[Module, ...] | None:
    return mlxlink.read(Host(str(root), str(root)), dict(enumerate(topology.nics)), clock)


def calls(root: Path) -> list[str]:
    return (root / "calls").read_text().splitlines()


def test_each_port_is_queried_once(rails: Path) -> None:
    found = read(rails)
    assert found is not None
    assert {(one.reading, one.problem) for one in found} == {(Reading(63.0, 75.0, 0, 0.0, 1_875_276.0), None)}
    assert calls(rails) == [f"-d {nic.pci} -m -c --json" for nic in NODE.nics]


def test_of_a_virtual_function_nothing_is_asked(rails: Path) -> None:
    guests = replace(NODE, nics=tuple(nic._replace(role="vf") for nic in NODE.nics))
    assert read(rails, guests) == ()
    assert not (rails / "calls").exists()
    (rails / "usr/bin/mlxlink").unlink()
    assert (read(rails, guests), read(rails)) == ((), None)


def test_one_that_hangs_or_takes_long_is_not_waited_for_twice(rails: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 600, 6))
    slow = read(rails, clock=lambda: float(next(ticks)))
    assert slow is not None
    assert [one.reading is None for one in slow] == [False, False, *[True] * (len(slow) - 2)]
    assert "more than 15 s" in str(slow[-1].problem)
    tool(rails, "usr/bin/mlxlink", f'echo "$*" >> {rails}/calls; sleep 60')
    (rails / "calls").unlink()
    monkeypatch.setattr(mlxlink, "SECONDS", 0.2)
    hung = read(rails)
    assert hung is not None
    assert len(calls(rails)) == 1
    assert len({one.problem for one in hung}) == 1


FAILED = 'echo "-E- Failed to open device: \\"$2\\", Operation not permitted" >&2; exit 1'


@pytest.mark.parametrize("script", [FAILED, "echo '{\"result\" : {'", "echo mlxlink", "exit 0"])
def test_what_is_no_answer_is_one_unknown(rails: Path, script: str) -> None:
    tool(rails, "usr/bin/mlxlink", script)
    found = told(NodeState(now=NOW, modules=read(rails)))
    assert {(one.check, one.state) for one in found} == {("node_health.mlxlink", "unknown")}
    assert len(found) == len(NODE.nics)
    assert [one.because is None for one in found] == [True, *[False] * (len(found) - 1)]


def test_the_record_keeps_its_errors_and_the_gate_does_not_ask(rails: Path) -> None:
    line(rails / "proc/sys/kernel/random/boot_id", "boot-1")
    host = Host(str(rails), str(rails))
    have = node.read(host, NODE, PROFILE, states_only=True, clock=lambda: NOW)
    assert have.modules == ()
    assert not (rails / "calls").exists()
    have = node.read(host, NODE, PROFILE, clock=lambda: NOW)
    kept = record.parse(record.render(record.update_records(None, judge.counters(have)))).last
    assert {one["values"][mlxlink.ERRORS] for one in kept.ports.values()} == {0}
