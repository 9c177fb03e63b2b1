# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a failure came to: calls that ended with it, NCCL's last error, tracebacks without an end, exit codes."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import failures


def test_a_long_warning_is_cut_so_that_its_peer_is_kept() -> None:
    text = "NET/X request failed " + "a" * 300 + " Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5). Done"
    cut = failures.cut(text, 200)
    assert "Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5" in cut
    assert len(cut) <= 210
    assert failures.cut("b" * 150 + "c" * 150, 200).endswith("c" * 66)
    assert failures.cut(text, 900) == text
