# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every place that sets NCCL's variables before /etc/nccl.conf does, and what is said of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import environment as nccl_environment
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.environment import Environment, read
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.lint_values import Use
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.plan import judge_environment

from tests import goldens
from tests.trees import put_all

PASSWD = "root:x:0:0::/root:/bin/bash\nann:x:1000:1000::/srv/ann:/bin/bash\nnobody:x:9:9::/nonexistent:/bin/false\n"
MEANT = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_SOCKET_IFNAME": "=eno1"}
Node = Callable[..., Host]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A tree with these files, path to text."""

    def make(files: dict[str, str], mounts: str = "") -> Host:
        put_all(tmp_path, {"/etc/passwd": PASSWD, "/proc/mounts": mounts or "/ / ext4 rw 0 0\n", **files})
        return Host(str(tmp_path), str(tmp_path))

    return make


def found(environment: Environment) -> list[tuple[str, int, str, str | None]]:
    return sorted((one.source, one.line, one.name, one.value) for one in environment.settings)


def judge(environment: Environment, meant: dict[str, str], accepted: dict[str, str]) -> tuple[list[Finding], list[str]]:
    return judge_environment(environment, meant, accepted, Use())


def bad(environment: Environment, **accepted: str) -> list[Finding]:
    return [finding for finding in judge(environment, MEANT, accepted)[0] if not finding.ok]


def _files() -> Iterator[tuple[str, dict[str, str]]]:
    """Cases and their files, path to text. Each of those without a name is one file, which switches RDMA off."""
    for case in (Path(__file__).parent / "nccl_environment_files.txt").read_text().split("#==")[1:]:
        name, _end, rest = case.partition("\n")
        _note, *parts = re.split("^#-- (.*)\n", rest, flags=re.MULTILINE)
        files = dict(zip(parts[::2], parts[1::2], strict=True))
        yield name.strip() or f"{parts[0]}: {parts[1]!r}", files


FILES = dict(_files())
PLACES = [name for name in FILES if name.startswith("/")]


@pytest.mark.golden
@pytest.mark.parametrize("name", FILES)
def test_every_place_is_found_with_its_line(node: Node, name: str) -> None:
    environment = read(node(FILES[name]))
    findings, _notes = judge(environment, MEANT, {})
    rows = [[one.check, one.subject, one.state, one.severity, one.source] for one in findings if not one.ok]
    assert [one.subject for one in findings if one.ok] == ([] if rows else ["the environment of jobs"])
    goldens.check("nccl_environment", name, [*found(environment), *rows])


@pytest.mark.parametrize("name", PLACES)
def test_what_is_accepted_is_accepted_with_this_value_alone(node: Node, name: str) -> None:
    environment = read(node(FILES[name]))
    assert bad(environment, NCCL_IB_DISABLE="a node for tests") == []
    assert bad(environment, **{"NCCL_IB_DISABLE=0": "not this value"}) != []


@pytest.mark.golden
def test_what_it_costs_and_whom_it_reaches(tmp_path: Path) -> None:
    parts = []
    for number, files in enumerate(FILES.values()):
        root = tmp_path / str(number)
        put_all(root, {"/etc/passwd": PASSWD, "/proc/mounts": "/ / ext4 rw 0 0\n", **files})
        parts += [f"{one.subject}: {one.why}; {one.fix}" for one in bad(read(Host(str(root), str(root))))]
    goldens.text("nccl_environment", "\n".join(dict.fromkeys(parts)) + "\n")


def test_what_costs_little_and_what_is_accepted_are_notes(node: Node) -> None:
    environment = read(node({"/etc/profile.d/x.sh": "export NCCL_IB_TIMEOUT=22 NCCL_IB_DISABLE=1\n"}))
    findings, notes = judge(environment, MEANT, {"NCCL_IB_DISABLE=1": "no fabric here"})
    assert [finding for finding in findings if not finding.ok] == []
    assert [note.partition(" ")[0] for note in notes] == ["/etc/profile.d/x.sh:1,", "accepted:"]
    assert "no fabric here" in notes[1]


def test_nothing_but_nccls_variables_leaves_the_node(node: Node) -> None:
    text = "export TOKEN=s3cret NCCL_IB_HCA=$(x s3cret) PASSWORD=s3cret; NCCL_X=1 s3cret\n"
    environment = read(node({"/etc/profile": text, "/root/.nccl.conf": "TOKEN=s3cret\nLD_LIBRARY_PATH=s3cret\n"}))
    findings, notes = judge(environment, MEANT, {})
    assert "s3cret" not in str(findings) + str(notes)
    assert [finding.state for finding in findings] == ["unknown"]


@pytest.mark.parametrize("name", ["root/.nccl.conf", "etc/profile"])
def test_what_cannot_be_read_is_a_problem_and_holds_nobody_up(node: Node, tmp_path: Path, name: str) -> None:
    host = node({"/etc/bashrc": "# caf\u00e9\n", "/root/x": ""})
    path = tmp_path / name
    started = time.monotonic()
    os.mkfifo(path)
    assert [problem.source for problem in read(host).problems] == [f"/{name}"]
    path.unlink()
    path.write_bytes(b"NCCL_X=1\n" * (1 << 20))
    assert [problem.source for problem in read(host).problems] == [f"/{name}"]
    path.unlink()
    path.symlink_to(path.name)
    assert [problem.source for problem in read(host).problems] == [f"/{name}"]
    assert time.monotonic() - started < 20
    path.unlink()
    path.write_bytes("export NCCL_DEBUG=WARN # café\n".encode("latin-1"))
    assert [problem.source for problem in read(host).problems] == ([f"/{name}"] if "nccl" in name else [])


def test_a_relative_path_of_nccl_conf_is_a_problem(node: Node) -> None:
    problems = read(node({"/etc/environment": "NCCL_CONF_FILE=nccl.conf\n"})).problems
    assert [problem.source for problem in problems] == ["/etc/environment"]


def test_nothing_on_a_network_file_system_is_touched(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the home, nor what a link leads to, at any place of the path; whatever would hang there is not called."""
    named = {
        "/etc/profile": ". /net/site/nccl.sh\n",
        "/etc/systemd/system/slurmd.service": "[Service]\nEnvironmentFile=/net/site/slurmd\n",
        "/etc/slurm/slurm.conf": "Include /net/slurm/jobs.conf\nProlog=/net/slurm/*.sh\nTaskProlog=/net/slurm/task\n",
        "/etc/environment": "NCCL_CONF_FILE=/net/site/nccl.conf\n",
    }
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\nauto /net autofs rw 0 0\n"
    host = node(
        {"/home/bob/.nccl.conf": "NCCL_IB_DISABLE=1\n", "/net/dot/sh": "export NCCL_NET=Socket\n", **named}, mounts
    )
    (tmp_path / "etc/bash.bashrc").symlink_to("/net/dot/sh")
    (tmp_path / "etc/profile.d").symlink_to("../net/dot")
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/ann").symlink_to("../home/bob")
    touched: list[str] = []
    for call in ("lstat", "stat", "open", "listdir", "readlink"):
        real = getattr(os, call)

        def watch(path: str, *more: object, real: Callable[..., object] = real, **named: object) -> object:
            touched.append(str(path))
            return real(path, *more, **named)

        monkeypatch.setattr(os, call, watch)
    environment = read(host)
    monkeypatch.undo()
    assert [one.name for one in environment.settings] == ["NCCL_CONF_FILE"]
    assert [path for path in touched if path.startswith((f"{tmp_path}/home/", f"{tmp_path}/net/"))] == []
    assert any("nfs4" in note and "/home" in note for note in environment.notes)
    assert any("autofs" in note and "/net" in note for note in environment.notes)


def test_a_root_that_is_no_local_disk_is_read(node: Node) -> None:
    """In a container of fuse-overlayfs, and on a node without disks."""
    for kind in ("fuse.fuse-overlayfs", "nfs4"):
        host = node({"/root/.nccl.conf": "NCCL_IB_DISABLE=1\n"}, f"x / {kind} rw 0 0\nserver:/h /home nfs4 rw 0 0\n")
        assert found(read(host)) == [("/root/.nccl.conf", 1, "NCCL_IB_DISABLE", "1")]


def test_links_on_this_machine_are_followed(node: Node, tmp_path: Path) -> None:
    host = node({"/opt/dot/profile": "export NCCL_IB_DISABLE=1\n"})
    (tmp_path / "etc/profile").symlink_to("/opt/dot/profile")
    assert found(read(host)) == [("/etc/profile", 1, "NCCL_IB_DISABLE", "1")]
    assert read(host).problems == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/etc/profile", "".join(f"export NCCL_X{n}=1\n" for n in range(10_000))),
        ("/etc/profile", "export NCCL_A=1\nunset NCCL_A\n" * 7_000),
        ("/etc/profile", 'export NCCL_A="$(' * 14_000),
        ("/etc/profile", "cat <<A <<B\nNCCL_A=1\n" * 9_000),
        ("/etc/environment", "NCCL_A=" + " " * 250_000 + "x\n"),
        ("/root/.nccl.conf", "".join(f"NCCL_X{n}=1\n" for n in range(200_000))),
    ],
)
def test_a_user_who_means_ill_costs_the_audit_little(node: Node, name: str, text: str) -> None:
    """In time, which is bounded for the whole of the node, and in lines of the report."""
    host = node({name: text})
    started = time.process_time()
    findings, notes = judge(read(host), MEANT, {})
    assert time.process_time() - started < 10
    assert len(findings) + len(notes) <= nccl_environment.MOST_SETTINGS + 1


def test_many_homes_are_bounded_and_what_is_left_is_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    host = node({f"/home/u{n}/.nccl.conf": "NCCL_IB_DISABLE=1\n" for n in range(8)})
    monkeypatch.setattr(nccl_environment, "MOST_HOMES", 5)
    assert len(read(host).settings) < 8
    assert any("home directories more than 5" in note for note in read(host).notes)
    monkeypatch.setattr(nccl_environment, "MOST_BYTES", 60)
    assert any("the limit was reached" in problem.message for problem in read(host).problems)
    monkeypatch.setattr(nccl_environment, "MOST_FILES", 3)
    assert any("more than 3 files" in problem.message for problem in read(host).problems)
