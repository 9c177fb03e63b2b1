# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Several runs of nccl-tests in one log, and rows that stick to lines of NCCL's."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job


@pytest.mark.parametrize("piece", ["1 ", "[a] ", "sum", "0.1 ", "a.", " float sum -1"])
def test_no_begin_of_a_row_takes_long(piece: str) -> None:
    began = time.process_time()
    text = " " + piece * (12000 // len(piece)) + "odd:1:2 [0] NCCL INFO AllReduce: opCount 0\n"
    job.read([text.encode() * 40])
    assert time.process_time() - began < 5
