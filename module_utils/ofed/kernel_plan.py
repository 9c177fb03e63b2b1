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
from .read import MLX5, STACK, OfedState

# In DKMS: of Debian's packages and of EL's.
_KERNEL_MODULES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel")
_BUILD_TIMEOUT = 3600.0
_OF_OFED = re.compile(r"mlnx-.*|isert?|srp|knem|xpmem|kernel-mft(-dkms)?")


def _matters(case: OfedCase, kernel: str) -> str:
    """Severity of what is wrong with one kernel: the one that runs and the one that boots next come first."""
    known = case.have.kernels
    return "critical" if kernel in (known.running, known.default) or known.default is None else "major"


def plan_headers(case: OfedCase) -> Plan:
    want, known = case.want, case.have.kernels
    if want.flavour == "inbox" and not case.builds:
        return Plan()
    findings, commands = [], []
    for kernel in known.installed:
        package = packages.headers(case.system, kernel)
        command = packages.install(case.system, [package], "without headers no module is built for %s" % kernel)
        there, said = kernel in known.headers, case.failed.get(command.argv)
        mend = want.manage and said is None and _matters(case, kernel) == "critical"
        fix = RUN if mend else "install %s, or remove this kernel" % package
        if said is not None:
            fix = "%s could not be installed (%s): add the repository that has it, or remove this kernel"
            fix = fix % (package, said)
        text = "there" if there else "%s/%s/build is empty or absent" % (kernels.MODULES, kernel)
        state, severity = "ok" if there else "drift", _matters(case, kernel)
        findings.append(HEADERS.judge(kernel, state, package, text, fix=fix, severity=severity))
        commands += [command] if not there and mend else []
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
    fix = RUN if case.want.manage else " && ".join(map(str, commands))
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


def _newest(case: OfedCase) -> Dict[str, str]:
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


def _module(case: OfedCase, kernel: str, cause: Optional[str]) -> Plan:
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
        fix=RUN if mend else "look at modinfo -k %s -n %s and at dkms status" % (kernel, " ".join(STACK)),
        because=cause,
        severity=_matters(case, kernel),
    )
    # Where some come from OFED depmod has run, and files of others are gone.
    lost = built if len(foreign) < len(stack) else []
    again = [_dkms("install", b.name, b.version, kernel, force=True) for b in lost]
    depmod = Command(("depmod", kernel), "find the modules that are installed for %s" % kernel)
    return Plan((finding,), commands=(*[one for one in again if one.argv not in case.failed], depmod) if mend else ())


def judge_forbidden(have: OfedState) -> Plan:
    """Judge lines of others after which a module of the stack is not loaded at the next boot."""
    named = [("%s: %s" % one, *one) for one in have.forbidden]
    return Plan(
        tuple(MODULE.judge(at, "not_owned", "no such line", line, path, "remove it") for at, path, line in named)
    )


def plan_nvidia(case: OfedCase) -> Plan:
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
        fix = RUN if mend else "rebuild it with OFED's headers: %s" % " && ".join(map(str, work))
        if not work:
            fix = "replace NVIDIA's precompiled package by the DKMS one, or set busbar_gpudirect: dmabuf"
        if words is not None:
            text, fix = "%s; %s" % (text, words), "read /var/lib/dkms/nvidia/%s/build/make.log" % version
        state, severity = "ok" if good else "drift", _matters(case, kernel)
        findings.append(NVIDIA.judge(kernel, state, "built for this OFED", text, fix=fix, severity=severity))
        commands += work if mend and not good else []
    return Plan(tuple(findings), commands=tuple(commands))


def judge_loaded(case: OfedCase, modules: Plan, mending: bool) -> Plan:
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
