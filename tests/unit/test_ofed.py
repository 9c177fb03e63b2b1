# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import ofed
from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import Busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import mounts
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.driver import ofed_state, packages
from ansible_collections.busbar.fabric.plugins.module_utils.driver.dkms import Build
from ansible_collections.busbar.fabric.plugins.module_utils.driver.kernels import Kernels
from ansible_collections.busbar.fabric.plugins.module_utils.driver.module_file import ModuleFile
from ansible_collections.busbar.fabric.plugins.module_utils.driver.ofed_state import Have, User
from ansible_collections.busbar.fabric.plugins.module_utils.driver.packages import Packages, System
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import Want

from tests.trees import put

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ\n-----END PGP PUBLIC KEY BLOCK-----\n"
APT, DNF = System("apt", "ubuntu24.04"), System("dnf", "rhel9")
RUNNING, NEXT = "6.8.0-60-generic", "6.8.0-71-generic"
URL = "https://mirror/doca/3.2.1/ubuntu24.04/x86_64/"
WANT = Want("doca-ofed", "3.2.1", "doca-ofed", True, URL, KEY, False)
VERSION = "25.10.OFED.25.10.1.7.1.1"


Stack = dict[str, ModuleFile]


def _own(kernel: str) -> Stack:
    return {name: ModuleFile(f"/lib/modules/{kernel}/updates/dkms/{name}.ko", "AAAA") for name in ofed_state.STACK}


def _inbox(kernel: str) -> Stack:
    names = ofed_state.STACK
    return {name: ModuleFile(f"/lib/modules/{kernel}/kernel/drivers/net/{name}.ko.zst", "BBBB") for name in names}


def _loaded(srcversion: str) -> dict[str, str]:
    return dict.fromkeys(ofed_state.STACK, srcversion)


def healthy(**changes: Any) -> Have:
    files: dict[str, str | None] = dict.fromkeys([*packages.paths(APT, "mofed"), ofed_state.UMAD_LIST])
    texts = packages.render(APT, packages.Repository("mofed", URL, KEY, {"doca-ofed": "3.2.1*"}))
    files.update((path, written.seal(path, text)) for path, text in texts.items())
    have = Have(
        system=APT,
        packages=Packages(
            {"doca-ofed": "3.2.1-044000", "mlnx-ofed-kernel-dkms": "25.10-1"}, ("doca-ofed", "mlnx-ofed-kernel-dkms")
        ),
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


def fresh(**changes: Any) -> Have:
    bare = healthy(
        packages=Packages({}, ()),
        release="",
        builds=(),
        modules={kernel: _inbox(kernel) for kernel in (RUNNING, NEXT)},
        loaded=_loaded("BBBB"),
        files=dict.fromkeys([*packages.paths(APT, "mofed"), ofed_state.UMAD_LIST]),
        openibd=False,
    )
    return replace(bare, **changes)


def roots(plan: Plan) -> list[tuple[str, str, str]]:
    return [(f.check, f.subject, f.state) for f in plan.findings if not f.ok and f.because is None]


def one(plan: Plan, check: str) -> Finding:
    (found,) = [finding for finding in plan.findings if finding.check == check and not finding.ok]
    return found


def words(plan: Plan) -> list[str]:
    return [" ".join(command.argv) for command in plan.commands]


def test_a_node_as_asked_for_has_no_finding_and_nothing_to_do() -> None:
    plan = ofed.plan(healthy(), WANT)
    assert (roots(plan), plan.changed, plan.reboot) == ([], False, ())
    assert len(plan.findings) > 8


def test_a_fresh_node_is_told_what_is_missing_and_once() -> None:
    plan = ofed.plan(fresh(), WANT)
    assert roots(plan) == [
        ("ofed.repository", "/etc/apt/sources.list.d/busbar-mofed.sources", "drift"),
        ("ofed.packages", "doca-ofed", "drift"),
    ]
    assert [change.path for change in plan.changes] == list(packages.paths(APT, "mofed"))
    update, mask, install, unmask, hold = words(plan)
    assert update.endswith(" update")
    assert (mask, unmask) == (
        "systemctl mask --runtime openibd.service",
        "systemctl unmask --runtime openibd.service",
    )
    assert install.endswith(" install doca-ofed")
    assert hold == "apt-mark hold doca-ofed"
    assert plan.reboot == ("OFED's mlx5_core is installed and not loaded",)


def test_headers_come_before_packages() -> None:
    plan = ofed.plan(fresh(kernels=Kernels(RUNNING, (RUNNING,), RUNNING, ())), WANT)
    commands = words(plan)
    headers = next(n for n, line in enumerate(commands) if line.endswith(f"install linux-headers-{RUNNING}"))
    assert headers < next(n for n, line in enumerate(commands) if line.endswith("install doca-ofed"))


def test_without_a_key_nothing_is_installed() -> None:
    plan = ofed.plan(fresh(), replace(WANT, key=""))
    assert plan.commands == ()
    assert one(plan, "ofed.repository").state == "unknown"
    assert "mofed_repository_key" in one(plan, "ofed.repository").fix


def test_what_cannot_be_a_key_is_an_error() -> None:
    with pytest.raises(ParseError):
        ofed.plan(fresh(), replace(WANT, key="<html>"))


def test_another_release_is_replaced_and_held() -> None:
    old = Packages({"doca-ofed": "3.1.0-091000", "mlnx-ofed-kernel-dkms": "25.07-1"}, ("doca-ofed",))
    plan = ofed.plan(healthy(packages=old), WANT)
    assert roots(plan) == [("ofed.packages", "doca-ofed", "drift"), ("ofed.hold", "doca-ofed", "drift")]
    assert any(line.endswith("--allow-change-held-packages install doca-ofed") for line in words(plan))
    # 3.2.1 is not 3.2.10.
    other = Packages({"doca-ofed": "3.2.10-1"}, ("doca-ofed",))
    assert not one(ofed.plan(healthy(packages=other), WANT), "ofed.packages").ok


def test_a_host_that_is_only_adopted_is_judged_and_not_changed() -> None:
    for have in (fresh(), healthy(loaded=_loaded("CCCC")), healthy(modules={RUNNING: _inbox(RUNNING), NEXT: {}})):
        plan = ofed.plan(have, replace(WANT, manage=False, version=""))
        assert roots(plan)
        assert not plan.changed
    assert roots(ofed.plan(healthy(), replace(WANT, manage=False, key="", version=""))) == []
    tarball = healthy(packages=Packages({}, ()), release="24.10-2.1.8.0")
    assert roots(ofed.plan(tarball, replace(WANT, manage=False, version="24.10-2.1.8.0"))) == []
    assert roots(ofed.plan(tarball, replace(WANT, manage=False, version="23.10"))) == [
        ("ofed.packages", "doca-ofed", "drift")
    ]


@pytest.mark.parametrize("name", ofed_state.STACK)
def test_a_stack_that_is_half_inbox_and_half_ofed_is_drift(name: str) -> None:
    mixed = {**_own(RUNNING), name: _inbox(RUNNING)[name]}
    half = healthy(modules={RUNNING: mixed, NEXT: _own(NEXT)}, loaded={**_loaded("AAAA"), name: "BBBB"})
    assert roots(ofed.plan(half, WANT)) == [("ofed.module", RUNNING, "drift")]
    live = healthy(loaded={**_loaded("AAAA"), name: "BBBB"})
    assert roots(ofed.plan(live, WANT)) == [("ofed.loaded", "mlx5_core", "drift")]


def test_a_module_that_is_not_there_or_not_loaded_is_no_other_stack() -> None:
    part = {name: module for name, module in _own(RUNNING).items() if name != "rdma_cm"}
    have = healthy(modules={RUNNING: part, NEXT: _own(NEXT)}, loaded={"mlx5_core": "AAAA", "ib_core": "AAAA"})
    assert roots(ofed.plan(have, WANT)) == []


def _ubuntu(release: str = "3.4", **more: str) -> Packages:
    kernel = f"linux-main-modules-doca-ofed-{release}-6.14.0-22-generic"
    names = [
        f"doca-ofed-userspace-{release}",
        f"linux-modules-doca-ofed-{release}-generic",
        "doca-ofed-generic",
        kernel,
    ]
    return Packages({**dict.fromkeys(names, "6.14.0.22"), **more}, ())


@pytest.mark.parametrize(
    ("want", "packages", "expected"),
    [
        ({"manage": False, "version": "3.4"}, _ubuntu(), []),
        ({"manage": False, "version": ""}, _ubuntu(), []),
        ({"manage": False, "version": "3.2.1"}, _ubuntu(), ["ofed.packages"]),
        ({"manage": False, "version": "3.4"}, _ubuntu(**{"doca-ofed": "3.4.0-1"}), ["ofed.conflict"]),
        ({}, _ubuntu(), ["ofed.packages", "ofed.conflict"]),
        ({"flavour": "inbox", "version": ""}, _ubuntu(), ["ofed.conflict"]),
    ],
)
def test_ubuntus_own_doca_ofed_is_a_build_of_its_own(
    want: dict[str, Any], packages: Packages, expected: list[str]
) -> None:
    have = healthy(packages=packages, release="", builds=())
    plan = ofed.plan(have, replace(WANT, **want))
    checks = {f.check for f in plan.findings if not f.ok}
    assert {check for check in ("ofed.packages", "ofed.conflict") if check in checks} == set(expected)
    removed = [line for line in words(plan) if " remove " in line or " purge " in line]
    named = all(name in line for line in removed for name in _ubuntu().installed)
    assert (bool(removed), named) == (replace(WANT, **want).manage, True)


def test_nvidias_packages_are_not_ubuntus() -> None:
    names = {"doca-ofed": "3.2.1-1", "doca-ofed-userspace": "3.2.1-1", "mlnx-ofed-kernel-dkms": "25.10-1"}
    have = healthy(packages=Packages(names, ("doca-ofed", "mlnx-ofed-kernel-dkms")))
    assert roots(ofed.plan(have, replace(WANT, manage=False, version=""))) == []


def test_a_driver_that_a_container_has_loaded_is_not_judged_by_packages() -> None:
    have = fresh(loaded=_loaded("CCCC"))
    plan = ofed.plan(have, replace(WANT, manage=False))
    assert roots(plan) == [("ofed.packages", "doca-ofed", "unknown")]


def test_a_kernel_update_that_fell_back_to_inbox_is_drift() -> None:
    builds = tuple(
        build for build in healthy().builds or () if (build.name, build.kernel) != ("mlnx-ofed-kernel", NEXT)
    )
    plan = ofed.plan(healthy(builds=builds, modules={RUNNING: _own(RUNNING), NEXT: _inbox(NEXT)}), WANT)
    assert roots(plan) == [("ofed.dkms", NEXT, "drift")]
    assert one(plan, "ofed.dkms").severity == "critical"
    assert one(plan, "ofed.module").because == f"ofed.dkms[persisted]@{NEXT}"
    assert words(plan) == [f"dkms install -m mlnx-ofed-kernel -v {VERSION} -k {NEXT}"]


def test_missing_headers_are_the_cause_of_a_module_that_is_not_built() -> None:
    builds = tuple(build for build in healthy().builds or () if build.kernel != NEXT)
    have = healthy(
        builds=builds,
        kernels=Kernels(RUNNING, (RUNNING, NEXT), NEXT, (RUNNING,)),
        modules={RUNNING: _own(RUNNING), NEXT: _inbox(NEXT)},
    )
    plan = ofed.plan(have, WANT)
    assert roots(plan) == [("ofed.headers", NEXT, "drift")]
    assert [line.split(" install ")[1] for line in words(plan)] == [f"linux-headers-{NEXT}"]
    # Of a kernel that neither runs nor boots next nothing is installed.
    old = replace(have, kernels=replace(have.kernels, default=RUNNING))
    assert ofed.plan(old, WANT).commands == ()
    assert one(ofed.plan(old, WANT), "ofed.headers").severity == "major"


def test_a_build_that_failed_is_told_with_its_words_and_not_tried_again() -> None:
    builds = tuple(
        build for build in healthy().builds or () if (build.name, build.kernel) != ("mlnx-ofed-kernel", NEXT)
    )
    have = healthy(builds=builds)
    (command,) = ofed.plan(have, WANT).commands
    plan = ofed.plan(have, WANT, {command.argv: "exited with 10: Bad return status"})
    assert plan.commands == ()
    assert "Bad return status" in (one(plan, "ofed.dkms").have or "")
    assert "make.log" in one(plan, "ofed.dkms").fix


def test_an_installation_that_failed_is_told_with_its_words_and_not_tried_again() -> None:
    install = next(c for c in ofed.plan(fresh(), WANT).commands if c.argv[-1] == "doca-ofed" and "install" in c.argv)
    plan = ofed.plan(fresh(), WANT, {install.argv: "exited with 100: E: Unable to locate package doca-ofed"})
    assert "Unable to locate" in (one(plan, "ofed.packages").have or "")
    assert not any("install doca-ofed" in line for line in words(plan))


def test_an_inbox_module_in_front_of_the_built_one_is_found_and_depmod_is_run() -> None:
    plan = ofed.plan(healthy(modules={RUNNING: _own(RUNNING), NEXT: _inbox(NEXT)}), WANT)
    assert roots(plan) == [("ofed.module", NEXT, "drift")]
    assert words(plan) == [f"depmod {NEXT}"]
    half = {**_own(NEXT), "ib_uverbs": _inbox(NEXT)["ib_uverbs"]}
    plan = ofed.plan(healthy(modules={RUNNING: _own(RUNNING), NEXT: half}), WANT)
    assert words(plan) == [f"dkms install --force -m mlnx-ofed-kernel -v {VERSION} -k {NEXT}", f"depmod {NEXT}"]


@pytest.mark.parametrize(
    ("text", "line", "openibd", "found"),
    [
        ("install mlx5_ib /bin/false\n", "ro", True, "install mlx5_ib /bin/false"),
        ("", "ro module_blacklist=mlx5-core", True, "module_blacklist=mlx5-core"),
        ("blacklist mlx5_core\n", "ro", False, "blacklist mlx5_core"),
        ("blacklist mlx5_core\n", "ro modprobe.blacklist=mlx5_ib", True, None),
        ("options mlx5_core x=1\ninstall mlx5_core /sbin/modprobe -i mlx5_core\nblacklist ib_qib\n", "ro", False, None),
    ],
)
def test_a_line_after_which_a_module_of_the_stack_is_not_loaded_is_found(
    tmp_path: Path, text: str, line: str, openibd: bool, found: str | None
) -> None:
    put(tmp_path, "/etc/modprobe.d/a.conf", text)
    lines = ofed_state.forbidden(Host(str(tmp_path), str(tmp_path)), openibd, line, [])
    plan = ofed.plan(healthy(forbidden=lines), WANT)
    assert [(f.check, f.have) for f in plan.findings if not f.ok] == ([("ofed.module", found)] if found else [])


def test_what_is_installed_and_not_loaded_waits_for_a_reboot() -> None:
    plan = ofed.plan(healthy(loaded=_loaded("OLD")), WANT).limit("none")
    assert roots(plan) == [("ofed.loaded", "mlx5_core", "withheld")]
    assert (plan.commands, plan.reboot) == ((), ("OFED's mlx5_core is installed and not loaded",))
    allowed = ofed.plan(healthy(loaded=_loaded("OLD")), WANT).limit("driver")
    assert words(allowed) == ["systemctl restart openibd.service"]


def test_a_restart_of_the_driver_is_refused_where_somebody_would_notice() -> None:
    plan = ofed.plan(healthy(loaded=_loaded("OLD")), WANT)
    refused = plan.refuse(Busy(("the default route leaves by ens1 (0000:1b:00.0)",)).against).limit("driver")
    assert refused.commands == ()
    assert "default route" in (one(refused, "ofed.loaded").have or "")
    assert refused.reboot == plan.reboot
    free = ofed.unload_first(plan.refuse(Busy(()).against), ["nvidia_peermem"]).limit("driver")
    assert words(free) == ["modprobe -r nvidia_peermem", "systemctl restart openibd.service"]


def test_booting_again_is_not_asked_for_where_it_would_load_the_wrong_one_again() -> None:
    plan = ofed.plan(fresh(), replace(WANT, manage=False))
    assert plan.reboot == ()
    assert one(plan, "ofed.loaded").because == "ofed.packages[persisted]@doca-ofed"


def test_the_module_of_nvidia_is_rebuilt_against_this_ofed() -> None:
    have = healthy(peer={RUNNING: "0x1", NEXT: "0x1"}, built={RUNNING: "0x1", NEXT: "0x2"})
    plan = ofed.plan(have, WANT)
    assert roots(plan) == [("ofed.nvidia", NEXT, "drift")]
    assert words(plan) == [f"dkms {do} --force -m nvidia -v 580.82.07 -k {NEXT}" for do in ("build", "install")]
    without = ofed.plan(replace(have, built={RUNNING: "0x1", NEXT: ""}), WANT)
    assert one(without, "ofed.nvidia").have == "built without peer memory"
    precompiled = replace(have, builds=tuple(b for b in have.builds or () if b.name != "nvidia"))
    plan = ofed.plan(precompiled, WANT)
    assert plan.commands == ()
    assert "precompiled" in one(plan, "ofed.nvidia").fix


def test_the_hold_is_asked_for() -> None:
    plan = ofed.plan(healthy(packages=Packages({"doca-ofed": "3.2.1-1", "mlnx-ofed-kernel-dkms": "25.10-1"}, ())), WANT)
    assert roots(plan) == [("ofed.hold", "doca-ofed", "drift")]
    assert words(plan) == ["apt-mark hold doca-ofed mlnx-ofed-kernel-dkms"]


def test_leftovers_of_another_ofed_are_removed_before_the_new_one_comes() -> None:
    both = {"mlnx-ofed-all": "24.10-2.1.8.0", "mlnx-ofed-kernel-only": "24.10", "mlnx-ofed-kernel-dkms": "24.10"}
    plan = ofed.plan(fresh(packages=Packages(both, ())), WANT)
    purge = next(line for line in words(plan) if " purge " in line)
    assert purge.endswith("purge mlnx-ofed-all mlnx-ofed-kernel-only")
    assert words(plan).index(purge) < next(
        n for n, line in enumerate(words(plan)) if line.endswith("install doca-ofed")
    )
    assert one(plan, "ofed.conflict").have == "mlnx-ofed-all, mlnx-ofed-kernel-only"


def test_inbox_wants_no_repository_and_no_kernel_package() -> None:
    want = replace(WANT, flavour="inbox", package="", version="", key="")
    assert roots(ofed.plan(fresh(), want)) == []
    plan = ofed.plan(healthy(), want)
    assert {check for check, _subject, _state in roots(plan)} == {"ofed.repository", "ofed.conflict"}
    assert {f.because for f in plan.findings if f.check == "ofed.module"} == {"ofed.conflict[persisted]@packages"}
    assert {change.after for change in plan.changes} == {None}
    assert any(line.endswith("purge doca-ofed mlnx-ofed-kernel-dkms") for line in words(plan))


@pytest.mark.parametrize(("kind", "package"), [("nfs", "mlnx-nfsrdma-dkms"), ("nvme", "mlnx-nvme-dkms")])
def test_file_systems_over_rdma_get_their_counterpart(kind: str, package: str) -> None:
    plan = ofed.plan(healthy(users=(User(kind, "somewhere"),)), WANT)
    assert roots(plan) == [("ofed.dependents", "somewhere", "drift")]
    assert any(line.endswith(f"install {package}") for line in words(plan))
    known = Packages({"doca-ofed": "3.2.1-1", package: "25.10"}, ("doca-ofed",))
    assert roots(ofed.plan(healthy(users=(User(kind, "somewhere"),), packages=known), WANT)) == []


def test_a_key_that_apt_cannot_read_is_written_again() -> None:
    path = packages.paths(APT, "mofed")[0]
    plan = ofed.plan(healthy(closed={path: 0o600}), WANT)
    assert roots(plan)[0][::2] == ("ofed.repository", "drift")
    assert [(change.path, change.mode) for change in plan.changes] == [(path, 0o644)]


def on_el(**changes: Any) -> Have:
    """As a node of EL 9 with DOCA 3.2.1."""
    names = {"doca-ofed": "3.2.1-044000.el9", "mlnx-ofa_kernel": "25.10-1", "mlnx-ofa_kernel-dkms": "25.10-1"}
    names[packages.VERSIONLOCK_PLUGIN] = "4.3.0-13.el9"
    files: dict[str, str | None] = dict.fromkeys([*packages.paths(DNF, "mofed"), ofed_state.UMAD_LIST])
    texts = packages.render(DNF, packages.Repository("mofed", URL, KEY, {}))
    files.update((path, written.seal(path, text)) for path, text in texts.items())
    builds = [replace(b, name=b.name.replace("mlnx-ofed-kernel", "mlnx-ofa_kernel")) for b in healthy().builds or ()]
    locked = ("doca-ofed", "mlnx-ofa_kernel", "mlnx-ofa_kernel-dkms")
    known = {"system": DNF, "packages": Packages(names, locked, locked), "builds": tuple(builds), "files": files}
    return healthy(**(known | changes))


def test_packages_and_modules_of_el_have_names_of_their_own() -> None:
    plan = ofed.plan(on_el(), WANT)
    assert (roots(plan), words(plan)) == ([], [])
    loose = ofed.plan(on_el(packages=Packages({"doca-ofed": "3.2.1-1", "mlnx-ofa_kernel-dkms": "25.10-1"}, ())), WANT)
    assert words(loose)[-1].endswith("versionlock add doca-ofed mlnx-ofa_kernel-dkms")
    inbox = ofed.plan(on_el(modules={RUNNING: _inbox(RUNNING), NEXT: _own(NEXT)}), WANT)
    assert words(inbox) == [f"depmod {RUNNING}"]
    added = tuple(replace(b, state="added") for b in reversed(on_el().builds or ()))
    built = [line.split()[-5:-2] for line in words(ofed.plan(on_el(builds=added), WANT)) if "install" in line]
    assert built[:2] == [["mlnx-ofa_kernel", "-v", VERSION], ["nvidia", "-v", "580.82.07"]]


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
    plan = ofed.plan(on_el(packages=names, users=(User("nvme", "a disk"),)), replace(WANT, version=version))
    assert one(plan, "ofed.dependents").want == package


def test_the_lock_of_another_release_is_taken_away_before_this_one_is_installed() -> None:
    old = Packages({"doca-ofed": "3.1.0-1"}, ("doca-ofed",), ("doca-ofed", "mlnx-ofa_kernel", "kernel"))
    plan = ofed.plan(on_el(packages=old), WANT)
    lines = words(plan)
    delete = next(n for n, line in enumerate(lines) if line.endswith("versionlock delete doca-ofed mlnx-ofa_kernel"))
    assert delete < lines.index("dnf -y install doca-ofed-3.2.1*")


def test_a_repository_of_dnf_that_does_not_answer_is_asked_once() -> None:
    have = on_el(packages=Packages({}, ()))
    refresh = next(command for command in ofed.plan(have, WANT).commands if "makecache" in command.argv)
    plan = ofed.plan(have, WANT, {refresh.argv: "exited with 1: Error: Failed to download metadata"})
    assert "Failed to download metadata" in (one(plan, "ofed.packages").have or "")
    assert "'doca-ofed-3.2.1*'" in one(plan, "ofed.packages").fix
    assert words(plan) == []


def test_a_lock_that_cannot_be_made_is_told_with_its_words_and_not_tried_again() -> None:
    have = on_el(packages=Packages({"doca-ofed": "3.2.1-1"}, ()))
    first = next(command for command in ofed.plan(have, WANT).commands if packages.VERSIONLOCK_PLUGIN in command.argv)
    plan = ofed.plan(have, WANT, {first.argv: "exited with 1: Error: Unable to find a match"})
    assert "Unable to find a match" in (one(plan, "ofed.hold").have or "")
    assert words(plan) == []


def test_lustre_keeps_ofed_from_being_installed_until_somebody_has_built_its_client() -> None:
    have = fresh(users=(User("lustre", "Lustre over o2ib at /l"),))
    plan = ofed.plan(have, WANT)
    assert one(plan, "ofed.dependents").state == "unknown"
    assert plan.commands == ()
    assert any(
        line.endswith("install doca-ofed") for line in words(ofed.plan(have, replace(WANT, third_party=("lustre",))))
    )


def test_a_mask_that_a_killed_run_has_left_is_taken_away() -> None:
    plan = ofed.plan(healthy(masked=True), WANT)
    assert roots(plan) == [("ofed.openibd", "openibd.service", "drift")]
    assert words(plan) == ["systemctl unmask --runtime openibd.service"]


def test_the_fabric_manager_of_nvlink_5_gets_ib_umad() -> None:
    assert ofed.needs_umad(["NVIDIA B200"])
    assert ofed.needs_umad(["NVIDIA GB300"])
    assert not ofed.needs_umad(["NVIDIA H100 80GB HBM3", "NVIDIA B20"])
    plan = ofed.plan(healthy(), replace(WANT, umad=True))
    assert [check for check, _subject, _state in roots(plan)] == ["ofed.ib_umad", "ofed.ib_umad"]
    assert words(plan) == ["modprobe ib_umad"]
    there = healthy(umad=True, files={**healthy().files, ofed_state.UMAD_LIST: ofed.UMAD_TEXT})
    assert roots(ofed.plan(there, replace(WANT, umad=True))) == []
    # What cannot be read is not written over.
    problem = Problem(ofed_state.UMAD_LIST, "is not text")
    unread = {path: text for path, text in there.files.items() if path != ofed_state.UMAD_LIST}
    plan = ofed.plan(replace(there, files=unread, problems=(problem,)), replace(WANT, umad=True))
    assert plan.changes == ()
    assert roots(plan) == [("ofed.readable", ofed_state.UMAD_LIST, "unknown")]
    assert one(plan, "ofed.ib_umad").state == "unknown"
    assert [change.after for change in ofed.plan(there, WANT).changes] == [None]


def test_what_could_not_be_read_is_unknown_and_nothing_is_done() -> None:
    have = fresh(packages=None, problems=(Problem("dpkg-query", "did not respond"),))
    plan = ofed.plan(have, WANT)
    assert (roots(plan), plan.changed) == ([("ofed.readable", "dpkg-query", "unknown")], False)


def test_another_word_of_ofed_info_is_no_release() -> None:
    with pytest.raises(ParseError):
        ofed_state.parse_release("OFED-9.9")


def test_mounts_over_rdma_are_told_from_others() -> None:
    text = (
        "server:/a /a nfs4 rw,proto=rdma,port=20049 0 0\nserver:/b /b nfs4 rw,proto=tcp 0 0\n"
        "10.0.0.1@o2ib:/fs /l lustre rw 0 0\n10.0.0.1@tcp:/fs /m lustre rw 0 0\n/dev/sda / ext4 rw 0 0\n"
    )
    planned = mounts.parse_fstab("# a /c nfs rdma\nUUID=1 none swap\na /a nfs rdma\nb /d nfs4 vers=4.2,rdma 0 0\n")
    found = ofed_state.over_rdma([*mounts.parse(text), *planned])
    assert [user.what.rpartition(" ")[2] for user in found] == ["/a", "/l", "/d"]


@pytest.mark.parametrize(
    ("flavour", "machine", "expected"),
    [
        ("doca-ofed", "x86_64", "https://m/doca/3.2.1/ubuntu24.04/x86_64/"),
        ("doca-ofed", "aarch64", "https://m/doca/3.2.1/ubuntu24.04/arm64-sbsa/"),
        ("mlnx-ofed", "aarch64", "https://m/mlnx_ofed/3.2.1/ubuntu24.04/aarch64/"),
    ],
)
def test_the_repository_lies_where_the_vendor_has_it(flavour: str, machine: str, expected: str) -> None:
    assert ofed.repository_url("https://m/", flavour, "3.2.1", APT, machine) == expected
