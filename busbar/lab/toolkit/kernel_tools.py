#!/usr/bin/env -S python3 -IS
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernels of a simulated node and their tools, each by the name that it is called by.

dkms, depmod, modinfo and modprobe keep their state in the files that the real ones keep it in and end as those do:
dkms as 3.x, or as 2.8 where /var/lib/dkms/dkms_dbversion is, a file that only 2.x has; common.postinst is what Debian's
packages call. busbar-lab-kernel is the lab's own: kernels come and go, and the NVIDIA driver is installed by it.

A text file stands for a .ko, and for its sources a line of a file `modules` beside dkms.conf:
NAME VERSION DEPENDS IMPORTS EXPORTS, the last two symbols with a CRC, "-" for none. The system root is the directory
that the program is installed in; the hardware root is beside it, or where a container has it. Stands alone, Python 3.9.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ARCH = "x86_64"
MARK = "# Stand-in of the Busbar lab for a kernel module (simulated)."
PEER_SYMBOL = "ib_register_peer_memory_client"
# Where each tool is installed, below the system root.
PLACES = {
    "dkms": "/usr/sbin/dkms",
    "common.postinst": "/usr/lib/dkms/common.postinst",
    "depmod": "/usr/local/sbin/depmod",
    "modinfo": "/usr/local/sbin/modinfo",
    "modprobe": "/usr/local/sbin/modprobe",
    "busbar-lab-kernel": "/usr/local/sbin/busbar-lab-kernel",
}
# What openibd loads, in the order in which it does.
STACK = ("mlx_compat", "ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "mlx5_core", "mlx5_ib", "ib_ipoib")
_CORE, _NVME = "kernel/drivers/infiniband/core", "kernel/drivers/nvme/host"
# What a distribution's kernel has: file name without .ko -> directory, modules it depends on.
INBOX = {
    "ib_core": (_CORE, ""),
    "ib_uverbs": (_CORE, "ib_core"),
    "ib_umad": (_CORE, "ib_core"),
    "rdma_cm": (_CORE, "ib_core"),
    "mlx5_core": ("kernel/drivers/net/ethernet/mellanox/mlx5/core", ""),
    "mlx5_ib": ("kernel/drivers/infiniband/hw/mlx5", "ib_core,ib_uverbs,mlx5_core"),
    "ib_ipoib": ("kernel/drivers/infiniband/ulp/ipoib", "ib_core"),
    "rpcrdma": ("kernel/net/sunrpc/xprtrdma", "ib_core,rdma_cm"),
    "nvme-rdma": (_NVME, "ib_core,rdma_cm"),
    "bonding": ("kernel/drivers/net/bonding", ""),
}
_NVIDIA = f"""\
nvidia {{0}} - - -
nvidia-modeset {{0}} nvidia - -
nvidia-uvm {{0}} nvidia - -
nvidia-peermem {{0}} nvidia {PEER_SYMBOL} -
"""


class Stop(Exception):
    """The program ends here: its exit code, and what it prints to stderr before."""

    def __init__(self, code: int, *said: str) -> None:
        super().__init__(code)
        self.code, self.said = code, said


def srcversion(source: str, name: str) -> str:
    """As modinfo has it: of a module, by the directory in /usr/src that it was built from."""
    return hashlib.sha256(f"{source}/{_module(name)}".encode()).hexdigest()[:23].upper()


def inbox_srcversion(kernel: str, name: str) -> str:
    return srcversion(f"linux-{kernel}", name)


def crc(exporter: str, symbol: str) -> str:
    """``exporter``: srcversion of the module that exports the symbol."""
    return "0x" + hashlib.sha256(f"{exporter}/{symbol}".encode()).hexdigest()[:8]


def dkms_conf(name: str, version: str, modules: str, depends: str = "") -> str:
    """dkms.conf of a source directory. ``modules``: text of the file beside it."""
    lines = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', 'AUTOINSTALL="yes"']
    if depends:
        lines.append(f'BUILD_DEPENDS[0]="{depends}"')
    for index, line in enumerate(modules.splitlines()):
        lines.append(f'BUILT_MODULE_NAME[{index}]="{line.split()[0]}"')
        lines.append(f'DEST_MODULE_LOCATION[{index}]="/updates/dkms"')
    return "\n".join(lines) + "\n"


def _module(name: str) -> str:
    """nvidia-peermem.ko is the module nvidia_peermem."""
    return name.replace("-", "_")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _number(release: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", release)]


def _split(word: str) -> list[str]:
    return [] if word in ("", "-") else word.split(",")


class Ko:
    """What one .ko says of itself. fields: as modinfo names them. crcs: symbol -> CRC that it was built with."""

    def __init__(self, text: str) -> None:
        self.fields: dict[str, str] = {}
        self.crcs: dict[str, str] = {}
        self.exports: list[str] = []
        for key, _, value in (line.partition("=") for line in text.splitlines() if "=" in line):
            if key == "crc":
                self.crcs[value.split()[1]] = value.split()[0]
            elif key == "export":
                self.exports.append(value)
            else:
                self.fields[key] = value

    def text(self) -> str:
        lines = [f"{key}={value}" for key, value in self.fields.items()]
        lines += [f"crc={number} {symbol}" for symbol, number in self.crcs.items()]
        return "\n".join([MARK, *lines, *(f"export={symbol}" for symbol in self.exports)]) + "\n"


def _ko(name: str, kernel: str, version: str, source: str, depends: Iterable[str]) -> Ko:
    ko = Ko("")
    if version != "-":
        ko.fields["version"] = version
    ko.fields |= {"srcversion": srcversion(source, name), "depends": ",".join(depends), "name": _module(name)}
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
        return sorted((path.name for path in folder.iterdir()), key=_number) if folder.is_dir() else []

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
            chosen[_module(path.stem)] = path.relative_to(base)
        lines = []
        for _name, path in sorted(chosen.items()):
            needs = [str(chosen[name]) for name in self._needs(base / path) if name in chosen]
            lines.append(f"{path}: {' '.join(needs)}".rstrip())
        _write(base / "modules.dep", "".join(f"{line}\n" for line in lines))

    @staticmethod
    def _needs(path: Path) -> list[str]:
        return _split(Ko(path.read_text()).fields["depends"])

    def resolve(self, kernel: str, name: str) -> str | None:
        """The file that modprobe would load, as modules.dep has it."""
        try:
            text = self.path(f"/lib/modules/{kernel}/modules.dep").read_text()
        except OSError:
            return None
        for line in text.splitlines():
            path = line.partition(":")[0]
            if _module(Path(path).stem) == _module(name) and self.path(f"/lib/modules/{kernel}/{path}").is_file():
                return f"/lib/modules/{kernel}/{path}"
        return None

    def ko(self, path: str) -> Ko:
        return Ko(self.path(path).read_text())

    def override(self, name: str, file: str) -> str | None:
        """What the model of the machine says of nvidia_peermem, where it is not as its files are."""
        path = self.share / "peermem" / file
        return path.read_text() if _module(name) == "nvidia_peermem" and path.is_file() else None

    # -- what is loaded ----------------------------------------------------------------------------------------------

    def loaded(self) -> list[str]:
        folder = self.hardware / "sys/module"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def load(self, name: str) -> None:
        """Raises Stop as modprobe would fail."""
        name = _module(name)
        if name in self.loaded():
            return
        failed = self.override(name, "stderr")
        if failed is not None:
            self._log(self.override(name, "log") or "")
            raise Stop(1, failed)
        path = self.resolve(self.kernel(), name)
        if path is None:
            raise Stop(1, f"modprobe: FATAL: Module {name} not found in directory /lib/modules/{self.kernel()}")
        ko = self.ko(path)
        for needed in _split(ko.fields["depends"]):
            self.load(needed)
        if name == "nvidia_peermem":
            self._register(ko)
        folder = self.hardware / "sys/module" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("version", "srcversion"):
            if file in ko.fields:
                _write(folder / file, f"{ko.fields[file]}\n")
        _write(folder / "initstate", "live\n")
        _write(folder / "refcnt", "0\n")

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
        if text:
            path = self.path("/var/log/busbar-lab-dmesg")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as stream:
                stream.write(f"{text}\n")

    def unload(self, name: str) -> None:
        name = _module(name)
        if name not in self.loaded():
            if self.resolve(self.kernel(), name) is None:
                raise Stop(1, f"modprobe: FATAL: Module {name} not found.")
            return
        for other in self.loaded():
            path = self.resolve(self.kernel(), other)
            if path is not None and name in _split(self.ko(path).fields["depends"]):
                raise Stop(1, f"modprobe: FATAL: Module {name} is in use.")
        shutil.rmtree(self.hardware / "sys/module" / name)


# -- dkms ------------------------------------------------------------------------------------------------------------

TREE = "/var/lib/dkms"


def _die(code: int, *said: str) -> Stop:
    return Stop(code, "Error! " + said[0], *said[1:])


class Dkms:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.force = False

    @property
    def old(self) -> bool:
        return self.node.path(f"{TREE}/dkms_dbversion").exists()

    def _folder(self, name: str, version: str, kernel: str = "") -> Path:
        return self.node.path(f"{TREE}/{name}/{version}" + (f"/{kernel}/{ARCH}" if kernel else ""))

    def _modules(self, name: str, version: str) -> list[list[str]]:
        """Lines of the sources' file: NAME VERSION DEPENDS IMPORTS EXPORTS."""
        text = (self._folder(name, version) / "source/modules").read_text()
        return [line.split() for line in text.splitlines()]

    def _conf(self, name: str, version: str) -> dict[str, str]:
        text = (self._folder(name, version) / "source/dkms.conf").read_text()
        return dict(re.findall(r'^([\w\[\]]+)="(.*)"$', text, re.MULTILINE))

    def added(self, name: str, version: str) -> bool:
        return (self._folder(name, version) / "source").is_symlink()

    def built(self, name: str, version: str, kernel: str) -> bool:
        folder = self._folder(name, version, kernel) / "module"
        if not folder.is_dir():
            return False
        return all((folder / f"{line[0]}.ko").is_file() for line in self._modules(name, version))

    def _active(self, name: str, kernel: str) -> Path:
        return self.node.path(f"{TREE}/{name}/kernel-{kernel}-{ARCH}")

    def installed(self, name: str, version: str, kernel: str) -> bool:
        link = self._active(name, kernel)
        active = link.is_symlink() and os.readlink(link) == f"{version}/{kernel}/{ARCH}"
        return active and self.built(name, version, kernel)

    def packages(self) -> list[tuple[str, str]]:
        """(name, version) of all that was added."""
        base = self.node.path(TREE)
        found = [path for path in base.glob("*/*") if (path / "source").is_symlink()] if base.is_dir() else []
        return sorted((path.parent.name, path.name) for path in found)

    def kernels(self, name: str, version: str) -> list[str]:
        """Those that it is built for."""
        folder = self._folder(name, version)
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return sorted((kernel for kernel in names if self.built(name, version, kernel)), key=_number)

    def status(self, name: str, version: str, kernel: str) -> list[str]:
        lines = []
        for found in self.packages():
            if (name or found[0], version or found[1]) != found:
                continue
            title = (", " if self.old else "/").join(found)
            kernels = [k for k in self.kernels(*found) if kernel in ("", k)]
            for k in kernels:
                state = "installed" if self.installed(*found, k) else "built"
                lines.append(f"{title}, {k}, {ARCH}: {state}{self._warning(*found, k) if state == 'installed' else ''}")
            if not kernels:
                lines.append(f"{title}: added")
        return lines

    def _warning(self, name: str, version: str, kernel: str) -> str:
        warning = ""
        for line in self._modules(name, version):
            here = self._folder(name, version, kernel) / "module" / f"{line[0]}.ko"
            there = self.node.path(f"/lib/modules/{kernel}/updates/dkms/{line[0]}.ko")
            if not there.is_file() or there.read_bytes() != here.read_bytes():
                warning += " (WARNING! Diff between built and installed module!)"
        return warning

    def add(self, name: str, version: str) -> None:
        source = f"/usr/src/{name}-{version}"
        if self.added(name, version):
            raise _die(
                3,
                f"DKMS tree already contains: {name}-{version}",
                "You cannot add the same module/version combo more than once.",
            )
        if not self.node.path(source).is_dir():
            raise _die(2, "Could not find module source directory.", f"Directory: {source} does not exist.")
        print(f"Creating symlink {TREE}/{name}/{version}/source -> {source}")
        self.node.link(f"{TREE}/{name}/{version}/source", source)

    def need_added(self, name: str, version: str) -> None:
        if not self.added(name, version):
            raise _die(3, f"The module/version combo: {name}-{version} is not located in the DKMS tree.")

    def build(self, name: str, version: str, kernel: str) -> None:
        if self.built(name, version, kernel):
            if not self.force:
                print(f"Module {name}/{version} already built for kernel {kernel} ({ARCH}), skip.", end=" ")
                print("You may override by specifying --force.")
                return
            self._unbuild(name, version, kernel)
        if not self.added(name, version):
            self.add(name, version)
        self._headers(kernel)
        needed = self._conf(name, version).get("BUILD_DEPENDS[0]", "")
        if needed and not any(self.installed(*found, kernel) for found in self.packages() if found[0] == needed):
            raise _die(
                13,
                f"Aborting build of module {name}/{version} for kernel {kernel} ({ARCH}) "
                f"due to missing BUILD_DEPENDS: {needed}.",
                "You may override by specifying --force.",
            )
        build, log = self._folder(name, version) / "build", f"{TREE}/{name}/{version}/build/make.log"
        shutil.rmtree(build, ignore_errors=True)
        title = f"DKMS make.log for {name}-{version} for kernel {kernel} ({ARCH})"
        print("\nBuilding module:\nCleaning build area...")
        headers = f"/usr/src/linux-headers-{kernel}"
        if not self.node.path(f"{headers}/Makefile").is_file():
            print(f"make -j2 KERNELRELEASE={kernel}...(bad exit status: 2)")
            _write(build / "make.log", f"{title}\nmake[1]: *** {headers}: No rule to make target 'modules'.  Stop.\n")
            raise _die(
                10,
                f"Bad return status for module build on kernel: {kernel} ({ARCH})",
                f"Consult {log} for more information.",
            )
        print(f"make -j2 KERNELRELEASE={kernel}...")
        folder = self._folder(name, version, kernel)
        symvers = self._symvers(kernel)
        for line in self._modules(name, version):
            self._compile(folder / "module", f"{name}-{version}", kernel, line, symvers)
        _write(folder / "log/make.log", f"{title}\n")
        print("Cleaning build area...")

    def _headers(self, kernel: str) -> None:
        if self.node.path(f"/lib/modules/{kernel}/build/include").exists():
            return
        place = f"/lib/modules/{kernel}/build or /lib/modules/{kernel}/source."
        missing = f"Your kernel headers for kernel {kernel} cannot be found at"
        if self.old:
            raise Stop(1, "", f"Error! {missing}", place)
        raise _die(
            21,
            f"{missing} {place}",
            f"Please install the linux-headers-{kernel} package or use the --kernelsourcedir option "
            "to tell DKMS where it's located.",
        )

    def _symvers(self, kernel: str) -> dict[str, tuple[str, str]]:
        """Symbol -> its CRC and the module that exports it, of OFED's headers for this kernel."""
        path = self.node.path(f"/usr/src/ofa_kernel/{ARCH}/{kernel}/Module.symvers")
        lines = [line.split("\t") for line in path.read_text().splitlines()] if path.is_file() else []
        return {line[1]: (line[0], line[2].rpartition("/")[2]) for line in lines}

    def _compile(
        self, folder: Path, source: str, kernel: str, line: list[str], symvers: dict[str, tuple[str, str]]
    ) -> None:
        name, version, depends, imports, exports = line
        # A symbol that no header declares is left out: that is how nvidia_peermem comes to be of no use.
        found = {symbol: symvers[symbol] for symbol in _split(imports) if symbol in symvers}
        ko = _ko(name, kernel, version, source, [*_split(depends), *(module for _crc, module in found.values())])
        ko.crcs = {symbol: number for symbol, (number, _module) in found.items()}
        ko.exports = _split(exports)
        _write(folder / f"{name}.ko", ko.text())
        if ko.exports:
            module = f"drivers/infiniband/core/{name}"
            text = [f"{crc(ko.fields['srcversion'], s)}\t{s}\t{module}\tEXPORT_SYMBOL\t\n" for s in ko.exports]
            _write(self.node.path(f"/usr/src/ofa_kernel/{ARCH}/{kernel}/Module.symvers"), "".join(text))

    def _unbuild(self, name: str, version: str, kernel: str) -> None:
        if any(line[4] != "-" for line in self._modules(name, version)):
            headers = self.node.path("/usr/src/ofa_kernel")
            shutil.rmtree(headers / ARCH / kernel, ignore_errors=True)
            if not any((headers / ARCH).iterdir()):
                shutil.rmtree(headers)
        shutil.rmtree(self._folder(name, version, kernel).parent)

    def install(self, name: str, version: str, kernel: str) -> None:
        if self.installed(name, version, kernel):
            if not self.force:
                print(f"Module {name}/{version} already installed on kernel {kernel} ({ARCH}), skip.", end=" ")
                print("You may override by specifying --force.")
                return
            self.uninstall(name, version, kernel)
        # As dkms has it: what is built already is not built again here, not even with --force.
        if not self.built(name, version, kernel):
            self.build(name, version, kernel)
        if not self.node.path(f"/lib/modules/{kernel}").is_dir():
            raise _die(
                6,
                f"The directory /lib/modules/{kernel} doesn't exist.",
                "You cannot install a module onto a non-existant kernel.",
            )
        for line in self._modules(name, version):
            print(f"\n{line[0]}.ko:\n - Installation\n   - Installing to /lib/modules/{kernel}/updates/dkms/")
            text = (self._folder(name, version, kernel) / "module" / f"{line[0]}.ko").read_text()
            _write(self.node.path(f"/lib/modules/{kernel}/updates/dkms/{line[0]}.ko"), text)
        self._active(name, kernel).unlink(missing_ok=True)
        self._active(name, kernel).symlink_to(f"{version}/{kernel}/{ARCH}")
        print("depmod...")
        self.node.depmod(kernel)

    def uninstall(self, name: str, version: str, kernel: str) -> None:
        if not self.installed(name, version, kernel):
            print(f"Module {name} {version} is not installed for kernel {kernel} ({ARCH}). Skipping...")
            return
        print(f"Module {name}-{version} for kernel {kernel} ({ARCH}).")
        print("Before uninstall, this module version was ACTIVE on this kernel.")
        folder = self.node.path(f"/lib/modules/{kernel}/updates/dkms")
        for line in self._modules(name, version):
            print(f"\n{line[0]}.ko:\n - Uninstallation\n   - Deleting from: /lib/modules/{kernel}/updates/dkms/")
            (folder / f"{line[0]}.ko").unlink(missing_ok=True)
        for empty in (folder, folder.parent):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
        self._active(name, kernel).unlink()
        print("depmod...")
        self.node.depmod(kernel)

    def unbuild(self, name: str, version: str, kernel: str) -> None:
        self.uninstall(name, version, kernel)
        if self.built(name, version, kernel):
            self._unbuild(name, version, kernel)

    def remove(self, name: str, version: str, kernels: list[str]) -> None:
        for kernel in kernels:
            self.unbuild(name, version, kernel)
        if not self.kernels(name, version):
            print(f"Deleting module {name}-{version} completely from the DKMS tree.")
            folder = self._folder(name, version)
            shutil.rmtree(folder)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()

    def autoinstall(self, kernel: str) -> None:
        """The newest version of everything, what others are built with first."""
        newest: dict[str, str] = {}
        for name, version in self.packages():
            newest[name] = max(version, newest.get(name, version), key=_number)
        failed = []
        for name in sorted(newest, key=lambda name: ("BUILD_DEPENDS[0]" in self._conf(name, newest[name]), name)):
            if self.installed(name, newest[name], kernel):
                continue
            try:
                self.install(name, newest[name], kernel)
            except Stop as stop:
                _say(stop)
                failed.append(name)
        if failed:
            raise _die(
                11,
                "One or more modules failed to install during autoinstall.",
                "Refer to previous errors for more information.",
            )


_VALUES = {"-m": "m", "--module": "m", "-v": "v", "-k": "k", "--kernelver": "k", "-a": "a", "--arch": "a", "-j": "j"}
_FLAGS = ("--force", "--all", "-q", "--quiet", "--verbose", "--no-depmod", "--no-initrd", "--no-clean-kernel")
_ACTIONS = ("add", "build", "install", "uninstall", "unbuild", "remove", "autoinstall", "status")


def dkms(node: Node, argv: list[str]) -> None:
    values, action, words = dict.fromkeys("mvkaj", ""), "", list(argv)
    tool = Dkms(node)
    everything = False
    while words:
        word, _, value = words.pop(0).partition("=")
        if word in _VALUES:
            values[_VALUES[word]] = value or (words.pop(0) if words else "")
        elif word in _FLAGS:
            tool.force |= word == "--force"
            everything |= word == "--all"
        elif word.startswith("-"):
            raise _die(2, f"Unknown option: {word}", "Usage: dkms [action] [options]")
        elif not action:
            action = word
        else:
            values["m"] = word
    if "/" in values["m"]:
        values["m"], _, values["v"] = values["m"].partition("/")
    name, version, kernel = values["m"], values["v"], values["k"].partition("/")[0]
    if kernel and everything:
        raise _die(2, " You cannot specify a kernel version and also specify", "--all on the command line.")
    if action not in _ACTIONS:
        raise _die(2, f'Unknown action specified: "{action}"')
    if action == "status":
        print("\n".join(tool.status(name, version, kernel)), end="\n" if tool.status(name, version, kernel) else "")
        return
    if action == "autoinstall":
        tool.autoinstall(kernel or node.kernel())
        return
    if not name or not version:
        raise _die(
            1,
            "Arguments <module> and <module-version> are not specified.",
            f"Usage: {action} <module>/<module-version> or",
            f"       {action} -m <module>/<module-version> or",
            f"       {action} -m <module> -v <module-version>",
        )
    if everything and action in ("add", "build", "install"):
        raise _die(5, f"The action {action} does not support the --all parameter.")
    if action == "add":
        tool.add(name, version)
        return
    if action in ("uninstall", "unbuild", "remove"):
        tool.need_added(name, version)
    kernels = tool.kernels(name, version) if everything else [kernel or node.kernel()]
    if action == "remove":
        tool.remove(name, version, kernels)
        return
    for kernel in kernels:
        getattr(tool, action)(name, version, kernel)


def common_postinst(node: Node, argv: list[str]) -> None:
    """For the running kernel and the newest; missing headers are said, and are no failure."""
    name, version = argv[:2]
    tool = Dkms(node)
    if tool.added(name, version):
        print(f"Removing old {name}-{version} DKMS files...")
        tool.remove(name, version, tool.kernels(name, version))
    print(f"Loading new {name}-{version} DKMS files...")
    tool.add(name, version)
    running, installed = node.running(), node.kernels()
    if running in installed:
        kernels = [running] if running == installed[-1] else [str(running), installed[-1]]
    else:
        print(f"It is likely that {running or 'the running kernel'} belongs to a chroot's host")
        kernels = installed
    print(f"Building for {' '.join(kernels)}")
    for kernel in kernels:
        if not node.path(f"/lib/modules/{kernel}/build/include").exists():
            print(f"Module build for kernel {kernel} was skipped since the")
            print("kernel headers for this kernel do not seem to be installed.")
            continue
        print(f"Building initial module for {kernel}")
        tool.build(name, version, kernel)
        tool.install(name, version, kernel)


# -- kmod ------------------------------------------------------------------------------------------------------------


def depmod(node: Node, argv: list[str]) -> None:
    words = [word for word in argv if not word.startswith("-") and "/" not in word]
    node.depmod(words[0] if words else node.kernel())


_FIELDS = ("filename", "version", "srcversion", "depends", "name", "vermagic")


def modinfo(node: Node, argv: list[str]) -> None:
    kernel, field, names, words = node.kernel(), "", [], list(argv)
    while words:
        word, _, value = words.pop(0).partition("=")
        if word in ("-k", "--set-version"):
            kernel = value or words.pop(0)
        elif word in ("-F", "--field"):
            field = value or words.pop(0)
        elif word in ("-n", "--filename"):
            field = "filename"
        else:
            names.append(word)
    for name in names:
        told = node.override(name, "modinfo")
        path = name if "/" in name else node.resolve(kernel, name)
        if told == "" or path is None or not node.path(path).is_file():
            raise Stop(1, f"modinfo: ERROR: Module {name} not found.")
        fields = {"filename": path, **node.ko(path).fields}
        if told:
            fields |= dict(line.split(": ", 1) for line in told.splitlines())
        if field:
            print(fields[field].strip() if field in fields else "", end="\n" if field in fields else "")
            continue
        for key in _FIELDS:
            if key in fields:
                print(f"{key + ':':<16}{fields[key].strip()}")


def modprobe(node: Node, argv: list[str]) -> None:
    options = [word for word in argv if word.startswith("-")]
    names = [word for word in argv if not word.startswith("-")]
    if "--dump-modversions" in options:
        path = names[0]
        if not node.path(path).is_file():
            raise Stop(1, f"modprobe: FATAL: Module {path} not found.")
        for symbol, number in node.ko(path).crcs.items():
            print(f"{number}\t{symbol}")
        return
    names = names if {"-a", "--all", "-r", "--remove"} & set(options) else names[:1]
    for name in names:
        try:
            node.unload(name) if {"-r", "--remove"} & set(options) else node.load(name)
        except Stop as stop:
            # -q is silent about what is not there, and about nothing else.
            silent = {"-q", "--quiet"} & set(options) and "not found" in "".join(stop.said)
            raise Stop(stop.code, *(() if silent else stop.said)) from None


# -- the lab's own ---------------------------------------------------------------------------------------------------


def lab_kernel(node: Node, argv: list[str]) -> None:
    """install KERNEL [no-headers|broken-headers], remove KERNEL, nvidia VERSION, stale-nvidia, loads KERNEL, foreign"""
    action, *words = argv or [""]
    actions: dict[str, Callable[..., None]] = {
        "install": _install_kernel,
        "remove": _remove_kernel,
        "nvidia": _install_nvidia,
        "stale-nvidia": _stale_nvidia,
        "loads": _loads,
        "foreign": _foreign,
    }
    if action not in actions:
        raise Stop(2, f"busbar-lab-kernel: {lab_kernel.__doc__}")
    actions[action](node, *words)


def _install_kernel(node: Node, kernel: str, headers: str = "headers") -> None:
    """As the packages of an image and of its headers would unpack them, without what they run afterwards."""
    base = node.path(f"/lib/modules/{kernel}")
    if base.exists():
        raise Stop(1, f"busbar-lab-kernel: {kernel} is installed already")
    for name, (folder, depends) in INBOX.items():
        _write(base / folder / f"{name}.ko", _ko(name, kernel, "-", f"linux-{kernel}", _split(depends)).text())
    node.depmod(kernel)
    _write(node.path(f"/boot/vmlinuz-{kernel}"), "")
    _write(node.path(f"/boot/config-{kernel}"), "CONFIG_64BIT=y\nCONFIG_PCI_P2PDMA=y\n")
    if headers != "no-headers":
        source = f"/usr/src/linux-headers-{kernel}"
        _write(node.path(f"{source}/include/generated/utsrelease.h"), f'#define UTS_RELEASE "{kernel}"\n')
        if headers == "headers":
            _write(node.path(f"{source}/Makefile"), "# Stand-in of the Busbar lab for a kernel's headers.\n")
        node.link(f"/lib/modules/{kernel}/build", source)


def _remove_kernel(node: Node, kernel: str) -> None:
    """With all that was built for it."""
    for path in ("/lib/modules/", "/usr/src/linux-headers-", f"/usr/src/ofa_kernel/{ARCH}/"):
        shutil.rmtree(node.path(path + kernel), ignore_errors=True)
    for name in ("vmlinuz", "config"):
        node.path(f"/boot/{name}-{kernel}").unlink(missing_ok=True)
    for found in Dkms(node).packages():
        folder = node.path(f"{TREE}/{found[0]}/{found[1]}")
        shutil.rmtree(folder / kernel, ignore_errors=True)
        (folder.parent / f"kernel-{kernel}-{ARCH}").unlink(missing_ok=True)
        log = folder / "build/make.log"
        if log.is_file() and kernel in log.read_text():
            shutil.rmtree(log.parent)


def _install_nvidia(node: Node, version: str) -> None:
    """The driver's modules, against OFED's headers where they are by now."""
    source, modules = node.path(f"/usr/src/nvidia-{version}"), _NVIDIA.format(version)
    _write(source / "modules", modules)
    _write(source / "dkms.conf", dkms_conf("nvidia", version, modules))
    common_postinst(node, ["nvidia", version])


def _stale_nvidia(node: Node) -> None:
    """nvidia_peermem is as it was built against another OFED: only its CRC tells."""
    kernel = node.kernel()
    built = [f"{TREE}/{n}/{v}/{kernel}/{ARCH}/module" for n, v in Dkms(node).packages() if n == "nvidia"]
    for folder in (*built, f"/lib/modules/{kernel}/updates/dkms"):
        path = node.path(f"{folder}/nvidia-peermem.ko")
        ko = Ko(path.read_text() if path.is_file() else "")
        if PEER_SYMBOL not in ko.crcs:
            raise Stop(1, f"busbar-lab-kernel: {path} was not built against any OFED")
        ko.crcs[PEER_SYMBOL] = crc("another OFED", PEER_SYMBOL)
        _write(path, ko.text())


def _loads(node: Node, kernel: str) -> None:
    """JSON: version and srcversion of what this kernel would load of all that is loaded now, and of what that needs."""
    answer: dict[str, list[str | None]] = {}
    names = node.loaded()
    while names:
        name = names.pop()
        path = node.resolve(kernel, name)
        if path is not None and name not in answer:
            fields = node.ko(path).fields
            answer[name] = [fields.get("version"), fields["srcversion"]]
            names += _split(fields["depends"])
    path = node.resolve(kernel, "nvidia_peermem")
    if path is not None and "ib_core" in answer:
        wanted = crc(str(answer["ib_core"][1]), PEER_SYMBOL)
        if node.ko(path).crcs.get(PEER_SYMBOL) != wanted:
            answer.pop("nvidia_peermem", None)
    print(json.dumps(answer))


def _foreign(node: Node) -> None:
    """Loaded modules that use the RDMA stack and are none of it."""
    for name in node.loaded():
        path = node.resolve(node.kernel(), name)
        if path is not None and name not in STACK and "ib_core" in node.ko(path).fields["depends"].split(","):
            print(name)


TOOLS: dict[str, Callable[[Node, list[str]], None]] = {
    "dkms": dkms,
    "common.postinst": common_postinst,
    "depmod": depmod,
    "modinfo": modinfo,
    "modprobe": modprobe,
    "busbar-lab-kernel": lab_kernel,
}


def _say(stop: Stop) -> None:
    sys.stdout.flush()
    for line in stop.said:
        print(line, file=sys.stderr)


def main() -> int:
    called = os.path.abspath(sys.argv[0])
    name = os.path.basename(called)
    place = PLACES.get(name)
    if place is None or not called.endswith(place):
        print(f"{called}: is installed as {', '.join(PLACES.values())}, and works only there", file=sys.stderr)
        return 2
    try:
        TOOLS[name](Node(called[: -len(place)]), sys.argv[1:])
    except Stop as stop:
        _say(stop)
        return stop.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
