# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command in a finding's fix. tests/lab/test_advice.py shows what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import Busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import DISRUPTIONS, Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.fix_command import FixCommand, allow, parse
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Command, Plan

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = fix_command.run_tag("mtu")
AGAIN = FixCommand(("platform",), mends=False)


def plan(disruption: str, fix: str = RUN) -> Plan:
    values = ("netdev_mtu.live", "0000:1b:00.0", "drift", "major", "9000", "1500", "/sys", "why", fix)
    return Plan((Finding(*values, disruption=disruption),), commands=(Command(("ip",), "why", disruption),))


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        (RUN, FixCommand(("mtu",))),
        ("run site.yml --tags mtu -e busbar_max_disruption=link for this host", FixCommand(("mtu",), "link")),
        ("run site.yml --tags multirail,mtu for both hosts", FixCommand(("multirail", "mtu"))),
        ("reseat it; then run site.yml --tags platform for this host again", AGAIN),
        ("run nvidia-smi, then run site.yml --tags platform for this host again", AGAIN),
        ("run all of site.yml for the host, read what it says", FixCommand(())),
        ("reseat the NIC", None),
        ("", None),
    ],
)
def test_what_advice_says_is_what_a_machine_reads(fix: str, told: FixCommand | None) -> None:
    assert parse(fix) == told


@pytest.mark.parametrize("most", DISRUPTIONS)
@pytest.mark.parametrize("disruption", DISRUPTIONS)
def test_what_is_withheld_says_what_lets_it_through(disruption: str, most: str) -> None:
    [found] = plan(disruption).limit(most).findings
    told = parse(found.fix)
    assert told is not None
    assert (told.disruption, "reboot" in told.tags) == (disruption, disruption == "reboot")
    # Whoever follows it is not told the same again.
    [again] = plan(disruption, found.fix).limit(told.disruption).findings
    assert (again.state, again.fix) == ("drift", found.fix)


def test_a_node_in_use_says_so_before_the_command() -> None:
    [found] = plan("link").block(Busy(("process python (pid 1) holds 9 MiB on 1 GPU",)).against).limit("link").findings
    assert (found.state, found.have) == ("withheld", "1500; busy: process python (pid 1) holds 9 MiB on 1 GPU")
    assert found.fix == ("resolve that first, then run site.yml --tags mtu -e busbar_max_disruption=link for this host")
    assert parse(found.fix) == FixCommand(("mtu",), "link", mends=False)


def test_what_is_anothers_to_do_stays_as_it_is() -> None:
    for fix in ("on a drained node: systemctl restart slurmd", "set busbar_platform"):
        assert allow(fix, "driver") == fix


def test_every_command_in_the_sources_has_the_form_and_tags_that_are_there() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    found = 0
    for path in [*(ROOT / "module_utils").rglob("*.py"), *(ROOT / "library").glob("*.py")]:
        for line in re.findall(r"site\.yml --tags [^\n]*", path.read_text()):
            told = parse("run " + line)
            assert told is not None
            if told.tags:
                found += 1
                assert set(told.tags) <= roles, (path.name, line)
        for tag in re.findall(r"\badvice\.run\(\"(\w+)\"", path.read_text()):
            found += 1
            assert tag in roles
    assert found > 20
