# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of GPUDirect RDMA: nvidia_peermem where the closed driver needs it, DMA-BUF where the open one has it.

From field.md F3 to F8, and host.md 4.
"""

from __future__ import annotations

from collections.abc import Callable

from .fault import Fault, FileFault, appended, removed, said
from .machine import Machine

PEERMEM_LIST = "/etc/modules-load.d/busbar-nvidia-peermem.conf"
KERNEL_CONFIG = f"/boot/config-{Machine.kernel}"
# Of those that fault on large mappings with 64 KiB pages.
_FAULTY_DRIVER = "595.84"
_PATH = "GPUDirect RDMA"
_PEERMEM_FAULTS = (
    "peermem-unloaded",
    "peermem-without-ofed",
    "peermem-missing",
    "peermem-forgotten",
    "peermem-blacklisted",
    "peermem-legacy",
    "peermem-nameless",
)


def _peermem(behaviour: str) -> Callable[[Machine], None]:
    def change(machine: Machine) -> None:
        machine.modules.pop("nvidia_peermem", None)
        machine.peermem = behaviour

    return change


def _legacy(machine: Machine) -> None:
    machine.modules["nv_peer_mem"] = machine.modules.pop("nvidia_peermem", None)


def _without_version(machine: Machine) -> None:
    machine.modules["nvidia_peermem"] = None


def _without_p2pdma(machine: Machine, text: str | None) -> str:
    return (text or "").replace("CONFIG_PCI_P2PDMA=y\n", "# CONFIG_PCI_P2PDMA is not set\n")


def _large_pages(machine: Machine, text: str | None) -> str:
    return f"{text or ''}CONFIG_ARM64_64K_PAGES=y\n"


def _faulty_driver(machine: Machine) -> None:
    """And no nvidia_peermem, which is not built for such a kernel."""
    machine.driver_version = machine.modules["nvidia"] = _FAULTY_DRIVER
    _peermem("missing")(machine)


def _fault(
    name: str,
    description: str,
    check: str,
    subject: str,
    change: Callable[[Machine], None] | FileFault,
    state: str = "drift",
    consequences: tuple[str, ...] = (),
) -> Fault:
    """On the platform whose closed driver needs the module."""
    check = f"gpudirect.{check}"
    return Fault(name, description, check, said(subject), change, state, consequences, ("hgx-h100",), _PEERMEM_FAULTS)


CATALOGUE = (
    _fault("peermem-unloaded", "nvidia_peermem is not loaded", "path", _PATH, _peermem("ok")),
    _fault(
        "peermem-without-ofed",
        "nvidia_peermem was built without OFED's headers",
        "path",
        _PATH,
        _peermem("without-ofed"),
    ),
    _fault(
        "peermem-missing",
        "nvidia_peermem is not installed for this kernel",
        "path",
        _PATH,
        _peermem("missing"),
    ),
    _fault(
        "peermem-forgotten",
        "nothing loads nvidia_peermem at the next boot",
        "persisted",
        "nvidia_peermem",
        removed(PEERMEM_LIST),
    ),
    _fault(
        "peermem-blacklisted",
        "/etc/modprobe.d forbids nvidia_peermem",
        "blocked",
        "/etc/modprobe.d/blacklist-peermem.conf",
        appended("/etc/modprobe.d/blacklist-peermem.conf", "blacklist nvidia_peermem\n"),
    ),
    _fault(
        "peermem-legacy",
        "the old nv_peer_mem is loaded in the place of nvidia_peermem",
        "legacy",
        "nv_peer_mem",
        _legacy,
        state="withheld",
        consequences=("gpudirect.path",),
    ),
    _fault(
        "peermem-nameless",
        "nvidia_peermem is loaded and shows no version, by which NCCL knows it: GPUDirect is off",
        "path",
        _PATH,
        _without_version,
        state="unknown",
    ),
    # What is loaded by chance works; that nothing loads it at boot is what the missing DMA-BUF makes wrong.
    Fault(
        "kernel-without-p2pdma",
        "the kernel was built without CONFIG_PCI_P2PDMA, so that DMA-BUF cannot work",
        "gpudirect.persisted",
        said("nvidia_peermem"),
        FileFault(KERNEL_CONFIG, _without_p2pdma),
        platforms=("hgx-h200",),
        excludes=("large-pages",),
    ),
    Fault(
        "large-pages",
        f"a kernel with 64 KiB pages, and driver {_FAULTY_DRIVER}, which faults on large mappings there",
        "gpudirect.path",
        said(_PATH),
        _faulty_driver,
        state="unsupported",
        platforms=("hgx-h200",),
        file=FileFault(KERNEL_CONFIG, _large_pages),
    ),
)
