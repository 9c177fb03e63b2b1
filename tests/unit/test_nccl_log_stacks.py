# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stacks of C++, which tell in what thread an error was met."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import stacks


def test_stacks_are_bounded() -> None:
    many = stacks.Stacks()
    for number in range(1000):
        many.line(f"[{number}] frame #0: f{number}::g{'x' * 400}() + 0x1", number)
        many.line("frame #" + "1" * 60_000, number)
    assert len(many.told()) == 8
    assert max(map(len, many.told())) < 200
