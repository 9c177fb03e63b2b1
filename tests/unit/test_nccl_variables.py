# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of NCCL's variables: history, readers, version texts."""

from __future__ import annotations

import contextlib

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import variables as nccl_variables
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.variables import NEVER, VARIABLES, known_names
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import (
    NEWEST,
    OLDEST,
    format_version,
    parse_version,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(("text", "version"), [("2.27.7", (2, 27, 7)), ("2.3.5", (2, 3, 5)), ("10.0.12", (10, 0, 12))])
def test_a_version_is_three_numbers(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version
    assert format_version(version) == text


@pytest.mark.parametrize(
    "text", ["", "2", "2.27", "2.27.7-1", "v2.27.7", "2.27.7\n", " 2.27.7", "2.27.x", "٢.٢.٢", "2.99999.1"]
)
def test_anything_else_is_quoted_in_the_error(text: str) -> None:
    with pytest.raises(ParseError, match="is not a NCCL version, expected a form like"):
        parse_version(text)


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_text_is_a_version_or_a_parse_error(text: str) -> None:
    with contextlib.suppress(ParseError):
        assert len(parse_version(text)) == 3


# Counted in the sources of the releases.
@pytest.mark.parametrize(
    ("version", "count"),
    [((2, 19, 3), 112), ((2, 24, 3), 148), ((2, 26, 2), 155), ((2, 27, 7), 170), ((2, 30, 7), 245)],
)
def test_the_number_of_names_is_that_of_the_release(version: tuple[int, int, int], count: int) -> None:
    assert len(known_names(version)) == count


@pytest.mark.parametrize(
    ("name", "version", "read"),
    [
        ("NCCL_ALGO", (2, 4, 2), False),
        ("NCCL_ALGO", (2, 5, 6), True),
        ("NCCL_TREE_THRESHOLD", (2, 4, 2), True),
        ("NCCL_TREE_THRESHOLD", (2, 5, 6), False),
        ("NCCL_CONF_FILE", (2, 22, 3), False),
        ("NCCL_CONF_FILE", (2, 23, 4), True),
        ("NCCL_MNNVL", (2, 20, 5), True),
        ("NCCL_MNNVL", (2, 21, 5), False),
        ("NCCL_IB_RAIL_POLICY", (2, 31, 2), False),
        ("NCCL_IB_RAIL_POLICY", (2, 32, 3), True),
        ("NCCL_SHARP_DISABLE", (2, 27, 7), False),
        ("NCCL_TESTS_MIN_BW", (2, 27, 7), False),
    ],
)
def test_a_name_is_known_from_its_first_release_until_it_is_removed(
    name: str, version: tuple[int, int, int], read: bool
) -> None:
    assert (name in known_names(version)) is read


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("NCCL_IB_HCA", "library"),
        ("NCCL_TREE_THRESHOLD", "library"),
        ("NCCL_SHARP_DISABLE", "nccl-rdma-sharp-plugins"),
        ("SHARP_COLL_LOG_LEVEL", "nccl-rdma-sharp-plugins"),
        ("OFI_NCCL_PROTOCOL", "aws-ofi-nccl"),
        ("FI_PROVIDER", "aws-ofi-nccl"),
        ("NCCL_TESTS_MIN_BW", "nccl-tests"),
        ("NCCL_SHARP_ENABLE", None),
        ("FI_", None),
        ("LD_PRELOAD", None),
    ],
)
def test_each_name_has_one_reader(name: str, reader: str | None) -> None:
    assert nccl_variables.reader(name) == reader


def test_the_table_agrees_with_itself() -> None:
    for name, variable in VARIABLES.items():
        assert variable.name == name
        assert variable.kind in ("int", "bool", "float", "string", "level", "unknown")
        if variable.reader == "library":
            assert variable.since is not None
            assert variable.since <= NEWEST
            assert variable.removed is None or variable.since < variable.removed <= NEWEST
            assert variable.removed is None or variable.removed > (2, 26, 0) or variable.remark, name
        else:
            assert (variable.since, variable.removed) == (None, None)
    assert not set(NEVER) & set(VARIABLES)
    assert set(nccl_variables._REMARKS) <= set(VARIABLES)
    assert known_names((2, 0, 0)) == frozenset()
    assert OLDEST < NEWEST
