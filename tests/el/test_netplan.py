# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""netplan's YAML, read by the suite and by the real generator, which needs no daemon."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core import ini
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import netplan
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import Addressing, parse_networkd

from tests import debian

Generate = Callable[[Path], dict[str, str] | None]
VALUES = {
    "mtu": (1500, 9000, "9000", "+9000", "0x2328", "09000", "no"),
    "addresses": (["10.0.0.1/24"], ["10.0.0.2/16", {"10.0.0.3/24": {"label": "x"}}], []),
    "dhcp4": (True, False, "no"),
    "match": ({"macaddress": "b8:3f:d2:00:00:01"}, {"driver": "mlx5*"}),
    "set-name": ("rail0",),
    "renderer": ("networkd",),
    "routing-policy": ([{"from": "10.0.0.1", "table": 1000, "priority": 1000}],),
    "routes": ([{"to": "default", "via": "10.0.0.254", "table": 1000}], [{"to": "10.1.0.0/16", "via": "10.0.0.9"}]),
}
FORMS = (
    "network:\n  ethernets:\n    ens1: &a\n      mtu: 9000\n    ens2:\n      <<: *a\n",
    "---\n\"network\":\n  ethernets:\n    'ens1':\n      mtu:\n        1500\n...\n",
    "network: { ethernets: { ens1: { mtu: 1500, # x\n   addresses: [ 10.0.0.1/24,\n 10.0.0.2/24, ] } } }\n",
    "network:\n  ethernets:\n    ens1: {mtu: 1500}\n---\nnetwork:\n  ethernets:\n    ens1: {mtu: 9000}\n",
    "network:\n  ethernets:\n    ens1:\n",
    "network:\n  ethernets:\n    ens1:\n      mtu: null\n",
    "ethernets:\n  ens1: {}\n",
)


@pytest.fixture(scope="session")
def generate(tmp_path_factory: pytest.TempPathFactory) -> Generate:
    """The networkd files that the generator makes below a root, None where it refuses the YAML."""
    folder = tmp_path_factory.mktemp("netplan")
    try:
        debian.unpack(["netplan.io", "libnetplan0"], folder)
    except AssertionError as error:
        pytest.skip(f"no package with netplan's generator here: {error}")
    program = next(iter(folder.rglob("netplan/generate")))
    (libraries,) = {str(path.parent) for path in folder.rglob("libnetplan.so.*")}

    def run(root: Path) -> dict[str, str] | None:
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        done = subprocess.run([program, "--root-dir", root], env=environment, capture_output=True, check=False)
        found = (root / "run/systemd/network").glob("*.network")
        return {path.stem[len("10-netplan-") :]: path.read_text() for path in found} if done.returncode == 0 else None

    return run


def read(root: Path) -> dict[str, tuple[int | None, Addressing]] | None:
    """MTU and addressing of each ID, by the suite; None where it refuses a file."""
    reader, found = netplan.Reader(Host("/nowhere", str(root))), {}
    for ident in ("ens1", "ens2"):
        doubts: list[str] = []
        claim = reader.claim("/run/x", ident, ident, doubts)
        if doubts:
            return None
        if not claim.refused[0]:
            found[ident] = (claim.mtu, claim.addressing)
    return found


def check(generate: Generate, root: Path, texts: list[str]) -> bool:
    """Whether the generator takes the files; that the suite reads them alike is asserted."""
    (root / "etc/netplan").mkdir(parents=True)
    for number, text in enumerate(texts):
        (root / f"etc/netplan/{number}.yaml").write_text(text)
    expected, found = generate(root), read(root)
    assert (found is None) == (expected is None), texts
    for ident, text in (expected or {}).items():
        mtus = [s.value for s in ini.settings(text) if (s.section, s.key) == ("Link", "MTUBytes")]
        theirs = parse_networkd(ini.blocks(text), ident)
        assert found is not None
        mtu, ours = found[ident]
        assert [str(mtu)] * bool(mtu) == mtus, (texts, text)
        assert (set(ours.addresses or ()), ours.dynamic) == (set(theirs.addresses or ()), theirs.dynamic), (texts, text)
        assert (set(ours.rules), set(ours.routes)) == (set(theirs.rules), set(theirs.routes)), (texts, text)
    return expected is not None


@pytest.mark.parametrize("text", FORMS)
def test_forms_of_yaml_are_taken_or_refused_as_the_generator_does(
    generate: Generate, tmp_path: Path, text: str
) -> None:
    check(generate, tmp_path / "root", [text])


def test_files_that_are_merged_are_read_as_the_generator_does(generate: Generate, tmp_path: Path) -> None:
    chosen, taken = random.Random(3), 0
    for number in range(80):
        texts = []
        for _file in range(chosen.randint(1, 3)):
            found = {
                ident: {key: chosen.choice(values) for key, values in VALUES.items() if chosen.random() < 0.4}
                for ident in chosen.sample(["ens1", "ens2"], chosen.randint(1, 2))
            }
            for definition in found.values():
                # A new name needs a match, which the generator asks for in all files together.
                definition.pop("set-name", None) if "match" not in definition else None
            # Values that are one object would be written as an anchor, which the suite refuses.
            plain = json.loads(json.dumps({"network": {"ethernets": found}}))
            texts.append(yaml.safe_dump(plain, default_flow_style=chosen.choice([None, True])))
        taken += check(generate, tmp_path / str(number), texts)
    assert taken > 20
