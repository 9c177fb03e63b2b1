# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Directory trees that stand for a machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

GEN5_X16 = {
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
}
NDR = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
}
RAIL_0 = "pci0000:15/0000:15:01.0/0000:16:00.0"
_BOARD = {
    "node_guid": "9C63:c003:00aa:bb00",
    "sys_image_guid": "9c63:c003:00aa:bb00",
    "fw_ver": "28.41.1000",
    "hca_type": "MT4129",
    "board_id": "MT_0000000838",
}
_INTERFACE = {"address": "B8:3f:d2:00:00:01", "mtu": "9000", "operstate": "up", "type": "1"}


def put(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def put_all(root: Path, files: Mapping[str, str]) -> None:
    """files: path below the root -> text."""
    for path, text in files.items():
        put(root, path, text)


def tool(root: Path, path: str, script: str) -> None:
    """A program below the root; the script is the shell's unless it says whose it is."""
    put(root, path, script if script.startswith("#!") else f"#!/bin/sh\n{script}\n", 0o755)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


# -- /sys: files of one line, and links within the root ---------------------------------------------------------------


def line(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def lines(folder: Path, values: Mapping[str, str]) -> None:
    """values: name of a file -> its line."""
    for name, text in values.items():
        line(folder / name, text)


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def pci_function(root: Path, chain: str, kind: str = "0x020000", ids: str = "15b3:1021", **files: str) -> Path:
    """``chain``: its path below /sys/devices; the last part is its address.   kind, ids: class, vendor:device."""
    path = root / "sys/devices" / chain
    vendor, device = ids.split(":")
    lines(path, {"class": kind, "vendor": f"0x{vendor}", "device": f"0x{device}", "numa_node": "0", **files})
    link(root / "sys/bus/pci/devices" / path.name, path)
    return path


def rdma_device(root: Path, name: str, function: str | Path | None = RAIL_0, **port: str) -> Path:
    """One with a port of 400 Gb/s.   function: its PCI function, below /sys/devices.   port: what is not as of NDR."""
    path = root / "sys/class/infiniband" / name
    lines(path, _BOARD)
    lines(path / "ports/1", {**NDR, **port})
    if function is not None:
        (root / "sys/devices" / function).mkdir(parents=True, exist_ok=True)
        link(path / "device", root / "sys/devices" / function)
    return path


def interface(root: Path, name: str, function: str | Path | None = None, **files: str) -> Path:
    """One that is up.   function: its PCI function, below /sys/devices; None for none."""
    path = root / "sys/class/net" / name
    lines(path, {**_INTERFACE, **files})
    if function is not None:
        (root / "sys/devices" / function).mkdir(parents=True, exist_ok=True)
        link(path / "device", root / "sys/devices" / function)
    return path


def restore(saved: Path, target: Path) -> None:
    """Make ``target`` what ``saved``, its copy with all times, is; what is still the same is not touched."""
    target.mkdir(exist_ok=True)
    with os.scandir(saved) as entries:
        wanted = {entry.name: entry for entry in entries}
    with os.scandir(target) as entries:
        present = {entry.name: entry for entry in entries}
    for name, entry in present.items():
        if name in wanted and _is_same(wanted[name], entry):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    for name, entry in wanted.items():
        path = target / name
        if entry.is_dir(follow_symlinks=False):
            restore(Path(entry.path), path)
            shutil.copystat(entry.path, path)
        elif not os.path.lexists(path):
            shutil.copy2(entry.path, path, follow_symlinks=False)


def _is_same(saved: os.DirEntry[str], found: os.DirEntry[str]) -> bool:
    """A directory is the same where both are one: what it holds is compared by itself."""
    one, other = saved.stat(follow_symlinks=False), found.stat(follow_symlinks=False)
    if saved.is_symlink() and found.is_symlink():
        return os.readlink(saved.path) == os.readlink(found.path)
    same = (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid)
    return same and (
        saved.is_dir(follow_symlinks=False) or (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)
    )
