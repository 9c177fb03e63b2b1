"""A result is written whole or not at all, and through no link that another user has made."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark, nccl_ras_info
from ansible_collections.busbar.fabric.plugins.plugin_utils import rail_results, results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record

from busbar.drift import history, lock

from .sample_localise_record import RECORD
from .test_verify import results

# What is printed is held in memory: standard output may be a file, too.
pytestmark = pytest.mark.usefixtures("capsys")


def report(path: Path) -> dict[str, Any]:
    """What the task returns of one host, which has not answered."""
    task = SimpleNamespace(args={"phase": "report", "path": str(path)}, async_val=0, check_mode=False, diff=False)
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nonexistent"))
    plugin = nccl_ras_info.ActionModule(task, connection, None, None, None, None)
    hostvars = SimpleNamespace(raw_get=lambda _host: {})
    return plugin.run(None, {"hostvars": hostvars, "ansible_play_hosts_all": ["node01"]})


WRITERS: dict[str, Callable[[Path], object]] = {
    "localise_record": lambda folder: localise_record.write(folder, RECORD),
    "localise_record again": lambda folder: localise_record.write(folder, RECORD, folder),
    "rails": lambda folder: rail_results.write(folder, results()),
    "nccl_ras_info": lambda folder: report(folder / "hang.json"),
}


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_no_part_of_a_result_stays_on_a_full_disk(name: str, tmp_path: Path) -> None:
    with full_disk(), contextlib.suppress(OSError):
        WRITERS[name](tmp_path)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_an_earlier_report_stays_where_a_new_one_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "hang.json"
    assert report(path)["verdict"]
    earlier = path.read_text()
    assert json.loads(earlier)["verdict"]
    assert path.stat().st_mode & 0o777 == 0o600
    with full_disk():
        assert "hang_report_path" in report(path)["msg"]
    assert [one.read_text() for one in tmp_path.iterdir()] == [earlier]


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        results_folder.replace_file(tmp_path / "pipe", ["x"])
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def hold(path: Path) -> None:
    with lock.held(path, "run of ann"):
        pass


def begin(path: Path) -> None:
    with history.History.create(path):
        pass


# What is written -> the place of the link, and the writer, which is given that place.
PLANTED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lock": ("lock", hold),
    "history": ("history.sqlite", begin),
    "results": ("localise", lambda link: localise_record.write(link.parent, RECORD)),
    "rails": ("verify", lambda link: rail_results.write(link, results())),
    "record again": (".localise.json", lambda link: localise_record.write(link.parent, RECORD, link.parent)),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="to make another user's link needs root")
@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_written_through_a_link_of_another_user(name: str, tmp_path: Path) -> None:
    place, write = PLANTED[name]
    target = tmp_path / "target"
    (target.mkdir if name in ("results", "rails") else target.touch)()
    link = tmp_path / place
    link.symlink_to(target)
    os.lchown(link, 65534, 65534)
    with contextlib.suppress(OSError, history.HistoryError):
        write(link)
    assert not (list(target.iterdir()) if target.is_dir() else target.read_bytes())


def test_a_link_of_the_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    hold(tmp_path / "lock")
    assert (tmp_path / "elsewhere").read_text() == "run of ann"


def test_each_host_has_a_file_of_its_own_in_the_folder() -> None:
    names = ["node01", "n1.rack-2", "n/1", "n_1", "../../x", "a b", "a\nb", "..", "x" * 300]
    files = [results_folder.file_name(name, nccl_benchmark._PLAIN) for name in names]
    assert files[:2] == names[:2]
    assert len(set(files)) == len(files)
    assert all(0 < len(file) < 120 and file == os.path.basename(file) and file.isprintable() for file in files)
