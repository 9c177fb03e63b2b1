# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Programs of a simulated node that deal with kernels, each by the name that it is called by.

depmod, modinfo and modprobe keep their state in the files that the real ones keep it in and end as those do; so does
dkms (dkms.py). busbar-lab-kernel is the lab's own: kernels come and go, and the NVIDIA driver is installed by it.
"""

from __future__ import annotations

import getopt
import json
import os
import shutil
import sys
from collections.abc import Callable

from .dkms import TREE, common_postinst, dkms, dkms_conf, modules
from .kernel_node import ARCH, PEER_SYMBOL, STACK, Ko, Node, Stop, crc, make_ko, split, write

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


# -- kmod ------------------------------------------------------------------------------------------------------------

_FIELDS = ("filename", "version", "srcversion", "depends", "name", "vermagic")


def depmod(node: Node, argv: list[str]) -> None:
    words = [word for word in argv if not word.startswith("-") and "/" not in word]
    node.depmod(words[0] if words else node.kernel())


def modinfo(node: Node, argv: list[str]) -> None:
    given, names = getopt.gnu_getopt(argv, "k:F:n")
    options = dict(given)
    field = "filename" if "-n" in options else options.get("-F", "")
    for name in names:
        told = node.override(name, "modinfo")
        path = name if "/" in name else node.resolve(options.get("-k") or node.kernel(), name)
        if told == "" or path is None or not node.path(path).is_file():
            raise Stop(1, f"modinfo: ERROR: Module {name} not found.")
        fields = {"filename": path, **node.ko(path).fields}
        if told:
            fields |= dict(line.split(": ", 1) for line in told.splitlines())
        for key in [key for key in _FIELDS if key in fields and field in ("", key)]:
            print(("" if field else f"{key + ':':<16}") + fields[key].strip())


def modprobe(node: Node, argv: list[str]) -> None:
    options = {word for word in argv if word.startswith("-")}
    names = [word for word in argv if not word.startswith("-")]
    if "--dump-modversions" in options:
        if not node.path(names[0]).is_file():
            raise Stop(1, f"modprobe: FATAL: Module {names[0]} not found.")
        print("".join(f"{number}\t{symbol}\n" for symbol, number in node.ko(names[0]).crcs.items()), end="")
        return
    for name in names:
        node.unload(name) if "-r" in options else node.load(name)


# -- the lab's own ---------------------------------------------------------------------------------------------------


def lab_kernel(node: Node, argv: list[str]) -> None:
    """install KERNEL [no-headers|broken-headers], remove KERNEL, nvidia VERSION, stale-nvidia, loads KERNEL, foreign"""
    actions: dict[str, Callable[..., None]] = {
        "install": _install_kernel,
        "remove": _remove_kernel,
        "nvidia": _install_nvidia,
        "stale-nvidia": _stale_nvidia,
        "loads": _loads,
        "foreign": _foreign,
    }
    actions[argv[0]](node, *argv[1:])


def _install_kernel(node: Node, kernel: str, headers: str = "headers") -> None:
    """As the packages of an image and of its headers would unpack them, without what they run afterwards."""
    base = node.path(f"/lib/modules/{kernel}")
    for name, (folder, depends) in INBOX.items():
        write(base / folder / f"{name}.ko", make_ko(name, kernel, "-", f"linux-{kernel}", split(depends)).text())
    node.depmod(kernel)
    write(node.path(f"/boot/vmlinuz-{kernel}"), "")
    write(node.path(f"/boot/config-{kernel}"), "CONFIG_64BIT=y\nCONFIG_PCI_P2PDMA=y\n")
    if headers != "no-headers":
        source = f"/usr/src/linux-headers-{kernel}"
        write(node.path(f"{source}/include/generated/utsrelease.h"), f'#define UTS_RELEASE "{kernel}"\n')
        if headers == "headers":
            write(node.path(f"{source}/Makefile"), "# Stand-in of the Busbar lab for a kernel's headers.\n")
        node.link(f"/lib/modules/{kernel}/build", source)


def _remove_kernel(node: Node, kernel: str) -> None:
    """With all that was built for it."""
    for path in ("/lib/modules/", "/usr/src/linux-headers-", f"/usr/src/ofa_kernel/{ARCH}/"):
        shutil.rmtree(node.path(path + kernel), ignore_errors=True)
    for name in ("vmlinuz", "config"):
        node.path(f"/boot/{name}-{kernel}").unlink(missing_ok=True)
    for module in modules(node):
        shutil.rmtree(module.folder / kernel, ignore_errors=True)
        (module.folder.parent / f"kernel-{kernel}-{ARCH}").unlink(missing_ok=True)
        log = module.folder / "build/make.log"
        if log.is_file() and kernel in log.read_text():
            shutil.rmtree(log.parent)


def _install_nvidia(node: Node, version: str) -> None:
    """The driver's modules, against OFED's headers where they are by now."""
    source, text = node.path(f"/usr/src/nvidia-{version}"), _NVIDIA.format(version)
    write(source / "modules", text)
    write(source / "dkms.conf", dkms_conf("nvidia", version, text))
    common_postinst(node, ["nvidia", version])


def _stale_nvidia(node: Node) -> None:
    """nvidia_peermem is as it was built against another OFED: only its CRC tells."""
    kernel = node.kernel()
    built = [f"{TREE}/{m.name}/{m.version}/{kernel}/{ARCH}/module" for m in modules(node) if m.name == "nvidia"]
    for folder in (*built, f"/lib/modules/{kernel}/updates/dkms"):
        path = node.path(f"{folder}/nvidia-peermem.ko")
        ko = Ko(path.read_text() if path.is_file() else "")
        if PEER_SYMBOL not in ko.crcs:
            raise Stop(1, f"busbar-lab-kernel: {path} was not built against any OFED")
        ko.crcs[PEER_SYMBOL] = crc("another OFED", PEER_SYMBOL)
        write(path, ko.text())


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
            names += split(fields["depends"])
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


# Where each is installed, below the system root.
TOOLS: dict[str, Callable[[Node, list[str]], None]] = {
    "/usr/sbin/dkms": dkms,
    "/usr/lib/dkms/common.postinst": common_postinst,
    "/usr/local/sbin/depmod": depmod,
    "/usr/local/sbin/modinfo": modinfo,
    "/usr/local/sbin/modprobe": modprobe,
    "/usr/local/sbin/busbar-lab-kernel": lab_kernel,
}


def main(called: str, root: str, argv: list[str]) -> int:
    """called: path of the program, below ``root``, the system root of the node ("" where that is "/")."""
    try:
        tools = {os.path.basename(place): tool for place, tool in TOOLS.items()}
        tools[os.path.basename(called)](Node(root), argv)
    except getopt.GetoptError as error:
        print(f"{called}: {error.msg}", file=sys.stderr)
        return 2
    except Stop as stop:
        sys.stdout.flush()
        print("".join(f"{line}\n" for line in stop.said), end="", file=sys.stderr)
        return stop.code
    return 0
