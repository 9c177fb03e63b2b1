# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Scanning a library file, on small ELF files made here."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library as nccl_library
from hypothesis import given

from tests.unit.elf import as_file, damaged, elf

VERSION = b"NCCL version 2.27.7+cuda12.9\0"
CONSTANTS = VERSION + b"NCCL_IB_HCA\0xNCCL_IB_TC\0%s NCCL_NOT_AT_THE_END %d\0NCCL_lower\0"
NOTE = struct.pack("<III", 4, 4, 3) + b"GNU\0" + bytes.fromhex("00c0ffee")


GOOD = elf({".note.gnu.build-id": NOTE, ".rodata": CONSTANTS, ".nv_fatbin": b"NCCL_ELSEWHERE\0" * 3})


def scan(data: bytes, tmp_path: Path) -> nccl_library.Library:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(data)
    return nccl_library.scan(str(path))


def test_version_and_names_come_from_the_file(tmp_path: Path) -> None:
    library = scan(GOOD, tmp_path)
    assert library.version == (2, 27, 7)
    assert library.names == {"NCCL_IB_HCA", "NCCL_IB_TC"}
    assert library.path == str(tmp_path / "libnccl.so.2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an ELF file"),
        (b"#!/bin/sh\n", "is not an ELF file"),
        (b"\x7fELF\x02\x01", "is a damaged ELF file"),
        (elf({".rodata": CONSTANTS}, b"\x7fELF\x01\x01\x01" + bytes(9)), "is not a 64-bit little-endian ELF file"),
        (elf({".rodata": CONSTANTS}, b"\x7fELF\x02\x02\x01" + bytes(9)), "is not a 64-bit little-endian ELF file"),
        (elf({".text": CONSTANTS}), "has no .rodata section"),
        (elf({".rodata": b"NCCL_IB_HCA\0"}), "holds no text like 'NCCL version"),
        (elf({".rodata": b"NCCL version 2.27+cuda12.9\0"}), "'2.27' is not a NCCL version"),
        (GOOD[:-70], "is cut off or damaged"),
        (GOOD[: len(GOOD) // 2], "is cut off or damaged"),
    ],
)
def test_what_is_no_library_is_named_with_its_path(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=message) as raised:
        scan(data, tmp_path)
    assert raised.value.problem.source == str(tmp_path / "libnccl.so.2")


def test_a_header_that_claims_gigabytes_is_refused_before_reading(tmp_path: Path) -> None:
    data = bytearray(GOOD)
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, table + 2 * 64 + 32, 1 << 62)
    with pytest.raises(ReadError, match=r"its \.rodata should end at byte"):
        scan(bytes(data), tmp_path)


def test_missing_directories_and_pipes_are_read_errors(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="No such file"):
        nccl_library.scan(str(tmp_path / "absent"))
    with pytest.raises(ReadError, match="is not a regular file"):
        nccl_library.scan(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReadError, match="is not a regular file"):
        nccl_library.scan(str(tmp_path / "pipe"))
    with pytest.raises(ReadError, match="is not a file name"):
        nccl_library.scan("lib\0nccl")


@given(damaged(GOOD))
def test_a_damaged_file_is_a_library_or_a_read_error(data: bytes) -> None:
    with as_file(data) as path:
        try:
            assert nccl_library.scan(path).names
        except ReadError as error:
            assert error.problem.source == path


def test_find_lists_each_installed_file_once(tmp_path: Path) -> None:
    host = Host(system_root=str(tmp_path))
    assert nccl_library.find(host) == ()
    debian = tmp_path / "usr/lib/x86_64-linux-gnu"
    debian.mkdir(parents=True)
    (debian / "libnccl.so.2.27.7").write_bytes(GOOD)
    (debian / "libnccl.so.2").symlink_to("libnccl.so.2.27.7")
    local = tmp_path / "usr/local/lib"
    local.mkdir(parents=True)
    (local / "libnccl.so.2").symlink_to("../../lib/x86_64-linux-gnu/libnccl.so.2")
    enterprise = tmp_path / "usr/lib64"
    enterprise.mkdir()
    (enterprise / "libnccl.so.2").write_bytes(GOOD)
    assert nccl_library.find(host) == ("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/usr/lib64/libnccl.so.2")
