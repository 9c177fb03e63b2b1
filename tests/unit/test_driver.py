# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the NVIDIA driver is given: options, kernels that have it, and the lists of modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.driver import kernels, module_lists, nvidia_options
from ansible_collections.busbar.fabric.plugins.module_utils.driver.nvidia_options import (
    FILE,
    IBGDA,
    PARAMS,
    OptionsState,
    plan,
    wanted_options,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import DriverOption
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import put_all

IMEX = DriverOption("CreateImexChannel0", "1")
GRDMA = DriverOption("GrdmaPciTopoCheckOverride", "1", before=595)
BOTH = {"CreateImexChannel0": "1", "GrdmaPciTopoCheckOverride": "1"}
OTHERS = "/etc/modprobe.d/nvidia.conf"

HALF = OptionsState(580, {**BOTH, "CreateImexChannel0": "0"})
WRITTEN = plan(HALF, [IMEX, GRDMA]).changes[0].after or ""
DONE = replace(HALF, own=WRITTEN, files={FILE: WRITTEN})
OURS = "# old\noptions nvidia NVreg_CreateImexChannel0=1\n"
SET = "options nvidia NVreg_CreateImexChannel0"


def theirs(text: str) -> OptionsState:
    return OptionsState(580, BOTH, {OTHERS: text})


CASES: dict[str, tuple[OptionsState, list[DriverOption]]] = {
    "fresh": (HALF, [IMEX, GRDMA]),
    "waits for a reboot": (DONE, [IMEX, GRDMA]),
    "in effect": (replace(DONE, params=BOTH), [IMEX, GRDMA]),
    # An option that a newer driver has no more; one of a driver that is not known does no harm.
    "driver 594": (OptionsState(594, {"CreateImexChannel0": "1"}), [IMEX, GRDMA]),
    "driver 595": (OptionsState(595, {"CreateImexChannel0": "1"}), [IMEX, GRDMA]),
    "driver not known": (OptionsState(None, {"CreateImexChannel0": "1"}), [IMEX, GRDMA]),
    # What another file sets is not set twice.
    "set by others": (theirs(f"{SET}=1\n"), [IMEX]),
    "set by others, with another": (theirs("  options  nvidia NVreg_A=2 \\\n NVreg_CreateImexChannel0=1\n"), [IMEX]),
    "set by others to 0": (theirs(f"{SET}=0\n"), [IMEX]),
    "set by others twice": (theirs(f"{SET}=1\n{SET}=0\n"), [IMEX]),
    "comment, and another module": (theirs(f"# {SET}=1\noptions nvidia_uvm NVreg_X=1\n"), [IMEX]),
    "set on the kernel command line": (
        replace(theirs(f"{SET}=1\n"), next_boot="ro nvidia.NVreg_CreateImexChannel0=0 nvidia-drm.modeset=1"),
        [IMEX],
    ),
    "no driver": (OptionsState(580, None), [IMEX]),
    "driver without the option": (OptionsState(580, {"Other": "1"}), [IMEX]),
    "files unread": (replace(OptionsState(580, BOTH), problems=(Problem(OTHERS, "is odd"),)), [IMEX]),
    "not wanted any more": (OptionsState(580, BOTH, {FILE: OURS}, OURS), []),
    "IBGDA": (OptionsState(580, {"EnableStreamMemOPs": "0", "RegistryDwords": '""'}), [*IBGDA]),
    "IBGDA, among other keys": (
        OptionsState(580, {"EnableStreamMemOPs": "1", "RegistryDwords": '"A=1;PeerMappingOverride=1;B=2;"'}),
        [*IBGDA],
    ),
    "never wanted": (OptionsState(580, BOTH), []),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    made = plan(*CASES[case])
    sources = [one.source for one in made.findings]
    goldens.check("nvidia_options", case, [*golden_rows.plan(made, texts=True), sources])


def test_reads_of_a_tree(tmp_path: Path) -> None:
    put_all(tmp_path, {PARAMS: "EnableMSI: 1\nCreateImexChannel0: 1\n", OTHERS: "options nvidia NVreg_A=1\n"})
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
    put_all(tmp_path, {"/proc/driver/nvidia/version": version, FILE: "x\n"})
    have = nvidia_options.read(Host(str(tmp_path), str(tmp_path)))
    assert (have.branch, have.own, sorted(have.files)) == (580, "x\n", [FILE, OTHERS])
    assert have.params == {"EnableMSI": "1", "CreateImexChannel0": "1"}


def test_options_of_ibgda_stay_until_the_site_says_otherwise() -> None:
    line = plan(OptionsState(580, {}), IBGDA).changes[0].after or ""
    done = OptionsState(580, {}, {FILE: line}, line)
    assert wanted_options(HALF, [IMEX], None) == wanted_options(HALF, [IMEX], ["gin", "nvshmem"]) == [IMEX]
    assert wanted_options(HALF, [IMEX], ["deepep"]) == wanted_options(done, [IMEX], None) == [IMEX, *IBGDA]
    assert wanted_options(done, [IMEX], []) == [IMEX]


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


LINES = st.lists(
    st.sampled_from(["nvidia_peermem", "nvidia-peermem", "  nvidia_peermem ", "# nvidia_peermem", ";x", "", "ib_umad"])
)
BLOCKS = st.lists(
    st.sampled_from(
        ["blacklist nvidia-peermem", "install nvidia_peermem \\", " /bin/true", "# x", "", "options a b=1", "alias c d"]
    )
)


@given(LINES)
def test_taking_a_module_out_of_a_list_leaves_the_rest(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    after = module_lists.unlisted(text, "nvidia_peermem") or ""
    assert module_lists.listed(after) == [name for name in module_lists.listed(text) if name != "nvidia_peermem"]


@given(BLOCKS)
def test_taking_blocks_out_is_done_once_and_spares_files_without(lines: list[str]) -> None:
    text = "\n".join(lines)
    after = module_lists.unblocked(text, "nvidia_peermem")
    assert module_lists.blocks(after, "nvidia_peermem") == []
    assert module_lists.unblocked(after, "nvidia_peermem") == after
    if not module_lists.blocks(text, "nvidia_peermem"):
        assert after == text
