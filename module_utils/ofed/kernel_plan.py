# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the modules of each kernel that could boot: built, chosen by modprobe, and loaded.

Sources: dkms(8), depmod.d(5).
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from ..core.finding import Finding
from ..core.plan import Command, Plan, merge
from ..driver import kernels
from ..machine.pci import natural_key
from . import packages
from .checks import DKMS, HEADERS, LOADED, MODULE, NVIDIA, RESTART, RUN, OfedCase
from .dkms import DRIVER, TREE
from .read import MLX5, STACK, OfedState

# In DKMS: of Debian's packages and of EL's.
_KERNEL_MODULES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")
_BUILD_TIMEOUT = 3600.0
_OF_OFED = re.compile(r"mlnx-.*|isert?|srp|knem|xpmem|kernel-mft(-dkms)?")


def plan_headers(case: OfedCase) -> Plan:
    known = case.have.kernels
    findings: List[Finding] = []
    commands: List[Command] = []
    wanted = case.want.flavour != "inbox" or case.builds
    for kernel in known.installed if wanted else ():
        package = packages.headers(case.system, kernel)
        why = "without headers no module is built for %s" % kernel
        attempt = case.attempt([packages.command(case.system, "install", [package], why)])
        there, severity = kernel in known.headers, case.severity(kernel)
        text = "there" if there else "%s/%s/build is empty or absent%s" % (kernels.MODULES, kernel, attempt.error)
        mend = severity == "critical"
        fix = attempt.fix if mend else "install %s, or remove this kernel" % package
        findings.append(HEADERS.judge(kernel, "ok" if there else "drift", package, text, fix=fix, severity=severity))
        commands += attempt.commands if mend and not there else []
    return Plan(tuple(findings), commands=tuple(commands))


def plan_kernel(case: OfedCase, kernel: str, cause: Optional[str]) -> Plan:
    """Judge what DKMS has built for a kernel, and what modprobe would load there.

    cause: id of the finding that causes a wrong module if all is built.
    """
    built = _built(case, kernel)
    first = next((finding.id for finding in built.findings if not finding.ok), cause)
    return merge(built, _module(case, kernel, first))


def _built(case: OfedCase, kernel: str) -> Plan:
    """One finding for a kernel: what is not built for it is not built for one reason."""
    states = {(b.name, b.version): b.state for b in case.builds if b.kernel == kernel}
    # OFED before NVIDIA: its symbols have to be there when nvidia-peermem is built.
    newest = sorted(
        _newest(case).items(), key=lambda item: (bool(DRIVER.fullmatch(item[0])), item[0] not in _KERNEL_MODULES)
    )
    if not newest:
        return Plan()
    wrong: List[str] = []
    commands: List[Command] = []
    fix = RUN if case.want.manage else ""
    for name, version in newest:
        state = states.get((name, version), "not built")
        if state != "installed":
            attempt = case.attempt([_dkms("install", name, version, kernel)])
            wrong.append("%s/%s is %s%s" % (name, version, state, attempt.error))
            commands += attempt.commands
            if attempt.error:
                log = "%s/%s/%s/build/make.log" % (TREE, name, version)
                fix = "read %s; this release may not support kernel %s" % (log, kernel)
            elif not case.want.manage:
                fix = fix or attempt.fix
    there = kernel in case.have.kernels.headers
    finding = DKMS.judge(
        kernel,
        "drift" if wrong else "ok",
        want=", ".join("%s/%s" % item for item in newest),
        have="; ".join(wrong) or "installed",
        source="dkms status",
        fix=fix,
        because=None if there else HEADERS.finding_id(kernel),
        severity=case.severity(kernel),
    )
    # Where the headers are on their way the packages' scripts or the next look at the node see to it.
    return Plan((finding,), commands=tuple(commands) if there else ())


def _newest(case: OfedCase) -> Dict[str, str]:
    """Return name -> version of the modules of OFED and of the NVIDIA driver, which has one name at a time."""
    found: Dict[str, str] = {}
    for build in case.builds:
        ours = DRIVER.fullmatch(build.name) or (case.want.flavour != "inbox" and _OF_OFED.fullmatch(build.name))
        if ours and natural_key(build.version) > natural_key(found.get(build.name, "")):
            found[build.name] = build.version
    drivers = sorted(filter(DRIVER.fullmatch, found), key=lambda name: natural_key(found[name]))
    return {name: version for name, version in found.items() if name not in drivers[:-1]}


def _dkms(action: str, name: str, version: str, kernel: str, force: bool = False) -> Command:
    argv = ("dkms", action, *(["--force"] if force else []), "-m", name, "-v", version, "-k", kernel)
    return Command(argv, "kernel %s has to have %s" % (kernel, name), timeout=_BUILD_TIMEOUT)


def _module(case: OfedCase, kernel: str, cause: Optional[str]) -> Plan:
    stack = case.have.modules.get(kernel, {})
    of_ofed = case.want.flavour != "inbox"
    foreign = [module.path for module in stack.values() if module.inbox == of_ofed]
    good = MLX5 in stack and not foreign
    built = [b for b in case.builds if b.name in _KERNEL_MODULES and (b.kernel, b.state) == (kernel, "installed")]
    mend = not good and of_ofed and bool(built) and case.want.manage
    names = " ".join(STACK)
    finding = MODULE.judge(
        kernel,
        "ok" if good else "drift",
        want="%s %s" % ("OFED's" if of_ofed else "the kernel's own", ", ".join(STACK)),
        have=", ".join(foreign) or stack[MLX5].path if MLX5 in stack else "there is no mlx5_core",
        source="modinfo -k %s %s" % (kernel, names),
        fix=RUN if mend else "look at modinfo -k %s -n %s and at dkms status" % (kernel, names),
        because=cause,
        severity=case.severity(kernel),
    )
    # Where some come from OFED depmod has run, and files of others are gone.
    lost = built if mend and len(foreign) < len(stack) else []
    commands = [_dkms("install", b.name, b.version, kernel, force=True) for b in lost]
    commands = [command for command in commands if command.argv not in case.failed]
    depmod = Command(("depmod", kernel), "find the modules that are installed for %s" % kernel)
    return Plan((finding,), commands=(*commands, depmod) if mend else ())


def judge_forbidden(have: OfedState) -> Plan:
    """Judge lines of others after which a module of the stack is not loaded at the next boot."""
    named = [("%s: %s" % one, *one) for one in have.forbidden]
    return Plan(
        tuple(MODULE.judge(at, "not_owned", "no such line", line, path, "remove it") for at, path, line in named)
    )


def plan_nvidia(case: OfedCase) -> Plan:
    findings: List[Finding] = []
    commands: List[Command] = []
    for kernel, checksum in sorted(case.have.peer.items()):
        built = case.have.built[kernel]
        of_driver = [b for b in case.builds if DRIVER.fullmatch(b.name) and b.kernel == kernel][:1]
        work = [_dkms(do, b.name, b.version, kernel, force=True) for b in of_driver for do in ("build", "install")]
        attempt = case.attempt(work)
        text = "built for another ib_core" if built else "built without peer memory"
        fix = attempt.fix
        if not work:
            fix = "replace NVIDIA's precompiled package by the DKMS one, or set busbar_gpudirect: dmabuf"
        if built == checksum:
            findings.append(NVIDIA.judge(kernel, "ok", have="built for this ib_core", severity=case.severity(kernel)))
            continue
        have = text + attempt.error
        findings.append(
            NVIDIA.judge(kernel, "drift", "built for this OFED", have, fix=fix, severity=case.severity(kernel))
        )
        commands += attempt.commands
    return Plan(tuple(findings), commands=tuple(commands))


def judge_loaded(case: OfedCase, modules: Plan, mending: bool) -> Plan:
    """mending: what is installed for the running kernel is about to be another."""
    have, want = case.have, case.want
    running = have.kernels.running or ""
    stack = have.modules.get(running, {})
    if MLX5 not in stack:
        return Plan()
    wrong = next((f for f in modules.findings if f.check == MODULE.id and f.subject == running and not f.ok), None)
    others = [name for name, module in stack.items() if have.loaded.get(name, module.srcversion) != module.srcversion]
    same = MLX5 in have.loaded and not others
    good = same and wrong is None
    what = "%s mlx5_core" % ("OFED's" if want.flavour != "inbox" else "the kernel's own")
    text = "another %s than the installed one" % ", ".join(others) if others else "mlx5_core is not loaded"
    finding = LOADED.judge(
        MLX5,
        "ok" if good else "drift",
        want=what,
        have=stack[MLX5].path if same else text,
        source="/sys/module/{%s}/srcversion" % ",".join(stack),
        fix=LOADED.fix + "; if it is the same then, the initramfs holds the old one:"
        " update-initramfs -u -k %s or dracut -f --kver %s" % (running, running),
        because=None if wrong is None else wrong.because or wrong.id,
        disruption="none" if good else None,
    )
    # Booting again with the wrong one installed loads the wrong one.
    waits = not good and (wrong is None or mending)
    restart = waits and wrong is None and have.openibd and have.systemd and want.manage
    reboot = ("%s is installed and not loaded" % what,) if waits else ()
    return Plan((finding,), commands=(RESTART,) if restart else (), reboot=reboot)
