# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import Busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import mounts
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.driver.kernels import Kernels
from ansible_collections.busbar.fabric.plugins.module_utils.driver.module_file import ModuleFile
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import module, packages
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import plan as ofed
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import read as ofed_state
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.checks import UMAD_TEXT, OfedWanted
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.dkms import Build
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.packages import Packages, System
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.read import OfedState, User

from tests import golden_rows, goldens, readings
from tests.trees import put

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ\n-----END PGP PUBLIC KEY BLOCK-----\n"
APT, DNF = System("apt", "ubuntu24.04"), System("dnf", "rhel9")
RUNNING, NEXT = "6.8.0-60-generic", "6.8.0-71-generic"
URL = "https://mirror/doca/3.2.1/ubuntu24.04/x86_64/"
WANT = OfedWanted("doca-ofed", "3.2.1", "doca-ofed", True, URL, KEY, False)
HELD = ("doca-ofed", "mlnx-ofed-kernel-dkms")
VERSION = "25.10.OFED.25.10.1.7.1.1"


Stack = dict[str, ModuleFile]


def _own(kernel: str) -> Stack:
    return {name: ModuleFile(f"/lib/modules/{kernel}/updates/dkms/{name}.ko", "AAAA") for name in ofed_state.STACK}


def _inbox(kernel: str) -> Stack:
    names = ofed_state.STACK
    return {name: ModuleFile(f"/lib/modules/{kernel}/kernel/drivers/net/{name}.ko.zst", "BBBB") for name in names}


def _loaded(srcversion: str) -> dict[str, str]:
    return dict.fromkeys(ofed_state.STACK, srcversion)


def healthy(**changes: Any) -> OfedState:
    files: dict[str, str | None] = dict.fromkeys([*packages.FILES["apt"], ofed_state.UMAD_LIST])
    texts = packages.render(APT, URL, KEY, "doca-ofed", "3.2.1")
    files.update((path, written.seal(path, text)) for path, text in texts.items())
    have = OfedState(
        system=APT,
        packages=Packages({"doca-ofed": "3.2.1-044000", "mlnx-ofed-kernel-dkms": "25.10-1"}, HELD),
        release="25.10-1.7.1",
        kernels=Kernels(RUNNING, (RUNNING, NEXT), NEXT, (RUNNING, NEXT)),
        builds=tuple(
            Build(name, version, kernel, "installed")
            for kernel in (RUNNING, NEXT)
            for name, version in (("mlnx-ofed-kernel", VERSION), ("nvidia", "580.82.07"))
        ),
        modules={kernel: _own(kernel) for kernel in (RUNNING, NEXT)},
        loaded=_loaded("AAAA"),
        files=files,
        systemd=True,
        openibd=True,
    )
    return replace(have, **changes)


def fresh(**changes: Any) -> OfedState:
    bare = healthy(
        packages=Packages({}, ()),
        release="",
        builds=(),
        modules={kernel: _inbox(kernel) for kernel in (RUNNING, NEXT)},
        loaded=_loaded("BBBB"),
        files=dict.fromkeys([*packages.FILES["apt"], ofed_state.UMAD_LIST]),
        openibd=False,
    )
    return replace(bare, **changes)


BUILDS = healthy().builds or ()
UNBUILT = tuple(build for build in BUILDS if (build.name, build.kernel) != ("mlnx-ofed-kernel", NEXT))
# What is left of an earlier driver is not built again.
LEFT_DRIVER = Build("nvidia", "570.9", RUNNING, "added")
OPEN = (*(b._replace(name=b.name.replace("nvidia", "nvidia-open")) for b in BUILDS[:3]), LEFT_DRIVER)
NO_HEADERS = fresh(kernels=Kernels(RUNNING, (RUNNING,), RUNNING, ()))
MIXED = healthy(modules={RUNNING: _inbox(RUNNING), NEXT: {}})
NO_RDMA_CM = {name: module for name, module in _own(RUNNING).items() if name != "rdma_cm"}
PART = healthy(modules={RUNNING: NO_RDMA_CM, NEXT: _own(NEXT)}, loaded={"mlx5_core": "AAAA", "ib_core": "AAAA"})
TARBALL = healthy(packages=Packages({}, ()), release="24.10-2.1.8.0")
FELL_BACK = {RUNNING: _own(RUNNING), NEXT: _inbox(NEXT)}
HALF_INBOX = {RUNNING: _own(RUNNING), NEXT: {**_own(NEXT), "ib_uverbs": _inbox(NEXT)["ib_uverbs"]}}
HEADLESS = healthy(
    builds=tuple(build for build in BUILDS if build.kernel != NEXT),
    kernels=Kernels(RUNNING, (RUNNING, NEXT), NEXT, (RUNNING,)),
    modules=FELL_BACK,
)
OLD = Packages({"doca-ofed": "3.1.0-091000", "mlnx-ofed-kernel-dkms": "25.07-1"}, ("doca-ofed",))
LOOSE = Packages({"doca-ofed": "3.2.1-1", "mlnx-ofed-kernel-dkms": "25.10-1"}, ())
LEFT = {"mlnx-ofed-all": "24.10-2.1.8.0", "mlnx-ofed-kernel-only": "24.10", "mlnx-ofed-kernel-dkms": "24.10"}
PEER = healthy(peer={RUNNING: "0x1", NEXT: "0x1"}, built={RUNNING: "0x1", NEXT: "0x2"})
LUSTRE = fresh(users=(User("lustre", "Lustre over o2ib at /l"),))
UMAD = healthy(umad=True, files={**healthy().files, ofed_state.UMAD_LIST: UMAD_TEXT})
# What cannot be read is not written over.
UMAD_UNREAD = replace(
    UMAD,
    files={path: text for path, text in UMAD.files.items() if path != ofed_state.UMAD_LIST},
    problems=(Problem(ofed_state.UMAD_LIST, "is not text"),),
)
ADOPTED = {"manage": False, "version": ""}
INBOX = {"flavour": "inbox", "package": "", "version": "", "key": ""}


def on_el(**changes: Any) -> OfedState:
    """As a node of EL 9 with DOCA 3.2.1."""
    names = {"doca-ofed": "3.2.1-044000.el9", "mlnx-ofa_kernel": "25.10-1", "mlnx-ofa_kernel-dkms": "25.10-1"}
    names[packages.VERSIONLOCK_PLUGIN] = "4.3.0-13.el9"
    files: dict[str, str | None] = dict.fromkeys([*packages.FILES["dnf"], ofed_state.UMAD_LIST])
    texts = packages.render(DNF, URL, KEY, "doca-ofed", "3.2.1")
    files.update((path, written.seal(path, text)) for path, text in texts.items())
    builds = [b._replace(name=b.name.replace("mlnx-ofed-kernel", "mlnx-ofa_kernel")) for b in BUILDS]
    locked = ("doca-ofed", "mlnx-ofa_kernel", "mlnx-ofa_kernel-dkms")
    known = {"system": DNF, "packages": Packages(names, locked, locked), "builds": tuple(builds), "files": files}
    return healthy(**(known | changes))


def _ubuntu(**more: str) -> OfedState:
    names = ["doca-ofed-userspace-3.4", "linux-modules-doca-ofed-3.4-generic", "doca-ofed-generic"]
    names += ["linux-main-modules-doca-ofed-3.4-6.14.0-22-generic"]
    return healthy(packages=Packages({**dict.fromkeys(names, "6.14.0.22"), **more}, ()), release="", builds=())


ADDED = tuple(build._replace(state="added") for build in reversed(on_el().builds or ()))
EL_LOOSE = Packages({"doca-ofed": "3.2.1-1", "mlnx-ofa_kernel-dkms": "25.10-1"}, ())
EL_OLD = Packages({"doca-ofed": "3.1.0-1"}, ("doca-ofed",), ("doca-ofed", "mlnx-ofa_kernel", "kernel"))
# A node, and what is wanted of it other than WANT.
CASES: dict[str, tuple[OfedState, dict[str, Any]]] = {
    "healthy": (healthy(), {}),
    "fresh": (fresh(), {}),
    "fresh, no headers": (NO_HEADERS, {}),
    "fresh, no key": (fresh(), {"key": ""}),
    "another release": (healthy(packages=OLD), {}),
    "3.2.10 is not 3.2.1": (healthy(packages=Packages({"doca-ofed": "3.2.10-1"}, ("doca-ofed",))), {}),
    "adopted": (healthy(), {**ADOPTED, "key": ""}),
    "adopted, fresh": (fresh(), ADOPTED),
    # Booting again would load the wrong one again.
    "adopted with a release, fresh": (fresh(), {"manage": False}),
    "adopted, another loaded": (healthy(loaded=_loaded("CCCC")), ADOPTED),
    "adopted, inbox modules": (MIXED, ADOPTED),
    "adopted, tarball": (TARBALL, {"manage": False, "version": "24.10-2.1.8.0"}),
    "adopted, tarball of another release": (TARBALL, {"manage": False, "version": "23.10"}),
    "adopted, 24.10 is not 24.1": (TARBALL, {"manage": False, "version": "24.1"}),
    # No package has brought it: a container has.
    "adopted, loaded by a container": (fresh(loaded=_loaded("CCCC")), {"manage": False}),
    "a module that is not there, others not loaded": (PART, {}),
    "Ubuntu's, adopted": (_ubuntu(), {"manage": False, "version": "3.4"}),
    "Ubuntu's, adopted, any release": (_ubuntu(), ADOPTED),
    "Ubuntu's, adopted, another release": (_ubuntu(), {"manage": False, "version": "3.2.1"}),
    "Ubuntu's and NVIDIA's, adopted": (_ubuntu(**{"doca-ofed": "3.4.0-1"}), {"manage": False, "version": "3.4"}),
    "Ubuntu's where NVIDIA's is wanted": (_ubuntu(), {}),
    "Ubuntu's where inbox is wanted": (_ubuntu(), {"flavour": "inbox", "version": ""}),
    "NVIDIA's user space is not Ubuntu's": (
        healthy(packages=Packages({**LOOSE.installed, "doca-ofed-userspace": "3.2.1-1"}, HELD)),
        ADOPTED,
    ),
    "a new kernel fell back to inbox": (healthy(builds=UNBUILT, modules=FELL_BACK), {}),
    "no headers of a new kernel": (HEADLESS, {}),
    # Of a kernel that neither runs nor boots next nothing is installed.
    "no headers of an old kernel": (replace(HEADLESS, kernels=HEADLESS.kernels._replace(default=RUNNING)), {}),
    "inbox before the built modules": (healthy(modules=FELL_BACK), {}),
    "an inbox module before a built one": (healthy(modules=HALF_INBOX), {}),
    "nvidia built for another OFED": (PEER, {}),
    "nvidia built without peer memory": (replace(PEER, built={RUNNING: "0x1", NEXT: ""}), {}),
    "nvidia precompiled for another OFED": (replace(PEER, builds=tuple(b for b in BUILDS if b.name != "nvidia")), {}),
    "nvidia-open, built for one kernel": (replace(PEER, builds=OPEN), {}),
    "not held": (healthy(packages=LOOSE), {}),
    "leftovers of another OFED": (fresh(packages=Packages(LEFT, ())), {}),
    "inbox wanted, fresh": (fresh(), INBOX),
    "inbox wanted, OFED there": (healthy(), INBOX),
    "Lustre": (LUSTRE, {}),
    "Lustre with a client of its own": (LUSTRE, {"third_party": ("lustre",)}),
    "a killed run's mask": (healthy(masked=True), {}),
    "ib_umad": (healthy(), {"umad": True}),
    "ib_umad there": (UMAD, {"umad": True}),
    "ib_umad unread": (UMAD_UNREAD, {"umad": True}),
    "ib_umad not wanted any more": (UMAD, {}),
    "packages unread": (fresh(packages=None, problems=(Problem("dpkg-query", "did not respond"),)), {}),
    "repository unread": (healthy(files={}), {}),
    "key closed": (healthy(closed={packages.FILES["apt"][0]: 0o600}), {}),
    "EL": (on_el(), {}),
    "EL, not locked": (on_el(packages=EL_LOOSE), {}),
    "EL, inbox modules": (on_el(modules={RUNNING: _inbox(RUNNING), NEXT: _own(NEXT)}), {}),
    "EL, not built": (on_el(builds=ADDED), {}),
    # Its lock is taken away before this release is installed.
    "EL, another release": (on_el(packages=EL_OLD), {}),
}
for kind, package in (("nfs", "mlnx-nfsrdma-dkms"), ("nvme", "mlnx-nvme-dkms")):
    users = (User(kind, "somewhere"),)
    known = Packages({"doca-ofed": "3.2.1-1", package: "25.10"}, ("doca-ofed",))
    CASES[f"{kind} over RDMA"] = (healthy(users=users), {})
    CASES[f"{kind} over RDMA with its counterpart"] = (healthy(users=users, packages=known), {})


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_is_planned(case: str) -> None:
    have, want = CASES[case]
    goldens.check("ofed", case, golden_rows.plan(ofed.plan(have, WANT._replace(**want))))


@pytest.mark.golden
@pytest.mark.parametrize("name", ofed_state.STACK)
def test_a_stack_that_is_half_inbox_and_half_ofed(name: str) -> None:
    live = {**_loaded("AAAA"), name: "BBBB"}
    mixed = {RUNNING: {**_own(RUNNING), name: _inbox(RUNNING)[name]}, NEXT: _own(NEXT)}
    goldens.check("ofed", "one module of inbox loaded", golden_rows.plan(ofed.plan(healthy(loaded=live), WANT)))
    goldens.check("ofed", "one module of inbox", golden_rows.plan(ofed.plan(healthy(modules=mixed, loaded=live), WANT)))


@pytest.mark.golden
def test_what_is_installed_and_not_loaded_waits_for_a_reboot_and_an_idle_node() -> None:
    plan = ofed.plan(healthy(loaded=_loaded("OLD")), WANT)
    busy = plan.block(Busy(("the default route leaves by ens1 (0000:1b:00.0)",)).against)
    free = ofed.unload_first(plan.block(Busy(()).against), ["nvidia_peermem"])
    for case, one in (
        ("none", plan.limit("none")),
        ("driver", plan.limit("driver")),
        ("driver, busy", busy.limit("driver")),
        ("driver, nvidia_peermem first", free.limit("driver")),
    ):
        goldens.check("ofed", f"installed and not loaded, {case}", golden_rows.plan(one))
    assert "default route" in (one_of(busy, "ofed.loaded").have or "")


def one_of(plan: Plan, check: str) -> Finding:
    (found,) = [finding for finding in plan.findings if finding.check == check and not finding.ok]
    return found


@pytest.mark.parametrize(
    ("have", "argv", "said", "check", "left"),
    [
        (healthy(builds=UNBUILT), "dkms", "exited with 10: Bad return status", "ofed.dkms", 0),
        (fresh(), "install doca-ofed", "exited with 100: E: Unable to locate package doca-ofed", "ofed.packages", 1),
        # A repository of dnf that does not answer is asked once.
        (on_el(packages=Packages({}, ())), "makecache", "exited with 1: Error: no metadata", "ofed.packages", 0),
        (on_el(packages=EL_LOOSE), packages.VERSIONLOCK_PLUGIN, "exited with 1: Error: no match", "ofed.hold", 0),
    ],
)
def test_what_failed_is_told_with_its_words_and_not_tried_again(
    have: OfedState, argv: str, said: str, check: str, left: int
) -> None:
    command = next(command for command in ofed.plan(have, WANT).commands if argv in " ".join(command.argv))
    plan = ofed.plan(have, WANT, {command.argv: said})
    assert said.rpartition(": ")[2] in (one_of(plan, check).have or "")
    assert len(plan.commands) == left
    assert not [command for command in plan.commands if " ".join(command.argv).endswith(argv)]


@pytest.mark.parametrize(("text", "line", "openibd", "found"), readings.cases("ofed_forbidden"))
def test_a_line_after_which_a_module_of_the_stack_is_not_loaded_is_found(
    tmp_path: Path, text: str, line: str, openibd: bool, found: str | None
) -> None:
    put(tmp_path, "/etc/modprobe.d/a.conf", text)
    lines = ofed_state.forbidden(Host(str(tmp_path), str(tmp_path)), openibd, line, [])
    plan = ofed.plan(healthy(forbidden=lines), WANT)
    assert [(f.check, f.have) for f in plan.findings if not f.ok] == ([("ofed.module", found)] if found else [])


@pytest.mark.parametrize(
    ("version", "driver", "package"),
    [
        ("3.2.1", "mlnx-ofa_kernel-dkms", "mlnx-nvme-dkms"),
        ("3.1.0", "kmod-mlnx-ofa_kernel", "kmod-mlnx-nvme"),
        ("3.1.0", "", "kmod-mlnx-nvme"),
        ("3.10.0", "", "mlnx-nvme-dkms"),
    ],
)
def test_modules_of_el_come_built_before_doca_3_2_and_as_sources_since(version: str, driver: str, package: str) -> None:
    names = Packages({driver: "25.10-1"} if driver else {}, ())
    plan = ofed.plan(on_el(packages=names, users=(User("nvme", "a disk"),)), WANT._replace(version=version))
    assert one_of(plan, "ofed.dependents").want == package


@pytest.mark.parametrize(
    ("given", "package", "repository"),
    [
        ({}, "doca-ofed", "https://top/doca/3.2.1/ubuntu24.04/x86_64/"),
        ({"package": "doca-roce", "repository": URL}, "doca-roce", URL),
        ({"flavour": "mlnx-ofed", "repository": URL}, "mlnx-ofed-all", URL),
        ({"flavour": "inbox"}, "", ""),
    ],
)
def test_package_and_repository_follow_from_the_flavour(
    tmp_path: Path, given: dict[str, str], package: str, repository: str
) -> None:
    put(tmp_path, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
    defaults = {name: option.get("default") for name, option in module.SPEC.items()}
    options = {**defaults, "version": "3.2.1", "repository_top": "https://top", **given}
    want = module._want(Host(str(tmp_path), str(tmp_path)), options, False, "x86_64")
    assert (want.package, want.repository) == (package, repository)


def test_mounts_over_rdma_are_told_from_others() -> None:
    text = (
        "server:/a /a nfs4 rw,proto=rdma,port=20049 0 0\nserver:/b /b nfs4 rw,proto=tcp 0 0\n"
        "10.0.0.1@o2ib:/fs /l lustre rw 0 0\n10.0.0.1@tcp:/fs /m lustre rw 0 0\n/dev/sda / ext4 rw 0 0\n"
    )
    planned = mounts.parse_fstab("# a /c nfs rdma\nUUID=1 none swap\na /a nfs rdma\nb /d nfs4 vers=4.2,rdma 0 0\n")
    found = ofed_state.over_rdma([*mounts.parse(text), *planned])
    assert [user.what.rpartition(" ")[2] for user in found] == ["/a", "/l", "/d"]
