# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.driver import kernels

from tests.trees import put

CFG = """
menuentry 'Debian' {
    linux /boot/vmlinuz-6.8.0-71-generic root=/dev/vda1 ro
}
menuentry 'Debian, old' {
    linux /boot/vmlinuz-6.8.0-60-generic root=/dev/vda1 ro
}
"""


def _kernel(root: Path, release: str, image: bool, headers: bool) -> None:
    (root / "lib/modules" / release).mkdir(parents=True)
    if image:
        put(root, f"boot/vmlinuz-{release}", "image")
    if headers:
        put(root, f"lib/modules/{release}/build/Makefile", "")


def test_installed_kernels_are_those_with_an_image(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-60-generic\n")
    _kernel(tmp_path, "6.8.0-60-generic", image=True, headers=True)
    _kernel(tmp_path, "6.8.0-71-generic", image=True, headers=False)
    _kernel(tmp_path, "6.8.0-50-generic", image=False, headers=True)
    (tmp_path / "boot/grub").mkdir()
    (tmp_path / "boot/grub/grub.cfg").write_text(CFG)
    problems: list[Problem] = []
    found = kernels.read(Host(str(tmp_path), str(tmp_path)), problems)
    assert problems == []
    assert found == kernels.Kernels(
        "6.8.0-60-generic", ("6.8.0-60-generic", "6.8.0-71-generic"), "6.8.0-71-generic", ("6.8.0-60-generic",)
    )


def test_a_host_that_does_not_say_its_kernel_is_a_problem(tmp_path: Path) -> None:
    problems: list[Problem] = []
    kernels.read(Host(str(tmp_path), str(tmp_path)), problems)
    assert [problem.source for problem in problems] == [kernels.RELEASE]
