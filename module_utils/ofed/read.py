# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read OFED's release, packages, repository, modules for each kernel, and the users of these modules.

Sources: NVIDIA DOCA-OFED documentation; ofed_info(1); modinfo(8); proc(5) on mounts; sysfs of nvme.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core import mounts, os_release
from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ToolMissing, attempt, read_each
from ..core.mounts import Mount
from ..core.systemd_files import mask_of
from ..driver import kernels, module_file, module_lists
from ..driver.kernels import Kernels
from ..driver.module_file import ModuleFile
from ..machine.pci import parse_text, read_value
from . import dkms, packages
from .dkms import Build
from .packages import Packages, System

OPENIBD = "openibd.service"
OPENIBD_PLACES = ("/usr/lib/systemd/system/" + OPENIBD, "/lib/systemd/system/" + OPENIBD, "/etc/init.d/openibd")
UMAD_LIST = "/etc/modules-load.d/busbar-ib-umad.conf"
MLX5 = "mlx5_core"
# Modules that must come from one build.
STACK = (MLX5, "mlx5_ib", "ib_core", "ib_uverbs", "rdma_cm")
PEER_MEMORY = "ib_register_peer_memory_client"
_MASKED = "/run/systemd/system/" + OPENIBD
_INFO = ("ofed_info", "-s")
_VERSION = re.compile(r"(?:MLNX_OFED_LINUX|OFED-internal)-([0-9]+\.[0-9]+(?:[.-][0-9]+)*):?")
_SYMVERS = (
    "/usr/src/ofa_kernel/%(machine)s/%(kernel)s/Module.symvers",
    "/usr/src/ofa_kernel/%(kernel)s/Module.symvers",
    "/usr/src/ofa_kernel/default/Module.symvers",
)


class User(NamedTuple):
    """Something on the node that uses RDMA modules which OFED replaces.   what: for people.

    kind: nfs, nvme, lustre.
    """

    kind: str
    what: str


@dataclass(frozen=True)
class OfedState:
    """release: as ofed_info prints it, "" for inbox.   modules: kernel -> name -> file, of STACK.
    loaded: srcversion of each of STACK that is loaded, "" if it has none.
    files: path of each of Busbar's files -> text, None if absent; a file that could not be read is left out.

    peer: kernel -> checksum of OFED's peer-memory symbol.   built: kernel -> that in nvidia-peermem, "" for none.
    umad: ib_umad is loaded.   lustre_loaded: ko2iblnd is.   masked: openibd cannot be started.
    forbidden: (file, line) of modprobe.d and of the next boot that keep a module of STACK from being loaded.
    systemd: the node has it.   openibd: the node has it, and no administrator has masked it.
    system, packages, builds: None where not known.
    """

    system: Optional[System] = None
    packages: Optional[Packages] = None
    release: Optional[str] = None
    kernels: Kernels = field(default_factory=Kernels)
    builds: Optional[Tuple[Build, ...]] = ()
    modules: Mapping[str, Mapping[str, ModuleFile]] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    peer: Mapping[str, str] = field(default_factory=dict)
    built: Mapping[str, str] = field(default_factory=dict)
    umad: bool = False
    users: Tuple[User, ...] = ()
    closed: Mapping[str, int] = field(default_factory=dict)
    lustre_loaded: bool = False
    masked: bool = False
    forbidden: Tuple[Tuple[str, str], ...] = ()
    systemd: bool = False
    openibd: bool = False
    problems: Tuple[Problem, ...] = ()


def parse_release(text: str) -> str:
    """24.10-2.1.8.0 of ``MLNX_OFED_LINUX-24.10-2.1.8.0:``, the same of DOCA's ``OFED-internal-``. Raises ParseError."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ParseError("%r, expected MLNX_OFED_LINUX-<version>: or OFED-internal-<version>:" % text[:80])
    return match.group(1)


def over_rdma(mounted: Sequence[Mount]) -> List[User]:
    """Return the file systems that are mounted over RDMA, each once."""
    found = []
    for mount in mounted:
        if mount.kind in ("nfs", "nfs4") and {"proto=rdma", "rdma"} & set(mount.options):
            found.append(User("nfs", "NFS over RDMA at %s" % printable(mount.folder)))
        if mount.kind == "lustre" and "@o2ib" in mount.source:
            found.append(User("lustre", "Lustre over o2ib at %s" % printable(mount.folder)))
    return list(dict.fromkeys(found))


def read(host: Host, peermem: Optional[bool], machine: str, next_boot: str = "") -> OfedState:
    """Read OFED's state. peermem: nvidia_peermem is wanted, None if that depends on the driver.   machine: as uname -m.

    next_boot: the kernel's command line then.

    Raises ReadError for a folder of /sys or of openibd that cannot be read.
    """
    problems: List[Problem] = []
    known = kernels.read(host, problems)
    system = attempt(lambda: packages.read_system(host), os_release.PATHS[0], problems)
    modules = {kernel: module_file.read_each(host, kernel, STACK, problems) for kernel in known.installed}
    peer, built = _peer_memory(host, peermem, machine, known, problems)
    # apt reads its key as the user _apt.
    paths = packages.FILES[system.kind] if system else ()
    keys = paths[:1] if system and system.kind == "apt" else ()
    openibd = any(host.mode_system(path) is not None for path in OPENIBD_PLACES)
    return OfedState(
        system=system,
        packages=packages.read(host, system, problems) if system else None,
        release=read_release(host, problems),
        kernels=known,
        builds=dkms.read(host, problems),
        modules=modules,
        loaded=_loaded(host, problems),
        files=read_each(host, (*paths, UMAD_LIST), problems),
        closed={path: host.mode_system(path) or 0 for path in keys if not host.readable_by_others(path)},
        peer=peer,
        built=built,
        umad=bool(host.listdir("/sys/module/ib_umad")),
        users=_users(host, problems),
        lustre_loaded=bool(host.listdir("/sys/module/ko2iblnd")),
        masked=host.read_system(_MASKED) == "",
        systemd=host.has("systemctl"),
        openibd=openibd and mask_of(host, OPENIBD) in ("", _MASKED),
        forbidden=forbidden(host, openibd, next_boot, problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def forbidden(host: Host, openibd: bool, next_boot: str, problems: List[Problem]) -> Tuple[Tuple[str, str], ...]:
    """Return what keeps modules from being loaded. openibd loads them by name: a blacklist does not hold it."""
    texts = module_lists.read(host, module_lists.MODPROBE, problems)
    found = [(path, one) for name in STACK for path, text in texts.items() for one in module_lists.blocks(text, name)]
    found += [("the next boot", one) for name in STACK for one in module_lists.forbidding(next_boot, name)]
    by_name = ("install", "module_blacklist")
    return tuple(dict.fromkeys(one for one in found if not openibd or one[1].startswith(by_name)))


def read_release(host: Host, problems: List[Problem]) -> Optional[str]:
    """Return the release that ofed_info prints; "" for inbox drivers, None plus a Problem if not known."""

    def query() -> str:
        try:
            output = host.run(_INFO)
        except ToolMissing:
            return ""
        return parse_release(output.stdout) if output.rc == 0 else ""

    return attempt(query, " ".join(_INFO), problems)


def _loaded(host: Host, problems: List[Problem]) -> Dict[str, str]:
    folders = {name: "/sys/module/" + name for name in STACK}
    return {
        name: read_value(host, folder + "/srcversion", parse_text, problems) or ""
        for name, folder in folders.items()
        if host.listdir(folder)
    }


def _users(host: Host, problems: List[Problem]) -> Tuple[User, ...]:
    fstab = attempt(lambda: host.read_system(mounts.FSTAB), mounts.FSTAB, problems)
    mounted = read_value(host, mounts.PATH, mounts.parse, problems) or []
    found = over_rdma([*mounted, *mounts.parse_fstab(fstab or "")])
    for name in host.listdir("/sys/class/nvme"):
        if read_value(host, "/sys/class/nvme/%s/transport" % name, parse_text, problems) == "rdma":
            found.append(User("nvme", "NVMe over RDMA: %s" % name))
    return tuple(found)


def _peer_memory(
    host: Host, peermem: Optional[bool], machine: str, known: Kernels, problems: List[Problem]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return (peer, built), as in OfedState, of the running kernel and the one that boots next.

    NVIDIA's open modules need no nvidia-peermem: with them, and if that is not known, it is read only where requested.
    """
    peer: Dict[str, str] = {}
    built: Dict[str, str] = {}
    open_driver = None
    if peermem is False:
        return peer, built
    for kernel in sorted(filter(None, {known.running, known.default})):
        found = module_file.read_each(host, kernel, ("nvidia", "nvidia_peermem"), problems)
        if "nvidia" in found and open_driver is None:
            open_driver = found["nvidia"].license.startswith("Dual")
        module = found.get("nvidia_peermem")
        if module is None or (peermem is None and open_driver is not False):
            continue
        symbol = _symbols_of_ofed(host, kernel, machine, problems).get(PEER_MEMORY)
        argv = ("modprobe", "--dump-modversions", module.path)
        needed = attempt(partial(_needed, host, argv), " ".join(argv), problems) if symbol else None
        if symbol and needed is not None:
            peer[kernel], built[kernel] = symbol, needed.get(PEER_MEMORY, "")
    return peer, built


def _needed(host: Host, argv: Sequence[str]) -> Dict[str, str]:
    return module_file.parse_symbols(host.query(argv))


def _symbols_of_ofed(host: Host, kernel: str, machine: str, problems: List[Problem]) -> Dict[str, str]:
    """Return symbol -> checksum from the first place that has them for this kernel; {} if none has."""
    for path in [pattern % {"machine": machine, "kernel": kernel} for pattern in _SYMVERS]:
        text = attempt(partial(host.read_system, path), path, problems)
        if text is not None:
            return attempt(partial(module_file.parse_symbols, text), path, problems) or {}
    return {}
