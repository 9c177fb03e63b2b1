"""Programs (ELF) and archives of nccl-tests, on small files made here."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import archive, programs
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import PROGRAMS
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.elf import as_file, damaged, linked_with
from tests.unit.test_nccl_tests_build import COMMIT, OTHER

# -- programs --------------------------------------------------------------------------------------------------------


PROGRAM = linked_with(["libnccl.so.2", "libmpi.so.40", "libc.so.6"])


def put_programs(directory: Path, data: bytes = PROGRAM) -> Path:
    for name in PROGRAMS:
        (directory / f"{name}_perf").write_bytes(data)
        (directory / f"{name}_perf").chmod(0o755)
    return directory


def test_programs_are_recorded_with_their_digests_and_so_is_what_lies_beside(tmp_path: Path) -> None:
    put_programs(tmp_path)
    (tmp_path / "alltoallv_perf").write_bytes(PROGRAM)
    (tmp_path / "alltoallv_perf").chmod(0o755)
    (tmp_path / "common.o").write_bytes(b"")
    digest = hashlib.sha256(PROGRAM).hexdigest()
    names = {*(f"{name}_perf" for name in PROGRAMS), "alltoallv_perf"}
    assert programs.verify(str(tmp_path), True) == dict.fromkeys(sorted(names), digest)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an ELF file"),
        (b"#!/bin/sh\n" * 10, "is not an ELF file"),
        (PROGRAM[:50], "is a damaged ELF file"),
        (PROGRAM[:-10], "is cut off or damaged"),
        (linked_with(["libc.so.6"]), "is not linked with libnccl.so.2"),
        (linked_with(["libnccl.so.20", "libmpi.so.40"]), "is not linked with libnccl.so.2"),
        (linked_with(["libnccl.so.2"]), "is not linked with libmpi"),
    ],
)
def test_a_program_that_is_not_what_was_asked_for_is_no_program(tmp_path: Path, data: bytes, message: str) -> None:
    put_programs(tmp_path)
    (tmp_path / "reduce_perf").write_bytes(data)
    with pytest.raises(ReadError, match=message):
        programs.verify(str(tmp_path), True)


def test_a_program_that_is_missing_a_directory_or_not_executable_is_named(tmp_path: Path) -> None:
    put_programs(tmp_path)
    (tmp_path / "reduce_perf").chmod(0o644)
    with pytest.raises(ReadError, match="reduce_perf: is not executable"):
        programs.verify(str(tmp_path), True)
    (tmp_path / "reduce_perf").unlink()
    with pytest.raises(ReadError, match="reduce_perf: cannot be read: No such file"):
        programs.verify(str(tmp_path), True)
    (tmp_path / "reduce_perf").mkdir()
    with pytest.raises(ReadError, match="reduce_perf: is not a regular file"):
        programs.verify(str(tmp_path), True)
    with pytest.raises(ReadError, match="cannot be listed"):
        programs.verify(str(tmp_path / "absent"), True)


@given(damaged(PROGRAM))
def test_a_damaged_program_gives_names_or_a_read_error(data: bytes) -> None:
    with as_file(data) as path:
        try:
            assert all(isinstance(name, str) for name in programs.needed_libraries(path))
        except ReadError as error:
            assert error.problem.source == path


# -- archives --------------------------------------------------------------------------------------------------------


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0, pax: dict[str, str] | None = None
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.pax_headers = kind, link, size, pax or {}
    return info


def write_archive(path: Path, members: list[tarfile.TarInfo], commit: str = "") -> str:
    """Writes an archive and gives its SHA-256."""
    headers = {"comment": commit} if commit else {}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(tmp_path: Path, members: list[tarfile.TarInfo], commit: str = "", digest: str = "") -> Path:
    found = write_archive(tmp_path / "x.tgz", members, commit)
    (tmp_path / "scratch").mkdir()
    archive.unpack_sources(str(tmp_path / "x.tgz"), digest or found, COMMIT, str(tmp_path / "scratch/source"))
    return tmp_path / "scratch/source"


@pytest.mark.parametrize("commit", ["", COMMIT])
def test_an_archive_is_unpacked_without_its_top_directory(tmp_path: Path, commit: str) -> None:
    members = [
        member("top", tarfile.DIRTYPE),
        member("top/Makefile", size=3),
        member("top/src/a.cu", size=1),
        member("top/link", tarfile.SYMTYPE, "src/a.cu"),
    ]
    source = unpack(tmp_path, members, commit)
    assert (source / "Makefile").read_bytes() == bytes(3)
    assert (source / "link").resolve() == source / "src/a.cu"


def test_an_archive_without_a_top_directory_is_unpacked_as_it_is(tmp_path: Path) -> None:
    assert sorted(p.name for p in unpack(tmp_path, [member("Makefile"), member("src/a.cu")]).iterdir()) == [
        "Makefile",
        "src",
    ]


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/cron.d/evil")],
        [member("../evil")],
        [member("top/../../evil")],
        [member("top/x", pax={"path": "top/x\0y"})],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("top/link", tarfile.SYMTYPE, "../../etc")],
        [member("link", tarfile.SYMTYPE, "")],
        [member("down", tarfile.DIRTYPE), member("link", tarfile.SYMTYPE, "down"), member("link/evil")],
        [member("link", tarfile.SYMTYPE, "down"), member("./link", tarfile.REGTYPE)],
        [member("hard", tarfile.LNKTYPE, "/etc/shadow")],
        [member("hard", tarfile.LNKTYPE, "a")],
        [member("device", tarfile.CHRTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a/b")],
    ],
)
def test_a_hostile_archive_is_a_read_error_and_leaves_nothing_outside(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    with pytest.raises(ReadError, match=r"x\.tgz: "):
        unpack(tmp_path, [member("ok"), *members])
    assert {path.name for path in tmp_path.iterdir()} == {"x.tgz", "scratch"}
    assert {path.name for path in (tmp_path / "scratch").iterdir()} <= {"source.unpacked"}


def test_an_archive_that_unfolds_to_gigabytes_is_refused_before_that(tmp_path: Path) -> None:
    bomb = member("bomb", size=1 << 40)
    (tmp_path / "x.tar").write_bytes(bomb.tobuf() + bytes(1024))
    with tarfile.open(tmp_path / "x.tar") as tar, pytest.raises(ParseError, match="holds more than 256 MiB"):
        archive.safe_members(tar)


def test_another_digest_or_commit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"has sha256 [0-9a-f]{64}, expected 000"):
        unpack(tmp_path, [member("a")], digest="0" * 64)
    digest = write_archive(tmp_path / "x.tgz", [member("a")], OTHER)
    with pytest.raises(ReadError, match=f"is of commit {OTHER}, expected {COMMIT}"):
        archive.unpack_sources(str(tmp_path / "x.tgz"), digest, COMMIT, str(tmp_path / "scratch/source"))
    with pytest.raises(ReadError, match="cannot be unpacked: No such file"):
        archive.unpack_sources(str(tmp_path / "absent.tgz"), digest, COMMIT, str(tmp_path / "scratch/source"))
    assert list((tmp_path / "scratch").iterdir()) == []


@given(st.binary(max_size=600), st.integers(0, 500), st.sampled_from(["w", "w:gz", "w:bz2", "w:xz"]))
def test_a_damaged_archive_is_unpacked_or_a_read_error(noise: bytes, at: int, mode: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        with tarfile.open(path, mode) as tar:
            tar.addfile(member("top/a", size=100), io.BytesIO(bytes(100)))
        data = path.read_bytes()
        path.write_bytes(data[:at] + noise + data[at + len(noise) :])
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            archive.unpack_sources(str(path), digest, COMMIT, f"{folder}/source")
        except ReadError as error:
            assert error.problem.source == str(path)
        assert {p.name for p in Path(folder).iterdir()} <= {"x", "source", "source.unpacked"}


def test_the_bytes_that_were_verified_are_unpacked_whatever_the_file_holds_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder may belong to anybody: only the bytes count."""
    tmp_path.chmod(0o777)
    path = tmp_path / "x.tgz"
    digest = write_archive(path, [member("Makefile"), member("src/a.cu")])
    verified = programs.digest

    def swap(stream: Any) -> str:
        found = verified(stream)
        path.write_bytes(b"")
        write_archive(path, [member("evil")])
        return found

    monkeypatch.setattr(programs, "digest", swap)
    (tmp_path / "scratch").mkdir()
    archive.unpack_sources(str(path), digest, COMMIT, str(tmp_path / "scratch/source"))
    assert {one.name for one in (tmp_path / "scratch/source").iterdir()} == {"Makefile", "src"}
