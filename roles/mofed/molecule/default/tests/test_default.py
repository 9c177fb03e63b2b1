# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real apt, dpkg and systemd; stand-in packages from a signed repository (simulated)."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lab import store
from tests.molecule.scenario import LAB, NODE, Role, checks

ROLE = Role(__file__)
REPOSITORY = "/opt/busbar-lab/repository/doca/3.2.1"
UNPACKED = "/var/lib/busbar/ofed"
SOURCES = "/etc/apt/sources.list.d/busbar-mofed.sources"
KEY = "/etc/apt/keyrings/busbar-mofed.asc"


def test_the_fresh_node_was_told_what_is_missing_and_nothing_was_foretold_wrong() -> None:
    found = ROLE.verdict("check")
    roots = sorted(finding["check"] for finding in found["findings"] if finding["because"] is None)
    assert roots == ["ofed.packages", "ofed.repository"]


def test_what_is_installed_waits_for_a_reboot_and_for_nothing_else() -> None:
    found = ROLE.verdict("run")
    assert checks(found) == ["ofed.loaded"]
    assert found["findings"][0]["state"] == "withheld"


def test_no_package_has_restarted_the_driver(host: Host) -> None:
    log = host.file("/var/log/busbar-lab-openibd")
    assert not log.exists or "restart" not in log.content_string
    assert not host.file("/run/systemd/system/openibd.service").exists


def test_packages_come_from_one_repository_with_its_own_key(host: Host) -> None:
    assert f"Signed-By: {KEY}" in host.file(SOURCES).content_string
    assert host.file(KEY).content_string.startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    policy = host.check_output("apt-cache policy doca-ofed")
    assert "1001" in policy
    assert "file:/opt/busbar-lab/repository/doca/3.2.1/" in policy
    assert host.package("doca-ofed").version.startswith("3.2.1-")
    assert {"doca-ofed", "mlnx-ofed-kernel-dkms"} <= set(host.check_output("apt-mark showhold").split())


def test_modprobe_would_load_the_module_of_ofed(host: Host) -> None:
    assert "/updates/dkms/" in host.check_output("modinfo -k 6.8.0-60-generic -n mlx5_core")


def test_a_reboot_brings_it_into_effect(host: Host) -> None:
    store.reboot(LAB, NODE)
    assert "/updates/dkms/" in host.check_output("modinfo -n mlx5_core")
    found = ROLE.play(check=False)
    assert (found["findings"], found["repaired"]) == ([], [])
    assert found["passed"] >= 8


@pytest.mark.long
def test_an_archive_is_taken_for_a_repository_if_it_is_the_one_that_the_inventory_names(
    host: Host, tmp_path: Path
) -> None:
    archive = tmp_path / "ofed.tgz"
    packed = host.check_output(f"tar -C {REPOSITORY} -cz --dereference debian12/x86_64 | base64 -w0")
    archive.write_bytes(base64.b64decode(packed))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    given = ["-e", f"mofed_archive={archive}", "-e", "mofed_archive_repository=x86_64"]

    wrong = "0" * 64
    refused = ROLE.run_playbook(*given, "-e", f"mofed_archive_sha256={wrong}")
    assert refused.returncode != 0
    assert f"{sha256}, but mofed_archive_sha256 is {wrong}" in " ".join(refused.stdout.split())
    assert not host.file(f"{UNPACKED}/{wrong}/x86_64").exists
    assert not host.file(f"{UNPACKED}/{wrong}.archive").exists

    given += ["-e", f"mofed_archive_sha256={sha256}"]
    assert checks(ROLE.play(*given, check=True)) == ["ofed.repository"]
    assert not host.file(f"{UNPACKED}/{sha256}").exists
    assert ROLE.play(*given, check=False)["findings"] == []
    assert f"URIs: file://{UNPACKED}/{sha256}/x86_64/" in host.file(SOURCES).content_string
    assert f"file:{UNPACKED}/{sha256}/x86_64" in host.check_output("apt-cache policy doca-ofed")
    again = ROLE.play(*given, check=False)
    assert (again["findings"], again["repaired"]) == ([], [])
    assert not host.file(f"{UNPACKED}/{sha256}.archive").exists

    assert ROLE.play(check=False)["findings"] == []
