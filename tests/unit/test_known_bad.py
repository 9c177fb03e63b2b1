# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases of NCCL with known defects: the table, and what nccl_conf says of a host's."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import log_reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import ARM, X86
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import checks, known_bad, library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import plan as conf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.known_bad import CRASH, HANG, NEEDS, WRONG
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.library import Library
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import parse_version

from .elf import elf

ARM_CPU, X86_CPU = "processor\t: 0\nCPU implementer\t: 0x41\n", "processor\t: 0\nvendor_id\t: GenuineIntel\n"


def test_each_row_has_an_effect_that_is_that_severe() -> None:
    for row in known_bad.DEFECTS:
        assert row.first < row.last or (row.good is None and row.first == row.last)
        assert row.good in (None, row.last)
        assert row.architecture in ("", X86, ARM)
        assert row.needs in ("", *NEEDS)
        assert row.effect in (HANG, CRASH, WRONG)
        assert (row.severity == "critical") >= (row.effect == WRONG)
        assert row.severity in ("critical", "major")


# Release, architecture -> severity, wanted release; None for no finding.
RELEASES = [
    ("2.11.4", ARM, None),
    ("2.12.0", ARM, ("major", "2.29.3 or later")),
    ("2.27.7", ARM, ("major", "2.29.3 or later")),
    ("2.27.7", X86, None),
    ("2.27.7", None, None),
    ("2.28.2", X86, None),
    ("2.28.3", X86, ("minor", "2.28.9 or later")),
    ("2.28.8", X86, ("minor", "2.28.9 or later")),
    ("2.28.8", None, ("minor", "2.28.9 or later")),
    ("2.28.8", ARM, ("major", "2.29.3 or later")),
    ("2.28.9", X86, None),
    ("2.28.9", ARM, ("critical", "2.29.3 or later")),
    ("2.29.2", ARM, ("critical", "2.29.3 or later")),
    ("2.29.3", ARM, None),
    ("2.32.3", ARM, None),
]


@pytest.mark.parametrize(("version", "machine", "row"), RELEASES)
def test_release_of_a_host(version: str, machine: str | None, row: tuple[str, str] | None) -> None:
    number = parse_version(version)
    installed = Library("/usr/lib64/libnccl.so.2", number, frozenset(), machine)
    of_library = conf.judge_releases([installed], None, X86_CPU if machine == ARM else ARM_CPU)
    cpuinfo = {ARM: ARM_CPU, X86: X86_CPU, None: None}[machine]
    declared = conf.judge_releases([], number, cpuinfo)
    for found, subject in ((of_library, installed.path), (declared, "NCCL")):
        rows = [(one.check, one.subject, one.state, one.severity, one.want) for one in found]
        assert rows == ([("nccl_conf.release", subject, "drift", *row)] if row else [])
        assert all((one.have or "").startswith(f"{version}: ") and row[1].split()[0] in one.fix for one in found if row)


# Release, use -> effects that are met, and the first good release.
USES = [
    ("2.26.5", known_bad.RAS_QUERY, {CRASH}, (2, 27, 3)),
    ("2.26.1", known_bad.RAS_QUERY, set(), None),
    ("2.27.3", known_bad.RAS_QUERY, set(), None),
    ("2.27.7", known_bad.RAS, {CRASH}, None),
    ("2.27.6", known_bad.RAS, set(), None),
    ("2.28.9", known_bad.RAS, set(), None),
    ("2.29.7", known_bad.RAS_QUERY, {CRASH}, None),
    ("2.28.7", known_bad.RESTART, {CRASH}, (2, 28, 9)),
    ("2.27.3", known_bad.WINDOWS, {WRONG}, (2, 31, 2)),
    ("2.28.6", known_bad.WINDOWS, {WRONG}, (2, 31, 2)),
    ("2.31.2", known_bad.WINDOWS, set(), None),
    ("2.27.5", known_bad.ONE_RANK, {WRONG}, (2, 29, 7)),
    ("2.28.8", known_bad.SCALE, {HANG}, (2, 28, 9)),
]


@pytest.mark.parametrize(("version", "use", "effects", "good"), USES)
def test_use(version: str, use: str, effects: set[str], good: tuple[int, int, int] | None) -> None:
    number = parse_version(version)
    met = known_bad.certain_defects(number, X86, frozenset([use]))
    assert {one.effect for one in met} == effects
    if met:
        found = known_bad.judge(checks.RELEASE, "NCCL", number, X86, met)
        assert found.want == ("%d.%d.%d or later" % good if good else "another release")
        assert ("NCCL_RAS_ENABLE=0" in found.fix) == (good is None)
    assert known_bad.certain_defects(number, X86) == []


@pytest.mark.parametrize(("machine", "name"), [(62, X86), (183, ARM), (243, None)])
def test_architecture_of_a_library(machine: int, name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(elf({".rodata": b"\0NCCL version 2.28.9+cuda13.0\0NCCL_IB_HCA\0"}, machine=machine))
    assert library.scan(str(path)).architecture == name


@pytest.mark.parametrize("log", (Path(__file__).parent / "cases/nccl_releases.txt").read_text().split("#==")[1:])
def test_release_of_a_log(log: str) -> None:
    """Severity and meaning are in the heading; without these there is no finding."""
    heading, _newline, text = log.partition("\n")
    severity, _space, have = heading.strip().partition(" ")
    found = [one for one in judge(log_reader.read(text.encode())).findings if one.check == "nccl_log.release"]
    assert [one.severity for one in found] == severity.split()
    assert all(have in (one.have or "") for one in found)
