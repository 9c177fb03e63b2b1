# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""OFED: the vendor's RDMA drivers, of one release, for every kernel that could boot, and the ones that are loaded.

Nothing here unloads a driver unless the plan's disruption says so. Installing does not: packages whose scripts would
restart openibd find it masked, in /run, where no mask outlives a reboot.
Sources: host.md 4.1, 6; field.md F1, F9-F14, F30, F44; dkms(8), depmod.d(5), systemd.unit(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import dkms, packages
from .core import advice, mounts, os_release
from .core.finding import Finding, printable, unreadable
from .core.host import Host, ParseError, Problem, ReadError, ToolMissing, attempt
from .core.mounts import Mount
from .core.plan import Command, FileChange, Plan, merge
from .dkms import Build, Kernels, ModuleFile
from .machine.pci import natural_key, parse_text, read_value
from .packages import Packages, System

FLAVOURS = ("doca-ofed", "mlnx-ofed", "inbox")
OPENIBD = "openibd.service"
MASK = Command(("systemctl", "mask", "--runtime", OPENIBD), "packages must not restart the driver")
UNMASK = Command(("systemctl", "unmask", "--runtime", OPENIBD), "openibd may be started again")
RESTART = Command(("systemctl", "restart", OPENIBD), "load the driver that is installed", "driver", 300.0)
UMAD_LIST = "/etc/modules-load.d/busbar-ib-umad.conf"
UMAD_TEXT = "# Written by Busbar (role mofed): the fabric manager needs it on this platform.\nib_umad\n"
PEER_MEMORY = "ib_register_peer_memory_client"
_MASKED = "/run/systemd/system/" + OPENIBD
_MLX5 = "mlx5_core"
_KERNEL_MODULE = "mlnx-ofed-kernel"
_NAME = "mofed"  # of the files of our repository
_BUILD_TIMEOUT = 3600.0
_INFO = ("ofed_info", "-s")
_VERSION = re.compile(r"(?:MLNX_OFED_LINUX|OFED-internal)-([0-9]+\.[0-9]+(?:[.-][0-9]+)*):?")
# Metapackages of one flavour: what they pull in goes or stays with them.
_METAS = {
    "doca-ofed": re.compile(r"doca-(ofed|all|networking|roce|host-basic)(-.*)?"),
    "mlnx-ofed": re.compile(r"mlnx-ofed-(?!kernel(?!-only)).*"),
}
# On the kernel's side; user space keeps the vendor's libraries until the distribution's are put in their place.
_OF_KERNEL = re.compile(
    r"(mlnx-ofed-kernel-(dkms|utils|modules)|mlnx-(nfsrdma|nvme)-dkms|kmod-mlnx-.*|mlnx-ofa_kernel.*)"
)
_OF_OFED = re.compile(r"mlnx-.*|isert?|srp|knem|xpmem|kernel-mft(-dkms)?")
_SYMVERS = (
    "/usr/src/ofa_kernel/%(machine)s/%(kernel)s/Module.symvers",
    "/usr/src/ofa_kernel/%(kernel)s/Module.symvers",
    "/usr/src/ofa_kernel/default/Module.symvers",
)
_RUN = advice.run("mofed")


@dataclass(frozen=True)
class Want:
    """flavour: one of FLAVOURS.   version: of DOCA or MLNX_OFED; "" asks for none in particular.

    package: the metapackage.   manage: False only reports.   repository: its URL.   key: armoured text.
    peermem: whether nvidia_peermem is asked for, None where that depends on the driver (busbar_gpudirect: auto).
    umad: the platform's fabric manager needs ib_umad.   machine: as uname -m.
    third_party: file systems whose modules the site rebuilds itself.
    """

    flavour: str
    version: str
    package: str
    manage: bool
    repository: str
    key: str
    peermem: Optional[bool]
    umad: bool
    machine: str
    third_party: Tuple[str, ...] = ()


@dataclass(frozen=True)
class User:
    """Something on the node that uses RDMA modules which OFED replaces.   what: for people.   kind: nfs, nvme,
    lustre.
    """

    kind: str
    what: str


@dataclass(frozen=True)
class Have:
    """release: what ofed_info says, "" for inbox.   modules: kernel -> mlx5_core there.   loaded: its srcversion, None
    where it is not loaded.   files: Busbar's own, path -> text.

    peer: kernel -> checksum of OFED's peer-memory symbol.   built: kernel -> that in nvidia-peermem, "" for none.
    open_driver: NVIDIA's modules are the open ones, which need no nvidia-peermem.   umad: ib_umad is loaded.
    lustre_loaded: ko2iblnd is.   masked: openibd cannot be started.   systemd, openibd: there are such.
    """

    system: Optional[System] = None
    packages: Optional[Packages] = None
    release: Optional[str] = None
    kernels: Kernels = field(default_factory=Kernels)
    builds: Optional[Tuple[Build, ...]] = ()
    modules: Mapping[str, Optional[ModuleFile]] = field(default_factory=dict)
    loaded: Optional[str] = None
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    peer: Mapping[str, str] = field(default_factory=dict)
    built: Mapping[str, str] = field(default_factory=dict)
    open_driver: Optional[bool] = None
    umad: bool = False
    users: Tuple[User, ...] = ()
    lustre_loaded: bool = False
    masked: bool = False
    systemd: bool = False
    openibd: bool = False
    problems: Tuple[Problem, ...] = ()


# -- pure parsers ----------------------------------------------------------------------------------------------------


def parse_release(text: str) -> str:
    """24.10-2.1.8.0 of ``MLNX_OFED_LINUX-24.10-2.1.8.0:``, the same of DOCA's ``OFED-internal-``. Raises ParseError."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ParseError("%r, expected MLNX_OFED_LINUX-<version>: or OFED-internal-<version>:" % text[:80])
    return match.group(1)


def over_rdma(mounted: Sequence[Mount]) -> List[User]:
    found = []
    for mount in mounted:
        if mount.kind in ("nfs", "nfs4") and "proto=rdma" in mount.options:
            found.append(User("nfs", "NFS over RDMA at %s" % printable(mount.folder)))
        if mount.kind == "lustre" and "@o2ib" in mount.source:
            found.append(User("lustre", "Lustre over o2ib at %s" % printable(mount.folder)))
    return found


def repository_url(top: str, flavour: str, version: str, system: System, machine: str) -> str:
    """Where a vendor's tree, or a mirror of it, has the packages of one release."""
    if flavour == "doca-ofed":
        folder, arch = "doca", {"aarch64": "arm64-sbsa"}.get(machine, machine)
    else:
        folder, arch = "mlnx_ofed", machine
    return "%s/%s/%s/%s/%s/" % (top.rstrip("/"), folder, version, system.name, arch)


def needs_umad(models: Sequence[str]) -> bool:
    """The fabric manager of the NVLink 5 platforms talks to its switches by way of ib_umad."""
    return any(re.search(r"\bG?B[23]00\b", model) for model in models)


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, want: Want) -> Have:
    problems: List[Problem] = []
    kernels = dkms.read_kernels(host, problems)
    system = attempt(lambda: packages.read_system(host), os_release.PATHS[0], problems)
    modules = {kernel: dkms.read_module(host, kernel, _MLX5, problems) for kernel in kernels.installed}
    peer, built, open_driver = _peer_memory(host, want, kernels, problems)
    return Have(
        system=system,
        packages=packages.read(host, system, problems) if system else None,
        release=read_release(host, problems),
        kernels=kernels,
        builds=dkms.read_builds(host, problems),
        modules=modules,
        loaded=_loaded(host, problems),
        files=_files(host, system, problems),
        peer=peer,
        built=built,
        open_driver=open_driver,
        umad=bool(host.listdir("/sys/module/ib_umad")),
        users=_users(host, problems),
        lustre_loaded=bool(host.listdir("/sys/module/ko2iblnd")),
        masked=host.read_system(_MASKED) == "",
        systemd=host.has("systemctl"),
        openibd=any(
            host.mode_system(path) is not None
            for path in ("/usr/lib/systemd/system/" + OPENIBD, "/lib/systemd/system/" + OPENIBD, "/etc/init.d/openibd")
        ),
        problems=tuple(dict.fromkeys(problems)),
    )


def read_release(host: Host, problems: List[Problem]) -> Optional[str]:
    """ "" for inbox drivers; None plus a Problem where it is not known."""
    try:
        output = host.run(_INFO)
        return parse_release(output.stdout) if output.rc == 0 else ""
    except ToolMissing:
        return ""
    except ReadError as error:
        problems.append(error.problem)
    except ParseError as error:
        problems.append(Problem(" ".join(_INFO), str(error)))
    return None


def _loaded(host: Host, problems: List[Problem]) -> Optional[str]:
    folder = "/sys/module/" + _MLX5
    if not host.listdir(folder):
        return None
    return read_value(host, folder + "/srcversion", parse_text, problems) or ""


def _files(host: Host, system: Optional[System], problems: List[Problem]) -> Dict[str, Optional[str]]:
    """A file that cannot be read is left out, and is not written then."""
    found: Dict[str, Optional[str]] = {}
    for path in (*(packages.paths(system, _NAME) if system else ()), UMAD_LIST):
        try:
            found[path] = host.read_system(path)
        except ReadError as error:
            problems.append(error.problem)
    return found


def _users(host: Host, problems: List[Problem]) -> Tuple[User, ...]:
    found = over_rdma(read_value(host, mounts.PATH, mounts.parse, problems) or [])
    for name in host.listdir("/sys/class/nvme"):
        if read_value(host, "/sys/class/nvme/%s/transport" % name, parse_text, problems) == "rdma":
            found.append(User("nvme", "NVMe over RDMA: %s" % name))
    return tuple(found)


def _peer_memory(
    host: Host, want: Want, kernels: Kernels, problems: List[Problem]
) -> Tuple[Dict[str, str], Dict[str, str], Optional[bool]]:
    """Of the kernels that count: checksums on OFED's side and on NVIDIA's, and whether the driver is the open one."""
    peer: Dict[str, str] = {}
    built: Dict[str, str] = {}
    open_driver = None
    if want.peermem is False:
        return peer, built, None
    for kernel in sorted({kernels.running, kernels.default} - {None}, key=str):
        nvidia = dkms.read_module(host, str(kernel), "nvidia", problems)
        if nvidia is not None and open_driver is None:
            open_driver = nvidia.license.startswith("Dual")
        if want.peermem is None and open_driver is not False:
            continue
        symbols = _symbols_of_ofed(host, str(kernel), want.machine, problems)
        module = dkms.read_module(host, str(kernel), "nvidia_peermem", problems)
        if module is None or PEER_MEMORY not in symbols:
            continue
        needed = _dump(host, module.path, problems)
        if needed is not None:
            peer[str(kernel)], built[str(kernel)] = symbols[PEER_MEMORY], needed.get(PEER_MEMORY, "")
    return peer, built, open_driver


def _symbols_of_ofed(host: Host, kernel: str, machine: str, problems: List[Problem]) -> Dict[str, str]:
    for pattern in _SYMVERS:
        path = pattern % {"machine": machine, "kernel": kernel}
        try:
            text = host.read_system(path)
            if text is not None:
                return dkms.parse_symbols(text)
        except ReadError as error:
            problems.append(error.problem)
        except ParseError as error:
            problems.append(Problem(path, str(error)))
    return {}


def _dump(host: Host, path: str, problems: List[Problem]) -> Optional[Dict[str, str]]:
    argv = ("modprobe", "--dump-modversions", path)
    return attempt(lambda: dkms.parse_symbols(host.ask(argv)), " ".join(argv), problems)


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want, failed: Optional[Mapping[Tuple[str, ...], str]] = None) -> Plan:
    """failed: argv -> last words of the commands of an earlier plan that did not end well; they are not planned again.

    Order: files, headers, packages, modules of the kernels, NVIDIA's against them, what is loaded.
    """
    failed = failed or {}
    problems = Plan(tuple(unreadable("ofed.readable", problem) for problem in have.problems))
    if have.system is None or have.packages is None or have.builds is None:
        return problems
    installed = _installed(have, want, failed)
    # A metapackage alone that is missing takes no driver with it.
    there = any(_OF_KERNEL.fullmatch(name) for name in _packages_of(have).installed)
    decides = "ofed.conflict" if want.flavour == "inbox" else "" if there else "ofed.packages"
    cause = next((finding.id for finding in installed.findings if finding.check == decides and not finding.ok), None)
    modules = _modules(have, want, failed, cause)
    loaded = _loaded_plan(have, want, modules, bool(installed.commands or modules.commands))
    return _once(merge(problems, installed, modules, _nvidia(have, want, failed), loaded, _umad(have, want)))


def _installed(have: Have, want: Want, failed: Mapping[Tuple[str, ...], str]) -> Plan:
    """Repository, packages and hold."""
    repository = _repository(have, want) if want.manage else Plan()
    headers = _headers(have, want, failed)
    conflict, superfluous = _conflict(have, want)
    users, more, refused = _dependents(have, want)
    found, missing = _package(have, want, failed)
    names = [*([found.subject] if missing and found else []), *more]
    ready = want.manage and not refused and all(f.state in ("ok", "drift") for f in repository.findings)
    commands: List[Command] = []
    if ready and (names or (repository.changes and want.flavour != "inbox")):
        commands.append(packages.refresh(_system_of(have)))
    commands += headers.commands
    work = []
    if ready and superfluous:
        work.append(packages.remove(_system_of(have), superfluous, "remove what another OFED has left"))
    if ready and names:
        work.append(packages.install(_system_of(have), names, "install %s" % " ".join(names)))
    work = [command for command in work if command.argv not in failed]
    if work and have.systemd:
        work = [MASK, *work, UNMASK]
    elif want.manage and have.masked:
        work = [UNMASK]
    findings = [conflict, found, *users]
    held, hold = _hold(have, want, bool(names) and bool(work), found)
    findings += [held, _mask_left(have, want)]
    plan_of_packages = Plan(tuple(f for f in findings if f is not None), commands=tuple(work))
    return merge(repository, Plan(headers.findings, commands=tuple(commands)), plan_of_packages, Plan(commands=hold))


def _system_of(have: Have) -> System:
    if have.system is None:
        raise ValueError("a plan without knowing the system")
    return have.system


def _repository(have: Have, want: Want) -> Plan:
    system = _system_of(have)
    paths = packages.paths(system, _NAME)
    why = "packages come from one release of one repository, signed with the key that the site has given"
    wanted: Mapping[str, Optional[str]] = dict.fromkeys(paths)
    if want.flavour != "inbox":
        if not want.key or not want.version:
            missing = "mofed_repository_key" if not want.key else "mofed_version"
            fix = (
                "set %s in the inventory (docs/mofed.md), or mofed_manage: false where OFED is managed otherwise"
                % missing
            )
            found = _finding("repository", paths[1], "unknown", "the vendor's", "%s is not set" % missing, why, fix)
            return Plan((found,))
        pins = {want.package: "%s*" % want.version}
        wanted = packages.render(system, packages.Repository(_NAME, want.repository, want.key, pins))
    unread = [path for path in paths if path not in have.files]
    if unread:
        fix = "look at %s" % unread[0]
        return Plan((_finding("repository", paths[1], "unknown", "as rendered", "cannot be read", why, fix),))
    changes = tuple(
        FileChange(path, have.files[path], wanted[path]) for path in paths if have.files[path] != wanted[path]
    )
    if want.flavour == "inbox" and not changes:
        return Plan()
    text = "as rendered" if want.flavour != "inbox" else "absent (mofed_flavour: inbox)"
    said = ", ".join(change.described() for change in changes) or text
    return Plan((_finding("repository", paths[1], "drift" if changes else "ok", text, said, why, _RUN),), changes)


def _package(have: Have, want: Want, failed: Mapping[Tuple[str, ...], str]) -> Tuple[Optional[Finding], bool]:
    """The finding about the metapackage, and whether it has to be installed."""
    if want.flavour == "inbox":
        return None, False
    known = _packages_of(have)
    version = known.installed.get(want.package)
    good = version is not None and (
        not want.version or re.match(re.escape(want.version) + r"(?![0-9])", version) is not None
    )
    why = "the fleet runs one release of OFED; drivers and libraries of two do not fit"
    text, fix = version or "absent", _RUN if want.manage else "install it, or set mofed_flavour to what this host has"
    if not want.manage and version is None and have.release:
        # Somebody's own way of installing it: what it says of itself counts.
        good = not want.version or have.release.startswith(want.version)
        text = "no package, but ofed_info says %s" % have.release
    words = next((said for argv, said in failed.items() if "update" in argv or want.package in argv), None)
    if words is not None and not good:
        tool = "apt-get" if _system_of(have).kind == "apt" else "dnf"
        text = "%s; installing it failed: %s" % (text, words)
        fix = "run %s install %s by hand, read what it says, then run this again" % (tool, want.package)
    wanted = " ".join(filter(None, (want.package, want.version)))
    finding = _finding("packages", want.package, "ok" if good else "drift", wanted, text, why, fix, severity="critical")
    return finding, not good and want.manage and words is None


def _packages_of(have: Have) -> Packages:
    if have.packages is None:
        raise ValueError("a plan without knowing the packages")
    return have.packages


def _conflict(have: Have, want: Want) -> Tuple[Optional[Finding], List[str]]:
    """Of two flavours the libraries of one meet the kernel modules of the other."""
    patterns = [pattern for flavour, pattern in _METAS.items() if flavour != want.flavour]
    if want.flavour == "inbox":
        patterns.append(_OF_KERNEL)
    others = sorted(name for name in _packages_of(have).installed if any(p.fullmatch(name) for p in patterns))
    why = "packages of two OFEDs replace each other's files at every upgrade"
    fix = _RUN if want.manage else "remove them, or set mofed_flavour to what this host has"
    said = ", ".join(others[:4]) + (" and %d more" % (len(others) - 4) if len(others) > 4 else "")
    state = "drift" if others else "ok"
    finding = _finding("conflict", "packages", state, "none but %s" % want.flavour, said or "none", why, fix)
    return finding, others


def _hold(
    have: Have, want: Want, coming: bool, cause: Optional[Finding]
) -> Tuple[Optional[Finding], Tuple[Command, ...]]:
    if want.flavour == "inbox" or not want.manage:
        return None, ()
    known = _packages_of(have)
    names = [name for name in (want.package, "mlnx-ofed-kernel-dkms") if name in known.installed]
    loose = [name for name in names if name not in known.held]
    why = "an upgrade of everything would replace the driver below running jobs"
    finding = _finding(
        "hold",
        want.package,
        "ok" if names and not loose else "drift",
        "held",
        "held" if names and not loose else "%s not held" % ", ".join(loose) if names else "absent",
        why,
        _RUN,
        because=None if names or cause is None else cause.id,
    )
    targets = [want.package] if coming and want.package not in names else []
    targets += loose
    return finding, packages.hold(_system_of(have), targets) if targets and (names or coming) else ()


def _mask_left(have: Have, want: Want) -> Optional[Finding]:
    if not have.masked:
        return None
    why = "Busbar masks openibd while it installs packages; a run that was killed leaves the mask until the next boot"
    fix = _RUN if want.manage else "systemctl unmask --runtime %s" % OPENIBD
    return _finding("openibd", OPENIBD, "drift", "not masked", "masked", why, fix, aspect="live", severity="minor")


def _dependents(have: Have, want: Want) -> Tuple[List[Finding], List[str], bool]:
    """Findings, packages that have to come along, and whether OFED must not be touched before somebody has looked."""
    if want.flavour == "inbox":
        return [], [], False
    findings: List[Finding] = []
    more: List[str] = []
    refused = False
    known = _packages_of(have).installed
    why = "OFED replaces the RDMA modules that this uses; without its counterpart it does not come back after a boot"
    of_apt = _system_of(have).kind == "apt"
    for user in have.users:
        if user.kind == "lustre":
            good = "lustre" in want.third_party or (have.lustre_loaded and want.package in known)
            fix = "build Lustre's client for this OFED, then set mofed_third_party: [lustre]"
            text = "works with this OFED" if good else "not known whether ko2iblnd fits %s" % want.package
            findings.append(_finding("dependents", user.what, "ok" if good else "unknown", "ko2iblnd", text, why, fix))
            refused = refused or not good
            continue
        package = {"nfs": "mlnx-nfsrdma", "nvme": "mlnx-nvme"}[user.kind]
        package = package + "-dkms" if of_apt else "kmod-" + package
        good = package in known
        fix = _RUN if want.manage else "install %s" % package
        text = package if good else "%s is absent" % package
        findings.append(_finding("dependents", user.what, "ok" if good else "drift", package, text, why, fix))
        more += [] if good or not want.manage or package in more else [package]
    return findings, more, refused


# -- modules of the kernels ------------------------------------------------------------------------------------------


def _matters(have: Have, kernel: str) -> str:
    """Severity of what is wrong with one kernel: the one that runs and the one that boots next come first."""
    kernels = have.kernels
    return "critical" if kernel in (kernels.running, kernels.default) or kernels.default is None else "major"


def _headers(have: Have, want: Want, failed: Mapping[Tuple[str, ...], str]) -> Plan:
    if want.flavour == "inbox" and not have.builds:
        return Plan()
    findings, commands = [], []
    for kernel in have.kernels.installed:
        package = packages.headers(_system_of(have), kernel)
        command = packages.install(_system_of(have), [package], "without headers no module is built for %s" % kernel)
        there = kernel in have.kernels.headers
        mend = want.manage and command.argv not in failed and _matters(have, kernel) == "critical"
        fix = _RUN if mend else "install %s, or remove this kernel" % package
        if command.argv in failed:
            fix = "%s could not be installed (%s): add the repository that has it, or remove this kernel" % (
                package,
                failed[command.argv],
            )
        why = "DKMS builds drivers from source when a kernel is installed, and without headers it silently does not"
        text = "there" if there else "%s/%s/build is empty or absent" % (dkms.MODULES, kernel)
        findings.append(
            _finding("headers", kernel, "ok" if there else "drift", package, text, why, fix, _matters(have, kernel))
        )
        commands += [command] if not there and mend else []
    return Plan(tuple(findings), commands=tuple(commands))


def _modules(have: Have, want: Want, failed: Mapping[Tuple[str, ...], str], cause: Optional[str]) -> Plan:
    """What DKMS has built, and what modprobe would load, for every kernel."""
    plans = []
    for kernel in have.kernels.installed:
        built = _built(have, want, kernel, failed)
        first = next((finding.id for finding in built.findings if not finding.ok), cause)
        plans.append(merge(built, _module(have, want, kernel, first)))
    return merge(*plans)


def _built(have: Have, want: Want, kernel: str, failed: Mapping[Tuple[str, ...], str]) -> Plan:
    """One finding for a kernel: what is not built for it is not built for one reason."""
    wrong: List[str] = []
    commands: List[Command] = []
    words: List[str] = []
    # OFED before NVIDIA: its symbols have to be there when nvidia-peermem is built.
    newest = sorted(_newest(have, want).items(), key=lambda item: (item[0] == "nvidia", item[0] != _KERNEL_MODULE))
    for name, version in newest:
        same = [b for b in have.builds or () if (b.name, b.version, b.kernel) == (name, version, kernel)]
        state = same[0].state if same else "not built"
        if state == "installed":
            continue
        command = _dkms("install", name, version, kernel)
        said = failed.get(command.argv)
        wrong.append("%s/%s is %s%s" % (name, version, state, "" if said is None else " (%s)" % said))
        words += [] if said is None else ["/var/lib/dkms/%s/%s/build/make.log" % (name, version)]
        commands += [command] if said is None else []
    if not newest:
        return Plan()
    headers = None if kernel in have.kernels.headers else "ofed.headers[persisted]@%s" % kernel
    fix = _RUN if want.manage else " && ".join(map(str, commands))
    if words:
        fix = "read %s; this release may not support kernel %s" % (words[0], kernel)
    finding = _finding(
        *("dkms", kernel, "drift" if wrong else "ok"),
        ", ".join("%s/%s" % item for item in newest),
        "; ".join(wrong) or "installed",
        "a kernel without them boots with the inbox drivers or with none, and says nothing",
        fix or _RUN,
        severity=_matters(have, kernel),
        source="dkms status",
        because=headers,
    )
    # Where the headers are on their way the packages' scripts or the next look at the node see to it.
    return Plan((finding,), commands=tuple(commands) if headers is None and want.manage else ())


def _newest(have: Have, want: Want) -> Dict[str, str]:
    """Of the modules that belong to OFED and to the NVIDIA driver: name -> version."""
    found: Dict[str, str] = {}
    for build in have.builds or ():
        ours = build.name == "nvidia" or (want.flavour != "inbox" and _OF_OFED.fullmatch(build.name) is not None)
        if ours and natural_key(build.version) > natural_key(found.get(build.name, "")):
            found[build.name] = build.version
    return found


def _dkms(action: str, name: str, version: str, kernel: str, force: bool = False) -> Command:
    argv = ("dkms", action, *(["--force"] if force else []), "-m", name, "-v", version, "-k", kernel)
    return Command(argv, "kernel %s has to have %s" % (kernel, name), timeout=_BUILD_TIMEOUT)


def _module(have: Have, want: Want, kernel: str, cause: Optional[str]) -> Plan:
    found = have.modules.get(kernel)
    of_ofed = want.flavour != "inbox"
    good = found is not None and found.inbox != of_ofed
    why = "modprobe takes the first mlx5_core that depmod has found, whatever packages are installed"
    text = found.path if found else "there is no mlx5_core"
    wanted = "OFED's mlx5_core" if of_ofed else "the kernel's own mlx5_core"
    depmod = Command(("depmod", kernel), "find the modules that are installed for %s" % kernel)
    built = any((b.name, b.kernel, b.state) == (_KERNEL_MODULE, kernel, "installed") for b in have.builds or ())
    mend = not good and of_ofed and built and want.manage
    fix = _RUN if mend else "look at modinfo -k %s -n mlx5_core and at dkms status" % kernel
    finding = _finding(
        *("module", kernel, "ok" if good else "drift", wanted, text, why, fix, _matters(have, kernel)),
        because=None if good else cause,
        source="modinfo -k %s mlx5_core" % kernel,
    )
    return Plan((finding,), commands=(depmod,) if mend else ())


def _nvidia(have: Have, want: Want, failed: Mapping[Tuple[str, ...], str]) -> Plan:
    findings: List[Finding] = []
    commands: List[Command] = []
    why = "nvidia-peermem refuses to load with an ib_core other than the one that it was built for"
    for kernel in sorted(have.peer):
        good = have.built[kernel] == have.peer[kernel]
        text = (
            "built for this ib_core"
            if good
            else "built without peer memory"
            if not have.built[kernel]
            else "built for another ib_core"
        )
        version = next((b.version for b in have.builds or () if b.name == "nvidia" and b.kernel == kernel), None)
        work = (
            [_dkms(action, "nvidia", version, kernel, force=True) for action in ("build", "install")] if version else []
        )
        words = next((failed[command.argv] for command in work if command.argv in failed), None)
        mend = bool(work) and words is None and want.manage
        fix = _RUN if mend else "rebuild it with OFED's headers: %s" % " && ".join(map(str, work))
        if not work:
            fix = "replace NVIDIA's precompiled package by the DKMS one, or set busbar_gpudirect: dmabuf"
        if words is not None:
            text, fix = "%s; %s" % (text, words), "read /var/lib/dkms/nvidia/%s/build/make.log" % version
        state = "ok" if good else "drift"
        findings.append(
            _finding("nvidia", kernel, state, "built for this OFED", text, why, fix, _matters(have, kernel))
        )
        commands += work if mend and not good else []
    return Plan(tuple(findings), commands=tuple(commands))


# -- what is loaded --------------------------------------------------------------------------------------------------


def _loaded_plan(have: Have, want: Want, modules: Plan, mending: bool) -> Plan:
    """mending: what is installed for the running kernel is about to be another."""
    running = have.kernels.running
    found = have.modules.get(running) if running else None
    if found is None or running is None:
        return Plan()
    wrong = next((f for f in modules.findings if f.check == "ofed.module" and f.subject == running and not f.ok), None)
    same = have.loaded is not None and have.loaded == found.srcversion
    good = same and wrong is None
    what = "OFED's mlx5_core" if want.flavour != "inbox" else "the kernel's own mlx5_core"
    text = "mlx5_core is not loaded" if have.loaded is None else "another mlx5_core than %s" % found.path
    finding = _finding(
        "loaded",
        _MLX5,
        "ok" if good else "drift",
        what,
        found.path if same else text,
        "what is installed works after a reboot, or after openibd was restarted where nothing uses it",
        advice.allow(_RUN, "reboot") + "; if it is the same then, the initramfs holds the old one:"
        " update-initramfs -u -k %s or dracut -f --kver %s" % (running, running),
        severity="critical",
        aspect="live",
        source="/sys/module/%s/srcversion" % _MLX5,
        disruption="none" if good else "driver",
        because=None if wrong is None else wrong.because or wrong.id,
    )
    # Booting again with the wrong one installed loads the wrong one.
    waits = not good and (wrong is None or mending)
    restart = waits and wrong is None and have.openibd and have.systemd and want.manage
    return Plan(
        (finding,),
        commands=(RESTART,) if restart else (),
        reboot=("%s is installed and not loaded" % what,) if waits else (),
    )


def _umad(have: Have, want: Want) -> Plan:
    text = have.files.get(UMAD_LIST)
    why = "without ib_umad the fabric manager of this platform does not start, and no GPU talks to another"
    if not want.umad:
        change = FileChange(UMAD_LIST, text, None)
        if text is None:
            return Plan()
        finding = _finding("ib_umad", UMAD_LIST, "drift", "absent", "superfluous", why, _RUN, "minor")
        return Plan((finding,), (change,))
    findings = [
        _finding(
            *("ib_umad", "ib_umad", "ok" if have.umad else "drift", "loaded", "loaded" if have.umad else "not loaded"),
            *(why, _RUN if want.manage else "modprobe ib_umad", "critical"),
            aspect="live",
            source="/sys/module/ib_umad",
        )
    ]
    commands = () if have.umad or not want.manage else (Command(("modprobe", "ib_umad"), why),)
    if not want.manage:
        return Plan(tuple(findings))
    good = text == UMAD_TEXT
    findings.append(
        _finding(
            "ib_umad",
            UMAD_LIST,
            "ok" if good else "drift",
            "loaded at boot",
            "as rendered" if good else "absent or edited",
            why,
            _RUN,
        )
    )
    return Plan(tuple(findings), () if good else (FileChange(UMAD_LIST, text, UMAD_TEXT),), commands)


def unload_first(plan: Plan, modules: Sequence[str]) -> Plan:
    """The plan with idle modules out of the way of the driver's restart; what wants them loads them again."""
    commands: List[Command] = []
    for command in plan.commands:
        if command == RESTART:
            why = "openibd cannot stop while it is loaded"
            commands += [Command(("modprobe", "-r", name), why, "driver") for name in modules]
        commands.append(command)
    return replace(plan, commands=tuple(commands))


# -- findings --------------------------------------------------------------------------------------------------------


def _finding(
    check: str,
    subject: str,
    state: str,
    want: str,
    have: str,
    why: str,
    fix: str,
    severity: str = "major",
    aspect: str = "persisted",
    source: str = "",
    disruption: str = "none",
    because: Optional[str] = None,
) -> Finding:
    sources = {"packages": "the package manager", "conflict": "the package manager", "hold": "the package manager"}
    return Finding(
        check="ofed.%s" % check,
        subject=subject,
        state=state,
        severity=severity,
        want=want,
        have=printable(have)[:300],
        source=source or sources.get(check, subject),
        why=why,
        fix="" if state == "ok" else fix,
        aspect=aspect,
        disruption=disruption,
        because=None if state == "ok" else because,
    )


def _once(whole: Plan) -> Plan:
    """A command that two findings ask for runs once, at its first place."""
    return Plan(whole.findings, whole.changes, tuple(dict.fromkeys(whole.commands)), tuple(dict.fromkeys(whole.reboot)))
