# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge GPUDirect RDMA: the path by which a NIC reaches the GPUs' memory, now and after the next boot.

DMA-BUF is in the kernel and in the open NVIDIA modules: nothing has to be loaded. nvidia_peermem is a module.
Sources: NCCL src/transport/net_ib/gdr.cc (2.30); modules-load.d(5), systemd.unit(5).
"""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Optional, Sequence

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.plan import FileChange, Plan, merge
from ..driver import kernels, module_lists
from ..machine import gpu
from . import peermem
from .peermem import LOAD, MODULE, NO_API, NO_SYMBOLS, NOT_INSTALLED, REBUILD, SYS, Failure, Reason
from .read import (
    CMDLINE,
    DROPIN,
    LEGACY_MASK,
    LEGACY_STARTS,
    LIST,
    OPENIBD_DROPIN,
    OWN,
    SYS_LEGACY,
    UNIT,
    State,
    dmabuf,
)

LEGACY = "nv_peer_mem"
# From here on the GPU's doorbells and queues can be registered by DMA-BUF.
GIN_KERNEL = (6, 1)
RUN = fix_command.run_tag("nvidia_peermem")
PATH = Check(
    "gpudirect.path",
    why="without it NCCL stages everything through host memory, at a fraction of the rate",
    fix=RUN,
    severity="critical",
)
"is there a direct path from the NICs to the GPUs' memory: DMA-BUF possible, or nvidia_peermem loaded; if not, why"
GIN = Check(
    "gpudirect.gin",
    why="without such a path GPUs cannot start NCCL's transfers (GIN of type 3, GDAKI): the CPU does, or the job that"
    " requests them fails",
    fix="install kernel 6.1 or later, or set busbar_gpudirect: peermem; NCCL_GIN_TYPE=2 lets the CPU start them",
)
"""Where jobs use GIN (`busbar_gpu_initiated`): does the path to the GPUs' memory suit transfers that GPUs start:
nvidia_peermem, or DMA-BUF with kernel 6.1 or later"""
PERSISTED = Check(
    "gpudirect.persisted",
    why="nvidia_peermem has to be loaded at every boot, after the ib_core that it was built for",
    fix=RUN,
    aspect="persisted",
)
"Will nvidia_peermem be loaded at every boot and after a restart of openibd, and on EL not from the initramfs"
OLD_MODULE = Check(
    "gpudirect.legacy",
    why="only one of nv_peer_mem and nvidia_peermem can register with ib_core; the old one is not maintained",
    fix=RUN,
    aspect="persisted",
)
"is the old nv_peer_mem neither loaded nor started at boot"
BLOCKED = Check(
    "gpudirect.blocked",
    why="a blacklist stops systemd from loading the module at boot; an install line stops modprobe, too",
    fix=RUN,
    aspect="persisted",
)
"does no blacklist, install line or kernel argument forbid nvidia_peermem"
READABLE = Check("gpudirect.readable", why="what cannot be read cannot be judged")
"Could the files and tools for the path to the GPUs' memory be read"
# What loads the modules of LIST.
LOADER = "systemd-modules-load.service"
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
_DRAIN = "drain the node, then modprobe -r %s && modprobe %s, or reboot" % (LEGACY, MODULE)

# -- which path ------------------------------------------------------------------------------------------------------


class Judgement(NamedTuple):
    """path: "dmabuf", "peermem", or "" if neither can work or it is unknown.   load: modprobe may fix it."""

    path: str
    state: str
    have: str
    fix: str = ""
    load: bool = False
    because: Optional[str] = None


def judge(have: State, mode: str, failed: Optional[Failure] = None) -> Judgement:
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


def judge_gin(have: State, mode: str) -> Iterator[Finding]:
    """Judge the path for GIN; without any path that one has the finding. Source: NCCL 2.30.7 user guide, deviceapi."""
    if mode == "off":
        return
    found = judge(have, mode)
    want, subject = "nvidia_peermem, or DMA-BUF with kernel %d.%d or later" % GIN_KERNEL, "GIN"
    if found.state != "ok":
        because = PATH.finding_id("GPUDirect RDMA")
        yield GIN.judge(subject, "unknown", want, found.have, gpu.VERSION, because=because)
        return
    # Where DMA-BUF is possible, the release could be parsed.
    good = have.loaded or found.path == "peermem" or kernels.parse_release(have.release or "") >= GIN_KERNEL
    said = "nvidia_peermem" if have.loaded else "DMA-BUF with kernel %s" % have.release
    yield GIN.judge(subject, "ok" if good else "drift", want, said, kernels.RELEASE)


def _judge_peermem(have: State, failed: Optional[Failure], no_dmabuf: str) -> Judgement:
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
    module = {"module": "%s/%s" % (have.dkms_name, have.driver.version if have.driver else "VERSION")}
    if reason is not None:
        inbox = have.ofed == "" and have.ids is not None and "ubuntu" not in have.ids
        if reason in (NO_SYMBOLS, NO_API) and inbox:
            fix = "install DOCA-OFED and then rebuild the NVIDIA module (%s)" % (REBUILD % module)
            other = "or by DMA-BUF: set busbar_gpudirect: auto" if not no_dmabuf else "or by DMA-BUF (%s)" % no_dmabuf
            said = "nvidia_peermem cannot work: the kernel's own ib_core has no peer-memory API"
            return Judgement("", "unsupported", said, "%s, %s" % (fix, other))
        if reason is NOT_INSTALLED and have.large_pages:
            said = "nvidia_peermem does not exist for kernels with 64 KiB pages"
            return Judgement("", "unsupported", said, no_dmabuf or "set busbar_gpudirect: auto")
        text = "nvidia_peermem is not loaded: %s" % reason.says
        return Judgement("peermem", "drift", text, reason.fix % module)
    if failed is not None:
        fix = "run modprobe nvidia_peermem and look at the end of dmesg"
        return Judgement("peermem", "drift", "modprobe nvidia_peermem failed: %s" % failed.said, fix)
    blocked = [finding for finding in _blocked(have).findings if finding.state == "not_owned"]
    if blocked:
        because = blocked[0].id
        return Judgement("peermem", "drift", "nvidia_peermem is not loaded", blocked[0].fix, because=because)
    earlier = peermem.classify(have.log)
    text = "nvidia_peermem is not loaded%s" % ("; at the last attempt: %s" % earlier.says if earlier else "")
    return Judgement("peermem", "drift", text, RUN, load=True)


def _known_reason(have: State) -> Optional[Reason]:
    """Return the reason known without a modprobe: a module built without peer memory does not use ib_core."""
    if have.missing:
        return NOT_INSTALLED
    depends = have.module.depends if have.module else None
    return NO_SYMBOLS if depends is not None and "ib_core" not in depends else None


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: State, mode: str, failed: Optional[Failure] = None) -> Plan:
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


def _persisted(have: State, mode: str) -> Plan:
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


def _forgotten(have: State, mode: str) -> Plan:
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


def _bring(have: State, files: Sequence[str]) -> written.Files:
    """Compare our own files with just these. What could not be read is not touched."""
    wanted = {path: TEXTS[path] if path in files else None for path in OWN}
    return written.compare(FileChange(path, have.own[path], wanted[path]) for path in OWN if path in have.own)


def _without(have: State, module: str, check: Check, why: str) -> Plan:
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
    finding = check.judge(change.path, "drift" if ours else "not_owned", want, said, fix=RUN if ours else fix, why=why)
    return Plan((finding,), (change,) if ours else ())


def _legacy(have: State) -> Plan:
    users = ", held by %s" % " and ".join(have.legacy_users) if have.legacy_users else ", and no module uses it"
    live = OLD_MODULE.judge(
        LEGACY,
        "withheld" if have.legacy_loaded else "ok",
        want="not loaded",
        have="loaded%s" % users if have.legacy_loaded else "not loaded",
        source=SYS_LEGACY,
        fix=_DRAIN,
        aspect="live",
        disruption="driver" if have.legacy_loaded else "none",
    )
    lists = _without(have, LEGACY, OLD_MODULE, OLD_MODULE.why)
    if have.unreadable((*LEGACY_STARTS, LEGACY_MASK)):
        return merge(Plan((live,)), lists)
    starts = have.legacy_starts if have.legacy_mask != "" else ()
    changes = (FileChange(LEGACY_MASK, have.legacy_mask, "", backup=True),) if starts else ()
    want = "not started at boot"
    said, source = ("%s starts it" % starts[0], starts[0]) if starts else (want, LEGACY_MASK)
    persisted = OLD_MODULE.judge(LEGACY, "drift" if starts else "ok", want, said, source)
    return merge(Plan((live, persisted), changes), lists)


def _blocked(have: State) -> Plan:
    """Lines that forbid the module. systemd-modules-load honours a blacklist, modprobe an install line."""
    want = "nothing forbids %s" % MODULE
    plans = []
    for path, text in have.modprobe.items():
        lines = module_lists.blocks(text, MODULE)
        if lines:
            change = FileChange(path, text, module_lists.unblocked(text, MODULE), backup=True)
            fix = "remove that line from %s, or the package that owns the file" % path
            plans.append(_of_others(BLOCKED, change, want, lines[0], fix, BLOCKED.why))
    for place, line in ((CMDLINE, have.cmdline), ("the next boot", have.next_boot)):
        for argument in module_lists.forbidding(line, MODULE)[:1]:
            fix = "remove %s from GRUB's settings and run update-grub (EL: grubby --update-kernel=ALL --remove-args=%s)"
            fix = fix % (argument, argument) + "; then reboot"
            plans.append(Plan((BLOCKED.judge(place, "not_owned", want, argument, fix=fix),)))
    if plans or have.unreadable((*module_lists.MODPROBE, CMDLINE)):
        return merge(*plans)
    return Plan((BLOCKED.judge(MODULE, "ok", want, want, module_lists.MODPROBE[0]),))


def notes(planned: Plan) -> List[str]:
    """Return facts for the reader beside the findings."""
    thawed = {finding.subject for finding in planned.findings if finding.check == PERSISTED.id}
    return [
        "the initramfs still holds what %s named: run dracut --force --regenerate-all on this host" % change.path
        for change in planned.changes
        if change.path in thawed
    ]
