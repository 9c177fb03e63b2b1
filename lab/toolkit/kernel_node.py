# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernels of a simulated node: their modules, which of them are loaded, and what depmod makes of them.

A text file stands for a .ko. The tools on the node (kernel_tools.py, dkms.py) keep their state in the files that the
real ones keep it in. Python 3.9, and nothing but the standard library and what is installed beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

ARCH = "x86_64"
PEER_SYMBOL = "ib_register_peer_memory_client"
# What openibd loads, in the order in which it does.
STACK = ("mlx_compat", "ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "mlx5_core", "mlx5_ib", "ib_ipoib")


class Stop(Exception):
    """The program ends here: its exit code, and what it prints to stderr before."""

    def __init__(self, code: int, *said: str) -> None:
        super().__init__(code)
        self.code, self.said = code, said


def srcversion(source: str, name: str) -> str:
    """As modinfo has it: of a module, by the directory in /usr/src that it was built from."""
    return hashlib.sha256(f"{source}/{module(name)}".encode()).hexdigest()[:23].upper()


def inbox_srcversion(kernel: str, name: str) -> str:
    return srcversion(f"linux-{kernel}", name)


def crc(exporter: str, symbol: str) -> str:
    """``exporter``: srcversion of the module that exports the symbol."""
    return "0x" + hashlib.sha256(f"{exporter}/{symbol}".encode()).hexdigest()[:8]


def module(name: str) -> str:
    """nvidia-peermem.ko is the module nvidia_peermem."""
    return name.replace("-", "_")


def write(path: Path, text: str, mode: int | None = None) -> None:
    """Write a file beside this one, and put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    if mode is not None:
        new.chmod(mode)
    new.replace(path)


def number(release: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", release)]


def split(word: str) -> list[str]:
    return [] if word in ("", "-") else word.split(",")


class Ko:
    """A stand-in for a kernel module (simulated): JSON of what one .ko says of itself.

    fields: as modinfo names them.   crcs: symbol -> CRC that it was built with.   exports: symbols.
    """

    def __init__(self, text: str) -> None:
        data = json.loads(text or "{}")
        self.fields: dict[str, str] = data.get("fields", {})
        self.crcs: dict[str, str] = data.get("crcs", {})
        self.exports: list[str] = data.get("exports", [])

    def text(self) -> str:
        return json.dumps({**vars(self), "simulated": True}) + "\n"


def make_ko(name: str, kernel: str, version: str, source: str, depends: Iterable[str]) -> Ko:
    ko = Ko("")
    ko.fields = {"version": version} if version != "-" else {}
    ko.fields |= {"srcversion": srcversion(source, name), "depends": ",".join(depends), "name": module(name)}
    ko.fields["vermagic"] = f"{kernel} SMP preempt mod_unload modversions "
    return ko


class Node:
    """``root``: the system root, "" where it is "/"."""

    def __init__(self, root: str) -> None:
        self.root = root
        inside = Path(f"{root}/srv/busbar-lab/hw")
        self.hardware = inside if inside.is_dir() else Path(f"{root}/../hw") if root else inside
        self.share = self.path("/usr/share/busbar-lab")

    def path(self, path: str) -> Path:
        return Path(self.root + path)

    def link(self, path: str, target: str) -> None:
        """A link stays inside the root that it is in."""
        link = self.path(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, os.path.dirname(path)) if self.root else target)

    def running(self) -> str | None:
        """None while the node is still being made."""
        try:
            return (self.hardware / "proc/sys/kernel/osrelease").read_text().strip()
        except OSError:
            return None

    def kernels(self) -> list[str]:
        """Installed ones, the newest last."""
        folder = self.path("/lib/modules")
        return sorted((path.name for path in folder.iterdir()), key=number) if folder.is_dir() else []

    def kernel(self) -> str:
        """The one that a tool means where none is named."""
        return self.running() or (self.kernels() or ["unknown"])[-1]

    # -- modules of a kernel -----------------------------------------------------------------------------------------

    def depmod(self, kernel: str) -> None:
        """modules.dep: of two modules of one name, that below updates/ is the one."""
        base = self.path(f"/lib/modules/{kernel}")
        if not base.is_dir():
            raise Stop(1, f"depmod: ERROR: could not open directory /lib/modules/{kernel}: No such file or directory")
        chosen: dict[str, Path] = {}
        for path in sorted(base.rglob("*.ko"), key=lambda path: ("updates" in path.parts, path)):
            chosen[module(path.stem)] = path.relative_to(base)
        lines = []
        for _name, path in sorted(chosen.items()):
            wanted = split(Ko((base / path).read_text()).fields["depends"])
            needs = [str(chosen[name]) for name in wanted if name in chosen]
            lines.append(f"{path}: {' '.join(needs)}".rstrip())
        write(base / "modules.dep", "".join(f"{line}\n" for line in lines))

    def resolve(self, kernel: str, name: str) -> str | None:
        """The file that modprobe would load, as modules.dep has it."""
        try:
            text = self.path(f"/lib/modules/{kernel}/modules.dep").read_text()
        except OSError:
            return None
        for line in text.splitlines():
            path = line.partition(":")[0]
            if module(Path(path).stem) == module(name) and self.path(f"/lib/modules/{kernel}/{path}").is_file():
                return f"/lib/modules/{kernel}/{path}"
        return None

    def ko(self, path: str) -> Ko:
        return Ko(self.path(path).read_text())

    def override(self, name: str, file: str) -> str | None:
        """What the model of the machine says of nvidia_peermem, where it is not as its files are."""
        path = self.share / "peermem" / file
        return path.read_text() if module(name) == "nvidia_peermem" and path.is_file() else None

    # -- what is loaded ----------------------------------------------------------------------------------------------

    def loaded(self) -> list[str]:
        folder = self.hardware / "sys/module"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def load(self, name: str) -> None:
        """Raises Stop as modprobe would fail."""
        name = module(name)
        if name in self.loaded():
            return
        failed = self.override(name, "stderr")
        if failed is not None:
            raise Stop(1, failed)
        path = self.resolve(self.kernel(), name)
        if path is None:
            raise Stop(1, f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{self.kernel()}")
        ko = self.ko(path)
        for needed in split(ko.fields["depends"]):
            self.load(needed)
        if name == "nvidia_peermem":
            self._register(ko)
        folder = self.hardware / "sys/module" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("version", "srcversion"):
            if file in ko.fields:
                write(folder / file, f"{ko.fields[file]}\n")
        write(folder / "initstate", "live\n")
        write(folder / "refcnt", "0\n")

    def _register(self, ko: Ko) -> None:
        """nvidia_peermem with the ib_core that is loaded."""
        fatal = "modprobe: ERROR: could not insert 'nvidia_peermem': "
        if PEER_SYMBOL not in ko.crcs:
            raise Stop(1, fatal + "Invalid argument")
        there = (self.hardware / "sys/module/ib_core/srcversion").read_text().strip()
        if there == inbox_srcversion(self.kernel(), "ib_core"):
            self._log(f"nvidia_peermem: Unknown symbol {PEER_SYMBOL} (err -2)")
            raise Stop(1, fatal + "Unknown symbol in module, or unknown parameter (see dmesg)")
        if ko.crcs[PEER_SYMBOL] != crc(there, PEER_SYMBOL):
            self._log(f"nvidia_peermem: disagrees about version of symbol {PEER_SYMBOL}")
            raise Stop(1, fatal + "Invalid argument")

    def _log(self, text: str) -> None:
        path = self.path("/var/log/busbar-lab-dmesg")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(f"{text}\n")

    def unload(self, name: str) -> None:
        name = module(name)
        if name not in self.loaded():
            if self.resolve(self.kernel(), name) is None:
                raise Stop(1, f"modprobe: FATAL: Module {name} not found.")
            return
        for other in self.loaded():
            path = self.resolve(self.kernel(), other)
            if path is not None and name in split(self.ko(path).fields["depends"]):
                raise Stop(1, f"modprobe: FATAL: Module {name} is in use.")
        shutil.rmtree(self.hardware / "sys/module" / name)
