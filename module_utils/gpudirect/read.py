# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what decides the path by which a NIC reaches the GPUs' memory, and whether DMA-BUF is possible.

DMA-BUF is in the kernel and in the open NVIDIA modules: nothing has to be loaded. nvidia_peermem is a module.
Source: NCCL src/transport/net_ib/gdr.cc (2.30).
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Tuple, TypeVar

from ..core import os_release
from ..core.host import Host, ParseError, Problem, attempt, read_each
from ..driver import kernels, module_file, module_lists
from ..driver.module_file import ModuleFile
from ..kernel_args import read as kernel_args
from ..machine import gpu
from ..machine.pci import parse_text, read_value
from ..ofed import dkms
from ..ofed import read as ofed_state
from . import peermem
from .peermem import SYS

# Busbar's own files.
LIST = "/etc/modules-load.d/busbar-nvidia-peermem.conf"
UNIT = "/etc/systemd/system/busbar-nvidia-peermem.service"
# A drop-in and no link below multi-user.target.wants: it is a plain file like the rest of a plan.
DROPIN = "/etc/systemd/system/multi-user.target.d/busbar-nvidia-peermem.conf"
# PartOf stops and restarts the unit with openibd; only this starts it again with an openibd that was stopped before.
OPENIBD_DROPIN = "/etc/systemd/system/openibd.service.d/busbar-nvidia-peermem.conf"
OWN = (LIST, UNIT, DROPIN, OPENIBD_DROPIN)
LEGACY_STARTS = ("/etc/init.d/nv_peer_mem", "/usr/lib/systemd/system/nv_peer_mem.service")
# An empty unit file is a masked unit; it hides the init script and the package's unit alike.
LEGACY_MASK = "/etc/systemd/system/nv_peer_mem.service"
CMDLINE = "/proc/cmdline"
SYS_LEGACY = "/sys/module/nv_peer_mem"
# These fault on mappings of 4 GiB and more with 64 KiB pages (open-gpu-kernel-modules issue 1269).
FAULTY_DRIVERS = ("590.44.01", "595.45.04", "595.84", "610.43")
_P2PDMA = "CONFIG_PCI_P2PDMA"
_PAGES_64K = "CONFIG_ARM64_64K_PAGES"
# ibv_reg_dmabuf_mr came with this one.
_DMABUF_KERNEL = (5, 12)
T = TypeVar("T")


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_config(text: str) -> Dict[str, str]:
    """The options that are set in a kernel's config file: {"CONFIG_PCI_P2PDMA": "y", ...}. Raises ParseError."""
    pairs = [line.partition("=") for line in text.splitlines() if line.startswith("CONFIG_")]
    if not pairs:
        raise ParseError("holds no CONFIG_ line")
    return {name: value.strip() for name, _equals, value in pairs}


def ids(values: Mapping[str, str]) -> FrozenSet[str]:
    """ID and the words of ID_LIKE, of os-release. Raises ParseError."""
    if not values.get("ID"):
        raise ParseError("has no ID")
    return frozenset([values["ID"], *values.get("ID_LIKE", "").split()])


# -- what is there ---------------------------------------------------------------------------------------------------


class State:
    """What decides the path, as the node has it. Tools are run only if no file has the value, and only if it counts.

    release: of the kernel, as uname -r.   config: options of its build; None where there is no such file.
    version: the file by which NCCL recognises nvidia_peermem.
    ids: ID and ID_LIKE of os-release.   lists, modprobe: of modules-load.d and modprobe.d, path -> text.
    next_boot: the kernels' lines.   own: Busbar's files, path -> text or None; one that could not be read is left out.

    module, missing, ofed, log: read only if nvidia_peermem is wanted and not loaded. missing: there is no such
    module.   ofed: release of OFED, "" for inbox.   log: the kernel log's lines on it.   dkms_name: of the driver.
    """

    def __init__(self, host: Host, mode: str) -> None:
        self.host = host
        self.problems: List[Problem] = []
        self.own = read_each(host, OWN, self.problems)
        if mode == "off":
            return
        self.release = kernels.read_running(host, self.problems)
        self.driver = self._value(gpu.VERSION, gpu.parse_driver_version)
        self.driver_loaded = self.driver is not None or self.unreadable((gpu.VERSION,))
        paths = ["%s/%s/information" % (gpu.GPUS, name) for name in self._names(gpu.GPUS)]
        found = [self._value(path, gpu.parse_information) for path in paths]
        self.models = sorted({model["Model"] for model in found if model and "Model" in model})
        self.config = self._config()
        self.loaded = bool(self._names(SYS))
        self.version = self._value(SYS + "/version", parse_text)
        self.legacy_loaded = bool(self._names(SYS_LEGACY))
        count = self._value(SYS_LEGACY + "/refcnt", parse_text)
        self.legacy_users = ["module %s" % name for name in self._names(SYS_LEGACY + "/holders")]
        self.legacy_users += ["use count %s" % count] if count not in (None, "0") else []
        self.legacy_starts = [path for path in LEGACY_STARTS if self._text(path) is not None]
        self.legacy_mask = self._text(LEGACY_MASK)
        self.ids = attempt(lambda: ids(os_release.read(host)[1]), os_release.PATHS[0], self.problems)
        self.openibd = any(self._text(path) is not None for path in ofed_state.OPENIBD_PLACES)
        self.lists = module_lists.read(host, module_lists.LISTS, self.problems)
        self.modprobe = module_lists.read(host, module_lists.MODPROBE, self.problems)
        self.cmdline = self._value(CMDLINE, str) or ""
        self.next_boot = kernel_args.next_boot(host)
        self.module: Optional[ModuleFile] = None
        self.missing = False
        self.ofed: Optional[str] = None
        self.log = ""
        self.dkms_name = "nvidia"
        wanted = mode == "peermem" or (mode == "auto" and dmabuf(self)[0] is False)
        if self.driver_loaded and not self.loaded and wanted:
            before = len(self.problems)
            self.module = module_file.read_each(host, None, ("nvidia-peermem",), self.problems).get(peermem.MODULE)
            self.missing = self.module is None and len(self.problems) == before
            if self.module is not None and self.module.depends is None:
                self.problems.append(Problem("modinfo nvidia-peermem", "prints no depends"))
            self.ofed = ofed_state.read_release(host, self.problems)
            self.log = peermem.log(host)
            version = self.driver.version if self.driver else ""
            self.dkms_name = attempt(lambda: dkms.driver_name(host, version), dkms.TREE, self.problems) or "nvidia"

    @property
    def faulty(self) -> bool:
        """Return whether the driver faults on mappings of 4 GiB and more with 64 KiB pages."""
        version = self.driver.version if self.driver else ""
        return any(version == faulty or version.startswith(faulty + ".") for faulty in FAULTY_DRIVERS)

    @property
    def large_pages(self) -> Optional[bool]:
        return None if self.config is None else self.config.get(_PAGES_64K) == "y"

    def unreadable(self, paths: Tuple[str, ...]) -> bool:
        """Return whether one of the files, or of the files in these folders, was unreadable. It has a finding."""
        return any(problem.source.startswith(paths) for problem in self.problems)

    def _value(self, path: str, parse: Callable[[str], T]) -> Optional[T]:
        return read_value(self.host, path, parse, self.problems)

    def _names(self, path: str) -> List[str]:
        return attempt(lambda: self.host.listdir(path), path, self.problems) or []

    def _text(self, path: str) -> Optional[str]:
        return attempt(lambda: self.host.read_system(path), path, self.problems)

    def _config(self) -> Optional[Dict[str, str]]:
        release = self.release
        for form in ("/boot/config-%s", "/lib/modules/%s/config") if release and "/" not in release else ():
            path = form % release
            text = self._text(path)
            if text is not None:
                return attempt(partial(parse_config, text), path, self.problems)
        return None


# -- DMA-BUF ---------------------------------------------------------------------------------------------------------


def dmabuf(have: State) -> Tuple[Optional[bool], str, str]:
    """Return whether DMA-BUF can be used (None: not known), why, and the fix. Open modules imply Turing or later."""
    version, release, large = have.driver.version if have.driver else "", have.release, have.large_pages
    try:
        kernel = kernels.parse_release(release) if release is not None else None
    except ParseError as error:
        return None, "kernel release %s" % error, "look at uname -r"
    faults = "driver %s faults on mappings of 4 GiB and more with 64 KiB pages" % version
    unknown_pages = "" if large else ", and the page size is not known"
    config = "put the config of this kernel there (zcat /proc/config.gz), or set busbar_gpudirect: peermem"
    # The first that is so decides.
    rows: Tuple[Tuple[bool, Optional[bool], str, str], ...] = (
        (
            have.driver is not None and not have.driver.open_kernel_module,
            *(False, "the closed NVIDIA kernel module exports no DMA-BUF", "install the open GPU kernel modules"),
        ),
        (
            kernel is not None and kernel < _DMABUF_KERNEL,
            *(False, "kernel %s is older than 5.12" % release, "install kernel 5.12 or later"),
        ),
        (
            have.config is not None and have.config.get(_P2PDMA) != "y",
            *(False, "kernel %s was built without %s" % (release, _P2PDMA), "install a kernel with %s=y" % _P2PDMA),
        ),
        (
            have.faulty and large is not False,
            *(False if large else None, faults + unknown_pages),
            "install a driver of branch 580, or a kernel with 4 KiB pages",
        ),
        (have.driver is None, None, "%s could not be understood" % gpu.VERSION, "look at %s" % gpu.VERSION),
        (release is None, None, "%s could not be read" % kernels.RELEASE, "look at uname -r"),
        (have.config is None, None, "there is no /boot/config-%s with %s" % (release, _P2PDMA), config),
        (True, True, "open NVIDIA kernel module %s, kernel %s" % (version, release), ""),
    )
    return next(row[1:] for row in rows if row[0])
