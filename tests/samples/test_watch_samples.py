# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Captured jobs on two H100 and two H200, once a second: stalls are named with their rank, healthy phases are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.watch.job_state import Gpu, Stall, Watcher

# The captures are shorter than any patience that a site has.
PATIENCE = 6.0


def stalls(file: Path, patience: float) -> list[Stall]:
    watcher, found = Watcher(patience), []
    for at, gpus in moments(file):
        found += watcher.take(at, gpus)[0]
    return found


def moments(file: Path) -> Iterator[tuple[float, list[Gpu]]]:
    at, gpus = 0.0, list[Gpu]()
    for line in [*file.read_text().splitlines(), "0"]:
        cells = line.split(", ")
        if len(cells) > 1:
            number, utilisation, memory, watts = (float(cell) for cell in cells[:4])
            gpus.append(Gpu(f"gpu {number:g}", utilisation, memory, watts, 700.0, "job", int(number)))
            continue
        if gpus:
            yield at, gpus
        at, gpus = float(line), []


@pytest.mark.parametrize(
    ("case", "kind", "late"),
    [
        ("stop", "rank stopped", [1]),
        ("sleep", "rank stopped", [1]),
        ("slow", "rank late", [1]),
        ("uneven", "all wait", []),
        ("order", "no kernel runs", []),
    ],
)
def test_a_stall_is_named(samples: Path, case: str, kind: str, late: list[int]) -> None:
    found = stalls(samples / f"h100x2-stall/{case}/smi.csv", PATIENCE)
    assert (kind, late) in [(one.kind, [each.rank for each in one.late]) for one in found]
    # Before the job begins, and behind it, no kernel runs either.
    assert {one.kind for one in found} <= {kind, "no kernel runs"}


def test_no_healthy_phase_is_a_stall_within_the_patience(samples: Path) -> None:
    assert stalls(samples / "h100x2-stall/healthy/smi.csv", PATIENCE) == []
    # Phases of 20 s each.
    assert stalls(samples / "h200x2-phases/smi.csv", 25.0) == []
