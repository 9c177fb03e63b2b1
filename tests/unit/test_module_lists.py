# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.driver import module_lists
from hypothesis import given, settings
from hypothesis import strategies as st

LINES = st.lists(
    st.sampled_from(["nvidia_peermem", "nvidia-peermem", "  nvidia_peermem ", "# nvidia_peermem", ";x", "", "ib_umad"])
)
BLOCKS = st.lists(
    st.sampled_from(
        ["blacklist nvidia-peermem", "install nvidia_peermem \\", " /bin/true", "# x", "", "options a b=1", "alias c d"]
    )
)


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_taking_a_module_out_of_a_list_leaves_the_rest(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    after = module_lists.unlisted(text, "nvidia_peermem") or ""
    assert module_lists.listed(after) == [name for name in module_lists.listed(text) if name != "nvidia_peermem"]


@settings(max_examples=100, deadline=None)
@given(BLOCKS)
def test_taking_blocks_out_is_done_once_and_spares_files_without(lines: list[str]) -> None:
    text = "\n".join(lines)
    after = module_lists.unblocked(text, "nvidia_peermem")
    assert module_lists.blocks(after, "nvidia_peermem") == []
    assert module_lists.unblocked(after, "nvidia_peermem") == after
    if not module_lists.blocks(text, "nvidia_peermem"):
        assert after == text
