"""What a stored result depends on: each part changed alone on a simulated node makes it due, and nothing else does."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import fingerprint as perf_depends
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import Nccl, render_marker

from tests.trees import put, put_all

from .test_nccl_library import GOOD
from .test_nccl_perf_module import SECRET, arguments, called, program, start, wait_for
from .test_nccl_tests_build import CUDA, MADE_FROM, MARKER

Run = Callable[..., dict[str, Any]]
RAIL, GPU = "0000:18:00.0", "0000:1b:00.0"
DRIVER = "hw/proc/driver/nvidia/version"
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (x)\n"
# What the parts are read from, below the node's root.
FILES = {
    DRIVER: VERSION,
    "hw/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.8 root=/dev/sda1 iommu=pt\n",
    "hw/proc/sys/kernel/osrelease": "6.8.0-60-generic\n",
    f"hw/proc/driver/nvidia/gpus/{GPU}/information": "",
    f"hw/sys/bus/pci/devices/{GPU}/vendor": "0x10de\n",
    f"hw/sys/bus/pci/devices/{GPU}/device": "0x2330\n",
    "hw/sys/class/infiniband/mlx5_4/fw_ver": "28.43.1014\n",
    f"hw/sys/devices/pci0000:16/{RAIL}/vendor": "0x15b3\n",
    "lib/libnccl.so.2.27.7": "",
    "etc/nccl.conf": "# a comment\nNCCL_IB_TC=106\nNCCL_DEBUG=WARN\n",
}


class Node:
    """A simulated node with a build of nccl-tests whose program counts how often it has run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        put_all(root, FILES)
        (root / "hw/sys/class/infiniband/mlx5_4/device").symlink_to(root / f"hw/sys/devices/pci0000:16/{RAIL}")
        for folder in ("build", "var"):
            (root / folder).mkdir()
        self.counting()
        (root / "lib/libnccl.so.2.27.7").write_bytes(GOOD)
        (root / "lib/libnccl.so.2").symlink_to("libnccl.so.2.27.7")
        self.mark("a" * 40)

    def counting(self) -> None:
        """Put the program there."""
        program(self.root / "build", f"before = lambda: open({str(self.root / 'ran')!r}, 'a').write('x')")

    def mark(self, commit: str) -> None:
        library = str(self.root / "lib/libnccl.so.2.27.7")
        inputs = replace(MADE_FROM, cuda=replace(CUDA, library=library), nccl=Nccl("/usr/include", library, "2.27.7"))
        put(self.root, "build/busbar-build.json", render_marker(replace(MARKER, commit=commit, inputs=inputs)))

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new))

    @property
    def record(self) -> Path:
        return self.root / "var/latest/record.json"

    @property
    def ran(self) -> int:
        """How often the program has measured."""
        path = self.root / "ran"
        return len(path.read_text()) if path.exists() else 0

    def arguments(self, **changes: Any) -> dict[str, Any]:
        given = {
            "binary": str(self.root / "build/all_reduce_perf"),
            "max_bytes": "2M",
            "environment": {"TOKEN": SECRET, "NCCL_NVLS_ENABLE": "0"},
            "result_directory": str(self.root / "var"),
            "stored_result": str(self.record),
            "when": "changed",
            "hardware_root": str(self.root / "hw"),
        }
        return arguments(self.root, **{**given, **changes})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def run(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*, check: bool = False, **changes: Any) -> dict[str, Any]:
        return called(capsys, {**node.arguments(**changes), "_ansible_check_mode": check})

    return call


def found(result: dict[str, Any]) -> dict[str, str]:
    return {finding["check"].partition(".")[2]: finding["state"] for finding in result["findings"]}


def test_a_good_result_is_measured_once_and_then_stands(node: Node, run: Run) -> None:
    first = run()
    assert (first["stored"], first["findings"], node.ran) == (False, [], 1)
    assert "there is no stored result" in first["due"]
    before = sorted((path, path.stat().st_mtime_ns) for path in (node.root / "var").rglob("*"))
    for check in (False, True):
        again = run(check=check)
        assert (again["due"], again["findings"], again["stored"], again["notes"]) == ("", [], True, [])
        assert (again["busbw"], again["finished_at"]) == (first["busbw"], first["finished_at"])
    assert node.ran == 1
    assert sorted((path, path.stat().st_mtime_ns) for path in (node.root / "var").rglob("*")) == before


def newer_library(node: Node) -> None:
    (node.root / "lib/libnccl.so.2.28.9").write_bytes(GOOD.replace(b"2.27.7", b"2.28.9"))
    (node.root / "lib/libnccl.so.2").unlink()
    (node.root / "lib/libnccl.so.2").symlink_to("libnccl.so.2.28.9")


# What is changed on the node, and what the module has to say of it: "..." stands for anything.
CHANGES: dict[str, tuple[Callable[[Node], object], str]] = {
    "NVIDIA driver": (
        lambda node: node.edit(DRIVER, "570.86.10", "999.1.2"),
        "NVIDIA driver 570.86.10 ..., now 999.1.2 ...",
    ),
    "kernel": (lambda node: put(node.root, "hw/proc/sys/kernel/osrelease", "6.99\n"), "kernel ..., now 6.99"),
    "kernel argument": (
        lambda node: node.edit("hw/proc/cmdline", " iommu=pt", ""),
        "kernel argument iommu pt, now absent",
    ),
    "firmware of NIC": (
        lambda node: put(node.root, "hw/sys/class/infiniband/mlx5_4/fw_ver", "99.1.1000\n"),
        f"firmware of NIC {RAIL} ..., now 99.1.1000",
    ),
    "GPU": (
        lambda node: shutil.rmtree(node.root / f"hw/proc/driver/nvidia/gpus/{GPU}"),
        f"GPU {GPU} 0x10de:0x2330, now absent",
    ),
    "nccl-tests": (
        lambda node: node.mark("c" * 40),
        "nccl-tests aaaaaaaaaaaa, sha256 0000000000000000, now cccccccccccc, sha256 0000000000000000",
    ),
    "NCCL": (newer_library, "NCCL 2.27.7 ..., now 2.28.9 ..."),
    "nccl.conf": (
        lambda node: node.edit("etc/nccl.conf", "NCCL_IB_TC=106", "NCCL_IB_TC=104"),
        "nccl.conf NCCL_IB_TC 106, now 104",
    ),
}


@pytest.mark.parametrize("part", CHANGES)
def test_each_part_changed_alone_makes_it_due_for_that_reason_and_once(node: Node, run: Run, part: str) -> None:
    run()
    change, due = CHANGES[part]
    change(node)
    asked = run(check=True)
    assert re.fullmatch(".*".join(map(re.escape, f"measured with {due}".split("..."))), asked["due"])
    assert asked["changed_since"] == [part]
    assert found(asked) == {"fresh": "unknown"}
    assert asked["findings"][0]["have"] == asked["due"]
    assert (asked["stored"], node.ran) == (True, 1)
    done = run()
    assert (done["due"], done["findings"], done["stored"], node.ran) == (asked["due"], [], False, 2)
    again = run()
    assert (again["due"], again["stored"], node.ran) == ("", True, 2)


def test_every_part_is_one_of_those_and_the_environment(node: Node, run: Run) -> None:
    run()
    parts = set(json.loads(node.record.read_text())["depends"])
    assert parts == {*CHANGES, perf_depends.ENVIRONMENT}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"TOKEN": SECRET, "NCCL_NVLS_ENABLE": "1"}, "NCCL_NVLS_ENABLE changed"),
        ({"TOKEN": "another-" + SECRET, "NCCL_NVLS_ENABLE": "0"}, "TOKEN changed"),
        ({"TOKEN": SECRET}, "NCCL_NVLS_ENABLE removed"),
        ({"TOKEN": SECRET, "NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring"}, "NCCL_ALGO added"),
    ],
)
def test_variables_of_the_site_are_a_part_and_kept_nowhere(
    node: Node, run: Run, environment: dict[str, str], said: str
) -> None:
    run()
    assert run(check=True, environment=environment)["due"] == f"measured with nccl_benchmark_environment {said}"
    kept = [path for path in (node.root / "var").rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET in path.read_text()]
    # The same value has another digest in the next record.
    first = json.loads(node.record.read_text())["depends"][perf_depends.ENVIRONMENT]
    run(when="always")
    second = json.loads(node.record.read_text())["depends"][perf_depends.ENVIRONMENT]
    assert not set(first.values()) & set(second.values())


def test_what_does_not_matter_changes_nothing(node: Node, run: Run) -> None:
    run()
    node.edit("etc/nccl.conf", "# a comment", "# another comment")
    node.edit("hw/proc/cmdline", "/boot/vmlinuz-6.8", "/boot/other")
    node.edit("hw/proc/cmdline", "iommu=pt", "iommu=pt -- --token of-init")
    # A virtual function that a container has been given.
    devices = node.root / "hw/sys/class/infiniband"
    made = node.root / "hw/sys/devices/pci0000:16/0000:1a:00.7"
    (made / "physfn").mkdir(parents=True)
    (devices / "mlx5_99").mkdir()
    (devices / "mlx5_99/device").symlink_to(made)
    (devices / "mlx5_99/fw_ver").write_text("1.2.3\n")
    assert (run()["due"], node.ran) == ("", 1)


# -- what cannot be read ---------------------------------------------------------------------------------------------


def test_unknown_is_not_what_was_known_and_measured_again_once_but_not_for_ever(node: Node, run: Run) -> None:
    run()
    (node.root / DRIVER).write_text("garbage\n")
    assert run()["due"].startswith("measured with NVIDIA driver ")
    assert node.ran == 2
    # As unknown as then, for the same reason: measured again it would be no less so. It is said, and not a silent yes.
    again = run()
    assert (again["due"], again["findings"], node.ran) == ("", [], 2)
    (note,) = again["notes"]
    assert note.startswith("whether NVIDIA driver changed since the benchmark's last result is not known: ")
    assert "/proc/driver/nvidia/version" in note
    # Unknown for another reason, and then known.
    (node.root / DRIVER).unlink()
    assert "now unknown: /proc/driver/nvidia/version: is not there" in run()["due"]
    assert node.ran == 3


UNREADABLE: dict[str, tuple[Callable[[Node], object], str]] = {
    "nccl.conf": (
        lambda node: (node.root / "etc/nccl.conf").write_bytes(b"NCCL_DEBUG=\xff\n"),
        "nccl.conf known, now unknown: /etc/nccl.conf: is not text",
    ),
    "no nccl.conf": (
        lambda node: (node.root / "etc/nccl.conf").unlink(),
        "nccl.conf NCCL_DEBUG WARN, now absent (and 1 more)",
    ),
    "marker": (lambda node: put(node.root, "build/busbar-build.json", "garbage"), "nccl-tests "),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_becomes_unreadable_is_one_change(node: Node, run: Run, name: str) -> None:
    run()
    change, due = UNREADABLE[name]
    change(node)
    asked = run(check=True)
    assert asked["due"].startswith(f"measured with {due}")
    assert "unknown: " in asked["due"] or name == "no nccl.conf"


def test_a_build_without_a_marker_is_known_by_its_file(node: Node, run: Run) -> None:
    (node.root / "build/busbar-build.json").unlink()
    run()
    assert run()["due"] == ""
    os.utime(node.root / "build/all_reduce_perf", (1, 1))
    assert ", now " in run(check=True)["due"]
    assert node.ran == 1


# -- age, verdict and records ----------------------------------------------------------------------------------------


OLD, LATER = time.time() - 31 * 86400, time.time() + 3 * 86400


@pytest.mark.parametrize(
    ("change", "check", "due"),
    [
        ({"finished": OLD}, "fresh", "31.0 days old"),
        # The clock was wrong then, or is now.
        ({"finished": LATER}, "fresh", "a result of 3.0 days in the future"),
        ({"command": ["other"]}, "fresh", "a result of another command: other"),
        ({"depends": None}, "fresh", "measured with "),
        # One of 0.1.
        ({"format": 2}, "ran", "not measured now; the record has format 2, expected 4"),
        (None, "ran", "not measured now; *there is no stored result"),
        *((text, "ran", "not measured now; *record") for text in ("", "{}", "[1", "\0")),
    ],
)
def test_a_record_that_does_not_count_is_due_once(node: Node, run: Run, change: Any, check: str, due: str) -> None:
    run()
    if change is None:
        node.record.unlink()
    else:
        record = {**json.loads(node.record.read_text()), **change} if isinstance(change, dict) else None
        node.record.write_text(json.dumps(record) if record else change)
    asked = run(check=True)
    assert re.match(".*".join(map(re.escape, due.split("*"))), asked["due"]), asked["due"]
    assert (found(asked), asked["stored"]) == ({check: "unknown"}, check == "fresh")
    done = run()
    assert (done["due"], done["findings"], node.ran) == (asked["due"], [], 2)
    assert run()["due"] == ""


def test_a_result_below_its_bar_is_due_until_it_is_good(node: Node, run: Run) -> None:
    run()
    asked = run(check=True, bar_busbw=400)
    assert found(asked) == {"busbw": "drift"}
    assert asked["due"] == "the last result is not good: 350.50 GB/s"
    for measured in (2, 3):
        assert found(run(bar_busbw=400)) == {"busbw": "drift"}
        assert node.ran == measured
    assert (run()["findings"], node.ran) == ([], 3)


# -- runs that leave no result ---------------------------------------------------------------------------------------


def test_a_run_that_was_killed_makes_the_result_before_it_due(node: Node, run: Run) -> None:
    run()
    pid = node.root / "pid"
    program(
        node.root / "build",
        f"def before():\n    open({str(pid)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n",
    )
    changes = node.arguments(when="always")
    module = start(node.root, **changes)
    try:
        wait_for(pid)
        # It goes on, and whoever asks now hears of it.
        assert "is under way or was cut off" in run(check=True)["due"]
    finally:
        module.kill()
        module.communicate()
    asked = run(check=True)
    assert asked["due"].startswith("a later run, begun 20")
    assert found(asked) == {"fresh": "unknown"}
    node.counting()
    assert (run()["findings"], node.ran) == ([], 2)
    assert run()["due"] == ""


# -- nccl_benchmark_when ---------------------------------------------------------------------------------------------


def test_always_measures_and_says_so_in_check_mode(node: Node, run: Run) -> None:
    for number in (1, 2):
        assert (run(when="always")["due"], node.ran) == ("nccl_benchmark_when is always", number)
    asked = run(check=True, when="always")
    assert (asked["due"], asked["findings"], node.ran) == ("nccl_benchmark_when is always", [], 2)


def test_never_judges_what_there_is_and_says_what_measures(node: Node, run: Run) -> None:
    nothing = run(when="never")
    assert (found(nothing), nothing["due"], node.ran) == ({"ran": "unknown"}, "", 0)
    fix = nothing["findings"][0]["fix"]
    assert fix_command.parse(fix) == fix_command.FixCommand(("nccl_benchmark",), more=("nccl_benchmark_when=changed",))
    assert run()["findings"] == []
    node.edit(DRIVER, "570.86.10", "999.1.2")
    old = run(when="never")
    assert (found(old), old["due"], old["stored"], node.ran) == ({"fresh": "unknown"}, "", True, 1)
    assert old["findings"][0]["fix"] == fix
