# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel arguments in boot entries as EL has them, kept by grubby: a stand-in, or the real one, as BUSBAR_GRUBBY.

grub2-editenv is the real one, of Debian's grub-common.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import line as kernel_line
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args.line import Arg

from tests import debian, series

from .machine import ROOT, El

MACHINE = "4e1fcd3bb6e94fd5a2e0d0a8e4ea1b3c"
KERNELS = ("5.14.0-503.11.1.el9_5.x86_64", "5.14.0-427.13.1.el9_4.x86_64", f"0-rescue-{MACHINE}")
LINE = "root=UUID=6f1c ro crashkernel=1G-4G:192M,4G-64G:256M rd.lvm.lv=rl/root console=tty0 console=ttyS0,115200"
ENTRY = """\
title Rocky Linux ({kernel}) 9.5 (Blue Onyx)
version {kernel}
linux /vmlinuz-{kernel}
initrd /initramfs-{kernel}.img $tuned_initrd
options {options}
grub_users $grub_users
grub_arg --unrestricted
grub_class rocky
"""
WORDS = (
    *("quiet", "rhgb", "iommu=nopt", "intel_iommu=sm_on", "intel-iommu=off", "intel_iommu=off"),
    *("a=1", "a=2", "a=2", "a-b", "a_b=1"),
)
ASKED: tuple[dict[str, Any], ...] = (
    {"name": "iommu", "value": "pt"},
    {"name": "intel_iommu", "value": "on"},
    {"name": "intel_iommu", "value": "off", "present": False},
    {"name": "a", "value": "2", "exclusive": True},
    {"name": "a", "value": "1", "present": False},
    {"name": "a", "present": False},
    {"name": "quiet", "present": False},
    {"name": "console", "value": "ttyS1"},
    {"name": "hugepagesz", "value": "1G", "exclusive": True},
    {"name": "rd.driver.blacklist", "value": "nouveau,nova_core"},
    {"name": "a_b"},
)
# For each case: writes the files, plans, runs the plan's commands, and says what was there before and after.
_TRIALS = """
import json, os, sys
sys.path[:0] = [sys.argv[1] + "/collections", sys.argv[1]]
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import iommu, line, plan, read
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
host = Host("/srv/busbar-lab/hw")
lines = lambda: {entry.name: entry.line for entry in read.read(host).entries}
answers = []
for case in json.load(sys.stdin):
    for path, text in case["files"].items():
        if text is None:
            os.path.exists(path) and os.unlink(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").write(text)
    args = [line.Arg(**arg) for arg in case["args"]]
    before, planned = lines(), plan.plan(read.read(host), args, iommu.ARGS)
    apply.execute(host, planned)
    again = plan.plan(read.read(host), args, iommu.ARGS)
    done = [" ".join(command.argv) for command in planned.commands]
    answers.append({"before": before, "after": lines(), "commands": done, "again": again.changed})
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="session")
def grub2_editenv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grub")
    debian.unpack(["grub-common"], folder)
    return folder / "usr/bin/grub-editenv"


@pytest.fixture
def node(el: El, grub2_editenv: Path) -> El:
    given = os.environ.get("BUSBAR_GRUBBY", "")
    for name, file in (
        ("grub2-editenv", grub2_editenv),
        ("grubby", Path(given or Path(__file__).parent / "grubby.py")),
    ):
        shutil.copy(file, el.path(f"/usr/local/sbin/{name}"))
        el.path(f"/usr/local/sbin/{name}").chmod(0o755)
    el.write("/etc/machine-id", f"{MACHINE}\n")
    el.write("/boot/loader/placeholder", "")
    el.path("/boot/grub2").mkdir()
    el.must("grub2-editenv", "/boot/grub2/grubenv", "create")
    return el


def files(*options: str, cmdline: str | None = None, default: str = LINE) -> dict[str, str | None]:
    """options: of each entry."""
    found: dict[str, str | None] = {"/etc/kernel/cmdline": None if cmdline is None else f"{cmdline}\n"}
    found["/etc/default/grub"] = f'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="{default}"\nGRUB_ENABLE_BLSCFG=true\n'
    for kernel, line in zip(KERNELS, options, strict=True):
        name = f"{MACHINE}-{kernel.replace(f'-{MACHINE}', '')}"
        found[f"/boot/loader/entries/{name}.conf"] = ENTRY.format(kernel=kernel, options=line)
    return found


def tried(node: El, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = node.run(sys.executable, "-c", _TRIALS, str(ROOT), stdin=json.dumps(cases))
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def tokens(line: str) -> list[str]:
    return [token for _gap, token in kernel_line.split(line) if token]


def judge(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """What was asked for is there in every entry, what would cancel it is gone, and all else is as it was."""
    args = [Arg(**arg) for arg in case["args"]]
    wanted = kernel_line.plain(args, [*answer["before"].values()])
    names = {arg.name for arg in wanted}
    assert not answer["again"], (case, answer)
    for name, before in answer["before"].items():
        after, right = answer["after"][name], kernel_line.edit(before, wanted)
        assert all(kernel_line.satisfied(after, arg) for arg in args), (case, answer)
        assert Counter(tokens(after)) == Counter(tokens(right)), (case, answer)
        others = [
            [token for token in tokens(line) if kernel_line.parse(token)[0] not in names] for line in (before, after)
        ]
        assert others[0] == others[1], (case, answer)


@pytest.mark.parametrize("count", series.first(6, 20))
def test_every_kernel_gets_what_is_asked_for_and_keeps_the_rest(node: El, count: int) -> None:
    chosen = random.Random(20)
    cases = []
    for number in range(count):
        more = [" ".join([LINE, *chosen.sample(WORDS, chosen.randint(0, 5))]) for _kernel in KERNELS]
        # Mostly kernels are alike.
        lines = more if number % 4 == 0 else more[:1] * 3
        asked = {arg["name"]: arg for arg in chosen.sample(ASKED, chosen.randint(1, 3))}
        cases.append(
            {"files": files(*lines, cmdline=chosen.choice([None, lines[0], LINE])), "args": list(asked.values())}
        )
    for case, answer in zip(cases, tried(node, cases), strict=True):
        judge(case, answer)


def test_the_entries_of_el_8_take_all_from_grubenv(node: El) -> None:
    node.must("grub2-editenv", "/boot/grub2/grubenv", "set", f"kernelopts={LINE} iommu=nopt")
    case = {"files": files(*["$kernelopts $tuned_params"] * 3), "args": [ASKED[0], ASKED[1]]}
    [answer] = tried(node, [case])
    assert answer["before"] == dict.fromkeys(answer["before"], f"{LINE} iommu=nopt")
    judge(case, answer)
    entries = node.path("/boot/loader/entries").glob("*.conf")
    assert all("options $kernelopts $tuned_params\n" in path.read_text() for path in entries)


def test_what_a_new_kernel_gets_is_kept_as_well(node: El) -> None:
    case = {"files": files(LINE, LINE, LINE, cmdline=LINE), "args": [ASKED[0], {"name": "nohz_full", "value": "1-63"}]}
    [answer] = tried(node, [case])
    judge(case, answer)
    added = "iommu=pt nohz_full=1-63"
    assert node.path("/etc/kernel/cmdline").read_text() == f"{LINE} {added}\n"
    assert f'GRUB_CMDLINE_LINUX="{LINE} {added}"\n' in node.path("/etc/default/grub").read_text()
