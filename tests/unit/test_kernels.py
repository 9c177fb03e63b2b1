# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.driver import kernels

from tests.trees import put_all

FIRST, NEWER, GONE = (f"6.8.0-{number}-generic" for number in (60, 71, 50))


def test_installed_kernels_are_those_with_an_image(tmp_path: Path) -> None:
    entries = [f"menuentry 'Debian' {{\n linux /boot/vmlinuz-{name} root=/dev/vda1 ro\n}}\n" for name in (NEWER, FIRST)]
    files = {"proc/sys/kernel/osrelease": f"{FIRST}\n", "boot/grub/grub.cfg": "".join(entries)}
    files |= {f"boot/vmlinuz-{name}": "image" for name in (FIRST, NEWER)}
    files |= {f"lib/modules/{name}/build/Makefile": "" for name in (FIRST, GONE)}
    put_all(tmp_path, {**files, f"lib/modules/{NEWER}/modules.dep": ""})
    problems: list[Problem] = []
    found = kernels.read(Host(str(tmp_path), str(tmp_path)), problems)
    assert problems == []
    assert found == kernels.Kernels(FIRST, (FIRST, NEWER), NEWER, (FIRST,))


def test_a_host_that_does_not_say_its_kernel_is_a_problem(tmp_path: Path) -> None:
    problems: list[Problem] = []
    kernels.read(Host(str(tmp_path), str(tmp_path)), problems)
    assert [problem.source for problem in problems] == [kernels.RELEASE]
