"""A nccl_conf run that is killed, has no room, or has a rival leaves the old file or the new one, never a part."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
LAB = store.STANDARD
OLD = "# by hand\nNCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=INFO\n"
# The module as Ansible runs it, and an audit hook that ends the process before the n-th thing done to /etc: every
# open for writing, rename, link, chmod and removal raises an audit event, whoever calls it.
SCRIPT = """\
import os, signal, sys
sys.path[:0] = {paths!r}
left = {kill_at!r}
def hook(event, arguments):
    global left
    if left is None or event not in ("open", "os.rename", "os.link", "os.chmod", "os.remove", "os.truncate"):
        return
    if event == "open" and (not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    if {folder!r} not in str(arguments[0]) and not isinstance(arguments[0], int):
        return
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
from ansible_collections.busbar.fabric.plugins.modules import nccl_conf
sys.addaudithook(hook)
nccl_conf.main()
"""


@pytest.fixture
def etc(lab: Path) -> Iterator[Path]:
    """/etc of the node, emptied of what the test leaves."""
    folder = lab / "node01" / "sys" / "etc"
    before = set(folder.iterdir())
    yield folder
    for path in set(folder.iterdir()) - before:
        path.unlink()


@pytest.fixture
def start(lab: Path, etc: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the module in a process of its own. kill_at: before which of its writes the process ends."""
    arguments = {
        "profile": yaml.safe_load((ROOT / "profiles" / "hgx-h100.yml").read_text()),
        "profile_name": "hgx-h100",
        "fabric": "infiniband",
        "nccl_version": "2.27.7",
        "hardware_root": str(lab / "node01" / "hw"),
        "system_root": str(lab / "node01" / "sys"),
        "_ansible_remote_tmp": str(tmp_path),
    }
    paths = [str(ROOT / "collections"), *(path for path in sys.path if path.endswith("site-packages"))]

    runs = itertools.count()

    def run(kill_at: int | None = None, limit: Callable[[], None] | None = None, **more: Any) -> subprocess.Popen[str]:
        # Files of its own for each run: a rival that has just started may not have read its script yet.
        folder = tmp_path / f"run-{next(runs)}"
        folder.mkdir()
        script = folder / "module.py"
        script.write_text(SCRIPT.format(paths=paths, kill_at=kill_at, folder=str(etc)))
        given = folder / "arguments.json"
        given.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments | more}))
        return subprocess.Popen(
            [sys.executable, str(script), str(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )

    return run


Start = Callable[..., subprocess.Popen[str]]


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=1800)
    assert "Traceback" not in stderr
    return dict(json.loads(stdout))


@pytest.fixture
def new(start: Start, etc: Path) -> str:
    """What a run that nobody disturbs writes."""
    assert answer(start())["changed"]
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
        process = start(kill_at)
        process.communicate(timeout=1800)
        found = conf.read_text() if conf.exists() else None
        assert found in (old, new), kill_at
        if found is not None:
            assert conf.stat().st_mode & 0o777 == 0o644, kill_at
        seen.add(found)
        if process.returncode != -signal.SIGKILL:
            break
        # Whatever the killed run has left behind, the next one gets there.
        assert answer(start())["findings"] == []
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
    result = answer(start())
    backups = [path for path in etc.iterdir() if path.name.startswith("nccl.conf.")]
    assert [path.read_text() for path in backups] == [OLD]
    assert [Path(path).name for path in result["backup_files"]] == [path.name for path in backups]
    assert conf.stat().st_nlink == 1
    assert not list(etc.glob(".nccl.conf*"))


def test_runs_at_once_leave_one_whole_file(start: Start, etc: Path, new: str) -> None:
    conf = etc / "nccl.conf"
    for _ in range(3):
        conf.write_text(OLD)
        results = [answer(process) for process in [start(), start(), start()]]
        assert conf.read_text() == new
        assert all(result["findings"] == [] for result in results)


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(start: Start, etc: Path) -> None:
    conf = etc / "nccl.conf"
    conf.write_text(OLD)
    process = start(limit=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
    result = answer(process)
    assert result["msg"] == "/etc/nccl.conf: cannot be written: File too large"
    assert conf.read_text() == OLD
    assert [path.name for path in etc.iterdir() if "nccl.conf" in path.name] == ["nccl.conf"]


def test_a_folder_that_cannot_be_written_is_one_sentence_and_the_old_file_stays(start: Start, etc: Path) -> None:
    """/proc takes no file, whoever asks: a read-only /etc without a mount."""
    (etc / "link").symlink_to("/proc/self")
    result = answer(start(path="/etc/link/nccl.conf"))
    assert result["msg"].startswith("/etc/link/nccl.conf: cannot be written: ")
    (etc / "file").write_text("")
    result = answer(start(path="/etc/file/nccl.conf"))
    assert result["msg"].startswith("/etc/file/nccl.conf: cannot be written: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting /etc read-only needs root")
def test_a_read_only_mount_is_one_sentence_and_the_old_file_stays(lab: Path, start: Start, etc: Path) -> None:
    conf = etc / "nccl.conf"
    conf.write_text(OLD)
    if subprocess.run(["mount", "--bind", "-o", "ro", etc, etc], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no mounts")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", etc], capture_output=True, check=False)
        result = answer(start())
    finally:
        subprocess.run(["umount", etc], check=True)
    assert result["msg"] == "/etc/nccl.conf: cannot be written: Read-only file system"
    assert conf.read_text() == OLD
