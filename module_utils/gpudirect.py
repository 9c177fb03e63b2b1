# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge GPUDirect RDMA: the path by which a NIC reaches the GPUs' memory, now and after the next boot.

DMA-BUF is in the kernel and in the open NVIDIA modules: nothing has to be loaded. nvidia_peermem is a module.
Sources: NCCL src/transport/net_ib/gdr.cc (2.30); modules-load.d(5), systemd.unit(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from .change import written
from .core import fix_command, os_release
from .core.check import Check
from .core.host import Host, ParseError, Problem, ReadError, attempt, read_each
from .core.plan import FileChange, Plan, merge
from .driver import kernels, module_file, module_lists, peermem
from .driver.module_file import ModuleFile
from .driver.peermem import LOAD, MODULE, NO_API, NO_SYMBOLS, NOT_INSTALLED, REBUILD, SYS, Failure, Reason
from .kernel_args import plan as kernel_args
from .machine import gpu
from .machine.pci import parse_text, read_value
from .ofed import read as ofed_state

LEGACY = "nv_peer_mem"
LIST = "/etc/modules-load.d/busbar-nvidia-peermem.conf"
# What loads the modules of LIST.
LOADER = "systemd-modules-load.service"
UNIT = "/etc/systemd/system/busbar-nvidia-peermem.service"
# A drop-in and no link below multi-user.target.wants: it is a plain file like the rest of a plan.
DROPIN = "/etc/systemd/system/multi-user.target.d/busbar-nvidia-peermem.conf"
# PartOf stops and restarts the unit with openibd; only this starts it again with an openibd that was stopped before.
OPENIBD_DROPIN = "/etc/systemd/system/openibd.service.d/busbar-nvidia-peermem.conf"
OWN = (LIST, UNIT, DROPIN, OPENIBD_DROPIN)
LEGACY_STARTS = ("/etc/init.d/nv_peer_mem", "/usr/lib/systemd/system/nv_peer_mem.service")
# An empty unit file is a masked unit; it hides the init script and the package's unit alike.
LEGACY_MASK = "/etc/systemd/system/nv_peer_mem.service"
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

TEXTS = {path: written.seal(path, text, "") for path, text in TEXTS.items()}
UNUSED = "%s: not used with DMA-BUF, and not judged; busbar_gpudirect: dmabuf removes what is not used"
_CMDLINE = "/proc/cmdline"
_SYS_LEGACY = "/sys/module/nv_peer_mem"
_MODINFO = ("modinfo", "nvidia-peermem")
_P2PDMA = "CONFIG_PCI_P2PDMA"
_PAGES_64K = "CONFIG_ARM64_64K_PAGES"
# ibv_reg_dmabuf_mr came with this one.
_DMABUF_KERNEL = (5, 12)
# These fault on mappings of 4 GiB and more with 64 KiB pages (open-gpu-kernel-modules issue 1269).
_FAULTY_DRIVERS = ("590.44.01", "595.45.04", "595.84", "610.43")
_RUN = fix_command.run_tag("nvidia_peermem")
_DRAIN = "drain the node, then modprobe -r %s && modprobe %s, or reboot" % (LEGACY, MODULE)

PATH = Check(
    "gpudirect.path",
    why="without it NCCL stages everything through host memory, at a fraction of the rate",
    fix=_RUN,
    severity="critical",
)
"is there a direct path from the NICs to the GPUs' memory: DMA-BUF possible, or nvidia_peermem loaded; if not, why"
PERSISTED = Check(
    "gpudirect.persisted",
    why="nvidia_peermem has to be loaded at every boot, after the ib_core that it was built for",
    fix=_RUN,
    aspect="persisted",
)
"Will nvidia_peermem be loaded at every boot and after a restart of openibd, and on EL not from the initramfs"
OLD_MODULE = Check(
    "gpudirect.legacy",
    why="only one of nv_peer_mem and nvidia_peermem can register with ib_core; the old one is not maintained",
    fix=_RUN,
    aspect="persisted",
)
"is the old nv_peer_mem neither loaded nor started at boot"
BLOCKED = Check(
    "gpudirect.blocked",
    why="a blacklist stops systemd from loading the module at boot; an install line stops modprobe, too",
    fix=_RUN,
    aspect="persisted",
)
"does no blacklist, install line or kernel argument forbid nvidia_peermem"
READABLE = Check("gpudirect.readable", why="what cannot be read cannot be judged")
"Could the files and tools for the path to the GPUs' memory be read"


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
        legacy_loaded=bool(_names(host, _SYS_LEGACY, problems)),
        legacy_users=_legacy_users(host, problems),
        legacy_starts=tuple(path for path in LEGACY_STARTS if _text(host, path, problems) is not None),
        legacy_mask=_text(host, LEGACY_MASK, problems),
        ids=attempt(lambda: ids(os_release.read(host)[1]), os_release.PATHS[0], problems),
        openibd=any(_text(host, path, problems) is not None for path in ofed_state.OPENIBD_PLACES),
        lists=module_lists.read(host, module_lists.LISTS, problems),
        modprobe=module_lists.read(host, module_lists.MODPROBE, problems),
        cmdline=read_value(host, _CMDLINE, str, problems) or "",
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
            return _parsed_config(path, text, problems)
    return None


def _parsed_config(path: str, text: str, problems: List[Problem]) -> Optional[Dict[str, str]]:
    return attempt(lambda: parse_config(text), path, problems)


def _legacy_users(host: Host, problems: List[Problem]) -> Tuple[str, ...]:
    users = ["module %s" % name for name in _names(host, _SYS_LEGACY + "/holders", problems)]
    count = read_value(host, _SYS_LEGACY + "/refcnt", parse_text, problems)
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


# -- which path ------------------------------------------------------------------------------------------------------


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
    return any(version == faulty or version.startswith(faulty + ".") for faulty in _FAULTY_DRIVERS)


def _large_pages(have: Have) -> Optional[bool]:
    if have.config is not None:
        return have.config.get(_PAGES_64K) == "y"
    return None if have.page_size is None else have.page_size >= 65536


@dataclass(frozen=True)
class Judgement:
    """path: "dmabuf", "peermem", or "" if neither can work or it is unknown.   load: modprobe may fix it."""

    path: str
    state: str
    have: str
    fix: str = ""
    load: bool = False
    because: Optional[str] = None


def judge(have: Have, mode: str, failed: Optional[Failure] = None) -> Judgement:
    """Judge the path of the mode. failed: result of the modprobe that was tried just now."""
    if not have.driver_loaded:
        fix = "load the NVIDIA driver (modprobe nvidia, then nvidia-smi) and run this again"
        return Judgement("", "unknown", "the NVIDIA driver is not loaded", fix)
    small = [model for model in have.models if re.search(r"\bGB10\b", model)]
    if small:
        fix = "set busbar_gpudirect: off for this host"
        return Judgement("", "unsupported", "%s has no GPUDirect RDMA by either path" % small[0], fix)
    possible, words, fix = dmabuf(have)
    if mode == "dmabuf" or (mode == "auto" and possible):
        state = "unknown" if possible is None else "ok" if possible else "unsupported"
        if mode == "dmabuf" and possible is False:
            fix += ", or set busbar_gpudirect: auto"
        return Judgement("dmabuf", state, "DMA-BUF: %s" % words, fix)
    if mode == "auto" and possible is None and not have.loaded:
        return Judgement("", "unknown", "nvidia_peermem is not loaded, and DMA-BUF is not proven: %s" % words, fix)
    return _judge_peermem(have, failed, "" if possible else "%s: %s" % (words, fix))


def _judge_peermem(have: Have, failed: Optional[Failure], no_dmabuf: str) -> Judgement:
    """no_dmabuf: why DMA-BUF is not a way out and what would make it one; "" where it is one."""
    if have.loaded and have.version:
        return Judgement("peermem", "ok", "nvidia_peermem %s is loaded" % have.version)
    if have.loaded:
        fix = "look at %s: NCCL recognises the module by its file version" % SYS
        return Judgement("peermem", "unknown", "nvidia_peermem is loaded and shows no version", fix)
    if have.legacy_loaded:
        because = OLD_MODULE.finding_id(LEGACY, aspect="live")
        return Judgement("peermem", "withheld", "%s is loaded in its place" % LEGACY, _DRAIN, because=because)
    reason = failed.reason if failed else _known_reason(have)
    version = have.driver.version if have.driver else "VERSION"
    if reason is not None:
        inbox = have.ofed == "" and have.ids is not None and "ubuntu" not in have.ids
        if reason in (NO_SYMBOLS, NO_API) and inbox:
            fix = "install DOCA-OFED and then rebuild the NVIDIA module (%s)" % (REBUILD % {"version": version})
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
    earlier = peermem.classify(have.log)
    text = "nvidia_peermem is not loaded%s" % ("; at the last attempt: %s" % earlier.says if earlier else "")
    return Judgement("peermem", "drift", text, _RUN, load=True)


def _known_reason(have: Have) -> Optional[Reason]:
    """Return the reason known without a modprobe: a module built without peer memory does not use ib_core."""
    if have.missing:
        return NOT_INSTALLED
    return NO_SYMBOLS if have.module is not None and "ib_core" not in have.module.depends else None


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, mode: str, failed: Optional[Failure] = None) -> Plan:
    """Judge GPUDirect RDMA and plan the changes. Nothing here unloads a module; failed is as for judge."""
    problems = Plan(tuple(READABLE.unreadable(problem) for problem in have.problems))
    if mode == "off":
        return merge(problems, _forgotten(have, mode))
    found = judge(have, mode, failed)
    want = {"dmabuf": "DMA-BUF", "peermem": "nvidia_peermem"}.get(found.path or mode, "DMA-BUF or nvidia_peermem")
    path = PATH.judge(
        "GPUDirect RDMA",
        found.state,
        want="%s (busbar_gpudirect: %s)" % (want, mode),
        have=found.have,
        source=gpu.VERSION if found.path == "dmabuf" or not have.driver_loaded else SYS,
        fix=found.fix,
        because=found.because,
        disruption="driver" if have.legacy_loaded and found.state == "withheld" else "none",
    )
    first = merge(problems, Plan((path,), commands=(LOAD,) if found.load else ()))
    if found.path == "dmabuf":
        return merge(first, _forgotten(have, mode))
    if found.path == "":
        return first
    return merge(first, _persisted(have, mode), _legacy(have), _blocked(have))


def _persisted(have: Have, mode: str) -> Plan:
    why = PERSISTED.why
    if mode == "auto":
        why += "; DMA-BUF is not an alternative: %s" % dmabuf(have)[1]

    def judged(state: str, said: str, source: str, fix: Optional[str] = None, severity: Optional[str] = None) -> Plan:
        return Plan((PERSISTED.judge(MODULE, state, "loaded at boot", said, source, fix, None, why, severity),))

    if have.ids is None:
        return judged("unknown", "not known", OWN[0], "look at /etc/os-release")
    others = [path for path, text in have.lists.items() if path != LIST and MODULE in module_lists.listed(text)]
    files = [UNIT, DROPIN, *([OPENIBD_DROPIN] if have.openibd else [])]
    if "debian" in have.ids:
        files = files if have.openibd else []
        # A list of others is enough; ours stays if it is there.
        if not others or have.own.get(LIST) is not None:
            files = [LIST, *files]
    unread = [path for path in files if path not in have.own]
    if unread:
        return judged("unknown", "%s cannot be read" % unread[0], unread[0], "look at %s" % unread[0])
    brought = _bring(have, files)
    source = (files or others)[0]
    said = brought.wrong or "loaded at boot by %s" % source
    if brought.wrong and others:
        said = "loaded at boot by %s, but not after a restart of openibd or an update of the initramfs" % others[0]
    found = judged(brought.state, said, source, severity="minor" if brought.wrong and others else brought.severity)
    main = merge(found, Plan(changes=brought.changes, notes=brought.notes))
    if "debian" in have.ids:
        return main
    frozen = "dracut copies modules-load.d and the modules named there into the initramfs, where they become outdated"
    return merge(main, _without(have, MODULE, PERSISTED, frozen))


def _forgotten(have: Have, mode: str) -> Plan:
    """Remove Busbar's own files where the inventory says that nvidia_peermem is not wanted; ``auto`` does not."""
    brought = _bring(have, [])
    if not brought.changes or mode == "auto":
        paths = ", ".join(change.path for change in brought.changes)
        return Plan(notes=(UNUSED % paths,) if paths else ())
    why = "a module that no setting needs should not be loaded"
    want = "no file of Busbar (busbar_gpudirect: %s)" % mode
    source = brought.changes[0].path
    found = PERSISTED.judge(MODULE, "drift", want, brought.wrong, source, why=why, severity="minor")
    return Plan((found,), brought.changes)


def _bring(have: Have, files: Sequence[str]) -> written.Files:
    """Compare our own files with just these. What could not be read is not touched."""
    wanted = {path: TEXTS[path] if path in files else None for path in OWN}
    return written.compare(FileChange(path, have.own[path], wanted[path]) for path in OWN if path in have.own)


def _without(have: Have, module: str, check: Check, why: str) -> Plan:
    """No file of modules-load.d may name the module. What a package has put below /usr is the package's."""
    plans = []
    for path, text in have.lists.items():
        if path == LIST or module not in module_lists.listed(text):
            continue
        change = FileChange(path, text, module_lists.unlisted(text, module), backup=True)
        fix = "remove %s, or the package that owns it" % path
        plans.append(_of_others(check, change, "does not name %s" % module, "names %s" % module, fix, why))
    return merge(*plans)


def _of_others(check: Check, change: FileChange, want: str, said: str, fix: str, why: str) -> Plan:
    """Plan a change of a foreign file: below /etc we make it, elsewhere an administrator has to follow ``fix``."""
    ours = change.path.startswith("/etc/")
    finding = check.judge(change.path, "drift" if ours else "not_owned", want, said, fix=_RUN if ours else fix, why=why)
    return Plan((finding,), (change,) if ours else ())


def _legacy(have: Have) -> Plan:
    users = ", held by %s" % " and ".join(have.legacy_users) if have.legacy_users else ", and no module uses it"
    live = OLD_MODULE.judge(
        LEGACY,
        "withheld" if have.legacy_loaded else "ok",
        want="not loaded",
        have="loaded%s" % users if have.legacy_loaded else "not loaded",
        source=_SYS_LEGACY,
        fix=_DRAIN,
        aspect="live",
        disruption="driver" if have.legacy_loaded else "none",
    )
    lists = _without(have, LEGACY, OLD_MODULE, OLD_MODULE.why)
    if _is_unreadable(have, (*LEGACY_STARTS, LEGACY_MASK)):
        return merge(Plan((live,)), lists)
    starts = have.legacy_starts if have.legacy_mask != "" else ()
    changes = (FileChange(LEGACY_MASK, have.legacy_mask, "", backup=True),) if starts else ()
    want = "not started at boot"
    said, source = ("%s starts it" % starts[0], starts[0]) if starts else (want, LEGACY_MASK)
    persisted = OLD_MODULE.judge(LEGACY, "drift" if starts else "ok", want, said, source)
    return merge(Plan((live, persisted), changes), lists)


def _blocked(have: Have) -> Plan:
    """Lines that forbid the module. systemd-modules-load honours a blacklist, modprobe an install line."""
    want = "nothing forbids %s" % MODULE
    plans = []
    for path, text in have.modprobe.items():
        lines = module_lists.blocks(text, MODULE)
        if lines:
            change = FileChange(path, text, module_lists.unblocked(text, MODULE), backup=True)
            fix = "remove that line from %s, or the package that owns the file" % path
            plans.append(_of_others(BLOCKED, change, want, lines[0], fix, BLOCKED.why))
    for place, line in ((_CMDLINE, have.cmdline), ("the next boot", have.next_boot)):
        for argument in module_lists.forbidding(line, MODULE)[:1]:
            fix = "remove %s from the boot loader's kernel arguments, with GRUB run update-grub; then reboot" % argument
            plans.append(Plan((BLOCKED.judge(place, "not_owned", want, argument, fix=fix),)))
    if plans or _is_unreadable(have, (*module_lists.MODPROBE, _CMDLINE)):
        return merge(*plans)
    return Plan((BLOCKED.judge(MODULE, "ok", want, want, module_lists.MODPROBE[0]),))


def _is_unreadable(have: Have, paths: Tuple[str, ...]) -> bool:
    """Return whether one of the files, or of the files in these folders, could not be read. It has a finding."""
    return any(problem.source.startswith(paths) for problem in have.problems)


def notes(planned: Plan) -> List[str]:
    """Return facts for the reader beside the findings."""
    thawed = {finding.subject for finding in planned.findings if finding.check == PERSISTED.id}
    return [
        "the initramfs still holds what %s named: run dracut --force --regenerate-all on this host" % change.path
        for change in planned.changes
        if change.path in thawed
    ]
