# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of NCCL's variables: history, readers, version texts."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.variables import NEVER, VARIABLES, known_names
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import NEWEST, OLDEST, Version


# Counted in the sources of the releases.
@pytest.mark.parametrize(
    ("version", "count"),
    [((2, 19, 3), 112), ((2, 24, 3), 148), ((2, 26, 2), 155), ((2, 27, 7), 170), ((2, 30, 7), 245)],
)
def test_the_number_of_names_is_that_of_the_release(version: tuple[int, int, int], count: int) -> None:
    assert len(known_names(version)) == count


@pytest.mark.parametrize(
    ("name", "unknown", "known"),
    [
        ("NCCL_ALGO", (2, 4, 2), (2, 5, 6)),
        ("NCCL_TREE_THRESHOLD", (2, 5, 6), (2, 4, 2)),
        ("NCCL_CONF_FILE", (2, 22, 3), (2, 23, 4)),
        ("NCCL_MNNVL", (2, 21, 5), (2, 20, 5)),
        ("NCCL_IB_RAIL_POLICY", (2, 31, 2), (2, 32, 3)),
    ],
)
def test_a_name_is_known_from_its_first_release_to_its_last(name: str, unknown: Version, known: Version) -> None:
    assert name not in known_names(unknown)
    assert name in known_names(known)


def test_the_table_agrees_with_itself() -> None:
    for name, variable in VARIABLES.items():
        assert variable.name == name
        assert variable.kind in ("int", "bool", "float", "string", "level", "unknown")
        if variable.reader == "library":
            assert variable.since is not None
            assert variable.since <= NEWEST
            assert variable.removed is None or variable.since < variable.removed <= NEWEST
        else:
            assert (variable.since, variable.removed) == (None, None)
    assert not set(NEVER) & set(VARIABLES)
    assert known_names((2, 0, 0)) == frozenset()
    assert not known_names((2, 27, 7)) & {"NCCL_SHARP_DISABLE", "NCCL_TESTS_MIN_BW"}
    assert OLDEST < NEWEST
