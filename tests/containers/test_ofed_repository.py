# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's repository and its stand-ins for OFED's packages, with the real apt and dpkg of one node."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import ofed, repository
from tests import series

from .conftest import busbar, run

KERNEL = "6.8.0-60-generic"
MODULES = f"/lib/modules/{KERNEL}"
SOURCES, PREFERENCES = "/etc/apt/sources.list.d/ofed.sources", "/etc/apt/preferences.d/ofed"
KEY = f"{repository.TOP}/{repository.KEY}"
OLD, NEW = (ofed.RELEASES[version] for version in ("3.1.0", "3.2.1"))
LOG = "/var/log/busbar-lab-openibd"
# Debian's own sources need a network.
APT = "apt-get --yes --quiet -o Dir::Etc::sourcelist=/dev/null"
Done = subprocess.CompletedProcess[str]
Shell = Callable[[str], Done]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node that has never had OFED."""
    directory = tmp_path_factory.mktemp("ofed") / "lab"
    try:
        done = busbar("up", "-d", directory, "--nodes", "node01", "--ofed", "none")
        assert done.returncode == 0, done.stdout + done.stderr
        yield directory
    finally:
        busbar("down", "-d", directory)


@pytest.fixture
def node(bare: Path) -> Iterator[Shell]:
    """Runs a shell command on it. Afterwards it has no OFED and no sources of ours again."""

    def shell(command: str) -> Done:
        return run("ssh", "-F", bare / "ssh_config", "node01", command)

    yield shell
    shell("[ ! -e /usr/sbin/ofed_uninstall.sh ] || ofed_uninstall.sh --force")
    shell(f"rm -rf {SOURCES} {PREFERENCES} {LOG} /usr/sbin/policy-rc.d /tmp/repository /tmp/key.asc; {APT} update")


def put(node: Shell, path: str, text: str) -> None:
    assert node(f"printf %s {shlex.quote(text)} > {path}").returncode == 0


def use(node: Shell, *folders: str, top: str = repository.TOP, key: str | None = KEY) -> Done:
    """Sources of these releases alone; returns what apt-get says of them."""
    signed = f"Signed-By: {key}\n" if key else ""
    uris = " ".join(f"file:{top}/{folder}/debian12/x86_64" for folder in folders)
    put(node, SOURCES, f"Types: deb\nURIs: {uris}\nSuites: ./\n{signed}")
    return apt(node, "update")


def apt(node: Shell, arguments: str) -> Done:
    return node(f"{APT} {arguments}")


def version(node: Shell, package: str = "doca-ofed") -> str:
    """ "" where it is not installed."""
    words = node(f"dpkg-query --show --showformat '${{db:Status-Abbrev}} ${{Version}}' {package}").stdout.split()
    return words[-1] if words[:1] in (["ii"], ["hi"]) else ""


# -- what is trusted -------------------------------------------------------------------------------------------------


def test_a_repository_that_the_key_has_signed_is_used(node: Shell) -> None:
    updated = use(node, NEW.folder)
    assert (updated.returncode, updated.stderr) == (0, "")
    listed = node("apt-cache policy doca-ofed").stdout
    assert "Candidate: 3.2.1-044000" in listed
    assert node("apt-cache show doca-ofed").stdout.count("Stand-in of the Busbar lab") == 1


@pytest.mark.parametrize("key", series.first("another", "none"))
def test_a_repository_that_somebody_else_has_signed_is_not(node: Shell, tmp_path: Path, key: str) -> None:
    repository.create(tmp_path / "other")
    put(node, "/tmp/key.asc", (tmp_path / "other" / repository.KEY).read_text())
    refused = use(node, NEW.folder, key="/tmp/key.asc" if key == "another" else None)
    assert refused.returncode == 100
    assert "is not signed" in refused.stderr
    assert apt(node, "install doca-ofed").returncode == 100
    assert version(node) == ""


def test_a_package_that_was_tampered_with_is_not_installed(node: Shell) -> None:
    assert node(f"cp -a {repository.TOP} /tmp/repository").returncode == 0
    assert use(node, NEW.folder, top="/tmp/repository").returncode == 0
    # As long as before: only its hash tells.
    node(f"sed -i s/simulated/stimulate/ /tmp/repository/{NEW.folder}/debian12/x86_64/ofed-scripts_*.deb")
    refused = apt(node, "install doca-ofed")
    assert refused.returncode == 100
    assert "Hash Sum mismatch" in refused.stderr
    assert version(node) == version(node, "ofed-scripts") == ""


# -- install, pin, hold, upgrade, remove -----------------------------------------------------------------------------


def test_a_node_without_ofed_has_its_kernels_modules(node: Shell) -> None:
    assert node("dkms status").stdout == f"nvidia/580.178.04, {KERNEL}, x86_64: installed\n"
    assert node("modinfo -n mlx5_core").stdout.startswith(f"{MODULES}/kernel/")
    assert node("modinfo -F depends nvidia-peermem").stdout == "nvidia\n"
    assert node("command -v ofed_info").returncode == 1
    assert node("systemctl is-system-running").stdout == "running\n"


@pytest.mark.long
def test_installing_builds_the_modules_and_loads_none(node: Shell) -> None:
    use(node, NEW.folder)
    assert apt(node, "install doca-ofed").returncode == 0
    assert version(node) == NEW.meta_version
    assert version(node, "mlnx-ofed-kernel-dkms") == f"{NEW.build}-1"
    assert f"mlnx-ofed-kernel/{NEW.build}, {KERNEL}, x86_64: installed\n" in node("dkms status").stdout
    assert node("modinfo -n mlx5_core").stdout == f"{MODULES}/updates/dkms/mlx5_core.ko\n"
    assert node("ofed_info -s").stdout == "OFED-internal-25.10-1.7.1:\n"
    assert node("systemctl is-enabled openibd").stdout == "enabled\n"
    assert node(f"cat {LOG}").stdout == ""
    assert node("ls /srv/busbar-lab/hw/sys/module/mlx_compat").returncode == 2


@pytest.mark.long
def test_installing_without_headers_is_done_and_says_what_was_not_built(node: Shell) -> None:
    use(node, NEW.folder)
    node(f"mv /usr/src/linux-headers-{KERNEL} /usr/src/away")
    try:
        done = apt(node, "install doca-ofed")
        assert done.returncode == 0
        assert f"Module build for kernel {KERNEL} was skipped since the\n" in done.stdout
        assert f"mlnx-ofed-kernel/{NEW.build}: added\n" in node("dkms status").stdout
    finally:
        node(f"mv /usr/src/away /usr/src/linux-headers-{KERNEL}")


@pytest.mark.long
def test_a_pin_keeps_a_version_and_a_hold_what_is_installed(node: Shell) -> None:
    use(node, OLD.folder, NEW.folder)
    put(node, PREFERENCES, "Package: doca-ofed\nPin: version 3.1.0-*\nPin-Priority: 1001\n")
    assert "Candidate: 3.1.0-091000" in node("apt-cache policy doca-ofed").stdout
    parts = " ".join(f"{package.name}={package.version}" for package in ofed.standard("3.1.0"))
    assert apt(node, f"install {parts}").returncode == 0
    node("apt-mark hold doca-ofed")
    node(f"rm {PREFERENCES}")
    assert "Candidate: 3.2.1-044000" in node("apt-cache policy doca-ofed").stdout
    apt(node, "dist-upgrade")
    assert version(node) == OLD.meta_version
    assert apt(node, "install doca-ofed=3.2.1-044000").returncode == 100
    assert version(node) == OLD.meta_version


@pytest.mark.long
@pytest.mark.parametrize("policy", ["#!/bin/sh\nexit 101\n", ""])
def test_an_upgrade_restarts_openibd_where_it_runs_and_policy_lets_it(bare: Path, node: Shell, policy: str) -> None:
    use(node, OLD.folder, NEW.folder)
    parts = " ".join(f"{package.name}={package.version}" for package in ofed.standard("3.1.0"))
    assert apt(node, f"install {parts}").returncode == 0
    assert node("systemctl start openibd").returncode == 0
    if policy:
        put(node, "/usr/sbin/policy-rc.d", policy)
        node("chmod 755 /usr/sbin/policy-rc.d")
    node(f"rm {LOG}")
    assert apt(node, "install doca-ofed").returncode == 0
    assert version(node) == NEW.meta_version
    status = node("dkms status").stdout
    assert (OLD.build in status, f"{NEW.build}, {KERNEL}, x86_64: installed" in status) == (False, True)
    assert node(f"cat {LOG}").stdout.split() == ([] if policy else ["stop", "start"])
    # The next test starts with what the kernel has.
    assert node("ofed_uninstall.sh --force").returncode == 0
    assert busbar("reboot", "-d", bare, "node01").returncode == 0


@pytest.mark.long
def test_the_driver_is_of_the_old_ofed_until_it_is_built_again(node: Shell) -> None:
    use(node, NEW.folder)
    apt(node, "install doca-ofed")
    built, symvers = f"{MODULES}/updates/dkms/nvidia-peermem.ko", f"/usr/src/ofa_kernel/x86_64/{KERNEL}/Module.symvers"
    assert node(f"modprobe --dump-modversions {built}").stdout == ""
    for action in ("build", "install"):
        assert node(f"dkms {action} --force nvidia/580.178.04").returncode == 0
    number = node(f"modprobe --dump-modversions {built}").stdout.partition("\t")[0]
    assert node(f"cut -f 1 {symvers}").stdout == f"{number}\n"


@pytest.mark.long
def test_both_ofeds_do_not_go_together(node: Shell) -> None:
    legacy = ofed.RELEASES["24.10-2.1.8.0"]
    use(node, NEW.folder, legacy.folder)
    assert apt(node, "install doca-ofed").returncode == 0
    assert apt(node, "install --no-remove mlnx-ofed-all").returncode == 100
    node("ofed_uninstall.sh --force")
    use(node, legacy.folder)
    assert apt(node, "install mlnx-ofed-all").returncode == 0
    assert node("ofed_info -s").stdout == "MLNX_OFED_LINUX-24.10-2.1.8.0:\n"
    assert node("ofed_info -n").stdout == "24.10-2.1.8.0\n"


@pytest.mark.long
def test_removal_leaves_the_node_as_it_was(node: Shell) -> None:
    before = node(f"find /usr/src {MODULES} /var/lib/dkms /etc/infiniband /etc/systemd/system | sort").stdout
    use(node, NEW.folder)
    assert apt(node, "install doca-ofed mlnx-nfsrdma-dkms mlnx-nvme-dkms").returncode == 0
    assert node("modinfo -F version rpcrdma").stdout == "25.10-1.7.1\n"
    node("apt-mark hold doca-ofed")
    assert node("echo n | ofed_uninstall.sh").returncode == 1
    assert node("ofed_uninstall.sh --force").returncode == 0
    assert version(node) == version(node, "mlnx-ofed-kernel-utils") == ""
    assert node(f"find /usr/src {MODULES} /var/lib/dkms /etc/infiniband /etc/systemd/system | sort").stdout == before
