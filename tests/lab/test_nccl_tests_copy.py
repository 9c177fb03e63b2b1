"""nccl_tests_build puts another host's build in place, and refuses what this host would not have made."""

# ruff: noqa: F401, F811  # a fixture is an argument of the same name

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.archive import PACK
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import MARKER

from tests.lab.test_nccl_tests_build import (
    Run,
    Start,
    another_cuda,
    build_of,
    healthy,
    judged,
    left,
    nccl,
    no_mpi,
    node,
    other_gpus,
    run,
    start,
)
from tests.trees import put


@pytest.fixture
def other(healthy: Path, tmp_path: Path) -> Path:
    """System root of a host that is equal to ``node``."""
    root = tmp_path / "other"
    shutil.copytree(healthy, root, symlinks=True)
    return root


def carry(run: Run, source: Path, target: Path, commit: str = "a" * 40) -> dict[str, str]:
    """Builds and packs on one host and brings the file to another; the arguments that put it in place there."""
    packed = run(system_root=str(source), pack=True, commit=commit)
    assert packed["packed"], packed
    run(system_root=str(target), build=False, commit=commit)
    pack = target / PACK[1:]
    pack.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source / PACK[1:], pack)
    return sent({"system_root": str(target), "prebuilt": str(pack), "prebuilt_from": "node01", "commit": commit})


def sent(given: dict[str, str]) -> dict[str, str]:
    """With the digest that the control node has of what it sends."""
    return {**given, "prebuilt_sha256": hashlib.sha256(Path(given["prebuilt"]).read_bytes()).hexdigest()}


def test_a_plan_alone_changes_nothing_and_says_what_the_host_could_do(node: Path, run: Run) -> None:
    planned = run(build=False)
    assert (planned["changed"], planned["diff"], planned["commands"], planned["repaired"]) == (False, [], [], [])
    assert judged(planned) == {"nccl_tests.build": "none"}
    assert planned["share"] == {"has": False, "can_build": True, "can_copy": True}
    assert (planned["current"], planned["origin"]) == (False, "unchanged")
    assert left(node) == set()
    done = run()
    assert (done["origin"], done["current"], done["share"]) == ("built", True, None)
    assert done["build"]["runtime"]["release"] == "ubuntu 24.04"
    planned = run(build=False)
    assert planned["share"] == {"has": True, "can_build": False, "can_copy": False}
    assert planned["class_id"] == done["class_id"]
    (node / "usr/bin/make").unlink()
    (build_of(node) / "reduce_perf").unlink()
    assert run(build=False)["share"] == {"has": False, "can_build": False, "can_copy": True}


def test_the_build_of_an_equal_host_is_put_in_place_without_a_compiler(node: Path, other: Path, run: Run) -> None:
    given = carry(run, node, other)
    predicted = run(check_mode=True, **given)
    assert left(other) == set()
    assert Path(given["prebuilt"]).exists()
    done = run(**given)
    for key in ("changed", "diff", "commands", "repaired", "origin"):
        assert predicted[key] == done[key], key
    assert (done["origin"], done["findings"], done["changed"]) == ("copied from node01", [], True)
    assert not (other / "usr/local/cuda-12.9/bin/asked").exists()
    for path in build_of(node).iterdir():
        copy = build_of(other) / path.name
        assert (copy.read_bytes(), copy.stat().st_mode) == (path.read_bytes(), path.stat().st_mode)
    assert left(other) == {"nccl-tests", ".nccl-tests.lock"}
    assert not Path(given["prebuilt"]).exists()
    again = run(system_root=str(other))
    assert (again["changed"], again["origin"], again["findings"]) == (False, "unchanged", [])


def test_the_same_build_is_packed_to_the_same_bytes(node: Path, run: Run) -> None:
    assert run(pack=True)["packed"]
    first = (node / PACK[1:]).read_bytes()
    os.utime(build_of(node) / "reduce_perf", (0, 0))
    put(build_of(node), "notes.txt", "somebody's")
    assert run(pack=True)["packed"]
    again = node / PACK[1:]
    assert again.read_bytes() == first
    assert again.stat().st_mode & 0o777 == 0o600


def upgraded(node: Path) -> None:
    put(node, "etc/os-release", 'ID=ubuntu\nVERSION_ID="26.04"\n')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_gpus, "arch 9.0 -> 9.0 10.0"),
        (upgraded, "runtime x86_64 ubuntu 24.04"),
        (lambda node: (node / "etc/os-release").unlink(), "-> unknown"),
    ],
)
def test_the_build_of_another_kind_of_host_is_refused_and_the_difference_named(
    node: Path, other: Path, run: Run, change: Callable[[Path], None], said: str
) -> None:
    given = carry(run, node, other)
    change(other)
    result = run(**given)
    assert result["failed"]
    assert result["msg"].startswith("build of node01: ")
    assert "is not a build for this host (there -> here): " in result["msg"]
    assert said in result["msg"]
    assert left(other) == {".nccl-tests.lock"}


Members = dict[str, tuple[tarfile.TarInfo, bytes]]


def alter(members: Members) -> None:
    member, data = members["reduce_perf"]
    members["reduce_perf"] = member, data[:-1] + bytes([data[-1] ^ 1])


def replaced(key: str, name: str = "", **more: object) -> Callable[[Members], None]:
    """Puts an empty member in the place of another, or beside all."""

    def tamper(members: Members) -> None:
        member = tarfile.TarInfo(name or key)
        for attribute, value in more.items():
            setattr(member, attribute, value)
        members[key] = member, b""

    return tamper


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (alter, "reduce_perf altered"),
        (lambda members: setattr(members["reduce_perf"][0], "mode", 0o644), "reduce_perf not executable"),
        (lambda members: members.pop("reduce_perf"), "reduce_perf missing"),
        (lambda members: members.pop(MARKER), f"holds no {MARKER}"),
        (replaced("evil", "../evil"), "holds '../evil', which would lie outside"),
        (
            replaced("reduce_perf", type=tarfile.SYMTYPE, linkname="all_reduce_perf"),
            "holds 'reduce_perf', which does not belong to a build",
        ),
        (replaced("reduce_perf", type=tarfile.CHRTYPE), "holds 'reduce_perf', which is not a file"),
        (replaced("bin/more"), "holds 'bin/more', which does not belong to a build"),
        (replaced("more_perf"), "holds 'more_perf', which its marker does not name"),
    ],
)
def test_a_pack_that_was_tampered_with_is_refused_and_the_old_build_stays(
    node: Path, other: Path, run: Run, tamper: Callable[[Members], object], said: str
) -> None:
    run(system_root=str(other))
    (build_of(other) / "all_gather_perf").unlink()
    before = sorted((path.name, path.read_bytes()) for path in build_of(other).iterdir())
    given = carry(run, node, other)
    pack = Path(given["prebuilt"])
    with tarfile.open(pack) as tar:
        members = {info.name: (info, tar.extractfile(info).read()) for info in tar}  # type: ignore[union-attr]
    tamper(members)
    with tarfile.open(pack, "w:xz") as tar:
        for member, data in members.values():
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    tampered = pack.read_bytes()
    assert "it is not what the control node has sent" in run(**given)["msg"]
    # The control node has been given it so.
    pack.write_bytes(tampered)
    result = run(**sent(given))
    assert result["failed"]
    assert said in result["msg"]
    assert sorted((path.name, path.read_bytes()) for path in build_of(other).iterdir()) == before
    assert left(other) == {"nccl-tests", ".nccl-tests.lock"}
    assert not (other / "evil").exists()
    assert judged(run(system_root=str(other))) == {}


@pytest.mark.parametrize("cut", [0, 100, 1000])
def test_a_pack_that_is_cut_off_or_gone_is_refused(node: Path, other: Path, run: Run, cut: int) -> None:
    given = carry(run, node, other)
    pack = Path(given["prebuilt"])
    assert pack.stat().st_size > 1000
    pack.write_bytes(pack.read_bytes()[:cut])
    result = run(**sent(given))
    assert result["failed"]
    assert result["msg"].startswith(f"build of node01: {pack}: ")
    gone = run(**given)
    assert "cannot be read: No such file" in gone["msg"]
    assert left(other) == {".nccl-tests.lock"}


@pytest.mark.parametrize(("kill_at", "have"), [(1, "commit aaaaaaaaaaaa -> bbbbbbbbbbbb"), (2, "none")])
def test_a_run_killed_while_it_takes_over_a_build_leaves_the_old_one_or_none(
    node: Path, other: Path, run: Run, start: Start, kill_at: int, have: str
) -> None:
    run()
    given = carry(run, other, node, commit="b" * 40)
    prebuilt = {key: value for key, value in given.items() if key.startswith("prebuilt")}
    assert start(kill_at, **prebuilt).wait()[0] == -signal.SIGKILL
    assert judged(run(check_mode=True, commit="b" * 40)) == {"nccl_tests.build": have}
    given = carry(run, other, node, commit="b" * 40)
    assert run(**given)["origin"] == "copied from node01"
    assert left(node) == {"nccl-tests", ".nccl-tests.lock"}
