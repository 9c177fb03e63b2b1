# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Errors name the path and the way out, and nearly right names the right one."""

from __future__ import annotations

import argparse
import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import error_text

from busbar import ansible_process
from busbar.cli import main
from busbar.drift.history import HistoryError, is_disk_full

from .test_exit_code import code_of


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EISDIR, errno.EROFS, errno.EIO])
def test_an_error_of_the_system_names_its_path(number: int) -> None:
    text = error_text.error_text(OSError(number, os.strerror(number), "/a/b"))
    assert text.startswith(f"/a/b: {os.strerror(number)}")
    assert "Errno" not in text
    assert (";" in text) == (number != errno.EIO)
    assert error_text.error_text(ValueError("x")) == "x"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("/bin/sh: 1: /no/py: not found", "ansible_python_interpreter"),
        ("bash: line 1: /opt/py: No such file or directory", "ansible_python_interpreter"),
        ("Task failed: The module interpreter '/usr/bin/python9' was not found.", "ansible_python_interpreter"),
        ("Task failed: Missing sudo password", "--become-password-file"),
        ("sudo: a password is required", "--become-password-file"),
        ("Task failed: Premature end of stream waiting for become success.", "--become-password-file"),
        ("/bin/sh: 1: sudo: not found", "install sudo"),
        ("mkdir: No space left on device", "free space"),
        ("Traceback", ""),
    ],
)
def test_what_keeps_a_task_from_starting_has_a_way_out(text: str, word: str) -> None:
    way_out = error_text.start_way_out(text)
    assert (word in way_out, bool(way_out)) == (True, bool(word))


did_you_mean = error_text.did_you_mean
NAMES = ("hgx-h100", "gb200", "busbar_mtu", "busbar_fabric", "nccl_benchmark_gpus", "--json", "--across-versions")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("hgx-h10", "hgx-h100"),
        ("busbar_mut", "busbar_mtu"),
        ("busbar_fabric_typ", "busbar_fabric"),
        ("bsubar_mtu", "busbar_mtu"),
        ("--jsom", "--json"),
        ("busbar_mtu", "busbar_mtu"),
        *((far, "") for far in ("busbar_zzz", "--across-zzzz", "nccl_benchmark_zzz", "busbar_", "")),
    ],
)
def test_the_nearest_name_is_meant(name: str, near: str) -> None:
    assert did_you_mean(name, NAMES, "") == (f"; did you mean {near}?" if near else "")


def test_where_none_is_near_all_are_named() -> None:
    assert did_you_mean("zzz", ["b", "a"]) == "; known: a, b"
    assert did_you_mean("zzz", [], "") == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["\x1b[2J"], "COMMAND"),
        (["lint"], "FILE"),
        (["lint", "--nccl-version"], "expected one argument"),
        (["fabric"], "ACTION"),
        (["fabric", "plan"], "RECORD"),
        (["drift"], "--inventory"),
        (["drfit"], "drift"),
        (["drift", "-i", "x", "--limt", "y"], "--limit"),
        (["drift", "-i", "x", "--host-timout=5"], "--host-timeout"),
        (["drift", "-i", "x", "--fail-on", "majr"], "major"),
        (["size", "--parameters", "7B", "--nodes", "2", "--profile", "hgx-h10"], "hgx-h100"),
        (["hang", "n1", "--vault-id", "a@prompt"], "LABEL@FILE"),
    ],
)
def test_a_wrong_command_line(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(words) == 1
    *_usage, last = capsys.readouterr().err.splitlines()
    assert meant in last
    assert last.isprintable()


@pytest.mark.parametrize(
    ("content", "name"),
    [("<html>", "page.html"), ("SQLite format 3\0", "drift.sqlite"), ("gpu_nodes:\n", "hosts.yml"), ("", "empty")],
)
def test_remediate_takes_findings_only(content: str, name: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / name).write_text(content)
    for wrong in (tmp_path / name, tmp_path, tmp_path / "none"):
        assert main(["remediate", str(wrong), "-i", str(tmp_path)]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert str(wrong) in line
        assert "--findings" in line


def test_options_of_ansible_are_passed_on_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("")
    names = argparse.Namespace(extra_vars=["a=1", "@f"], vault_password_file=["f"], vault_id=["l@f"])
    ansible_process.pass_on(names)
    words = ["--extra-vars", "a=1", "--extra-vars", f"@{tmp_path}/f"]
    words += ["--vault-password-file", f"{tmp_path}/f", "--vault-id", f"l@{tmp_path}/f"]
    assert ansible_process.passed() == words
    with pytest.raises(FileNotFoundError):
        ansible_process.pass_on(argparse.Namespace(extra_vars=["@none"]))
    ansible_process.pass_on(argparse.Namespace())
    assert ansible_process.passed() == []


@pytest.mark.parametrize("names", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "de_DE.ISO-8859-1"}, {}])
def test_any_locale_will_do(names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    ansible_process.use_utf8()
    assert os.environ["LC_ALL"] == "C.UTF-8"


def test_a_full_disk_is_known_by_its_code() -> None:
    wrapped = HistoryError("x")
    wrapped.__cause__ = OSError(errno.ENOSPC, "x")
    assert is_disk_full(wrapped)
    assert not is_disk_full(HistoryError("x"))
    assert not is_disk_full(sqlite3.OperationalError("x"))
