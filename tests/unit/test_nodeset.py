# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import brief, cut, expand, fold, nameless
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([f"gpu-r12-{i:02}" for i in range(1, 32)], "gpu-r12-[01-31]"),
        (["n8", "n9", "n10", "n12"], "n[8-10,12]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n0", "n8", "n9", "n10"], "n[0,8-10]"),
        (["n00", "n8", "n9", "n10"], "n[00,8-9,10]"),
        (["r1n1", "r1n2", "r2n1", "r2n2", "r3n1"], "r[1-2]n[1-2],r3n1"),
        (["b", "a", "a"], "a,b"),
        (["n1", "<b>", "x,y", "n2"], "n[1-2],<b>,x,y"),
        ([], ""),
    ],
)
def test_names_fold_in_the_syntax_of_clustershell(names: list[str], text: str) -> None:
    assert fold(names) == text


@given(st.sets(st.text(alphabet="0129ab-.", min_size=1, max_size=7), min_size=1, max_size=30))
def test_what_was_folded_expands_to_the_same_names(names: set[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(names)


@settings(max_examples=2 * settings().max_examples)
@given(st.sets(st.text(alphabet="0129ab-.", min_size=1, max_size=7), min_size=1, max_size=30), st.integers(10, 80))
def test_what_is_cut_says_how_many_more_there_are(names: set[str], room: int) -> None:
    text = brief(names, room)
    listed, _and, more = text.partition(" and ")
    assert len(text) <= room or len(expand(listed)) == 1
    assert set(expand(listed)) <= names
    assert len(expand(listed)) + int(more.split(" ")[0] if more else 0) == len(names)
    assert cut(fold(names), room) == text


@pytest.mark.parametrize(
    "text",
    ["", " ", "a, ,b", ",a", "a,", "a,,b", "n[1-", "n1]", "n[a]", "n[3-1]", "n[1-999999]", "n[1-400]m[1-400]", "[[1]]"],
)
def test_what_is_no_nodeset_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(ParseError):
        expand(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no route to n1", "no route to it"),
        ("n1: no route, n1.", "it: no route, it."),
        ("ssh: Could not resolve hostname n1: Name or service", "ssh: Could not resolve its hostname: Name or service"),
        ("Could not resolve hostname n10", "Could not resolve hostname n10"),
        # Another host's, and a list that is the same on all of its hosts.
        ("n10 and n1-eth0 and gpu-n1", "n10 and n1-eth0 and gpu-n1"),
        ("all_reduce n0,n1,n2 on n1", "all_reduce n0,n1,n2 on it"),
        ("n1,n2", "n1,n2"),
        ("n0,n1", "n0,n1"),
        (None, None),
        ("/lab/n1/hw is not a directory", "/lab/n1/hw is not a directory"),
    ],
)
def test_a_host_is_told_without_its_name(text: str | None, told: str | None) -> None:
    assert nameless(text, "n1") == told
