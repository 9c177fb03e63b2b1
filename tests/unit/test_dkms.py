# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.driver import dkms, kernels, module_file
from hypothesis import given, settings
from hypothesis import strategies as st

CFG = """
menuentry 'Debian' {
    linux /boot/vmlinuz-6.8.0-71-generic root=/dev/vda1 ro
}
menuentry 'Debian, old' {
    linux /boot/vmlinuz-6.8.0-60-generic root=/dev/vda1 ro
}
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "nvidia/580.82.07, 6.8.0-60-generic, x86_64: installed",
            ("nvidia", "580.82.07", "6.8.0-60-generic", "installed"),
        ),
        (
            "nvidia, 535.104.05, 5.15.0-88-generic, x86_64: built",
            ("nvidia", "535.104.05", "5.15.0-88-generic", "built"),
        ),
        (
            "mlnx-ofed-kernel/25.10.OFED.25.10.1.7.1.1: added",
            ("mlnx-ofed-kernel", "25.10.OFED.25.10.1.7.1.1", "", "added"),
        ),
        ("iser, 24.10: added", ("iser", "24.10", "", "added")),
        (
            "mlnx-ofed-kernel/25.10, 5.14.0-503.el9.x86_64, x86_64: installed-weak from 5.14.0-427.el9.x86_64",
            ("mlnx-ofed-kernel", "25.10", "5.14.0-503.el9.x86_64", "installed"),
        ),
        (
            "iser/25.10, 6.8.0-60-generic, x86_64: installed (WARNING! Diff between built and installed module!)",
            ("iser", "25.10", "6.8.0-60-generic", "installed"),
        ),
        ("knem/1.1.4, 6.1.0-1-amd64, x86_64: broken", ("knem", "1.1.4", "6.1.0-1-amd64", "broken")),
    ],
)
def test_each_form_of_a_line_is_understood(line: str, expected: tuple[str, ...]) -> None:
    (build,) = dkms.parse_status(line + "\n")
    assert (build.name, build.version, build.kernel, build.state) == expected


def test_an_unknown_line_is_no_state() -> None:
    with pytest.raises(ParseError, match="expected a line such as"):
        dkms.parse_status("nvidia/580, 6.8, x86_64: half\n")


@settings(max_examples=100)
@given(st.text(max_size=200))
def test_whatever_dkms_prints_it_is_builds_or_a_clear_error(text: str) -> None:
    try:
        builds = dkms.parse_status(text)
    except ParseError:
        return
    assert all(build.name and build.version for build in builds)


@pytest.mark.parametrize(
    ("path", "inbox"),
    [
        ("/lib/modules/6.8.0-60-generic/kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst", True),
        ("/usr/lib/modules/6.8.0/kernel/drivers/x.ko", True),
        ("(builtin)", True),
        ("/lib/modules/6.8.0-60-generic/updates/dkms/mlx5_core.ko", False),
        ("/lib/modules/5.14.0-503.el9.x86_64/extra/mlnx-ofa_kernel/drivers/net/mlx5_core.ko.xz", False),
        ("/lib/modules/5.14.0-503.el9.x86_64/weak-updates/mlx5_core.ko", False),
    ],
)
def test_a_modules_place_tells_whose_it_is(path: str, inbox: bool) -> None:
    assert module_file.parse(f"filename:       {path}\nsrcversion: ABC\n").inbox is inbox


def test_modinfo_without_a_file_is_an_error() -> None:
    with pytest.raises(ParseError):
        module_file.parse("version: 1\n")


def test_checksums_of_both_sides_read_alike() -> None:
    symvers = "0x1a2b3c4d\tib_register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    dumped = "0x1a2b3c4d\tib_register_peer_memory_client\n0x00000001\tmodule_layout\n"
    assert module_file.parse_symbols(symvers) == {"ib_register_peer_memory_client": "0x1a2b3c4d"}
    assert module_file.parse_symbols(dumped)["ib_register_peer_memory_client"] == "0x1a2b3c4d"
    with pytest.raises(ParseError):
        module_file.parse_symbols("modprobe: ERROR: something\n")


@pytest.mark.parametrize(
    ("settings_of_grub", "expected"),
    [
        ("GRUB_DEFAULT=0\n", "6.8.0-71-generic"),
        ("", "6.8.0-71-generic"),
        ('GRUB_DEFAULT="0"\n', "6.8.0-71-generic"),
        ("GRUB_DEFAULT=saved\n", None),
        ("GRUB_DEFAULT=0\nGRUB_DEFAULT='1>2'\n", None),
    ],
)
def test_the_first_entry_boots_unless_grub_is_told_otherwise(settings_of_grub: str, expected: str | None) -> None:
    assert kernels.boot_default(settings_of_grub, CFG) == expected


def test_without_an_entry_nobody_knows_what_boots() -> None:
    assert kernels.boot_default("", "set timeout=5\n") is None


def _kernel(root: Path, release: str, image: bool, headers: bool) -> None:
    folder = root / "lib/modules" / release
    folder.mkdir(parents=True)
    if image:
        (root / "boot").mkdir(exist_ok=True)
        (root / "boot" / f"vmlinuz-{release}").write_bytes(b"\x00")
    if headers:
        (folder / "build").mkdir()
        (folder / "build" / "Makefile").write_text("")


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
