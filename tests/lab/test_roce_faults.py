# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's faults of RoCE; what each changes is in tests/golden/lab_faults.json."""

from __future__ import annotations

import pytest

from lab.fault import FileFault
from lab.faults import FAULTS, HARMLESS
from lab.machines import hgx_h200_roce


def test_shifted_gids_are_the_same_gids_elsewhere() -> None:
    """F23: there is nothing to find."""
    machine, shifted = hgx_h200_roce("node02"), hgx_h200_roce("node02")
    HARMLESS["gid-shifted"](shifted)
    before, after = machine.rail(0).gids, shifted.rail(0).gids
    assert [gid.value for gid in before] == [gid.value for gid in after]
    assert [gid.index for gid in after] == [0, 1, 4, 5]


def test_files_of_faults_need_what_they_take_away() -> None:
    change = FAULTS["qos-unit-disabled"].change
    assert isinstance(change, FileFault)
    with pytest.raises(Exception, match="provision the node first"):
        change.edit(hgx_h200_roce(), None)
    assert change.edit(hgx_h200_roce(), "[Unit]\n") is None
