# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What root executes or loads is root's: the rule, and that tools go by it."""

from __future__ import annotations

import ast
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core import host as host_module
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError, Untrusted
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange

ROOT = Path(__file__).resolve().parent.parent.parent
STRANGER = 65533
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("usr/bin", "usr/local/bin", "home/u/venv"):
        (tmp_path / name).mkdir(parents=True)
    tool = tmp_path / "usr/bin/tool"
    tool.write_text("#!/bin/sh\nid -u > %s/ran\necho usual\n" % tmp_path)
    tool.chmod(0o755)
    return tmp_path


def doubt(top: Path, path: str) -> str:
    return trusted.doubt(f"{top}{path}", str(top))


def test_what_is_roots_alone_is_trusted(top: Path) -> None:
    (top / "usr/bin/link").symlink_to("../bin/./tool")
    (top / "bin").symlink_to("usr/bin")
    (top / "usr/bin/absolute").symlink_to(top / "bin/link")
    for path in ("/usr/bin/tool", "/usr/bin/link", "/bin/link", "/bin/absolute", "/usr/bin/../bin/tool", "/"):
        assert doubt(top, path) == ""
    assert trusted.doubt(os.path.realpath("/bin/sh")) == ""


@pytest.mark.parametrize("which", ["/usr/bin/tool", "/usr/bin", "/usr", "/"])
@pytest.mark.parametrize("mode", [0o757, 0o1777])
def test_the_file_and_every_directory_above_it_count(top: Path, which: str, mode: int) -> None:
    (top / which[1:]).chmod(mode)
    # The base is believed as it is: above it lies what makes the test machine.
    assert doubt(top, "/usr/bin/tool") == ("" if which == "/" else f"{which} is writable by everybody")


@ROOT_ONLY
@pytest.mark.parametrize("which", ["/usr/bin/tool", "/usr/bin", "/usr"])
def test_owner_and_group_count(top: Path, which: str) -> None:
    path = top / which[1:]
    os.chown(path, STRANGER, -1)
    assert doubt(top, "/usr/bin/tool") == f"{which} belongs to UID {STRANGER}"
    os.chown(path, 0, STRANGER)
    assert doubt(top, "/usr/bin/tool") == ""
    path.chmod(0o775)
    assert doubt(top, "/usr/bin/tool") == f"{which} is writable by group GID {STRANGER}"
    os.chown(path, 0, 0)
    assert doubt(top, "/usr/bin/tool") == ""


@ROOT_ONLY
def test_somebody_in_an_access_list_counts(top: Path) -> None:
    # What setfacl -m u:65533:rwx writes: version 2, then (tag, permissions, id) of owner, user, group, mask, other.
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, STRANGER), (4, 5, nobody), (16, 7, nobody), (32, 5, nobody)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(top / "usr/bin", "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"no access lists on this file system: {error}")
    assert doubt(top, "/usr/bin/tool").startswith("/usr/bin has an access list")


@ROOT_ONLY
def test_every_step_of_every_link_counts(top: Path) -> None:
    os.chown(top / "home/u", STRANGER, -1)
    (top / "home/u/venv/real").symlink_to("../../../usr/bin/tool")
    (top / "usr/bin/through").symlink_to("../../home/u/venv/real")
    assert doubt(top, "/usr/bin/through") == f"/home/u belongs to UID {STRANGER}"
    assert doubt(top, "/home/u/../../usr/bin/tool") == f"/home/u belongs to UID {STRANGER}"
    (top / "usr/bin/out").symlink_to(f"{top.parent}/elsewhere")
    # The folder of all temporary files is on the way of both.
    assert doubt(top, "/usr/bin/out").endswith(" is writable by everybody")
    (top / "usr/bin/up").symlink_to("/".join([".."] * 40) + "/tmp/x")
    assert doubt(top, "/usr/bin/up").endswith(" is writable by everybody")


def test_what_leads_nowhere_or_round_and_round_is_not_trusted(top: Path) -> None:
    (top / "usr/bin/a").symlink_to("b")
    (top / "usr/bin/b").symlink_to("a")
    assert doubt(top, "/usr/bin/a").endswith("leads to too many links")
    assert doubt(top, "/usr/bin/none") == "/usr/bin/none cannot be looked at: No such file or directory"
    assert "cannot be looked at" in doubt(top, "/usr/bin/tool/x")


# -- tools -----------------------------------------------------------------------------------------------------------


@ROOT_ONLY
@pytest.mark.parametrize("which", ["usr/local/bin/tool", "usr/local/bin", "usr/local"])
def test_a_tool_that_others_may_change_is_passed_over(top: Path, which: str) -> None:
    planted = top / "usr/local/bin/tool"
    shutil.copy(top / "usr/bin/tool", planted)
    os.chown(top / which, STRANGER, -1)
    host = Host(str(top), str(top))
    assert host.tool("tool") == str(top / "usr/bin/tool")
    (top / "usr/bin/tool").unlink()
    with pytest.raises(Untrusted, match=rf"/usr/local\S* belongs to UID {STRANGER}; give it to root alone"):
        host.run(["tool"])
    assert host.has("tool")
    assert not (top / "ran").exists()


@ROOT_ONLY
def test_a_directory_that_others_may_change_is_in_no_path(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = top / "usr/local/bin"
    planted.chmod(0o777)
    monkeypatch.setattr(host_module, "TOOL_PATH", (str(planted), "/usr/bin", f"{top}/none"))
    assert host_module.search_path() == "/usr/bin"


@ROOT_ONLY
@pytest.mark.parametrize("which", ["usr", "usr/local"])
def test_nothing_is_written_for_root_where_others_may_change_it(top: Path, which: str) -> None:
    change = FileChange("/usr/local/lib/busbar/at-boot.py", None, "print()", 0o755)
    os.chown(top / which, STRANGER, -1)
    with pytest.raises(
        ReadError, match=rf"is not written, because /{which} belongs to UID {STRANGER}; give it to root"
    ):
        apply.write(Host(str(top), str(top)), change)
    assert not (top / "usr/local/lib").exists()
    os.chown(top / which, 0, -1)
    apply.write(Host(str(top), str(top)), change)
    assert (top / "usr/local/lib/busbar/at-boot.py").exists()


# -- the doors -------------------------------------------------------------------------------------------------------

# What starts a program or loads a library, and the few files in which it stands: each asks trusted.doubt, or starts
# nothing but what it was given by one that has.
STARTS = {
    *("subprocess", "ctypes", "os.exec", "os.spawn", "os.posix_spawn", "os.system", "os.popen", "pty", "run_command"),
}
DOORS = {
    "module_utils/core/child.py": "tools, by Host.tool",
    "module_utils/nccl_conf/proof.py": "our own Python",
    "module_utils/nccl/rank_program.py": "a rank's program; library/nccl_perf.py looks at it where a job is started",
    "module_utils/nccl_conf/parser_probe.py": "libraries, for nccl_proof.prove",
    "module_utils/nccl_tests/build.py": "the commands of a build, by Host.tool",
    "module_utils/core/orphans.py": "the C library that runs already, for prctl",
    "module_utils/core/process_group.py": "benchmarks; nccl_perf and perftest of library/ have looked at them",
    "module_utils/watch/program.py": "nvidia-smi, which it has looked at",
    "library/host_audit.py": "our own Python",
}


def starters(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr, ast.unparse(node)]
        for start in STARTS:
            begins = (start + ".", *([start] if "." in start else []))
            yield from (name for name in names if name == start or name.startswith(begins))


def test_nothing_is_started_or_loaded_but_through_the_doors() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("library", "module_utils")
        for path in (ROOT / folder).rglob("*.py")
        if list(starters(path))
    }
    assert found == set(DOORS)
