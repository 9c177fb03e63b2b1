# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUDirect RDMA: by which of its two paths a NIC reaches the GPUs' memory, now and after the next boot.

DMA-BUF is in the kernel and in the open NVIDIA modules: nothing has to be loaded. nvidia_peermem is a module that must
find a peer-memory API in ib_core, which OFED has, Ubuntu's kernels have, and the upstream kernel has not. What is
loaded is read from /sys/module: memory_peers and kallsyms do not say whether NCCL finds it.
Sources: host.md 3.1, 4 and 6; NCCL src/transport/net_ib/gdr.cc (2.30); modules-load.d(5), modprobe.d(5),
systemd.unit(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, TypeVar

from . import dkms, ofed
from .core import advice, os_release
from .core.finding import Finding, printable, unreadable
from .core.host import Host, ParseError, Problem, ReadError, attempt
from .core.plan import Command, FileChange, Plan, merge
from .machine import gpu
from .machine.pci import parse_text, read_value

MODULE = "nvidia_peermem"
LEGACY = "nv_peer_mem"
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
LOAD = Command(("modprobe", MODULE), "load nvidia_peermem, without which NCCL stages through host memory")
TEXTS = {
    LIST: "# Written by Busbar (role nvidia_peermem): GPUDirect RDMA by nvidia_peermem.\nnvidia_peermem\n",
    UNIT: """\
# Written by Busbar (role nvidia_peermem).
[Unit]
Description=Load nvidia_peermem for GPUDirect RDMA
# It needs the ib_core that openibd loads, and openibd cannot stop while it is there.
After=systemd-modules-load.service openibd.service nvidia-persistenced.service
PartOf=openibd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/modprobe nvidia_peermem
ExecStop=-/sbin/modprobe -r nvidia_peermem
""",
    DROPIN: """\
# Written by Busbar (role nvidia_peermem): loads the module at boot.
[Unit]
Wants=busbar-nvidia-peermem.service
""",
    OPENIBD_DROPIN: """\
# Written by Busbar (role nvidia_peermem): loads the module again after openibd was stopped and started.
[Unit]
Wants=busbar-nvidia-peermem.service
""",
}

_RELEASE = "/proc/sys/kernel/osrelease"
_CMDLINE = "/proc/cmdline"
_SYS = "/sys/module/nvidia_peermem"
_SYS_LEGACY = "/sys/module/nv_peer_mem"
# The first of two files with one name hides the other.
_LISTS = ("/etc/modules-load.d", "/usr/local/lib/modules-load.d", "/usr/lib/modules-load.d")
_MODPROBE = ("/etc/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_OPENIBD = ("/usr/lib/systemd/system/openibd.service", "/lib/systemd/system/openibd.service", "/etc/init.d/openibd")
_P2PDMA = "CONFIG_PCI_P2PDMA"
_PAGES_64K = "CONFIG_ARM64_64K_PAGES"
# ibv_reg_dmabuf_mr came with this one.
_DMABUF_KERNEL = (5, 12)
# These fault on mappings of 4 GiB and more with 64 KiB pages (open-gpu-kernel-modules issue 1269).
_FAULTY_DRIVERS = ("590.44.01", "595.45.04", "595.84", "610.43")
_LOAD_TIMEOUT = 60.0
_RUN = advice.run("nvidia_peermem")
_REBUILD = "dkms build --force nvidia/%(version)s && dkms install --force nvidia/%(version)s"

T = TypeVar("T")


@dataclass(frozen=True)
class Reason:
    """Why nvidia_peermem does not load. fix may hold %(version)s, the driver's."""

    name: str
    says: str
    fix: str


NO_SYMBOLS = Reason(
    "built_without_peer_memory",
    "it was built without the peer-memory symbols of OFED, or ib_core refused it",
    "with OFED's headers installed rebuild the NVIDIA module: %s; a precompiled package has to give way to the DKMS"
    " package first" % _REBUILD,
)
NO_API = Reason(
    "no_peer_memory_api",
    "it was built for OFED's ib_core, and the ib_core that is loaded has no peer-memory API",
    "compare modinfo -n ib_core with ofed_info -s: install OFED for the running kernel, reboot, and run this again",
)
OTHER_OFED = Reason(
    "other_ofed",
    "it was built for another ib_core than the one that is loaded; loading it again does not help",
    "rebuild the NVIDIA module with the headers of the OFED that is installed: %s" % _REBUILD,
)
OTHER_DRIVER = Reason(
    "other_driver",
    "it belongs to another NVIDIA driver than the one that is loaded",
    "reboot, so that driver and nvidia_peermem are of one version; then look at dkms status if it still fails",
)
NOT_INSTALLED = Reason(
    "not_installed",
    "it is not installed for the running kernel",
    "install the NVIDIA driver's modules for the kernel that uname -r names (470 or later; dkms status lists them, and"
    " DKMS needs that kernel's headers)",
)
NOT_SIGNED = Reason(
    "not_signed",
    "Secure Boot refuses it: its signing key is not enrolled",
    "enrol the key that signs DKMS modules (mokutil --import, then reboot and confirm)",
)
OTHER_KERNEL = Reason(
    "other_kernel",
    "it was built for another kernel",
    "rebuild it for the running kernel: dkms autoinstall",
)
# The first that fits counts: behind "Invalid argument" may be any of those before it.
_SIGNS: Tuple[Tuple[str, Reason], ...] = (
    (r"(disagrees about version of|Unknown) symbol nvidia_p2p", OTHER_DRIVER),
    (r"disagrees about version of symbol ib_", OTHER_OFED),
    (r"Unknown symbol ib_(un)?register_peer_memory_client", NO_API),
    (r"Key was rejected by service|Required key not available", NOT_SIGNED),
    (r"Exec format error|version magic", OTHER_KERNEL),
    (r"not found", NOT_INSTALLED),
    (r"Invalid argument", NO_SYMBOLS),
)


@dataclass(frozen=True)
class Failure:
    """A modprobe that did not do it: what it said, one line, and what that means where it is known."""

    said: str
    reason: Optional[Reason] = None


@dataclass(frozen=True)
class Module:
    """nvidia-peermem as modinfo describes it."""

    path: str
    depends: Tuple[str, ...]


@dataclass(frozen=True)
class Have:
    """release: of the kernel, as uname -r.   config: options of its build; None where there is no such file.
    page_size: bytes, asked only where it matters.   version: the file by which NCCL recognises nvidia_peermem.
    ids: ID and ID_LIKE of os-release.   lists, modprobe: of modules-load.d and modprobe.d, path -> text.
    own: Busbar's files, path -> text or None.
    module, missing, ofed, log: asked only where nvidia_peermem is wanted and not loaded. ofed is "" for inbox.
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
    own: Mapping[str, Optional[str]] = field(default_factory=dict)
    module: Optional[Module] = None
    missing: bool = False
    ofed: Optional[str] = None
    log: str = ""
    problems: Tuple[Problem, ...] = ()


# -- pure parsers ----------------------------------------------------------------------------------------------------


def classify(text: str) -> Optional[Reason]:
    """What modprobe and the kernel log say about a failed load; None where nobody knows such words."""
    about = "\n".join(about_peermem(text))
    return next((reason for sign, reason in _SIGNS if re.search(sign, about)), None)


def about_peermem(text: str) -> List[str]:
    return [line for line in text.splitlines() if "peermem" in line or "peer_mem" in line]


def parse_release(text: str) -> Tuple[int, int]:
    """(6, 8) of ``6.8.0-60-generic``. Raises ParseError."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})(?![0-9])", text)
    if match is None:
        raise ParseError("%r is no kernel release such as 6.8.0-60-generic" % text[:80])
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
    """Raises ParseError."""
    if re.fullmatch(r"[0-9]{4,7}", text.strip()) is None:
        raise ParseError("%r is no page size in bytes" % text[:80])
    return int(text)


def parse_modinfo(text: str) -> Module:
    """Raises ParseError."""
    found = dkms.modinfo(text)
    if "depends" not in found:
        raise ParseError("says no depends")
    return Module(found["filename"], tuple(_plain(name) for name in found["depends"].split(",") if name.strip()))


def listed(text: str) -> List[str]:
    """Names in a file of modules-load.d."""
    return [_plain(line) for line in text.splitlines() if line.strip() and not _comment(line)]


def unlisted(text: str, module: str) -> Optional[str]:
    """The file without a module; None where it then names none."""
    kept = [line for line in text.splitlines(keepends=True) if _comment(line) or _plain(line) != module]
    return "".join(kept) if listed("".join(kept)) else None


def blocks(text: str, module: str) -> List[str]:
    """Lines of a file of modprobe.d that keep a module from being loaded."""
    return [line for _raw, line in _logical(text) if _blocks(line, module)]


def unblocked(text: str, module: str) -> str:
    return "".join(raw for raw, line in _logical(text) if not _blocks(line, module))


def _logical(text: str) -> List[Tuple[str, str]]:
    """(as it stands in the file, as one line) of each line; a backslash at the end joins the next."""
    found: List[Tuple[str, str]] = []
    raw = ""
    for line in text.splitlines(keepends=True):
        raw += line
        if not raw.rstrip("\r\n").endswith("\\"):
            found.append((raw, " ".join(raw.replace("\\\n", " ").split())))
            raw = ""
    return found + [(raw, " ".join(raw.replace("\\\n", " ").split()))] if raw else found


def _blocks(line: str, module: str) -> bool:
    words = line.split()
    if len(words) < 2 or _plain(words[1]) != module:
        return False
    # An install line that runs modprobe for the same module loads it after all.
    return words[0] == "blacklist" or (words[0] == "install" and module not in map(_plain, words[2:]))


def _plain(name: str) -> str:
    """The kernel sees no difference between - and _."""
    return name.strip().replace("-", "_")


def _comment(line: str) -> bool:
    return line.strip().startswith(("#", ";"))


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, mode: str) -> Have:
    """Tools are asked only what a file does not say, and only where the answer counts."""
    problems: List[Problem] = []
    if mode == "off":
        own = _own(host, problems)
        return Have(own=own, problems=tuple(problems))
    release = read_value(host, _RELEASE, parse_text, problems)
    if release is None and not problems:  # nothing else has been read yet
        problems.append(Problem(_RELEASE, "is not there"))
    have = Have(
        driver=read_value(host, gpu.VERSION, gpu.parse_driver_version, problems),
        driver_loaded=_there(host, gpu.VERSION),
        models=_models(host, problems),
        release=release,
        config=_config(host, release, problems),
        loaded=bool(_listdir(host, _SYS, problems)),
        version=read_value(host, _SYS + "/version", parse_text, problems),
        legacy_loaded=bool(_listdir(host, _SYS_LEGACY, problems)),
        legacy_users=_legacy_users(host, problems),
        legacy_starts=tuple(path for path in LEGACY_STARTS if _text(host, path, problems) is not None),
        legacy_mask=_text(host, LEGACY_MASK, problems),
        ids=attempt(lambda: ids(os_release.read(host)[1]), os_release.PATHS[0], problems),
        openibd=any(_text(host, path, problems) is not None for path in _OPENIBD),
        lists=_folder(host, _LISTS, problems),
        modprobe=_folder(host, _MODPROBE, problems),
        cmdline=read_value(host, _CMDLINE, str, problems) or "",
        own=_own(host, problems),
    )
    if _faulty(have) and have.config is None:
        have = replace(have, page_size=_page_size(host, problems))
    if have.driver_loaded and not have.loaded and (mode == "peermem" or (mode == "auto" and dmabuf(have)[0] is False)):
        module, missing = _module(host, problems)
        have = replace(have, module=module, missing=missing, ofed=ofed.read_release(host, problems), log=_log(host))
    return replace(have, problems=tuple(problems))


def load(host: Host) -> Optional[Failure]:
    """None where nvidia_peermem is there afterwards."""
    before = _log(host)
    try:
        done = host.run(LOAD.argv, timeout=_LOAD_TIMEOUT, leaves=True)
        there = bool(host.listdir(_SYS))
    except ReadError as error:
        return Failure(printable(str(error)))
    if done.rc == 0 and there:
        return None
    after = _log(host)
    # What an earlier attempt left in the log may be mended by now.
    fresh = after[len(before) :] if after.startswith(before) else after
    said = "it ended with 0, but %s is not there" % _SYS if done.rc == 0 else done.last_words
    return Failure(printable(said)[:200], classify("%s\n%s\n%s" % (done.stdout, done.stderr, fresh)))


def _there(host: Host, path: str) -> bool:
    """A file that cannot be read is there too; read_value has said so already."""
    try:
        return host.read(path) is not None
    except ReadError:
        return True


def _listdir(host: Host, path: str, problems: List[Problem]) -> List[str]:
    try:
        return host.listdir(path)
    except ReadError as error:
        problems.append(error.problem)
        return []


def _text(host: Host, path: str, problems: List[Problem]) -> Optional[str]:
    """Text below the system root; a file that cannot be read is a Problem."""
    try:
        return host.read_system(path)
    except ReadError as error:
        problems.append(error.problem)
        return None


def _models(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    paths = ["%s/%s/information" % (gpu.GPUS, name) for name in _listdir(host, gpu.GPUS, problems)]
    found = [read_value(host, path, gpu.parse_information, problems) for path in paths]
    return tuple(sorted({model["Model"] for model in found if model and "Model" in model}))


def _config(host: Host, release: Optional[str], problems: List[Problem]) -> Optional[Dict[str, str]]:
    if release is None or "/" in release:
        return None
    for path in ("/boot/config-%s" % release, "/lib/modules/%s/config" % release):
        text = _text(host, path, problems)
        if text is not None:
            return _parsed(path, text, parse_config, problems)
    return None


def _parsed(source: str, text: str, parse: Callable[[str], T], problems: List[Problem]) -> Optional[T]:
    return attempt(lambda: parse(text), source, problems)


def _legacy_users(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    users = ["module %s" % name for name in _listdir(host, _SYS_LEGACY + "/holders", problems)]
    count = read_value(host, _SYS_LEGACY + "/refcnt", parse_text, problems)
    return tuple(users + (["use count %s" % count] if count not in (None, "0") else []))


def _folder(host: Host, folders: Sequence[str], problems: List[Problem]) -> Dict[str, str]:
    """Path -> text of the .conf files that count, by name."""
    found: Dict[str, Tuple[str, str]] = {}
    for folder in folders:
        try:
            names = host.listdir_system(folder)
        except ReadError as error:
            problems.append(error.problem)
            continue
        for name in names:
            if not name.endswith(".conf") or name in found:
                continue
            path = "%s/%s" % (folder, name)
            text = _text(host, path, problems)
            # Debian's modules.conf is a link, and a link must not become a file.
            if path == "/etc/modules-load.d/modules.conf" and _text(host, "/etc/modules", problems) == text:
                path = "/etc/modules"
            if text is not None:
                found[name] = (path, text)
    return dict(found[name] for name in sorted(found))


def _own(host: Host, problems: List[Problem]) -> Dict[str, Optional[str]]:
    """A file that cannot be read is left out, and is not written then."""
    found: Dict[str, Optional[str]] = {}
    for path in OWN:
        try:
            found[path] = host.read_system(path)
        except ReadError as error:
            problems.append(error.problem)
    return found


def _page_size(host: Host, problems: List[Problem]) -> Optional[int]:
    argv = ("getconf", "PAGESIZE")
    return attempt(lambda: parse_page_size(host.ask(argv)), " ".join(argv), problems)


def _module(host: Host, problems: List[Problem]) -> Tuple[Optional[Module], bool]:
    """(what modinfo says, whether it says that there is no such module)."""
    argv = ("modinfo", "nvidia-peermem")
    name = " ".join(argv)
    output = attempt(lambda: host.run(argv), name, problems)
    if output is None:
        return None, False
    if output.rc != 0 and "not found" in output.stderr:
        return None, True
    return attempt(lambda: parse_modinfo(output.answer()), name, problems), False


def _log(host: Host) -> str:
    """What the kernel log says about the module; "" where it may not be read: it only helps to find words."""
    try:
        output = host.run(("dmesg",))
    except ReadError:
        return ""
    return "\n".join(about_peermem(output.stdout))


# -- which path ------------------------------------------------------------------------------------------------------


def dmabuf(have: Have) -> Tuple[Optional[bool], str, str]:
    """Whether DMA-BUF can be used (None: not known), why, and the way out. The open modules imply Turing or later."""
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
    large = _large_pages(have)
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
        return None, "%s could not be read" % _RELEASE, "look at uname -r"
    if have.config is None:
        return (
            None,
            "there is no /boot/config-%s that says %s" % (have.release, _P2PDMA),
            "put the config of this kernel there (zcat /proc/config.gz), or set busbar_gpudirect: peermem",
        )
    return True, "open NVIDIA kernel module %s, kernel %s" % (have.driver.version, have.release), ""


def _faulty(have: Have) -> bool:
    version = have.driver.version if have.driver else ""
    return any(version == faulty or version.startswith(faulty + ".") for faulty in _FAULTY_DRIVERS)


def _large_pages(have: Have) -> Optional[bool]:
    if have.config is not None:
        return have.config.get(_PAGES_64K) == "y"
    return None if have.page_size is None else have.page_size >= 65536


@dataclass(frozen=True)
class Judgement:
    """path: "dmabuf", "peermem", or "" where neither can work or nobody knows.   load: modprobe may mend it."""

    path: str
    state: str
    have: str
    fix: str = ""
    load: bool = False
    because: Optional[str] = None


def judge(have: Have, mode: str, failed: Optional[Failure] = None) -> Judgement:
    """The path that the mode asks for, and whether it is there. failed: of the modprobe that was tried just now."""
    if not have.driver_loaded:
        fix = "load the NVIDIA driver (modprobe nvidia, then nvidia-smi) and run this again"
        return Judgement("", "unknown", "the NVIDIA driver is not loaded", fix)
    small = [model for model in have.models if re.search(r"\bGB10\b", model)]
    if small:
        fix = "set busbar_gpudirect: off for this host"
        return Judgement("", "unsupported", "%s knows no GPUDirect RDMA, by either path" % small[0], fix)
    possible, words, fix = dmabuf(have)
    if mode == "dmabuf" or (mode == "auto" and possible):
        state = "unknown" if possible is None else "ok" if possible else "unsupported"
        if mode == "dmabuf" and possible is False:
            fix += ", or set busbar_gpudirect: auto"
        return Judgement("dmabuf", state, "DMA-BUF: %s" % words, fix)
    if mode == "auto" and possible is None and not have.loaded:
        return Judgement("", "unknown", "nvidia_peermem is not loaded, and whether DMA-BUF works: %s" % words, fix)
    return _judge_peermem(have, failed, "" if possible else "%s: %s" % (words, fix))


def _judge_peermem(have: Have, failed: Optional[Failure], no_dmabuf: str) -> Judgement:
    """no_dmabuf: why DMA-BUF is no way out and what would make it one; "" where it is one."""
    if have.loaded and have.version:
        return Judgement("peermem", "ok", "nvidia_peermem %s is loaded" % have.version)
    if have.loaded:
        fix = "look at %s: NCCL recognises the module by its file version" % _SYS
        return Judgement("peermem", "unknown", "nvidia_peermem is loaded and shows no version", fix)
    if have.legacy_loaded:
        fix = "drain the node, then modprobe -r %s && modprobe %s, or reboot" % (LEGACY, MODULE)
        because = "gpudirect.legacy[live]@%s" % LEGACY
        return Judgement("peermem", "withheld", "%s is loaded in its place" % LEGACY, fix, because=because)
    reason = failed.reason if failed else _known_reason(have)
    version = have.driver.version if have.driver else "VERSION"
    if reason is not None:
        inbox = have.ofed == "" and have.ids is not None and "ubuntu" not in have.ids
        if reason in (NO_SYMBOLS, NO_API) and inbox:
            fix = "install DOCA-OFED and then rebuild the NVIDIA module (%s)" % (_REBUILD % {"version": version})
            other = "or by DMA-BUF: set busbar_gpudirect: auto" if not no_dmabuf else "or by DMA-BUF (%s)" % no_dmabuf
            said = "nvidia_peermem cannot work: the kernel's own ib_core has no peer-memory API"
            return Judgement("", "unsupported", said, "%s, %s" % (fix, other))
        if reason is NOT_INSTALLED and _large_pages(have):
            said = "nvidia_peermem does not exist for kernels with 64 KiB pages"
            return Judgement("", "unsupported", said, no_dmabuf or "set busbar_gpudirect: auto")
        text = "nvidia_peermem is not loaded: %s" % reason.says
        return Judgement("peermem", "drift", text, reason.fix % {"version": version})
    if failed is not None:
        fix = "run modprobe nvidia_peermem and look at the end of dmesg"
        return Judgement("peermem", "drift", "modprobe nvidia_peermem failed: %s" % failed.said, fix)
    blocked = [finding for finding in _blocked(have).findings if finding.state == "not_owned"]
    if blocked:
        because = blocked[0].id
        return Judgement("peermem", "drift", "nvidia_peermem is not loaded", blocked[0].fix, because=because)
    earlier = classify(have.log)
    text = "nvidia_peermem is not loaded%s" % ("; at the last attempt: %s" % earlier.says if earlier else "")
    return Judgement("peermem", "drift", text, _RUN, load=True)


def _known_reason(have: Have) -> Optional[Reason]:
    """What can be said without trying: a module that was built without peer memory does not use ib_core."""
    if have.missing:
        return NOT_INSTALLED
    return NO_SYMBOLS if have.module is not None and "ib_core" not in have.module.depends else None


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, mode: str, failed: Optional[Failure] = None) -> Plan:
    """What is wrong and how to mend it. Nothing here unloads a module; failed is as for judge."""
    problems = Plan(tuple(unreadable("gpudirect.readable", problem) for problem in have.problems))
    if mode == "off":
        return merge(problems, _forgotten(have, mode))
    found = judge(have, mode, failed)
    want = {"dmabuf": "DMA-BUF", "peermem": "nvidia_peermem"}.get(found.path or mode, "DMA-BUF or nvidia_peermem")
    path = Finding(
        check="gpudirect.path",
        subject="GPUDirect RDMA",
        state=found.state,
        severity="critical",
        want="%s (busbar_gpudirect: %s)" % (want, mode),
        have=found.have,
        source=gpu.VERSION if found.path == "dmabuf" or not have.driver_loaded else _SYS,
        why="without it NCCL stages everything through host memory, at a fraction of the rate",
        fix=found.fix,
        disruption="driver" if have.legacy_loaded and found.state == "withheld" else "none",
        because=found.because,
    )
    first = merge(problems, Plan((path,), commands=(LOAD,) if found.load else ()))
    if found.path == "dmabuf":
        return merge(first, _forgotten(have, mode))
    if found.path == "":
        return first
    return merge(first, _persisted(have, mode), _legacy(have), _blocked(have))


def _persisted(have: Have, mode: str) -> Plan:
    why = "nvidia_peermem has to be loaded at every boot, after the ib_core that it was built for"
    if mode == "auto":
        why += "; DMA-BUF is no way out: %s" % dmabuf(have)[1]
    if have.ids is None:
        fix = "look at /etc/os-release"
        return Plan((_finding("persisted", MODULE, "unknown", "loaded at boot", "not known", why, fix, OWN[0]),))
    others = [path for path, text in have.lists.items() if path != LIST and MODULE in listed(text)]
    files = [UNIT, DROPIN, *([OPENIBD_DROPIN] if have.openibd else [])]
    if "debian" in have.ids:
        files = files if have.openibd else []
        # Somebody else's list will do; ours stays where it is already.
        if not others or have.own.get(LIST) is not None:
            files = [LIST, *files]
    unread = [path for path in files if path not in have.own]
    if unread:
        said, fix = "%s cannot be read" % unread[0], "look at %s" % unread[0]
        return Plan((_finding("persisted", MODULE, "unknown", "loaded at boot", said, why, fix, unread[0]),))
    changes = _bring(have, files)
    source = (files or others)[0]
    said = ", ".join(change.described() for change in changes) or "loaded at boot by %s" % source
    state = "drift" if changes else "ok"
    main = Plan((_finding("persisted", MODULE, state, "loaded at boot", said, why, _RUN, source),), changes)
    if "debian" in have.ids:
        return main
    frozen = "dracut copies modules-load.d and the modules named there into the initramfs, where they grow old"
    return merge(main, _without(have, MODULE, "persisted", frozen))


def _forgotten(have: Have, mode: str) -> Plan:
    """Busbar's own files where nvidia_peermem is not asked for any more."""
    changes = _bring(have, [])
    if not changes:
        return Plan()
    said = ", ".join(change.described() for change in changes)
    why = "what nobody asks for should not be loaded"
    want = "no file of Busbar (busbar_gpudirect: %s)" % mode
    finding = _finding("persisted", MODULE, "drift", want, said, why, _RUN, changes[0].path, severity="minor")
    return Plan((finding,), changes)


def _bring(have: Have, files: Sequence[str]) -> Tuple[FileChange, ...]:
    """Changes after which just these of our own files are there. What could not be read is not touched."""
    wanted = {path: TEXTS[path] if path in files else None for path in OWN}
    return tuple(
        FileChange(path, have.own[path], wanted[path])
        for path in OWN
        if path in have.own and have.own[path] != wanted[path]
    )


def _without(have: Have, module: str, check: str, why: str) -> Plan:
    """No file of modules-load.d may name the module. What a package has put below /usr is the package's."""
    plans = []
    for path, text in have.lists.items():
        if path == LIST or module not in listed(text):
            continue
        ours = path.startswith("/etc/")
        fix = _RUN if ours else "remove the package that has %s, or the file" % path
        state = "drift" if ours else "not_owned"
        finding = _finding(check, path, state, "does not name %s" % module, "names %s" % module, why, fix, path)
        plans.append(Plan((finding,), (FileChange(path, text, unlisted(text, module)),) if ours else ()))
    return merge(*plans)


def _legacy(have: Have) -> Plan:
    why = "only one of nv_peer_mem and nvidia_peermem can register with ib_core; the old one is not maintained"
    users = ", held by %s" % " and ".join(have.legacy_users) if have.legacy_users else ", and nothing holds it"
    live = _finding(
        "legacy",
        LEGACY,
        "withheld" if have.legacy_loaded else "ok",
        "not loaded",
        "loaded%s" % users if have.legacy_loaded else "not loaded",
        why,
        "drain the node, then modprobe -r %s && modprobe %s, or reboot" % (LEGACY, MODULE),
        _SYS_LEGACY,
        aspect="live",
        disruption="driver" if have.legacy_loaded else "none",
    )
    starts = have.legacy_starts if have.legacy_mask != "" else ()
    if _unread(have, (*LEGACY_STARTS, LEGACY_MASK)):
        return merge(Plan((live,)), _without(have, LEGACY, "legacy", why))
    changes = (FileChange(LEGACY_MASK, have.legacy_mask, ""),) if starts else ()
    persisted = _finding(
        "legacy",
        LEGACY,
        "drift" if starts else "ok",
        "not started at boot",
        "%s starts it" % starts[0] if starts else "not started at boot",
        why,
        _RUN,
        starts[0] if starts else LEGACY_MASK,
    )
    return merge(Plan((live, persisted), changes), _without(have, LEGACY, "legacy", why))


def _blocked(have: Have) -> Plan:
    """Lines that forbid the module. systemd-modules-load honours a blacklist, modprobe an install line."""
    why = "a blacklist keeps systemd from loading the module at boot, an install line keeps modprobe from it at all"
    want = "nothing forbids %s" % MODULE
    plans = []
    for path, text in have.modprobe.items():
        lines = blocks(text, MODULE)
        if not lines:
            continue
        ours = path.startswith("/etc/")
        fix = _RUN if ours else "remove the package that has %s, or the line" % path
        finding = _finding("blocked", path, "drift" if ours else "not_owned", want, printable(lines[0]), why, fix, path)
        plans.append(Plan((finding,), (FileChange(path, text, unblocked(text, MODULE)),) if ours else ()))
    for argument in _forbidding(have.cmdline):
        fix = "remove %s from the kernel's command line and reboot" % argument
        plans.append(Plan((_finding("blocked", _CMDLINE, "not_owned", want, argument, why, fix, _CMDLINE),)))
    if plans or _unread(have, (*_MODPROBE, _CMDLINE)):
        return merge(*plans)
    return Plan((_finding("blocked", MODULE, "ok", want, want, why, "", _MODPROBE[0]),))


def _unread(have: Have, paths: Tuple[str, ...]) -> bool:
    """Whether one of the files, or of the files in these folders, could not be read. It has a finding of its own."""
    return any(problem.source.startswith(paths) for problem in have.problems)


def _forbidding(cmdline: str) -> List[str]:
    """Arguments of the kernel's command line that forbid the module."""
    found = []
    for argument in printable(cmdline).split():
        name, _equals, value = argument.partition("=")
        if name in ("module_blacklist", "modprobe.blacklist") and MODULE in map(_plain, value.split(",")):
            found.append(argument)
    return found


def notes(planned: Plan) -> List[str]:
    """What a reader of the result should know beside the findings."""
    thawed = {finding.subject for finding in planned.findings if finding.check == "gpudirect.persisted"}
    return [
        "the initramfs still holds what %s named: run dracut --force --regenerate-all on this host" % change.path
        for change in planned.changes
        if change.path in thawed
    ]


def _finding(
    check: str,
    subject: str,
    state: str,
    want: str,
    have: str,
    why: str,
    fix: str,
    source: str,
    severity: str = "major",
    aspect: str = "persisted",
    disruption: str = "none",
) -> Finding:
    return Finding(
        check="gpudirect.%s" % check,
        subject=subject,
        state=state,
        severity=severity,
        want=want,
        have=have,
        source=source,
        why=why,
        fix="" if state == "ok" else fix,
        aspect=aspect,
        disruption=disruption,
    )
