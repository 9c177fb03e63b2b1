# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node, and its capture without names, have the same findings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive
from ansible_collections.busbar.fabric.plugins.plugin_utils.check import infer

from busbar import capture, check
from lab import store
from tests import series

LAB = {
    node: store.PLATFORMS[name]
    for node, name in {"node01": "hgx-h100", "node02": "hgx-h200", "vm01": "h200-vm"}.items()
}
NODES: list[tuple[str, tuple[str, ...]]] = [
    ("node02", ("rail-missing", "cnp-dscp", "lldp-silent", "address-twice", "slurmd-memlock")),
    ("node01", ("cable-symbols", "docker-memlock", "partition-limited", "gpu-lost", "user-conf")),
    ("vm01", ("smi-garbage",)),
    ("node01", ()),
    ("node02", ("smi-missing", "arp-flux", "lldpad", "module-hot")),
]
_FORMS = re.compile(
    r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])|(?:[0-9a-f]{4}:){3}[0-9a-f]{4}|(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)


def replayed(roots: Mapping[str, str]) -> list[list[str]]:
    given = {f"busbar_{key}": value for key, value in roots.items()}
    data = infer.query(lambda steps: audit.run(steps, 600.0, 600.0, 20.0), given, Path("profiles"), True)
    return capture.findings(data["results"])


def named(folder: Path) -> set[str]:
    """What names the machine or its neighbours: not zeros, local prefixes, masks."""
    texts = (
        path.read_bytes().decode("latin1") for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
    found = {word for text in texts for word in _FORMS.findall(text)}
    return {
        word
        for word in found
        if not word.startswith(("0000:0000", "00000000-", "00:00:00:00", "fe80", "127.", "0.", "255."))
    }


@pytest.mark.parametrize(("node", "faults"), series.some(NODES, 1))
def test_the_capture_of_a_node_has_its_findings_and_none_of_its_names(
    lab: Path, tmp_path: Path, node: str, faults: tuple[str, ...]
) -> None:
    for fault in faults:
        store.break_(lab, node, fault)
    (tmp_path / "new").mkdir()
    left_out = capture.capture(check.roots_of(lab / node), tmp_path / "new", tmp_path / "c.tar.gz", True)
    about = archive.unpack(tmp_path / "c.tar.gz", tmp_path / "again")
    assert left_out == []
    assert replayed(check.roots_of(tmp_path / "again")) == about["findings"]
    assert len(about["findings"]) >= len(faults)
    before, after = named(lab / node), named(tmp_path / "again")
    assert after & before == set()
    assert len(after) > 8
    assert not re.search(rf"\b(?:{node}|leaf-\d|user1)\b", json.dumps(about))
