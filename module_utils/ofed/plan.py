# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge OFED, the vendor's RDMA drivers: one release for every kernel that could boot, and loaded ones.

Nothing here unloads a driver unless the plan's disruption allows it. Installing does not: packages whose scripts would
restart openibd find it masked, in /run, where no mask outlives a reboot.
Sources: NVIDIA DOCA-OFED documentation; dkms(8), depmod.d(5), systemd.unit(5).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import fix_command
from ..core.check import Check
from ..core.finding import Finding
from ..core.plan import Command, FileChange, Plan, merge
from ..driver import kernels
from ..machine.pci import natural_key
from . import packages
from .dkms import Build
from .packages import Packages, System
from .read import MLX5, OPENIBD, REPOSITORY, STACK, UMAD_LIST, OfedState

FLAVOURS = ("doca-ofed", "mlnx-ofed", "inbox")
MASK = Command(("systemctl", "mask", "--runtime", OPENIBD), "packages must not restart the driver")
UNMASK = Command(("systemctl", "unmask", "--runtime", OPENIBD), "openibd may be started again")
RESTART = Command(("systemctl", "restart", OPENIBD), "load the driver that is installed", "driver", 300.0)
UMAD_TEXT = written.seal(UMAD_LIST, "# Written by Busbar (role mofed) for the fabric manager.\nib_umad\n")
# In DKMS: of Debian's packages and of EL's.
_KERNEL_MODULES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")
# Packages of the driver.
_DRIVER = re.compile(r"mlnx-ofed-kernel-dkms|mlnx-ofa_kernel(-dkms)?|kmod-mlnx-ofa_kernel")
_BUILD_TIMEOUT = 3600.0
# Metapackages of each flavour: what they pull in goes or stays with them.
_METAS = {
    "doca-ofed": re.compile(
        r"doca-(?!ofed-)(ofed|all|networking|roce|host-basic)(-.*)?|doca-ofed-(userspace|kernel.*)"
    ),
    "mlnx-ofed": re.compile(r"mlnx-ofed-(?!kernel(?!-only)).*"),
    # Canonical's build of DOCA-OFED: modules without DKMS, and a metapackage for each kernel flavour (Ubuntu's server
    # documentation, "DOCA-OFED"). Its files are those of NVIDIA's packages.
    "ubuntu": re.compile(
        r"linux-(main-)?modules-doca-ofed-.+|doca-ofed-userspace-[0-9.]+|doca-ofed-(?!userspace|kernel).+"
    ),
}
_UBUNTU_RELEASE = re.compile(r"(?:doca-ofed-userspace|linux-(?:main-)?modules-doca-ofed)-([0-9]+(?:\.[0-9]+)*)(?:-.*)?")
# On the kernel's side; user space has the vendor's libraries until the distribution's replace them.
_OF_KERNEL = re.compile(
    r"(mlnx-ofed-kernel-(dkms|utils|modules)|mlnx-(nfsrdma|nvme)-dkms|kmod-mlnx-.*|mlnx-ofa_kernel.*)"
)
_OF_OFED = re.compile(r"mlnx-.*|isert?|srp|knem|xpmem|kernel-mft(-dkms)?")
# Of a finding's `have`: it may quote what tools have printed.
_LONGEST = 300
_MANAGER = "the package manager"
_RUN = fix_command.run_tag("mofed")

REPOSITORY_FILES = Check(
    "ofed.repository",
    why="packages come from one release of one repository, signed with the site's key for it",
    fix=_RUN,
    aspect="persisted",
)
"Do the repository, its key and its pin on the node match the inventory"
PACKAGES = Check(
    "ofed.packages",
    why="the fleet runs one release of OFED; drivers and libraries of two releases do not fit together",
    fix=_RUN,
    severity="critical",
    aspect="persisted",
)
"Is OFED's metapackage installed, of the configured release"
HOLD = Check(
    "ofed.hold",
    why="an upgrade of everything would replace the driver below running jobs",
    fix=_RUN,
    aspect="persisted",
)
"Is OFED's metapackage held back from upgrades"
CONFLICT = Check(
    "ofed.conflict",
    why="packages of two OFEDs replace each other's files at every upgrade",
    fix=_RUN,
    aspect="persisted",
)
"is there nothing left of another OFED"
HEADERS = Check(
    "ofed.headers",
    why="DKMS builds drivers from source when a kernel is installed, and without headers it silently does not",
    fix=_RUN,
    aspect="persisted",
)
"can modules be built for each installed kernel"
DKMS = Check(
    "ofed.dkms",
    why="a kernel without them silently boots with the inbox drivers or with none",
    fix=_RUN,
    aspect="persisted",
)
"Are OFED's and NVIDIA's modules built for each installed kernel"
MODULE = Check(
    "ofed.module",
    why="modprobe takes the first mlx5_core that depmod has found, whatever packages are installed",
    fix=_RUN,
    aspect="persisted",
)
"""For each installed kernel: would modprobe load `mlx5_core`, `mlx5_ib`, `ib_core`, `ib_uverbs` and `rdma_cm` of
OFED (flavour `inbox`: of the kernel); a mixed stack does not load, or crashes"""
LOADED = Check(
    "ofed.loaded",
    why="the installed driver takes effect after a reboot, or after a restart of openibd if no process uses it",
    fix=fix_command.allow(_RUN, "reboot"),
    severity="critical",
    disruption="driver",
)
"Is the installed OFED loaded; if not, it waits for a reboot"
NVIDIA = Check(
    "ofed.nvidia",
    why="nvidia-peermem refuses to load with an ib_core other than the one that it was built for",
    fix=_RUN,
    aspect="persisted",
)
"Was nvidia-peermem built for the `ib_core` of this OFED, by the checksum of its symbol"
DEPENDENTS = Check(
    "ofed.dependents",
    why="OFED replaces the RDMA modules that this uses; without a matching build it fails after the next boot",
    fix=_RUN,
    aspect="persisted",
)
"Are the modules for NFS, NVMe and Lustre over RDMA installed"
IB_UMAD = Check(
    "ofed.ib_umad",
    why="without ib_umad the fabric manager of this platform does not start, and no GPU talks to another",
    fix=_RUN,
    aspect="persisted",
)
"B200 and later: is `ib_umad`, which the Fabric Manager needs, loaded now and at boot"
OPENIBD_MASK = Check(
    "ofed.openibd",
    why="Busbar masks openibd while it installs packages; a run that was killed leaves the mask until the next boot",
    fix=_RUN,
    severity="minor",
)
"Is openibd not masked, as after a killed run"
READABLE = Check("ofed.readable", why="what cannot be read cannot be judged")
"Could the files and tools with OFED's state be read"


@dataclass(frozen=True)
class OfedWanted:
    """flavour: one of FLAVOURS.   version: of DOCA or MLNX_OFED; "" for any.

    package: the metapackage.   manage: False only reports.   repository: its URL.   key: armoured text.
    umad: the platform's fabric manager needs ib_umad.   third_party: file systems whose modules the site rebuilds
    itself.
    """

    flavour: str
    version: str
    package: str
    manage: bool
    repository: str
    key: str
    umad: bool
    third_party: Tuple[str, ...] = ()


@dataclass(frozen=True)
class _Case:
    """A node of which enough is known to plan, and what is wanted there.

    failed: argv -> last words of each command of an earlier plan that did not end well.
    """

    have: OfedState
    want: OfedWanted
    failed: Mapping[Tuple[str, ...], str]
    system: System
    packages: Packages
    builds: Tuple[Build, ...]


def repository_url(top: str, flavour: str, version: str, system: System, machine: str) -> str:
    """Return the address of one release's packages in a vendor's tree, or a mirror of it.   machine: as uname -m."""
    if flavour == "doca-ofed":
        folder, arch = "doca", {"aarch64": "arm64-sbsa"}.get(machine, machine)
    else:
        folder, arch = "mlnx_ofed", machine
    return "%s/%s/%s/%s/%s/" % (top.rstrip("/"), folder, version, system.name, arch)


def needs_umad(models: Sequence[str]) -> bool:
    """Return whether GPU models need ib_umad: the fabric manager of NVLink 5 reaches its switches by it."""
    return any(re.search(r"\bG?B[23]00\b", model) for model in models)


def plan(have: OfedState, want: OfedWanted, failed: Optional[Mapping[Tuple[str, ...], str]] = None) -> Plan:
    """failed: argv -> last words of the commands of an earlier plan that did not end well; they are not planned again.

    Order: files, headers, packages, modules of the kernels, NVIDIA's against them, what is loaded.
    Raises ParseError for a repository's key or URL that cannot be one.
    """
    problems = Plan(tuple(READABLE.unreadable(problem) for problem in have.problems))
    if have.system is None or have.packages is None or have.builds is None:
        return problems
    case = _Case(have, want, failed or {}, have.system, have.packages, have.builds)
    installed = _installed(case)
    # A metapackage alone that is missing takes no driver with it.
    there = any(_OF_KERNEL.fullmatch(name) for name in case.packages.installed)
    decides = [CONFLICT.id] if want.flavour == "inbox" else [] if there else [PACKAGES.id]
    cause = next((finding.id for finding in installed.findings if finding.check in decides and not finding.ok), None)
    modules = merge(_forbidden(have), *(_of_kernel(case, kernel, cause) for kernel in have.kernels.installed))
    loaded = _loaded(case, modules, bool(installed.commands or modules.commands))
    return merge(problems, _tidy(merge(installed, modules, _nvidia(case), loaded, _umad(case))))


def _tidy(whole: Plan) -> Plan:
    """Run a command of two findings once, at its first place, and shorten quotes of tools."""
    findings = tuple(replace(f, have=f.have and f.have[:_LONGEST]) for f in whole.findings)
    commands, reboot = (tuple(dict.fromkeys(some)) for some in (whole.commands, whole.reboot))
    return Plan(findings, whole.changes, commands, reboot, whole.notes)


# -- repository, packages and hold -----------------------------------------------------------------------------------


def _installed(case: _Case) -> Plan:
    have, want = case.have, case.want
    repository = _repository(case) if want.manage else Plan()
    headers = _headers(case)
    conflict, superfluous = _conflict(case)
    users, more, refused = _dependents(case)
    package, missing = _package(case)
    names = [*([_spec(case)] if missing else []), *more]
    ready = want.manage and not refused and all(f.state in ("ok", "drift") for f in repository.findings)
    lists = ready and (names or (want.flavour != "inbox" and not all(f.ok for f in repository.findings)))
    first = [packages.refresh(case.system)] if lists else []
    work = []
    if ready and superfluous:
        work.append(packages.remove(case.system, superfluous, "remove what another OFED has left"))
    if ready and names:
        work += packages.release(case.system, [want.package, *_drivers(case.packages.locked)], case.packages)
        work.append(packages.install(case.system, names, "install %s" % " ".join(names)))
    work = [command for command in work if command.argv not in case.failed]
    if work and have.systemd:
        work = [MASK, *work, UNMASK]
    elif want.manage and have.masked:
        work = [UNMASK]
    return merge(
        repository,
        Plan(headers.findings, commands=(*first, *headers.commands)),
        Plan((conflict, *package, *users), commands=tuple(work)),
        _hold(case, bool(missing and work), package),
        _mask_left(case),
    )


def _repository(case: _Case) -> Plan:
    have, want = case.have, case.want
    paths = packages.paths(case.system, REPOSITORY)
    wanted: Mapping[str, Optional[str]] = dict.fromkeys(paths)
    if want.flavour != "inbox":
        if not want.key or not want.version:
            missing = "mofed_repository_key" if not want.key else "mofed_version"
            said = "%s is not set" % missing
            fix = "set %s in the inventory (docs/drivers.md), or mofed_manage: false where OFED is managed otherwise"
            return Plan((REPOSITORY_FILES.judge(paths[1], "unknown", "the vendor's", said, fix=fix % missing),))
        pins = {want.package: "%s*" % want.version}
        texts = packages.render(case.system, packages.Repository(REPOSITORY, want.repository, want.key, pins))
        wanted = {path: written.seal(path, text) for path, text in texts.items()}
    unread = [path for path in paths if path not in have.files]
    if unread:
        fix = "look at %s" % unread[0]
        return Plan((REPOSITORY_FILES.judge(paths[1], "unknown", "as rendered", "cannot be read", fix=fix),))
    changes = [FileChange(path, have.files[path], wanted[path], mode_before=have.closed.get(path)) for path in paths]
    files = written.compare(changes)
    if want.flavour == "inbox" and not files.changes:
        return Plan()
    text = "as rendered" if want.flavour != "inbox" else "absent (mofed_flavour: inbox)"
    found = REPOSITORY_FILES.judge(paths[1], files.state, text, files.wrong or text, severity=files.severity)
    return Plan((found,), files.changes, notes=files.notes)


def _package(case: _Case) -> Tuple[Tuple[Finding, ...], bool]:
    """Judge the metapackage, unless the drivers are inbox. Return findings, and whether it has to be installed."""
    have, want = case.have, case.want
    if want.flavour == "inbox":
        return (), False
    version = case.packages.installed.get(want.package)
    good = version is not None and (
        not want.version or re.match(re.escape(want.version) + r"(?![0-9])", version) is not None
    )
    text = version or "absent"
    fix = _RUN if want.manage else "install it, or set mofed_flavour to what this host has"
    if not want.manage and version is None:
        # Another way of installing it: its packages, or its reported release, count.
        release = _ubuntu_release(case) or have.release
        good = bool(release) and (not want.version or (release or "").startswith(want.version))
        text = "%s by other packages, or by ofed_info" % release if release else text
        if not release and _loaded_from_elsewhere(have):
            text, fix = (
                "no package, and the loaded mlx5_core is not one of this host's files",
                "find the container that",
            )
            fix += " loads it (crictl ps), and use the wanted release in its image; or install %s here" % want.package
            return (PACKAGES.judge(want.package, "unknown", want.package, text, _MANAGER, fix),), False
    refresh = packages.refresh(case.system).argv
    words = next((said for argv, said in case.failed.items() if argv == refresh or _spec(case) in argv), None)
    if words is not None and not good:
        tool = "apt-get" if case.system.kind == "apt" else "dnf"
        text = "%s; installing it failed: %s" % (text, words)
        fix = "run %s install %s by hand, read its output, then run this again" % (tool, shlex.quote(_spec(case)))
    wanted = " ".join(filter(None, (want.package, want.version)))
    finding = PACKAGES.judge(want.package, "ok" if good else "drift", wanted, text, _MANAGER, fix)
    return (finding,), not good and want.manage and words is None


def _loaded_from_elsewhere(have: OfedState) -> bool:
    """Return whether a driver is loaded that no file of this host is, as driver containers do."""
    file = have.modules.get(have.kernels.running or "", {}).get(MLX5)
    return file is not None and file.inbox and have.loaded.get(MLX5, file.srcversion) != file.srcversion


def _ubuntu_release(case: _Case) -> str:
    """Return the release of Ubuntu's DOCA-OFED, a part of its packages' names; "" if they are not installed."""
    found = (_UBUNTU_RELEASE.fullmatch(name) for name in sorted(case.packages.installed))
    return next((match.group(1) for match in found if match), "")


def _spec(case: _Case) -> str:
    return packages.full_name(case.system, case.want.package, case.want.version)


def _drivers(names: Iterable[str]) -> List[str]:
    return sorted(name for name in names if _DRIVER.fullmatch(name))


def _conflict(case: _Case) -> Tuple[Finding, List[str]]:
    """Judge mixed flavours: libraries of one meet kernel modules of the other. Return the packages to remove, too."""
    want = case.want
    # OFED that Busbar does not manage may come from Ubuntu, unless NVIDIA's packages are there, too.
    same = {want.flavour} if want.manage or want.package in case.packages.installed else {want.flavour, "ubuntu"}
    patterns = [pattern for flavour, pattern in _METAS.items() if flavour not in same or want.flavour == "inbox"]
    if want.flavour == "inbox":
        patterns.append(_OF_KERNEL)
    others = sorted(name for name in case.packages.installed if any(p.fullmatch(name) for p in patterns))
    fix = _RUN if want.manage else "remove them, or set mofed_flavour to what this host has"
    said = ", ".join(others[:4]) + (" and %d more" % (len(others) - 4) if len(others) > 4 else "")
    state = "drift" if others else "ok"
    return CONFLICT.judge("packages", state, "none but %s" % want.flavour, said or "none", _MANAGER, fix), others


def _hold(case: _Case, coming: bool, package: Sequence[Finding]) -> Plan:
    """Judge holds. coming: packages are about to be installed.   package: findings on the metapackage."""
    want = case.want
    if want.flavour == "inbox" or not want.manage:
        return Plan()
    names = [name for name in (want.package, *_drivers(case.packages.installed)) if name in case.packages.installed]
    loose = [name for name in names if name not in case.packages.held]
    good = bool(names) and not loose
    text = "held" if good else "%s not held" % ", ".join(loose) if names else "absent"
    because = None if names else package[0].id
    targets = [*([want.package] if coming and want.package not in names else []), *loose]
    commands = packages.hold(case.system, targets, case.packages) if targets else ()
    words = next((case.failed[command.argv] for command in commands if command.argv in case.failed), None)
    fix = _RUN
    if words is not None and not good:
        text, commands = "%s (%s)" % (text, words), ()
        fix = "run %s by hand, read its output, then run this again" % _by_hand(case, targets)
    finding = HOLD.judge(want.package, "ok" if good else "drift", "held", text, _MANAGER, fix, because=because)
    return Plan((finding,), commands=commands)


def _by_hand(case: _Case, names: Sequence[str]) -> str:
    commands = packages.hold(case.system, names, case.packages)
    return " && ".join(" ".join(map(shlex.quote, command.argv)) for command in commands)


def _mask_left(case: _Case) -> Plan:
    if not case.have.masked:
        return Plan()
    fix = _RUN if case.want.manage else "systemctl unmask --runtime %s" % OPENIBD
    return Plan((OPENIBD_MASK.judge(OPENIBD, "drift", "not masked", "masked", fix=fix),))


def _dependents(case: _Case) -> Tuple[List[Finding], List[str], bool]:
    """Return findings, packages to install along, and whether OFED must not be changed before a review."""
    want = case.want
    if want.flavour == "inbox":
        return [], [], False
    findings: List[Finding] = []
    more: List[str] = []
    refused = False
    for user in case.have.users:
        if user.kind == "lustre":
            wanted = "ko2iblnd"
            good = "lustre" in want.third_party or (case.have.lustre_loaded and want.package in case.packages.installed)
            state = "ok" if good else "unknown"
            text = "works with this OFED" if good else "not known whether ko2iblnd fits %s" % want.package
            fix = "build Lustre's client for this OFED, then set mofed_third_party: [lustre]"
            refused = refused or not good
        else:
            package = {"nfs": "mlnx-nfsrdma", "nvme": "mlnx-nvme"}[user.kind]
            wanted = "kmod-" + package if _has_kmods(case) else package + "-dkms"
            good = wanted in case.packages.installed
            state = "ok" if good else "drift"
            text = wanted if good else "%s is absent" % wanted
            fix = _RUN if want.manage else "install %s" % wanted
            more += [] if good or not want.manage or wanted in more else [wanted]
        findings.append(DEPENDENTS.judge(user.what, state, wanted, text, fix=fix))
    return findings, more, refused


def _has_kmods(case: _Case) -> bool:
    """Return whether OFED's modules come built from the vendor: on EL, before DOCA 3.2."""
    if case.system.kind == "apt":
        return False
    drivers = [name for name in case.packages.installed if name.startswith(("kmod-mlnx-ofa", "mlnx-ofa_kernel-dkms"))]
    if drivers:
        return "mlnx-ofa_kernel-dkms" not in drivers
    return case.want.flavour == "mlnx-ofed" or natural_key(case.want.version) < natural_key("3.2")


# -- modules of the kernels ------------------------------------------------------------------------------------------


def _matters(case: _Case, kernel: str) -> str:
    """Severity of what is wrong with one kernel: the one that runs and the one that boots next come first."""
    known = case.have.kernels
    return "critical" if kernel in (known.running, known.default) or known.default is None else "major"


def _headers(case: _Case) -> Plan:
    want, known = case.want, case.have.kernels
    if want.flavour == "inbox" and not case.builds:
        return Plan()
    findings, commands = [], []
    for kernel in known.installed:
        package = packages.headers(case.system, kernel)
        command = packages.install(case.system, [package], "without headers no module is built for %s" % kernel)
        there, said = kernel in known.headers, case.failed.get(command.argv)
        mend = want.manage and said is None and _matters(case, kernel) == "critical"
        fix = _RUN if mend else "install %s, or remove this kernel" % package
        if said is not None:
            fix = "%s could not be installed (%s): add the repository that has it, or remove this kernel"
            fix = fix % (package, said)
        text = "there" if there else "%s/%s/build is empty or absent" % (kernels.MODULES, kernel)
        state, severity = "ok" if there else "drift", _matters(case, kernel)
        findings.append(HEADERS.judge(kernel, state, package, text, fix=fix, severity=severity))
        commands += [command] if not there and mend else []
    return Plan(tuple(findings), commands=tuple(commands))


def _of_kernel(case: _Case, kernel: str, cause: Optional[str]) -> Plan:
    """Judge what DKMS has built for a kernel, and what modprobe would load there.

    cause: id of the finding that causes a wrong module if all is built.
    """
    built = _built(case, kernel)
    first = next((finding.id for finding in built.findings if not finding.ok), cause)
    return merge(built, _module(case, kernel, first))


def _built(case: _Case, kernel: str) -> Plan:
    """One finding for a kernel: what is not built for it is not built for one reason."""
    wrong: List[str] = []
    commands: List[Command] = []
    logs: List[str] = []
    # OFED before NVIDIA: its symbols have to be there when nvidia-peermem is built.
    newest = sorted(_newest(case).items(), key=lambda item: (item[0] == "nvidia", item[0] not in _KERNEL_MODULES))
    if not newest:
        return Plan()
    for name, version in newest:
        same = (b.state for b in case.builds if (b.name, b.version, b.kernel) == (name, version, kernel))
        state = next(same, "not built")
        if state == "installed":
            continue
        command = _dkms("install", name, version, kernel)
        said = case.failed.get(command.argv)
        wrong.append("%s/%s is %s%s" % (name, version, state, "" if said is None else " (%s)" % said))
        logs += [] if said is None else ["/var/lib/dkms/%s/%s/build/make.log" % (name, version)]
        commands += [command] if said is None else []
    fix = _RUN if case.want.manage else " && ".join(map(str, commands))
    if logs:
        fix = "read %s; this release may not support kernel %s" % (logs[0], kernel)
    there = kernel in case.have.kernels.headers
    finding = DKMS.judge(
        kernel,
        "drift" if wrong else "ok",
        want=", ".join("%s/%s" % item for item in newest),
        have="; ".join(wrong) or "installed",
        source="dkms status",
        fix=fix,
        because=None if there else HEADERS.finding_id(kernel),
        severity=_matters(case, kernel),
    )
    # Where the headers are on their way the packages' scripts or the next look at the node see to it.
    return Plan((finding,), commands=tuple(commands) if there and case.want.manage else ())


def _newest(case: _Case) -> Dict[str, str]:
    """Return name -> version of the modules of OFED and of the NVIDIA driver."""
    found: Dict[str, str] = {}
    for build in case.builds:
        ours = build.name == "nvidia" or (case.want.flavour != "inbox" and _OF_OFED.fullmatch(build.name) is not None)
        if ours and natural_key(build.version) > natural_key(found.get(build.name, "")):
            found[build.name] = build.version
    return found


def _dkms(action: str, name: str, version: str, kernel: str, force: bool = False) -> Command:
    argv = ("dkms", action, *(["--force"] if force else []), "-m", name, "-v", version, "-k", kernel)
    return Command(argv, "kernel %s has to have %s" % (kernel, name), timeout=_BUILD_TIMEOUT)


def _module(case: _Case, kernel: str, cause: Optional[str]) -> Plan:
    stack = case.have.modules.get(kernel, {})
    found = stack.get(MLX5)
    of_ofed = case.want.flavour != "inbox"
    foreign = [module.path for module in stack.values() if module.inbox == of_ofed]
    good = found is not None and not foreign
    ours = [b for b in case.builds if b.name in _KERNEL_MODULES]
    built = [b for b in ours if (b.kernel, b.state) == (kernel, "installed")]
    mend = not good and of_ofed and bool(built) and case.want.manage
    finding = MODULE.judge(
        kernel,
        "ok" if good else "drift",
        want="%s of OFED" % ", ".join(STACK) if of_ofed else "the kernel's own %s" % ", ".join(STACK),
        have=", ".join(foreign) or found.path if found else "there is no mlx5_core",
        source="modinfo -k %s %s" % (kernel, " ".join(STACK)),
        fix=_RUN if mend else "look at modinfo -k %s -n %s and at dkms status" % (kernel, " ".join(STACK)),
        because=cause,
        severity=_matters(case, kernel),
    )
    # Where some come from OFED depmod has run, and files of others are gone.
    lost = built if len(foreign) < len(stack) else []
    again = [_dkms("install", b.name, b.version, kernel, force=True) for b in lost]
    depmod = Command(("depmod", kernel), "find the modules that are installed for %s" % kernel)
    return Plan((finding,), commands=(*[one for one in again if one.argv not in case.failed], depmod) if mend else ())


def _forbidden(have: OfedState) -> Plan:
    """Judge lines of others after which a module of the stack is not loaded at the next boot."""
    named = [("%s: %s" % one, *one) for one in have.forbidden]
    return Plan(
        tuple(MODULE.judge(at, "not_owned", "no such line", line, path, "remove it") for at, path, line in named)
    )


def _nvidia(case: _Case) -> Plan:
    have = case.have
    findings: List[Finding] = []
    commands: List[Command] = []
    for kernel in sorted(have.peer):
        good = have.built[kernel] == have.peer[kernel]
        text = "built without peer memory" if not have.built[kernel] else "built for another ib_core"
        version = next((b.version for b in case.builds if b.name == "nvidia" and b.kernel == kernel), None)
        work = [_dkms(do, "nvidia", version, kernel, force=True) for do in ("build", "install")] if version else []
        words = next((case.failed[command.argv] for command in work if command.argv in case.failed), None)
        mend = bool(work) and words is None and case.want.manage
        text = "built for this ib_core" if good else text
        fix = _RUN if mend else "rebuild it with OFED's headers: %s" % " && ".join(map(str, work))
        if not work:
            fix = "replace NVIDIA's precompiled package by the DKMS one, or set busbar_gpudirect: dmabuf"
        if words is not None:
            text, fix = "%s; %s" % (text, words), "read /var/lib/dkms/nvidia/%s/build/make.log" % version
        state, severity = "ok" if good else "drift", _matters(case, kernel)
        findings.append(NVIDIA.judge(kernel, state, "built for this OFED", text, fix=fix, severity=severity))
        commands += work if mend and not good else []
    return Plan(tuple(findings), commands=tuple(commands))


# -- what is loaded --------------------------------------------------------------------------------------------------


def _loaded(case: _Case, modules: Plan, mending: bool) -> Plan:
    """mending: what is installed for the running kernel is about to be another."""
    have, want = case.have, case.want
    running = have.kernels.running
    stack = have.modules.get(running, {}) if running else {}
    found = stack.get(MLX5)
    if found is None or running is None:
        return Plan()
    wrong = next((f for f in modules.findings if f.check == MODULE.id and f.subject == running and not f.ok), None)
    others = [name for name, module in stack.items() if have.loaded.get(name, module.srcversion) != module.srcversion]
    same = MLX5 in have.loaded and not others
    good = same and wrong is None
    what = "OFED's mlx5_core" if want.flavour != "inbox" else "the kernel's own mlx5_core"
    text = "another %s than the installed one" % ", ".join(others) if others else "mlx5_core is not loaded"
    finding = LOADED.judge(
        MLX5,
        "ok" if good else "drift",
        want=what,
        have=found.path if same else text,
        source="/sys/module/{%s}/srcversion" % ",".join(stack),
        fix=LOADED.fix + "; if it is the same then, the initramfs holds the old one:"
        " update-initramfs -u -k %s or dracut -f --kver %s" % (running, running),
        because=None if wrong is None else wrong.because or wrong.id,
        disruption="none" if good else None,
    )
    # Booting again with the wrong one installed loads the wrong one.
    waits = not good and (wrong is None or mending)
    restart = waits and wrong is None and have.openibd and have.systemd and want.manage
    return Plan(
        (finding,),
        commands=(RESTART,) if restart else (),
        reboot=("%s is installed and not loaded" % what,) if waits else (),
    )


def _umad(case: _Case) -> Plan:
    have = case.have
    text = have.files.get(UMAD_LIST)
    if not case.want.umad:
        if text is None:
            return Plan()
        superfluous = IB_UMAD.judge(UMAD_LIST, "drift", "absent", "superfluous", severity="minor")
        return Plan((superfluous,), (FileChange(UMAD_LIST, text, None),))
    live = IB_UMAD.judge(
        "ib_umad",
        "ok" if have.umad else "drift",
        want="loaded",
        have="loaded" if have.umad else "not loaded",
        source="/sys/module/ib_umad",
        fix=_RUN if case.want.manage else "modprobe ib_umad",
        severity="critical",
        aspect="live",
    )
    if not case.want.manage:
        return Plan((live,))
    load = () if have.umad else (Command(("modprobe", "ib_umad"), IB_UMAD.why),)
    if UMAD_LIST not in have.files:
        cause = next((READABLE.unreadable(one) for one in have.problems if one.source == UMAD_LIST), None)
        said, fix = "cannot be read", "look at %s" % UMAD_LIST
        unknown = IB_UMAD.judge(UMAD_LIST, "unknown", "loaded at boot", said, fix=fix, because=cause)
        return Plan((live, unknown), commands=load)
    files = written.compare([FileChange(UMAD_LIST, text, UMAD_TEXT)])
    said = files.wrong or "as written"
    at_boot = IB_UMAD.judge(UMAD_LIST, files.state, "loaded at boot", said, severity=files.severity)
    return Plan((live, at_boot), files.changes, load, notes=files.notes)


def unload_first(plan: Plan, modules: Sequence[str]) -> Plan:
    """The plan with idle modules out of the way of the driver's restart; what wants them loads them again."""
    commands: List[Command] = []
    for command in plan.commands:
        if command == RESTART:
            why = "openibd cannot stop while it is loaded"
            commands += [Command(("modprobe", "-r", name), why, "driver") for name in modules]
        commands.append(command)
    return replace(plan, commands=tuple(commands))
