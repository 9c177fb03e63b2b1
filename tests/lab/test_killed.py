"""A nccl_conf run that is killed, has no room, or has a rival leaves the old file or the new one, never a part."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.modules import nccl_conf

from lab import store
from tests.lab.child import Child

ROOT = Path(__file__).resolve().parent.parent.parent
LAB = store.STANDARD
OLD = "# by hand\nNCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=INFO\n"
WRITES = ("os.rename", "os.link", "os.chmod", "os.remove", "os.truncate")
Start = Callable[..., Child]


@pytest.fixture
def etc(lab: Path) -> Iterator[Path]:
    """/etc of the node, emptied of what the test leaves."""
    folder = lab / "node01" / "sys" / "etc"
    before = set(folder.iterdir())
    yield folder
    for path in set(folder.iterdir()) - before:
        path.unlink()


@pytest.fixture
def start(lab: Path, etc: Path, tmp_path: Path) -> Start:
    """Starts the module. kill_at: before which of its writes to /etc it ends."""
    given = {
        "profile": yaml.safe_load((ROOT / "profiles" / "hgx-h100.yml").read_text()),
        "profile_name": "hgx-h100",
        "fabric": "infiniband",
        "nccl_version": "2.27.7",
        "hardware_root": str(lab / "node01" / "hw"),
        "system_root": str(lab / "node01" / "sys"),
        "_ansible_remote_tmp": str(tmp_path),
    }

    def is_write(event: str, of: tuple[Any, ...]) -> bool:
        if event == "open":
            return isinstance(of[2], int) and bool(of[2] & (os.O_WRONLY | os.O_RDWR)) and str(etc) in str(of[0])
        return event in WRITES and (str(etc) in str(of[0]) or isinstance(of[0], int))

    return lambda kill_at=0, prepare=int, **more: Child(nccl_conf.main, given | more, kill_at, is_write, prepare)


@pytest.fixture
def new(start: Start, etc: Path) -> str:
    """What a run that nobody disturbs writes."""
    assert start().answer()["changed"]
    text = (etc / "nccl.conf").read_text()
    (etc / "nccl.conf").unlink()
    return text


@pytest.mark.parametrize("old", [OLD, None])
def test_a_run_killed_before_any_of_its_writes_leaves_the_old_file_or_the_new(
    start: Start, etc: Path, new: str, old: str | None
) -> None:
    conf = etc / "nccl.conf"
    seen = set()
    for kill_at in range(1, 50):
        conf.unlink(missing_ok=True)
        if old is not None:
            conf.write_text(old)
            conf.chmod(0o644)
        code, _output = start(kill_at).wait()
        found = conf.read_text() if conf.exists() else None
        assert found in (old, new), kill_at
        if found is not None:
            assert conf.stat().st_mode & 0o777 == 0o644, kill_at
        seen.add(found)
        if code != -signal.SIGKILL:
            break
        # Whatever the killed run has left behind, the next one gets there.
        assert start().answer()["findings"] == []
        assert conf.read_text() == new
        # And what the killed one had begun is not there for ever, where there was anything left to do.
        assert found == new or not list(etc.glob(".nccl.conf*")), kill_at
    # The temporary file, its mode, with an old file its backup, and the rename: each was hit.
    assert kill_at > (4 if old else 3)
    assert seen == {old, new}


def test_backups_hold_the_old_text_whole_and_the_file_is_never_a_second_name_of_one(
    start: Start, etc: Path, new: str
) -> None:
    conf = etc / "nccl.conf"
    conf.write_text(OLD)
    result = start().answer()
    backups = [path for path in etc.iterdir() if path.name.startswith("nccl.conf.")]
    assert [path.read_text() for path in backups] == [OLD]
    assert [Path(path).name for path in result["backup_files"]] == [path.name for path in backups]
    assert conf.stat().st_nlink == 1
    assert not list(etc.glob(".nccl.conf*"))


def test_runs_at_once_leave_one_whole_file(start: Start, etc: Path, new: str) -> None:
    conf = etc / "nccl.conf"
    for _ in range(3):
        conf.write_text(OLD)
        results = [child.answer() for child in [start(), start(), start()]]
        assert conf.read_text() == new
        assert all(result["findings"] == [] for result in results)


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(start: Start, etc: Path) -> None:
    conf = etc / "nccl.conf"
    conf.write_text(OLD)
    result = start(prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))).answer()
    assert result["msg"] == "/etc/nccl.conf: cannot be written: File too large"
    assert conf.read_text() == OLD
    assert [path.name for path in etc.iterdir() if "nccl.conf" in path.name] == ["nccl.conf"]


def test_a_folder_that_cannot_be_written_is_one_sentence_and_the_old_file_stays(start: Start, etc: Path) -> None:
    """/proc takes no file, whoever asks: a read-only /etc without a mount."""
    (etc / "link").symlink_to("/proc/self")
    result = start(path="/etc/link/nccl.conf").answer()
    assert result["msg"].startswith("/etc/link/nccl.conf: cannot be written: ")
    (etc / "file").write_text("")
    result = start(path="/etc/file/nccl.conf").answer()
    assert result["msg"].startswith("/etc/file/nccl.conf: cannot be written: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting /etc read-only needs root")
def test_a_read_only_mount_is_one_sentence_and_the_old_file_stays(lab: Path, start: Start, etc: Path) -> None:
    conf = etc / "nccl.conf"
    conf.write_text(OLD)
    if subprocess.run(["mount", "--bind", "-o", "ro", etc, etc], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no mounts")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", etc], capture_output=True, check=False)
        result = start().answer()
    finally:
        subprocess.run(["umount", etc], check=True)
    assert result["msg"] == "/etc/nccl.conf: cannot be written: Read-only file system"
    assert conf.read_text() == OLD
