# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge OFED, the vendor's RDMA drivers: one release for every kernel that could boot, and loaded ones.

Nothing here unloads a driver unless the plan's disruption allows it. Installing does not: packages whose scripts would
restart openibd find it masked, in /run, where no mask outlives a reboot.
Sources: NVIDIA DOCA-OFED documentation; dkms(8), depmod.d(5), systemd.unit(5).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core.plan import Command, FileChange, Plan, merge
from .checks import CONFLICT, IB_UMAD, OF_KERNEL, PACKAGES, READABLE, RESTART, RUN, UMAD_TEXT, OfedCase, OfedWanted
from .kernel_plan import judge_forbidden, judge_loaded, plan_kernel, plan_nvidia
from .package_plan import plan_packages
from .packages import System
from .read import UMAD_LIST, OfedState

# Of a finding's `have`: it may quote what tools have printed.
_LONGEST = 300


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
    case = OfedCase(have, want, failed or {}, have.system, have.packages, have.builds)
    installed = plan_packages(case)
    # A metapackage alone that is missing takes no driver with it.
    there = any(OF_KERNEL.fullmatch(name) for name in case.packages.installed)
    decides = [CONFLICT.id] if want.flavour == "inbox" else [] if there else [PACKAGES.id]
    cause = next((finding.id for finding in installed.findings if finding.check in decides and not finding.ok), None)
    modules = merge(judge_forbidden(have), *(plan_kernel(case, kernel, cause) for kernel in have.kernels.installed))
    loaded = judge_loaded(case, modules, bool(installed.commands or modules.commands))
    return merge(problems, _tidy(merge(installed, modules, plan_nvidia(case), loaded, _umad(case))))


def _tidy(whole: Plan) -> Plan:
    """Run a command of two findings once, at its first place, and shorten quotes of tools."""
    findings = tuple(replace(f, have=f.have and f.have[:_LONGEST]) for f in whole.findings)
    commands, reboot = dict.fromkeys(whole.commands), dict.fromkeys(whole.reboot)
    return Plan(findings, whole.changes, tuple(commands), tuple(reboot), whole.notes)


def _umad(case: OfedCase) -> Plan:
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
        fix=RUN if case.want.manage else "modprobe ib_umad",
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
    return plan._replace(commands=tuple(commands))
