# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the repository, packages and holds of OFED. Packages whose scripts would restart openibd find it masked."""

from __future__ import annotations

import re
from typing import Iterable, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core.finding import Finding
from ..core.plan import FileChange, Plan, merge
from ..machine.pci import natural_key
from . import packages
from .checks import (
    CONFLICT,
    DEPENDENTS,
    HOLD,
    MASK,
    OF_KERNEL,
    OPENIBD_MASK,
    PACKAGES,
    REPOSITORY_FILES,
    RUN,
    UNMASK,
    OfedCase,
)
from .kernel_plan import plan_headers
from .read import MLX5, OPENIBD, OfedState

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
# Packages of the driver.
_DRIVER = re.compile(r"mlnx-ofed-kernel-dkms|mlnx-ofa_kernel(-dkms)?|kmod-mlnx-ofa_kernel")
_MANAGER = "the package manager"


def plan_packages(case: OfedCase) -> Plan:
    have, want = case.have, case.want
    repository = _repository(case) if want.manage else Plan()
    headers = plan_headers(case)
    conflict, superfluous = _conflict(case)
    users, more, refused = _dependents(case)
    package, missing = _package(case)
    names = [*([_spec(case)] if missing else []), *more]
    ready = want.manage and not refused and all(f.state in ("ok", "drift") for f in repository.findings)
    lists = ready and (names or (want.flavour != "inbox" and not all(f.ok for f in repository.findings)))
    first = [packages.refresh(case.system)] if lists else []
    work = []
    if ready and superfluous:
        work.append(packages.command(case.system, "remove", superfluous, "remove what another OFED has left"))
    if ready and names:
        work += packages.release(case.system, [want.package, *_drivers(case.packages.locked)], case.packages)
        work.append(packages.command(case.system, "install", names, "install %s" % " ".join(names)))
    work = [command for command in work if command.argv not in case.failed]
    if work and have.systemd:
        work = [MASK, *work, UNMASK]
    elif want.manage and have.masked:
        work = [UNMASK]
    masked = OPENIBD_MASK.judge(OPENIBD, "drift", "not masked", "masked", fix=case.attempt([UNMASK]).fix)
    return merge(
        repository,
        Plan(headers.findings, commands=(*first, *headers.commands)),
        Plan((conflict, *package, *users), commands=tuple(work)),
        _hold(case, bool(missing and work), package),
        Plan((masked,) if have.masked else ()),
    )


def _repository(case: OfedCase) -> Plan:
    have, want = case.have, case.want
    paths = packages.FILES[case.system.kind]
    wanted: Mapping[str, Optional[str]] = dict.fromkeys(paths)
    if want.flavour != "inbox":
        if not want.key or not want.version:
            missing = "mofed_repository_key" if not want.key else "mofed_version"
            said = "%s is not set" % missing
            fix = "set %s in the inventory (docs/drivers.md), or mofed_manage: false where OFED is managed otherwise"
            return Plan((REPOSITORY_FILES.judge(paths[1], "unknown", "the vendor's", said, fix=fix % missing),))
        texts = packages.render(case.system, want.repository, want.key, want.package, want.version)
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


def _package(case: OfedCase) -> Tuple[Tuple[Finding, ...], bool]:
    """Judge the metapackage, unless the drivers are inbox. Return findings, and whether it has to be installed."""
    have, want = case.have, case.want
    if want.flavour == "inbox":
        return (), False
    version = case.packages.installed.get(want.package)
    pattern = re.escape(want.version) + r"(?![0-9])"
    good = version is not None and (not want.version or re.match(pattern, version) is not None)
    text = version or "absent"
    fix = RUN if want.manage else "install it, or set mofed_flavour to what this host has"
    if not want.manage and version is None:
        # Another way of installing it: its packages, or its reported release, count.
        release = _ubuntu_release(case) or have.release
        good = bool(release) and (not want.version or re.match(pattern, release or "") is not None)
        text = "%s by other packages, or by ofed_info" % release if release else text
        if not release and _loaded_from_elsewhere(have):
            text = "no package, and the loaded mlx5_core is not one of this host's files"
            fix = "find the container that loads it (crictl ps), and use the wanted release in its image; or install %s"
            return (PACKAGES.judge(want.package, "unknown", want.package, text, _MANAGER, fix % want.package),), False
    refresh = packages.refresh(case.system).argv
    error = next((said for argv, said in case.failed.items() if argv == refresh or _spec(case) in argv), None)
    if error is not None and not good:
        install = packages.command(case.system, "install", [_spec(case)], "")
        text = "%s; installing it failed: %s" % (text, error)
        fix = "run %s by hand, read its output, then run this again" % install
    wanted = " ".join(filter(None, (want.package, want.version)))
    finding = PACKAGES.judge(want.package, "ok" if good else "drift", wanted, text, _MANAGER, fix)
    return (finding,), not good and want.manage and error is None


def _loaded_from_elsewhere(have: OfedState) -> bool:
    """Return whether a driver is loaded that no file of this host is, as driver containers do."""
    file = have.modules.get(have.kernels.running or "", {}).get(MLX5)
    return file is not None and file.inbox and have.loaded.get(MLX5, file.srcversion) != file.srcversion


def _ubuntu_release(case: OfedCase) -> str:
    """Return the release of Ubuntu's DOCA-OFED, a part of its packages' names; "" if they are not installed."""
    found = (_UBUNTU_RELEASE.fullmatch(name) for name in sorted(case.packages.installed))
    return next((match.group(1) for match in found if match), "")


def _spec(case: OfedCase) -> str:
    return packages.full_name(case.system, case.want.package, case.want.version)


def _drivers(names: Iterable[str]) -> List[str]:
    return sorted(name for name in names if _DRIVER.fullmatch(name))


def _conflict(case: OfedCase) -> Tuple[Finding, List[str]]:
    """Judge mixed flavours: libraries of one meet kernel modules of the other. Return the packages to remove, too."""
    want = case.want
    # OFED that Busbar does not manage may come from Ubuntu, unless NVIDIA's packages are there, too.
    same = {want.flavour} if want.manage or want.package in case.packages.installed else {want.flavour, "ubuntu"}
    patterns = [pattern for flavour, pattern in _METAS.items() if flavour not in same or want.flavour == "inbox"]
    if want.flavour == "inbox":
        patterns.append(OF_KERNEL)
    others = sorted(name for name in case.packages.installed if any(p.fullmatch(name) for p in patterns))
    fix = RUN if want.manage else "remove them, or set mofed_flavour to what this host has"
    said = ", ".join(others[:4]) + (" and %d more" % (len(others) - 4) if len(others) > 4 else "")
    state = "drift" if others else "ok"
    return CONFLICT.judge("packages", state, "none but %s" % want.flavour, said or "none", _MANAGER, fix), others


def _hold(case: OfedCase, coming: bool, package: Sequence[Finding]) -> Plan:
    """Judge holds. coming: packages are about to be installed.   package: findings on the metapackage."""
    want = case.want
    if want.flavour == "inbox" or not want.manage:
        return Plan()
    names = [name for name in (want.package, *_drivers(case.packages.installed)) if name in case.packages.installed]
    loose = [name for name in names if name not in case.packages.held]
    good = bool(names) and not loose
    targets = [*([want.package] if coming and want.package not in names else []), *loose]
    attempt = case.attempt(packages.hold(case.system, targets, case.packages) if targets else ())
    text = "held" if good else "%s not held%s" % (", ".join(loose), attempt.error) if names else "absent"
    because = None if names else package[0].id
    state = "ok" if good else "drift"
    finding = HOLD.judge(want.package, state, "held", text, _MANAGER, attempt.fix, because=because)
    return Plan((finding,), commands=attempt.commands)


def _dependents(case: OfedCase) -> Tuple[List[Finding], List[str], bool]:
    """Return findings, packages to install along, and whether OFED must not be changed before a review."""
    want = case.want
    findings: List[Finding] = []
    more: List[str] = []
    refused = False
    for user in case.have.users if want.flavour != "inbox" else ():
        if user.kind == "lustre":
            wanted = "ko2iblnd"
            good = "lustre" in want.third_party or (case.have.lustre_loaded and want.package in case.packages.installed)
            state, text = "unknown", "not known whether ko2iblnd fits %s" % want.package
            fix = "build Lustre's client for this OFED, then set mofed_third_party: [lustre]"
            refused = refused or not good
        else:
            package = {"nfs": "mlnx-nfsrdma", "nvme": "mlnx-nvme"}[user.kind]
            wanted = "kmod-" + package if _has_kmods(case) else package + "-dkms"
            good = wanted in case.packages.installed
            state, text, fix = "drift", "%s is absent" % wanted, RUN if want.manage else "install %s" % wanted
            more += [] if good or not want.manage or wanted in more else [wanted]
        state, text = ("ok", "there") if good else (state, text)
        findings.append(DEPENDENTS.judge(user.what, state, wanted, text, fix=fix))
    return findings, more, refused


def _has_kmods(case: OfedCase) -> bool:
    """Return whether OFED's modules come built from the vendor: on EL, before DOCA 3.2."""
    if case.system.kind == "apt":
        return False
    drivers = [name for name in case.packages.installed if name.startswith(("kmod-mlnx-ofa", "mlnx-ofa_kernel-dkms"))]
    if drivers:
        return "mlnx-ofa_kernel-dkms" not in drivers
    return case.want.flavour == "mlnx-ofed" or natural_key(case.want.version) < natural_key("3.2")
