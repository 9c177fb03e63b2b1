# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dkms 3 of a simulated node, and Debian's common.postinst, which packages call.

It keeps its state in the files that the real one keeps it in and fails as that does; of what it prints there is only
its status. For a module's sources stands a line of a file `modules` beside dkms.conf: NAME VERSION DEPENDS IMPORTS
EXPORTS, the last two symbols with a CRC, "-" for none.
"""

from __future__ import annotations

import getopt
import os
import shutil
from pathlib import Path

from .kernel_node import ARCH, Node, Stop, crc, make_ko, number, split, write

TREE = "/var/lib/dkms"
_DEPENDS = "BUILD_DEPENDS[0]"


def dkms_conf(name: str, version: str, modules: str, depends: str = "") -> str:
    """Return dkms.conf of a source directory. ``modules``: text of the file beside it."""
    lines = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', 'AUTOINSTALL="yes"']
    if depends:
        lines.append(f'{_DEPENDS}="{depends}"')
    for index, line in enumerate(modules.splitlines()):
        lines.append(f'BUILT_MODULE_NAME[{index}]="{line.split()[0]}"')
        lines.append(f'DEST_MODULE_LOCATION[{index}]="/updates/dkms"')
    return "\n".join(lines) + "\n"


class Module:
    """One name and version that dkms knows, or is to know."""

    def __init__(self, node: Node, name: str, version: str, force: bool = False) -> None:
        self.node, self.name, self.version, self.force = node, name, version, force
        self.folder = node.path(f"{TREE}/{name}/{version}")

    @property
    def added(self) -> bool:
        return (self.folder / "source").is_symlink()

    @property
    def kernels(self) -> list[str]:
        """Those that it is built for."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(filter(self.built, names), key=number)

    @property
    def needed(self) -> str:
        """Name of the module that it is built with."""
        text = (self.folder / "source/dkms.conf").read_text()
        return next((line.split('"')[1] for line in text.splitlines() if line.startswith(_DEPENDS)), "")

    def _lines(self) -> list[list[str]]:
        """Lines of the sources' file: NAME VERSION DEPENDS IMPORTS EXPORTS."""
        return [line.split() for line in (self.folder / "source/modules").read_text().splitlines()]

    def _of(self, kernel: str) -> Path:
        return self.folder / kernel / ARCH

    def _active(self, kernel: str) -> Path:
        return self.folder.parent / f"kernel-{kernel}-{ARCH}"

    def built(self, kernel: str) -> bool:
        folder = self._of(kernel) / "module"
        return folder.is_dir() and all((folder / f"{line[0]}.ko").is_file() for line in self._lines())

    def installed(self, kernel: str) -> bool:
        link = self._active(kernel)
        active = link.is_symlink() and os.readlink(link) == f"{self.version}/{kernel}/{ARCH}"
        return active and self.built(kernel)

    def status(self) -> list[str]:
        """Lines of `dkms status`."""
        lines, title = [], f"{self.name}/{self.version}"
        for kernel in self.kernels:
            state = "built"
            if self.installed(kernel):
                state = "installed"
                for line in self._lines():
                    here = self._of(kernel) / "module" / f"{line[0]}.ko"
                    there = self.node.path(f"/lib/modules/{kernel}/updates/dkms/{line[0]}.ko")
                    if not there.is_file() or there.read_bytes() != here.read_bytes():
                        state += " (WARNING! Diff between built and installed module!)"
            lines.append(f"{title}, {kernel}, {ARCH}: {state}")
        return lines or [f"{title}: added"]

    def add(self) -> None:
        self.node.link(f"{TREE}/{self.name}/{self.version}/source", f"/usr/src/{self.name}-{self.version}")

    def build(self, kernel: str) -> None:
        if self.built(kernel):
            if not self.force:
                return
            self._remove_build(kernel)
        if not self.added:
            self.add()
        place = f"/lib/modules/{kernel}/build"
        if not self.node.path(f"{place}/include").exists():
            raise Stop(21, f"Error! Your kernel headers for kernel {kernel} cannot be found at {place}.")
        if self.needed and not any(m.installed(kernel) for m in modules(self.node) if m.name == self.needed):
            raise Stop(13, f"Error! Aborting build of module {self.name} due to missing BUILD_DEPENDS: {self.needed}.")
        title = f"DKMS make.log for {self.name}-{self.version} for kernel {kernel} ({ARCH})"
        shutil.rmtree(self.folder / "build", ignore_errors=True)
        headers = f"/usr/src/linux-headers-{kernel}"
        if not self.node.path(f"{headers}/Makefile").is_file():
            failed = f"{title}\nmake[1]: *** {headers}: No rule to make target 'modules'.  Stop.\n"
            write(self.folder / "build/make.log", failed)
            raise Stop(10, f"Error! Bad return status for module build on kernel: {kernel} ({ARCH})")
        self._compile(kernel)
        write(self._of(kernel) / "log/make.log", f"{title}\n")

    def _compile(self, kernel: str) -> None:
        """Of what OFED's headers declare, and into them."""
        headers = self.node.path(f"/usr/src/ofa_kernel/{ARCH}/{kernel}/Module.symvers")
        lines = [line.split("\t") for line in headers.read_text().splitlines()] if headers.is_file() else []
        declared = {line[1]: (line[0], line[2].rpartition("/")[2]) for line in lines}
        for name, version, depends, imports, exports in self._lines():
            # A symbol that no header declares is left out: that is how nvidia_peermem comes to be of no use.
            found = {symbol: declared[symbol] for symbol in split(imports) if symbol in declared}
            needs = [*split(depends), *(module for _crc, module in found.values())]
            ko = make_ko(name, kernel, version, f"{self.name}-{self.version}", needs)
            ko.crcs = {symbol: code for symbol, (code, _module) in found.items()}
            ko.exports = split(exports)
            write(self._of(kernel) / "module" / f"{name}.ko", ko.text())
            if ko.exports:
                module = f"drivers/infiniband/core/{name}"
                text = [f"{crc(ko.fields['srcversion'], s)}\t{s}\t{module}\tEXPORT_SYMBOL\t\n" for s in ko.exports]
                write(headers, "".join(text))

    def _remove_build(self, kernel: str) -> None:
        # rpm installs the new version before it removes the old one: what lies there then is the new one's.
        others = (m for m in modules(self.node) if m.name == self.name and m.version != self.version)
        if not any(m.installed(kernel) for m in others) and any(line[4] != "-" for line in self._lines()):
            headers = self.node.path("/usr/src/ofa_kernel")
            shutil.rmtree(headers / ARCH / kernel, ignore_errors=True)
            if not any((headers / ARCH).iterdir()):
                shutil.rmtree(headers)
        shutil.rmtree(self._of(kernel).parent)

    def install(self, kernel: str) -> None:
        if self.installed(kernel):
            if not self.force:
                return
            self.uninstall(kernel)
        # As dkms has it: what is built already is not built again here, not even with --force.
        if not self.built(kernel):
            self.build(kernel)
        for line in self._lines():
            text = (self._of(kernel) / "module" / f"{line[0]}.ko").read_text()
            write(self.node.path(f"/lib/modules/{kernel}/updates/dkms/{line[0]}.ko"), text)
        self._active(kernel).unlink(missing_ok=True)
        self._active(kernel).symlink_to(f"{self.version}/{kernel}/{ARCH}")
        self.node.depmod(kernel)

    def uninstall(self, kernel: str) -> None:
        if not self.installed(kernel):
            return
        folder = self.node.path(f"/lib/modules/{kernel}/updates/dkms")
        for line in self._lines():
            (folder / f"{line[0]}.ko").unlink(missing_ok=True)
        for empty in (folder, folder.parent):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
        self._active(kernel).unlink()
        self.node.depmod(kernel)

    def remove(self) -> None:
        """Remove it with all that is built."""
        for kernel in self.kernels:
            self.uninstall(kernel)
            self._remove_build(kernel)
        shutil.rmtree(self.folder)
        if not any(self.folder.parent.iterdir()):
            self.folder.parent.rmdir()


def modules(node: Node) -> list[Module]:
    """Return all that was added."""
    found = sorted((path.parent.parent.name, path.parent.name) for path in node.path(TREE).glob("*/*/source"))
    return [Module(node, *names) for names in found]


def dkms(node: Node, argv: list[str]) -> None:
    """Raises getopt.GetoptError and Stop."""
    given, words = getopt.gnu_getopt(argv, "m:v:k:", ["force", "all"])
    values = dict(given)
    action, combo = words[0], words[1] if words[1:] else values.get("-m", "")
    if action == "status":
        print("".join(f"{line}\n" for module in modules(node) for line in module.status()), end="")
        return
    name, _, version = combo.partition("/")
    module = Module(node, name, version or values["-v"], "--force" in values)
    if action != "remove":
        {"build": module.build, "install": module.install}[action](values.get("-k") or node.kernel())
    elif module.added:
        module.remove()


def common_postinst(node: Node, argv: list[str]) -> None:
    """Build for the running kernel and the newest; missing headers are said, and are no failure."""
    name, version = argv[:2]
    module = Module(node, name, version)
    if module.added:
        module.remove()
    module.add()
    running, kernels = node.running(), node.kernels()
    if running in kernels:
        kernels = list(dict.fromkeys([str(running), kernels[-1]]))
    for kernel in kernels:
        if node.path(f"/lib/modules/{kernel}/build/include").exists():
            module.build(kernel)
            module.install(kernel)
        else:
            print(f"Module build for kernel {kernel} was skipped since the")
            print("kernel headers for this kernel do not seem to be installed.")
