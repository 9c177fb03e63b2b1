# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keyfiles of NetworkManager, read and written by the suite and by the real nmcli, which needs no daemon for that."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import ini
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import networkmanager
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import Claim
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.device import Device

from tests import debian
from tests.trees import put_all

NAME = "eth9"
PATH = "/etc/NetworkManager/system-connections/rail0.nmconnection"
HEAD = "[connection]\nid=rail0\nuuid=38a06440-fe11-480f-8823-b1d5c4d9c22b\ntype={}\ninterface-name=eth9\n"
LINES = (
    *("[ethernet]", "[802-3-ethernet]", "[infiniband]", "[ethernet] ", "[ipv4]", "[ipv6]", "", "# mtu=1", "; mtu=2"),
    *("mtu=1500", "mtu = 9000", "mtu=4200 ", " mtu=1501", "mtu=0", "MTU=5", "transport-mode=datagram"),
    *("mac-address=94:6D:AE:00:00:01", "method=auto", "mtu=auto", "mtu=99999999999", "mtu=0x2328", "mtu=1500;"),
)
Nmcli = Callable[..., str]


@pytest.fixture(scope="session")
def nmcli(tmp_path_factory: pytest.TempPathFactory) -> Nmcli:
    """Reads a keyfile, changes properties, and gives back the profile as NetworkManager itself writes it.

    "" for a file that NetworkManager does not take.
    """
    folder = tmp_path_factory.mktemp("network-manager")
    debian.unpack(["network-manager", "libnm0"], folder)
    (libraries,) = {str(path.parent) for path in folder.rglob("libnm.so.0")}
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "LC_ALL": "C"}

    def modify(text: str, *properties: str) -> str:
        argv = [str(folder / "usr/bin/nmcli"), "--offline", "connection", "modify", *properties]
        done = subprocess.run(argv, input=text, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout if done.returncode == 0 else ""

    assert modify(HEAD.format("ethernet"), "connection.id", "rail0")
    return modify


def claim_of(system: Path, text: str) -> tuple[Claim, list[str]]:
    """What the suite makes of a node with this profile for its one interface, and what it doubts."""
    put_all(system, {PATH: text, "/run/NetworkManager/state": ""})
    mac = "94:6d:ae:00:00:01"
    claims: dict[str, list[Claim]] = {NAME: []}
    doubts: dict[str, list[str]] = {NAME: []}
    one = Device(NAME, 1500, mac=mac, permanent=mac)
    networkmanager.read(Host("/nowhere", str(system)), {NAME: one}, claims, doubts)
    (claim,) = claims[NAME]
    return claim, doubts[NAME]


@pytest.mark.parametrize("seed", range(2))
def test_what_the_suite_reads_and_writes_is_what_networkmanager_does(nmcli: Nmcli, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    judged = 0
    for _number in range(60):
        kind = chosen.choice(["ethernet", "802-3-ethernet"])
        lines = [chosen.choice(LINES) for _ in range(chosen.randint(0, 8))]
        text = HEAD.format(kind) + "\n".join(lines) + chosen.choice(["\n", ""])
        normal = nmcli(text, "connection.id", "rail0")
        if not normal:
            continue
        judged += 1
        read = [s.value for s in ini.settings(normal, continued=False) if (s.section, s.key) == ("ethernet", "mtu")]
        claim, doubts = claim_of(tmp_path, text)
        # A number that NetworkManager passes over is a doubt of ours: somebody meant something by it.
        assert doubts or ([str(claim.mtu)] if claim.mtu else []) == read, text
        ours = claim.with_mtu(text, 9000)
        assert ours
        assert nmcli(ours, "connection.id", "rail0") == nmcli(text, "802-3-ethernet.mtu", "9000"), (text, ours)
    assert judged > 15
