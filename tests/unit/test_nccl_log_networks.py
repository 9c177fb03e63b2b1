# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is told of networks, their plugins and what NCCL may choose, where no fault is behind it."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    gdr_less,
    table,
    table_rows,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.matrix import Matrix


@pytest.mark.parametrize("piece", [" ", "0 ", "Tree ", "1", "x", " |"])
def test_lines_like_a_matrix_are_read_at_once(piece: str) -> None:
    began = time.monotonic()
    for before in ("Function |", "Reduce |", ""):
        assert not Matrix().line((before + piece * 60000).encode())
        assert not Matrix().line((before + piece * 900)[:999].encode() + b"!")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ((2.4, 2.4, 2.5, 2.5, 2.6, 2.7, 2.8, 2.8, 2.8), None),
        ((1.0, 9.8, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), 10.0),
        ((1.0, 9.0, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), None),
    ],
)
def test_flat_is_what_lies_within_five_percent_of_the_mean(figures: tuple[float, ...], wanted: float | None) -> None:
    flat = table.Test(rows=[table_rows.Row(1 << (21 + at), one, None, "sum") for at, one in enumerate(figures)]).flat
    assert (flat and (flat[0], round(flat[1], 1))) == (wanted and (1 << 22, wanted))


def test_hcas_are_not_called_software_devices() -> None:
    assert gdr_less.likely("rxe0+mlx5_0", frozenset()) == "" == gdr_less.likely("rxemu", frozenset({"GB10", "H100"}))
