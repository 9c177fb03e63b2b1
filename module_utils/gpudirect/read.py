# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what decides the path by which a NIC reaches the GPUs' memory, and whether DMA-BUF is possible.

DMA-BUF is in the kernel and in the open NVIDIA modules: nothing has to be loaded. nvidia_peermem is a module.
Source: NCCL src/transport/net_ib/gdr.cc (2.30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple

from ..core import os_release
from ..core.host import Host, ParseError, Problem, ReadError, attempt, read_each
from ..driver import kernels, module_file, module_lists
from ..driver.module_file import ModuleFile
from ..kernel_args import read as kernel_args
from ..machine import gpu
from ..machine.pci import parse_text, read_value
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
_MODINFO = ("modinfo", "nvidia-peermem")
# These fault on mappings of 4 GiB and more with 64 KiB pages (open-gpu-kernel-modules issue 1269).
FAULTY_DRIVERS = ("590.44.01", "595.45.04", "595.84", "610.43")
_P2PDMA = "CONFIG_PCI_P2PDMA"
_PAGES_64K = "CONFIG_ARM64_64K_PAGES"
# ibv_reg_dmabuf_mr came with this one.
_DMABUF_KERNEL = (5, 12)


@dataclass(frozen=True)
class Have:
    """release: of the kernel, as uname -r.   config: options of its build; None where there is no such file.
    page_size: bytes, read only if it matters.   version: the file by which NCCL recognises nvidia_peermem.
    ids: ID and ID_LIKE of os-release.   lists, modprobe: of modules-load.d and modprobe.d, path -> text.
    next_boot: the kernels' lines.   own: Busbar's files, path -> text or None; one that could not be read is left out.

    module, missing, ofed, log: read only if nvidia_peermem is wanted and not loaded. missing: there is no such
    module.   ofed: release of OFED, "" for inbox.   log: the kernel log's lines on the module.
    """

    driver: Optional[gpu.Driver] = None
    driver_loaded: bool = False
    models: Tuple[str, ...] = ()
    release: Optional[str] = None
    config: Optional[Mapping[str, str]] = None
    page_size: Optional[int] = None
    loaded: bool = False
    version: Optional[str] = None
    legacy_loaded: bool = False
    legacy_users: Tuple[str, ...] = ()
    legacy_starts: Tuple[str, ...] = ()
    legacy_mask: Optional[str] = None
    ids: Optional[FrozenSet[str]] = None
    openibd: bool = False
    lists: Mapping[str, str] = field(default_factory=dict)
    modprobe: Mapping[str, str] = field(default_factory=dict)
    cmdline: str = ""
    next_boot: str = ""
    own: Mapping[str, Optional[str]] = field(default_factory=dict)
    module: Optional[ModuleFile] = None
    missing: bool = False
    ofed: Optional[str] = None
    log: str = ""
    problems: Tuple[Problem, ...] = ()


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_release(text: str) -> Tuple[int, int]:
    """(6, 8) of ``6.8.0-60-generic``. Raises ParseError."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})(?![0-9])", text)
    if match is None:
        raise ParseError("%r is not a kernel release such as 6.8.0-60-generic" % text[:80])
    return int(match.group(1)), int(match.group(2))


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


def parse_page_size(text: str) -> int:
    """Bytes, as getconf prints them. Raises ParseError."""
    if re.fullmatch(r"[0-9]{4,7}", text.strip()) is None:
        raise ParseError("%r is not a page size in bytes" % text[:80])
    return int(text)


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, mode: str) -> Have:
    """Read the state. Tools are run only if no file has the value, and only if it counts."""
    problems: List[Problem] = []
    if mode == "off":
        own = read_each(host, OWN, problems)
        return Have(own=own, problems=tuple(problems))
    release = kernels.read_running(host, problems)
    have = Have(
        driver=read_value(host, gpu.VERSION, gpu.parse_driver_version, problems),
        driver_loaded=_exists(host, gpu.VERSION),
        models=_models(host, problems),
        release=release,
        config=_config(host, release, problems),
        loaded=bool(_names(host, SYS, problems)),
        version=read_value(host, SYS + "/version", parse_text, problems),
        legacy_loaded=bool(_names(host, SYS_LEGACY, problems)),
        legacy_users=_legacy_users(host, problems),
        legacy_starts=tuple(path for path in LEGACY_STARTS if _text(host, path, problems) is not None),
        legacy_mask=_text(host, LEGACY_MASK, problems),
        ids=attempt(lambda: ids(os_release.read(host)[1]), os_release.PATHS[0], problems),
        openibd=any(_text(host, path, problems) is not None for path in ofed_state.OPENIBD_PLACES),
        lists=module_lists.read(host, module_lists.LISTS, problems),
        modprobe=module_lists.read(host, module_lists.MODPROBE, problems),
        cmdline=read_value(host, CMDLINE, str, problems) or "",
        next_boot=kernel_args.next_boot(host),
        own=read_each(host, OWN, problems),
    )
    if _faulty(have) and have.config is None:
        have = replace(have, page_size=_page_size(host, problems))
    if have.driver_loaded and not have.loaded and (mode == "peermem" or (mode == "auto" and dmabuf(have)[0] is False)):
        module, missing = _module(host, problems)
        ofed = ofed_state.read_release(host, problems)
        have = replace(have, module=module, missing=missing, ofed=ofed, log=peermem.log(host))
    return replace(have, problems=tuple(problems))


def _exists(host: Host, path: str) -> bool:
    """Return whether a file exists; read_value reports one that cannot be read."""
    try:
        return host.read(path) is not None
    except ReadError:
        return True


def _names(host: Host, path: str, problems: List[Problem]) -> List[str]:
    """Return names in a directory below the hardware root; [] plus a Problem if it cannot be listed."""
    return attempt(lambda: host.listdir(path), path, problems) or []


def _text(host: Host, path: str, problems: List[Problem]) -> Optional[str]:
    """Return the text of a file below the system root; None plus a Problem if it cannot be read."""
    return attempt(lambda: host.read_system(path), path, problems)


def _models(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    paths = ["%s/%s/information" % (gpu.GPUS, name) for name in _names(host, gpu.GPUS, problems)]
    found = [read_value(host, path, gpu.parse_information, problems) for path in paths]
    return tuple(sorted({model["Model"] for model in found if model and "Model" in model}))


def _config(host: Host, release: Optional[str], problems: List[Problem]) -> Optional[Dict[str, str]]:
    if release is None or "/" in release:
        return None
    for path in ("/boot/config-%s" % release, "/lib/modules/%s/config" % release):
        text = _text(host, path, problems)
        if text is not None:
            return attempt(partial(parse_config, text), path, problems)
    return None


def _legacy_users(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    users = ["module %s" % name for name in _names(host, SYS_LEGACY + "/holders", problems)]
    count = read_value(host, SYS_LEGACY + "/refcnt", parse_text, problems)
    return tuple(users + (["use count %s" % count] if count not in (None, "0") else []))


def _page_size(host: Host, problems: List[Problem]) -> Optional[int]:
    argv = ("getconf", "PAGESIZE")
    return attempt(lambda: parse_page_size(host.query(argv)), " ".join(argv), problems)


def _module(host: Host, problems: List[Problem]) -> Tuple[Optional[ModuleFile], bool]:
    """Return (output of modinfo, whether it reports that there is no such module)."""
    before = len(problems)

    def query() -> Optional[ModuleFile]:
        found = module_file.query_module(host, _MODINFO)
        if found is not None and found.depends is None:
            raise ParseError("prints no depends")
        return found

    module = attempt(query, " ".join(_MODINFO), problems)
    return module, module is None and len(problems) == before


# -- DMA-BUF ---------------------------------------------------------------------------------------------------------


def dmabuf(have: Have) -> Tuple[Optional[bool], str, str]:
    """Return whether DMA-BUF can be used (None: not known), why, and the fix. Open modules imply Turing or later."""
    if have.driver is not None and not have.driver.open_kernel_module:
        return False, "the closed NVIDIA kernel module exports no DMA-BUF", "install the open GPU kernel modules"
    kernel = None
    if have.release is not None:
        try:
            kernel = parse_release(have.release)
        except ParseError as error:
            return None, "kernel release %s" % error, "look at uname -r"
    if kernel is not None and kernel < _DMABUF_KERNEL:
        return False, "kernel %s is older than 5.12" % have.release, "install kernel 5.12 or later"
    if have.config is not None and have.config.get(_P2PDMA) != "y":
        return (
            False,
            "kernel %s was built without %s" % (have.release, _P2PDMA),
            "install a kernel with %s=y" % _P2PDMA,
        )
    large = has_large_pages(have)
    if _faulty(have) and have.driver is not None and large is not False:
        return (
            False if large else None,
            "driver %s faults on mappings of 4 GiB and more with 64 KiB pages%s"
            % (have.driver.version, "" if large else ", and the page size is not known"),
            "install a driver of branch 580, or a kernel with 4 KiB pages",
        )
    if have.driver is None:
        return None, "%s could not be understood" % gpu.VERSION, "look at %s" % gpu.VERSION
    if have.release is None:
        return None, "%s could not be read" % kernels.RELEASE, "look at uname -r"
    if have.config is None:
        return (
            None,
            "there is no /boot/config-%s with %s" % (have.release, _P2PDMA),
            "put the config of this kernel there (zcat /proc/config.gz), or set busbar_gpudirect: peermem",
        )
    return True, "open NVIDIA kernel module %s, kernel %s" % (have.driver.version, have.release), ""


def _faulty(have: Have) -> bool:
    version = have.driver.version if have.driver else ""
    return any(version == faulty or version.startswith(faulty + ".") for faulty in FAULTY_DRIVERS)


def has_large_pages(have: Have) -> Optional[bool]:
    if have.config is not None:
        return have.config.get(_PAGES_64K) == "y"
    return None if have.page_size is None else have.page_size >= 65536
