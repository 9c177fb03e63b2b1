# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dkms of a simulated node, and Debian's common.postinst, which packages call.

It keeps its state in the files that the real one keeps it in and ends as that does: as 3.x, or as 2.8 where
/var/lib/dkms/dkms_dbversion is, a file that only 2.x has. For a module's sources stands a line of a file `modules`
beside dkms.conf: NAME VERSION DEPENDS IMPORTS EXPORTS, the last two symbols with a CRC, "-" for none.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .kernel_node import ARCH, Node, Stop, crc, make_ko, number, split, write

TREE = "/var/lib/dkms"


def dkms_conf(name: str, version: str, modules: str, depends: str = "") -> str:
    """dkms.conf of a source directory. ``modules``: text of the file beside it."""
    lines = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', 'AUTOINSTALL="yes"']
    if depends:
        lines.append(f'BUILD_DEPENDS[0]="{depends}"')
    for index, line in enumerate(modules.splitlines()):
        lines.append(f'BUILT_MODULE_NAME[{index}]="{line.split()[0]}"')
        lines.append(f'DEST_MODULE_LOCATION[{index}]="/updates/dkms"')
    return "\n".join(lines) + "\n"


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
        return sorted((kernel for kernel in names if self.built(name, version, kernel)), key=number)

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
            write(build / "make.log", f"{title}\nmake[1]: *** {headers}: No rule to make target 'modules'.  Stop.\n")
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
        write(folder / "log/make.log", f"{title}\n")
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
        found = {symbol: symvers[symbol] for symbol in split(imports) if symbol in symvers}
        ko = make_ko(name, kernel, version, source, [*split(depends), *(module for _crc, module in found.values())])
        ko.crcs = {symbol: number for symbol, (number, _module) in found.items()}
        ko.exports = split(exports)
        write(folder / f"{name}.ko", ko.text())
        if ko.exports:
            module = f"drivers/infiniband/core/{name}"
            text = [f"{crc(ko.fields['srcversion'], s)}\t{s}\t{module}\tEXPORT_SYMBOL\t\n" for s in ko.exports]
            write(self.node.path(f"/usr/src/ofa_kernel/{ARCH}/{kernel}/Module.symvers"), "".join(text))

    def _unbuild(self, name: str, version: str, kernel: str) -> None:
        # rpm installs the new version before it removes the old one: what lies there then is the new one's.
        others = (other for found, other in self.packages() if found == name and other != version)
        mine = not any(self.installed(name, other, kernel) for other in others)
        if mine and any(line[4] != "-" for line in self._modules(name, version)):
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
            write(self.node.path(f"/lib/modules/{kernel}/updates/dkms/{line[0]}.ko"), text)
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
            newest[name] = max(version, newest.get(name, version), key=number)
        failed = []
        for name in sorted(newest, key=lambda name: ("BUILD_DEPENDS[0]" in self._conf(name, newest[name]), name)):
            if self.installed(name, newest[name], kernel):
                continue
            try:
                self.install(name, newest[name], kernel)
            except Stop as stop:
                stop.say()
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
