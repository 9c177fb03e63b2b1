"""Outputs of real perftest runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import perftest


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("ib_write_bw-roce-cx5-100g-gid4.txt", 98.02),
        # MB of 2 to the 20th, as perftest counts them.
        ("superbench-ib_loopback_8M_size.log", 24056.72 * 8 * 1.048576 / 1000),
    ],
)
def test_real_bandwidths_are_read(samples: Path, name: str, figure: float) -> None:
    found, mtu = perftest.parse("bw", (samples / "perftest" / name).read_text())
    assert found == pytest.approx(figure)
    assert mtu == 4096


def test_of_a_run_over_all_sizes_the_last_counts(samples: Path) -> None:
    text = (samples / "perftest" / "superbench-ib_loopback_all_sizes.log").read_text()
    assert perftest.parse("bw", text)[0] == pytest.approx(23240.68 * 8 * 1.048576 / 1000)
