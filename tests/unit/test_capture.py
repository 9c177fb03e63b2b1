# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a capture has of a machine, and what it has not. tests/lab/test_replay.py captures whole nodes."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError, ToolHung
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive, record, redact
from hypothesis import given
from hypothesis import strategies as st

from busbar import cli
from tests.trees import put, tool
from tests.unit.elf import elf

PASSWD = "root:x:0:0:root:/root:/bin/sh\nalice:x:1001:1001:Alice Roe,2,3:/home/alice:/bin/sh\nslurm:x:1002:1:::\n"
HOSTS = "gpu-a17.example.org\n"
MAC, GUID = "0c:42:a1:12:34:56", "0c42:a103:0012:3456"


def redactor(*texts: tuple[str, str]) -> redact.Redactor:
    return redact.Redactor(
        [("hw/proc/sys/kernel/hostname", HOSTS), ("hw/x/node_guid", GUID), ("hw/x/address", MAC), *texts], PASSWD
    )


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (MAC, r"0c:42:a1:(?!12:34:56)(\w\w:){2}\w\w"),
        (MAC.upper(), r"0c:42:a1:(?!12:34:56)(\w\w:){2}\w\w"),
        (GUID, r"0c42:a103:00(?!12:3456)\w\w:\w{4}"),
        ("Base GUID: 0x0c42a10300123456 4", r"Base GUID: 0x0c42a10300(?!123456)\w{6} 4"),
        ("fe80:0000:0000:0000:" + GUID, r"fe80(:0000){3}:0c42:a103:00(?!12:3456)\w\w:\w{4}"),
        ("inet6 fe80::e42:a1ff:fe12:3456/64", r"inet6 fe80::e42:a1ff:fe(?!12:3456)\w\w:\w{1,4}/64"),
        ("2001:db9:1::7", r"2001:db8:(?!1:)[\w:]+::7"),
        ("0000:0000:0000:0000:0000:ffff:0a01:0203", r"(0000:){5}ffff:64\w\w:0203"),
        ("10.1.2.3/24 via 10.1.0.1", r"100\.(\d+)\.2\.3/24 via 100\.\1\.0\.1"),
        ("00:00:10:49:fe:80:00:00:00:00:00:00:" + "0c:42:a1:03:00:12:34:56", r"00:00:10:49:fe:80(:00){6}:0c:42:.*"),
        ("eth0\t00000000\t0100010A\t0003", r"eth0\t00000000\t0100\w\w64\t0003"),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef", r"GPU-(?!01234567)\w{8}(-\w{4}){3}-\w{12}"),
        ("ssh alice@gpu-a17.example.org", r"ssh user-\w{8}@host-\w{8}"),
        ("nfs7:/export /data nfs4\nnfs: server nfs7 not responding", r"host-(\w{8}):/.*\n.*host-\1 not responding"),
        ("/home/alice/train.py by Alice Roe", r"/home/user-\w{8}/train.py by user-\w{8}"),
    ],
)
def test_what_names_somebody_is_replaced_and_its_structure_stays(text: str, changed: str) -> None:
    found = redactor(("proc/mounts", text)).text(text)
    assert re.fullmatch(changed, found), found
    assert found != text


@pytest.mark.parametrize(
    "text",
    [
        *("0000:1b:00.0", "127.0.0.1", "255.255.255.0", "0.0.0.0/0", "169.254.1.1", "::1", "ff:ff:ff:ff:ff:ff", "::/0"),
        *("01:80:c2:00:00:0e", "00000000-0000-0000-0000-000000000000", "580.95.05", "28.43.2026", "97.00.c5.00.0f"),
        *("24.10-2.1.8.0", "12:34:56", "slurm root localhost", "300.1.2.3", "0x00000000f0000000 0x00000000f1ffffff"),
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_the_same_stays_the_same_in_each_form() -> None:
    names = redactor()
    last = names.text(MAC).replace(":", "")[6:]
    assert names.text(GUID).replace(":", "")[10:] == last
    assert names.text("0x0c42a10300123456")[12:] == last
    assert names.text("fe80::e42:a1ff:fe12:3456")[-7:].replace(":", "").endswith(last[-4:].lstrip("0"))
    assert names.text("10.1.2.3") == names.text("dev 10.1.2.3")[4:]
    # Another capture has others.
    assert redactor().text(MAC) != names.text(MAC)


@given(st.text(max_size=300))
def test_any_text_is_redacted(text: str) -> None:
    names = redactor(("etc/hostname", text), ("x/product_serial", text))
    names.text(redact.without_secrets(text))


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("export API_TOKEN=abcdef123", "export API_TOKEN=[redacted]"),
        ('{"auth_token": "abcdef123", "x": 1}', '{"auth_token": "[redacted]", "x": 1}'),
        ("psk=secret-phrase\nssid=x", "psk=[redacted]\nssid=x"),
        ("http://bob:pw123456@proxy:3128/", "http://[redacted]@proxy:3128/"),
        ("NCCL_IB_HCA=mlx5_0", "NCCL_IB_HCA=mlx5_0"),
    ],
)
def test_secrets_go(text: str, without: str) -> None:
    assert redact.without_secrets(text) == without


# -- record, pack, unpack ----------------------------------------------------------------------------------------------

Taken = Callable[..., Host]


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    """Makes a machine, reads it as ``look`` does, and gives the machine that its capture is."""

    def take(look: Callable[[Host], object], redacted: bool = True) -> Host:
        machine, folder = tmp_path / "machine", tmp_path / "recording"
        folder.mkdir()
        recording = record.Recording(folder, 5.0, time.monotonic() + 600)
        host = recording.make_host(str(machine), str(machine))
        host.session = recording
        look(host)
        names = archive.redactor(folder, PASSWD) if redacted else None
        assert archive.pack(folder, tmp_path / "c.tar.gz", {"findings": []}, names) == []
        archive.unpack(tmp_path / "c.tar.gz", tmp_path / "again")
        return Host(str(tmp_path / "again/hw"), str(tmp_path / "again/sys"))

    (tmp_path / "machine").mkdir()
    return take


def test_files_links_and_directories_come_back(tmp_path: Path, taken: Taken) -> None:
    machine = tmp_path / "machine"
    put(machine, "sys/devices/a/b/value", f"{MAC}\n", 0o440)
    put(machine, "sys/devices/a/other", "unread")
    put(machine, "proc/7/environ", "TOKEN=x")
    put(machine, "etc/conf", "user alice\n", 0o600)
    (machine / "sys/class").mkdir()
    (machine / "sys/class/dev").symlink_to("../devices/a/b")
    (machine / "etc/masked").symlink_to("/dev/null")

    def look(host: Host) -> None:
        host.read("/sys/class/dev/value")
        host.read_system("/etc/conf")
        host.read_system("/etc/masked")
        for path in ("/sys/devices/a", "/sys/class", "/proc"):
            host.listdir(path)
        with pytest.raises(ReadError):
            host.read("/sys/devices/a/b")
        host.read("/proc/7/environ")

    host = taken(look)
    assert host.realpath("/sys/class/dev") == "/sys/devices/a/b"
    assert (host.read("/sys/class/dev/value") or "").startswith("0c:42:a1:")
    assert host.listdir("/sys/devices/a") == ["b", "other"]
    assert (host.mode_system("/etc/conf"), "alice" in (host.read_system("/etc/conf") or "alice")) == (0o600, False)
    assert host.read("/proc/7/environ") is None
    assert os.listdir(tmp_path / "again/hw/proc/7") == []


def test_tools_print_what_they_have_printed(tmp_path: Path, taken: Taken) -> None:
    machine = tmp_path / "machine"
    tool(machine, "usr/bin/say", f'echo "mac {MAC}"; echo "$1" >&2; exit 3')
    tool(machine, "usr/bin/hang", "sleep 600")

    def look(host: Host) -> None:
        host.run(["say", "--since=@123", f"{machine}/etc/x"])
        with pytest.raises(ToolHung):
            host.run(["hang"], 0.5)
        host.has("none")

    host = taken(look)
    done = host.run(["say", "--since=@999", host.system("/etc/x")])
    assert (done.rc, done.stdout[:13], MAC in done.stdout, done.stderr) == (3, "mac 0c:42:a1:", False, "--since=@123\n")
    assert "not recorded" in host.run(["say", "other"]).stderr
    with pytest.raises(ToolHung):
        host.run(["hang"], 0.5)
    assert not host.has("none")


def test_of_a_library_and_of_config_space_what_is_read_comes_back(tmp_path: Path, taken: Taken) -> None:
    machine = tmp_path / "machine"
    constants = b"NCCL version 2.28.9+cuda13.0\0NCCL_IB_HCA\0/home/alice/nccl\0"
    put(machine, "usr/lib64/libnccl.so.2", "")
    (machine / "usr/lib64/libnccl.so.2").write_bytes(elf({".rodata": constants}))
    config = bytearray(512)
    config[0x100:0x10C] = (0x14000003).to_bytes(4, "little") + bytes(range(1, 9))
    config[0x140:0x144] = (0x1000D).to_bytes(4, "little")
    put(machine, "sys/bus/pci/devices/a/config", "")
    (machine / "sys/bus/pci/devices/a/config").write_bytes(config + b"\xff")

    host = taken(lambda host: [host.system("/usr/lib64/libnccl.so.2"), host.hardware("/sys/bus/pci/devices/a/config")])
    found = library.scan(host.system("/usr/lib64/libnccl.so.2"))
    assert (found.version, [*found.names], found.architecture) == ((2, 28, 9), ["NCCL_IB_HCA"], "x86_64")
    data = Path(host.hardware("/sys/bus/pci/devices/a/config")).read_bytes()
    assert (data[0x104:0x10C], data[0x140:0x144]) == (bytes(8), bytes(config[0x140:0x144]))


def member(
    name: str, data: bytes = b"", link: str = "", kind: bytes = tarfile.REGTYPE
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.linkname, info.type = len(data), link, tarfile.SYMTYPE if link else kind
    info.mode = 0o4777
    return info, data


ABOUT = member("capture.json", b'{"format": 1}')


@pytest.mark.parametrize(
    "members",
    [
        [member("../x", b"x"), ABOUT],
        [member("/x", b"x"), ABOUT],
        [member("hw/a", link="../../x"), ABOUT],
        [member("hw/a", link="/etc/passwd"), ABOUT],
        [member("hw/a", link="sys"), member("hw/a/b", b"x"), ABOUT],
        [member("hw/a", kind=tarfile.FIFOTYPE), ABOUT],
        [member("capture.json", b'{"format": 2}')],
        [member("capture.json", b"[")],
        [member("hw/a", b"x")],
    ],
)
def test_a_planted_archive_is_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    file = tmp_path / "c.tar.gz"
    with tarfile.open(file, "w:gz") as made:
        for info, data in members:
            made.addfile(info, io.BytesIO(data))
    with pytest.raises(ParseError):
        archive.unpack(file, tmp_path / "again")
    assert not (tmp_path / "x").exists()
    file.write_bytes(file.read_bytes()[:40])
    assert cli.main(["capture", "--unpack", str(file), "-o", str(tmp_path / "more")]) == 1


def test_nothing_of_an_archive_can_be_run(tmp_path: Path) -> None:
    file = tmp_path / "c.tar.gz"
    with tarfile.open(file, "w:gz") as made:
        for info, data in (member("sys/usr/bin/nvidia-smi", b"#!/bin/sh\ntouch /x\n"), member("tools/a", b"[]"), ABOUT):
            made.addfile(info, io.BytesIO(data))
    archive.unpack(file, tmp_path / "again")
    modes = {path.stat().st_mode & 0o7111 for path in (tmp_path / "again").rglob("*") if path.is_file()}
    assert modes == {0}


def test_the_command_says_what_it_has_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "hw/proc/cpuinfo", "flags : fpu\n")
    put(tmp_path, "sys/etc/passwd", PASSWD)
    file = tmp_path / "c.tar.gz"
    options = ["--root", str(tmp_path), "-o", str(file), "--redact"]
    assert cli.main(["capture", *options]) in (0, 3)
    assert str(file) in capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    assert cli.main(["capture", *options]) == 1
    with tarfile.open(file) as made:
        about = json.loads((made.extractfile("capture.json") or io.BytesIO()).read())
    assert (about["format"], about["redacted"], isinstance(about["findings"], list)) == (1, True, True)
    assert cli.main(["check", "--root", str(file)]) in (2, 3)
    capsys.readouterr()
