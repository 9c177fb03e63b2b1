# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from busbar.drift.waivers import WaiverError, load, parse

GOOD = "{check: platform.*, hosts: 'n[1-3]', owner: anna, reason: RMA 4711, expires: 2026-12-15}"
FINDING = Finding("platform.nvlinks", "0000:c3:00.0 GPU5", "drift", "critical", "18", "17", "s", "w", "f")


def write(folder: Path, text: str) -> Path:
    (folder / "w.yml").write_text(text)
    return folder / "w.yml"


def test_a_waiver_covers_its_hosts_checks_and_subject(tmp_path: Path) -> None:
    (waiver,) = parse(load(write(tmp_path, f"waivers: [{GOOD}]")))
    assert waiver.covers("n2", FINDING)
    assert not waiver.covers("n4", FINDING)
    for subject, covered in (("0000:c3:00.0", True), ("0000:c3:00.0 GPU5", True), ("0000:c4:00.0", False)):
        entries = load(write(tmp_path, f"waivers: [{GOOD[:-1]}, subject: '{subject}'}}]"))
        assert parse(entries)[0].covers("n1", FINDING) is covered


def test_an_empty_list_waives_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path, "waivers:\n")) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("waivers: [{check: a.b, hosts: n1, reason: x, expires: 2026-01-01}]", "entry 1 has no owner"),
        ("waivers: [{check: a.b, hosts: n1, owner: ' ', reason: x, expires: 2026-01-01}]", "has no owner"),
        (f"waivers: [{GOOD[:-1]}, until: never}}]", "unknown until"),
        (f"waivers: [{GOOD.replace('2026-12-15', 'never')}]", "expected YYYY-MM-DD"),
        (f"waivers: [{GOOD.replace('n[1-3]', 'n[1-')}]", "brackets"),
        (f"waivers: [{GOOD}, [x]]", "entry 2 is not a mapping"),
        ("- x", "expected one key"),
        ("waivers: {a: b}", "expected one key"),
        ("waivers: [", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(WaiverError, match=r"w\.yml") as raised:
        load(write(tmp_path, text))
    assert says in str(raised.value)


def test_a_missing_file_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(WaiverError, match=r"absent\.yml"):
        load(tmp_path / "absent.yml")
