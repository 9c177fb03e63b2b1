# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernels, dkms and kmod on a simulated node keep state and fail as the real ones, and each fault is what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from busbar.lab import faults, ofed, ofed_faults, store
from busbar.lab.fault import Fault
from busbar.lab.machine import LabError
from busbar.lab.machines import h200_vm, hgx_h100, hgx_h200_roce
from busbar.lab.toolkit import kernel_node
from tests.trees import put_all

KERNEL, NEWER = "6.8.0-60-generic", ofed_faults.NEWER_KERNEL
BUILD = "25.10.OFED.25.10.1.7.1.1"
OFED, NVIDIA = f"mlnx-ofed-kernel/{BUILD}", "nvidia/580.95.05"
SYMBOL = "ib_register_peer_memory_client"
Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab") / "lab"
    store.create(directory, {"node01": hgx_h100})
    return directory


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> Path:
    """A healthy node of its own: DOCA-OFED 3.2.1 installed, held, built and loaded. Devices: after the next render."""
    without = shutil.ignore_patterns("devices", "class", "bus")
    return Path(shutil.copytree(made, tmp_path / "lab", symlinks=True, ignore=without))


@pytest.fixture
def system(lab: Path) -> Path:
    return lab / "node01/sys"


@pytest.fixture
def run(system: Path) -> Tool:
    """Runs a program of the node, by its path there."""

    def call(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(system) + program, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)

    return call


@pytest.fixture
def dkms(run: Tool) -> Tool:
    return lambda *arguments: run("/usr/sbin/dkms", *arguments)


@pytest.fixture
def modprobe(run: Tool) -> Tool:
    return lambda *arguments: run("/usr/local/sbin/modprobe", *arguments)


def newer_kernel(run: Tool, headers: str = "headers") -> None:
    assert run("/usr/local/sbin/busbar-lab-kernel", "install", NEWER, headers).returncode == 0


# -- dkms ------------------------------------------------------------------------------------------------------------


def test_a_node_starts_with_ofed_and_the_driver_built_for_its_kernel(dkms: Tool, run: Tool, system: Path) -> None:
    assert dkms("status").stdout == (f"{OFED}, {KERNEL}, x86_64: installed\n{NVIDIA}, {KERNEL}, x86_64: installed\n")
    assert run("/usr/bin/ofed_info", "-s").stdout == "OFED-internal-25.10-1.7.1:\n"
    assert run("/usr/bin/ofed_info", "-n").stdout == "25.10-1.7.1\n"
    status = (system / "var/lib/dpkg/status").read_text()
    assert status.count("Status: hold ok installed\n") == status.count("Package: ") == 5
    assert "Package: doca-ofed\nStatus: hold ok installed\nVersion: 3.2.1-044000\n" in status


def test_dkms_of_before_3_words_its_status_and_its_errors_differently(dkms: Tool, run: Tool, system: Path) -> None:
    (system / "var/lib/dkms/dkms_dbversion").write_text("2.0.0\n")
    assert f"mlnx-ofed-kernel, {BUILD}, {KERNEL}, x86_64: installed\n" in dkms("status").stdout
    newer_kernel(run, "no-headers")
    failed = dkms("build", "-m", "mlnx-ofed-kernel", "-v", BUILD, "-k", NEWER)
    assert failed.returncode == 1
    assert failed.stderr == (
        f"\nError! Your kernel headers for kernel {NEWER} cannot be found at\n"
        f"/lib/modules/{NEWER}/build or /lib/modules/{NEWER}/source.\n"
    )


def test_a_module_goes_from_source_to_installed_and_back(dkms: Tool, run: Tool, system: Path) -> None:
    newer_kernel(run)
    assert dkms("build", OFED, "-k", NEWER).returncode == 0
    assert f"{OFED}, {NEWER}, x86_64: built\n" in dkms("status", OFED).stdout
    assert dkms("status", "-m", "mlnx-ofed-kernel", "-k", NEWER).stdout == f"{OFED}, {NEWER}, x86_64: built\n"
    assert not (system / f"lib/modules/{NEWER}/updates").exists()
    assert dkms("install", OFED, "-k", NEWER).returncode == 0
    assert f"{OFED}, {NEWER}, x86_64: installed\n" in dkms("status").stdout
    assert "updates/dkms/mlx5_core.ko:" in (system / f"lib/modules/{NEWER}/modules.dep").read_text()
    link = system / f"var/lib/dkms/mlnx-ofed-kernel/kernel-{NEWER}-x86_64"
    assert os.readlink(link) == f"{BUILD}/{NEWER}/x86_64"
    again = dkms("install", OFED, "-k", NEWER)
    assert (again.returncode, "already installed" in again.stdout) == (0, True)

    assert dkms("uninstall", OFED, "-k", NEWER).returncode == 0
    dep = (system / f"lib/modules/{NEWER}/modules.dep").read_text()
    assert "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko:" in dep
    assert "updates" not in dep
    assert dkms("remove", OFED, "--all").returncode == 0
    assert dkms("status").stdout == f"{NVIDIA}, {KERNEL}, x86_64: installed\n"
    assert not (system / "var/lib/dkms/mlnx-ofed-kernel").exists()
    assert dkms("add", OFED).returncode == 0
    assert f"{OFED}: added\n" in dkms("status").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add", OFED), 3, f"Error! DKMS tree already contains: mlnx-ofed-kernel-{BUILD}\n"),
        (("add", "knem/1.0"), 2, "Error! Could not find module source directory.\n"),
        (("remove", "knem/1.0", "--all"), 3, "Error! The module/version combo: knem-1.0 is not located in the DKMS"),
        (("build",), 1, "Error! Arguments <module> and <module-version> are not specified.\n"),
        (("build", OFED, "--all"), 5, "Error! The action build does not support the --all parameter.\n"),
        (("remove", OFED, "--all", "-k", KERNEL), 2, "Error!  You cannot specify a kernel version and also specify\n"),
        (("mend",), 2, 'Error! Unknown action specified: "mend"\n'),
    ],
)
def test_dkms_refuses_as_it_does(dkms: Tool, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = dkms(*arguments)
    assert (done.returncode, done.stderr.startswith(said)) == (code, True), done.stderr


def test_missing_and_broken_headers_end_a_build_with_codes_of_their_own(dkms: Tool, run: Tool, system: Path) -> None:
    newer_kernel(run, "no-headers")
    missing = dkms("install", OFED, "-k", NEWER)
    assert missing.returncode == 21
    assert missing.stderr.splitlines()[0] == (
        f"Error! Your kernel headers for kernel {NEWER} cannot be found at "
        f"/lib/modules/{NEWER}/build or /lib/modules/{NEWER}/source."
    )
    run("/usr/local/sbin/busbar-lab-kernel", "remove", NEWER)
    newer_kernel(run, "broken-headers")
    log = f"/var/lib/dkms/{OFED}/build/make.log"
    failed = dkms("install", OFED, "-k", NEWER)
    assert failed.returncode == 10
    assert failed.stderr == (
        f"Error! Bad return status for module build on kernel: {NEWER} (x86_64)\nConsult {log} for more information.\n"
    )
    assert "No rule to make target" in (system / log[1:]).read_text()
    assert NEWER not in dkms("status").stdout


def test_autoinstall_builds_everything_and_says_so_where_something_failed(dkms: Tool, run: Tool) -> None:
    newer_kernel(run)
    assert dkms("autoinstall", "-k", NEWER).returncode == 0
    assert dkms("status", "-k", NEWER).stdout.count(f"{NEWER}, x86_64: installed\n") == 2
    run("/usr/local/sbin/busbar-lab-kernel", "remove", NEWER)
    assert NEWER not in dkms("status").stdout
    newer_kernel(run, "broken-headers")
    failed = dkms("autoinstall", "-k", NEWER)
    assert failed.returncode == 11
    assert "Error! One or more modules failed to install during autoinstall.\n" in failed.stderr


def test_an_installed_file_that_is_not_what_was_built_is_warned_of(dkms: Tool, system: Path) -> None:
    (system / f"lib/modules/{KERNEL}/updates/dkms/mlx5_ib.ko").write_text("")
    assert f"{KERNEL}, x86_64: installed (WARNING! Diff between built and installed module!)\n" in dkms("status").stdout


# -- the NVIDIA driver and OFED --------------------------------------------------------------------------------------


def crcs(run: Tool, system: Path) -> tuple[str, str]:
    """Of the peer memory API: what nvidia_peermem was built with, and what ib_core exports."""
    path = run("/usr/local/sbin/modinfo", "-n", "nvidia_peermem").stdout.strip()
    built = run("/usr/local/sbin/modprobe", "--dump-modversions", path).stdout
    symvers = (system / f"usr/src/ofa_kernel/x86_64/{KERNEL}/Module.symvers").read_text()
    number, symbol, exporter, kind, _namespace = symvers.rstrip("\n").split("\t")
    assert (symbol, exporter, kind) == (SYMBOL, "drivers/infiniband/core/ib_core", "EXPORT_SYMBOL")
    return built.removesuffix(f"\t{SYMBOL}\n"), number


def test_another_ofed_has_other_crcs_until_the_driver_is_built_again(dkms: Tool, run: Tool, system: Path) -> None:
    built, exported = crcs(run, system)
    assert built == exported
    assert len(built) == 10
    dkms("remove", OFED, "--all")
    older = ofed.RELEASES["3.1.0"].build
    put_all(system, ofed.packages("3.1.0")[0].files)
    assert run("/usr/lib/dkms/common.postinst", "mlnx-ofed-kernel", older).returncode == 0
    stale, exported = crcs(run, system)
    assert stale == built != exported
    # Real dkms uninstalls what is built and installs the same again.
    assert dkms("install", "--force", NVIDIA).returncode == 0
    assert crcs(run, system) == (stale, exported)
    assert dkms("build", "--force", NVIDIA).returncode == 0
    assert dkms("install", "--force", NVIDIA).returncode == 0
    assert crcs(run, system) == (exported, exported)


def test_a_driver_built_without_ofed_needs_no_ib_core_and_does_not_load(dkms: Tool, run: Tool, modprobe: Tool) -> None:
    modprobe("-r", "nvidia_peermem")
    dkms("remove", OFED, "--all")
    dkms("build", "--force", NVIDIA)
    dkms("install", "--force", NVIDIA)
    assert run("/usr/local/sbin/modinfo", "-F", "depends", "nvidia-peermem").stdout == "nvidia\n"
    failed = modprobe("nvidia_peermem")
    assert failed.returncode == 1
    assert failed.stderr == "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n"
    assert run("/usr/local/sbin/dmesg").stdout == ""


def test_storage_modules_are_built_after_ofed_only(dkms: Tool, run: Tool, system: Path) -> None:
    storage = ofed.packages("3.2.1")[5]
    put_all(system, storage.files)
    assert run("/usr/lib/dkms/common.postinst", "mlnx-nfsrdma", BUILD).returncode == 0
    assert run("/usr/local/sbin/modinfo", "-F", "version", "rpcrdma").stdout == "25.10-1.7.1\n"
    newer_kernel(run)
    refused = dkms("install", f"mlnx-nfsrdma/{BUILD}", "-k", NEWER)
    assert (refused.returncode, "missing BUILD_DEPENDS: mlnx-ofed-kernel." in refused.stderr) == (13, True)
    assert dkms("autoinstall", "-k", NEWER).returncode == 0


# -- kmod and openibd ------------------------------------------------------------------------------------------------


def test_modinfo_describes_the_module_that_would_be_loaded(run: Tool) -> None:
    lines = run("/usr/local/sbin/modinfo", "mlx5_core").stdout.splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    assert fields["filename"].strip() == f"/lib/modules/{KERNEL}/updates/dkms/mlx5_core.ko"
    assert fields["version"].strip() == "25.10-1.7.1"
    assert fields["vermagic"].split()[0] == KERNEL
    newer_kernel(run)
    inbox = run("/usr/local/sbin/modinfo", "-k", NEWER, "-n", "mlx5_core").stdout
    assert inbox == f"/lib/modules/{NEWER}/kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko\n"
    assert run("/usr/local/sbin/modinfo", "-k", NEWER, "-F", "version", "mlx5_core").stdout == ""
    unknown = run("/usr/local/sbin/modinfo", "nv_peer_mem")
    assert (unknown.returncode, unknown.stderr) == (1, "modinfo: ERROR: Module nv_peer_mem not found.\n")


def test_a_module_in_use_is_not_unloaded_and_openibd_stops_for_nobody(run: Tool, modprobe: Tool, lab: Path) -> None:
    in_use = modprobe("-r", "ib_core")
    assert (in_use.returncode, in_use.stderr) == (1, "modprobe: FATAL: Module ib_core is in use.\n")
    refused = run("/etc/init.d/openibd", "restart")
    assert (refused.returncode, "ib_core is in use by: nvidia_peermem" in refused.stderr) == (1, True)
    loaded = lab / "node01/hw/sys/module"
    assert (loaded / "mlx5_core").is_dir()
    modprobe("-r", "nvidia_peermem")
    assert run("/etc/init.d/openibd", "stop").returncode == 0
    assert not {path.name for path in loaded.iterdir()} & set(kernel_node.STACK)
    assert run("/etc/init.d/openibd", "start").returncode == 0
    assert {path.name for path in loaded.iterdir()} >= set(kernel_node.STACK)
    log = (lab / "node01/sys/var/log/busbar-lab-openibd").read_text()
    assert log.split() == ["restart", "stop", "start"]


def test_what_openibd_has_loaded_stays_through_faults_and_reboots(run: Tool, modprobe: Tool, lab: Path) -> None:
    version = lab / "node01/hw/sys/module/mlx5_core/version"
    store.repair(lab, "node01")
    newer_kernel(run)
    run("/usr/sbin/update-grub")
    assert f"/boot/vmlinuz-{NEWER} " in store.reboot(lab, "node01")
    assert not version.exists()
    assert not (lab / "node01/hw/sys/module/mlx_compat").exists()
    assert not (lab / "node01/hw/sys/module/nvidia_peermem").exists()
    assert run("/usr/sbin/dkms", "autoinstall").returncode == 0
    assert run("/etc/init.d/openibd", "restart").returncode == 0
    assert version.read_text() == "25.10-1.7.1\n"
    store.break_(lab, "node01", "gpu-missing")
    assert version.read_text() == "25.10-1.7.1\n"
    store.repair(lab, "node01")
    store.reboot(lab, "node01")
    assert version.read_text() == "25.10-1.7.1\n"


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in ofed_faults.CATALOGUE:
        monkeypatch.setitem(faults.FAULTS, fault.name, fault)


PROVISIONED = {
    ofed_faults.SOURCES: "Types: deb\nURIs: file:/repository/doca/3.2.1/debian12/x86_64\nSuites: ./\n",
    ofed_faults.KEY: "-----BEGIN\n\nabc\ndef\nghi\n=1\n-----END\n",
}
_NEW_KERNEL = {
    "sys/boot/grub/grub.cfg",
    f"sys/boot/config-{NEWER}",
    f"sys/boot/vmlinuz-{NEWER}",
    f"sys/lib/modules/{NEWER}",
}
_HEADERS = f"sys/usr/src/linux-headers-{NEWER}"
_PEERMEM = "nvidia-peermem.ko"
# Fault -> the only places of the node that it may change.
# What node01 can have.
THOSE = [fault for fault in ofed_faults.CATALOGUE if "hgx-h100" in fault.platforms]
CHANGES: dict[str, set[str]] = {
    "ofed-missing": {"sys/var/lib/dpkg/status"},
    "ofed-other-version": {"sys/var/lib/dpkg/status"},
    "ofed-not-held": {"sys/var/lib/dpkg/status"},
    "mlnx-ofed-left": {"sys/var/lib/dpkg/status"},
    "ofed-repository-changed": {"sys" + ofed_faults.SOURCES},
    "ofed-key-changed": {"sys" + ofed_faults.KEY},
    "kernel-without-ofed": {*_NEW_KERNEL, _HEADERS},
    "headers-missing": _NEW_KERNEL,
    "dkms-build-failed": {*_NEW_KERNEL, _HEADERS, f"sys/var/lib/dkms/{OFED}/build"},
    "inbox-shadows": {f"sys/lib/modules/{KERNEL}/modules.dep"},
    "ofed-old-loaded": {f"hw/sys/module/{name}" for name in kernel_node.STACK},
    "nvidia-built-before-ofed": {
        f"sys/lib/modules/{KERNEL}/updates/dkms/{_PEERMEM}",
        f"sys/var/lib/dkms/{NVIDIA}/{KERNEL}/x86_64/module/{_PEERMEM}",
    },
    "nfs-without-ofed": {"hw/proc/modules", "hw/proc/mounts", "hw/sys/module/rpcrdma"},
}


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("provisioned") / "lab"
    store.create(directory, {"node01": hgx_h100})
    put_all(directory / "node01/sys", PROVISIONED)
    return directory


def files(node: Path) -> dict[str, bytes | str]:
    """Every file and link of both roots."""
    found: dict[str, bytes | str] = {}
    for root in ("hw", "sys"):
        for path in (node / root).rglob("*"):
            if path.is_symlink():
                found[str(path.relative_to(node))] = os.readlink(path)
            elif path.is_file():
                found[str(path.relative_to(node))] = path.read_bytes()
    return found


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize("fault", THOSE, ids=lambda fault: str(fault.name))
def test_a_fault_changes_what_it_names_and_repair_takes_all_of_it_back(provisioned: Path, fault: Fault) -> None:
    before = files(provisioned / "node01")
    store.break_(provisioned, "node01", fault.name)
    now = files(provisioned / "node01")
    changed = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
    places = {place for place in CHANGES[fault.name] for path in changed if f"{path}/".startswith(f"{place}/")}
    assert places == CHANGES[fault.name]
    assert {path for path in changed if not any(f"{path}/".startswith(f"{place}/") for place in places)} == set()
    store.repair(provisioned, "node01")
    assert files(provisioned / "node01") == before


@pytest.mark.usefixtures("catalogue")
def test_what_was_not_provisioned_cannot_be_broken(lab: Path) -> None:
    for name in ("ofed-repository-changed", "ofed-key-changed"):
        with pytest.raises(LabError, match="provision the node first"):
            store.break_(lab, "node01", name)


@pytest.mark.usefixtures("catalogue")
def test_package_faults_are_what_dpkg_would_show(lab: Path, system: Path) -> None:
    status = system / "var/lib/dpkg/status"
    store.break_(lab, "node01", "ofed-missing")
    assert "Package: doca-ofed\n" not in status.read_text()
    assert status.read_text().count("Package: ") == 4
    store.repair(lab, "node01")
    store.break_(lab, "node01", "ofed-not-held")
    assert status.read_text().count("Status: hold ok installed\n") == 4
    assert "Package: doca-ofed\nStatus: install ok installed\n" in status.read_text()
    store.repair(lab, "node01")
    store.break_(lab, "node01", "mlnx-ofed-left")
    assert "Package: mlnx-ofed-basic\nStatus: install ok installed\nVersion: 24.10-2.1.8.0\n" in status.read_text()


@pytest.mark.usefixtures("catalogue")
def test_kernel_faults_are_what_dkms_and_modinfo_would_show(lab: Path, dkms: Tool, run: Tool) -> None:
    store.break_(lab, "node01", "kernel-without-ofed")
    assert NEWER not in dkms("status").stdout
    assert dkms("build", OFED, "-k", NEWER).returncode == 0
    store.repair(lab, "node01")
    store.break_(lab, "node01", "headers-missing")
    assert dkms("build", OFED, "-k", NEWER).returncode == 21
    store.repair(lab, "node01")
    store.break_(lab, "node01", "dkms-build-failed")
    assert dkms("build", OFED, "-k", NEWER).returncode == 10
    store.repair(lab, "node01")
    store.break_(lab, "node01", "inbox-shadows")
    assert "/kernel/" in run("/usr/local/sbin/modinfo", "-n", "mlx5_core").stdout
    assert f"{OFED}, {KERNEL}, x86_64: installed\n" in dkms("status").stdout
    run("/usr/local/sbin/depmod", "-a")
    assert "/updates/dkms/" in run("/usr/local/sbin/modinfo", "-n", "mlx5_core").stdout


@pytest.mark.usefixtures("catalogue")
def test_a_reboot_loads_what_is_installed(lab: Path, run: Tool) -> None:
    store.break_(lab, "node01", "ofed-old-loaded")
    version = lab / "node01/hw/sys/module/mlx5_core/version"
    assert version.read_text() == "25.07-0.9.7\n"
    assert run("/usr/local/sbin/modinfo", "-F", "version", "mlx5_core").stdout == "25.10-1.7.1\n"
    store.reboot(lab, "node01")
    assert version.read_text() == "25.10-1.7.1\n"
    assert store.status(lab) == {"node01": []}


@pytest.mark.usefixtures("catalogue")
def test_a_driver_of_another_ofed_stays_until_it_is_loaded_again(lab: Path, run: Tool, modprobe: Tool) -> None:
    store.break_(lab, "node01", "nvidia-built-before-ofed")
    assert (lab / "node01/hw/sys/module/nvidia_peermem").is_dir()
    modprobe("-r", "nvidia_peermem")
    assert modprobe("nvidia_peermem").returncode == 1
    assert "disagrees about version of symbol" in run("/usr/local/sbin/dmesg").stdout


def test_nodes_show_what_is_loaded_by_version_and_srcversion() -> None:
    for builder in (hgx_h100, hgx_h200_roce):
        machine = builder("node01")
        assert machine.modules["mlx5_core"] == "25.10-1.7.1"
        machine.load_ofed(None)
        assert machine.modules["mlx5_core"] is None
        assert machine.srcversion("ib_core") == kernel_node.inbox_srcversion(KERNEL, "ib_core")
    assert h200_vm("vm01").ofed is None
