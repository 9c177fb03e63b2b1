# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.ofed import packages
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.packages import Repository, System

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ\n-----END PGP PUBLIC KEY BLOCK-----\n"
APT, DNF = System("apt", "ubuntu24.04"), System("dnf", "rhel9")


def test_an_old_lock_goes_before_a_new_one_comes_since_versionlock_adds_none_beside_it() -> None:
    found = packages.Packages({packages.VERSIONLOCK_PLUGIN: "4.3.0-13.el9"}, (), ("doca-ofed",))
    commands = packages.hold(DNF, ["doca-ofed", "mlnx-ofa_kernel"], found)
    assert [command.argv[2:] for command in commands] == [
        ("--disablerepo=*", "versionlock", "delete", "doca-ofed"),
        ("--disablerepo=*", "versionlock", "add", "doca-ofed", "mlnx-ofa_kernel"),
    ]
    assert packages.hold(DNF, ["x"], packages.Packages({}, ()))[0].argv[-1] == packages.VERSIONLOCK_PLUGIN


def test_a_repository_of_apt_counts_with_its_own_key_only() -> None:
    files = packages.render(APT, Repository("ofed", "https://mirror/doca/3.2.1/", KEY, {"doca-ofed": "3.2.1*"}))
    key, sources, pins = packages.paths(APT, "ofed")
    assert files[key] == KEY
    assert f"Signed-By: {key}\n" in files[sources]
    assert "trusted" not in files[sources].lower()
    assert 'Pin: origin "mirror"\nPin-Priority: 600' in files[pins]
    assert "Package: doca-ofed\nPin: version 3.2.1*\nPin-Priority: 1001" in files[pins]


def test_a_repository_of_dnf_checks_signatures() -> None:
    files = packages.render(DNF, Repository("ofed", "https://mirror/doca/3.2.1/rhel9/x86_64/", KEY, {}))
    key, repository = packages.paths(DNF, "ofed")
    assert files[key] == KEY
    assert f"gpgcheck=1\ngpgkey=file://{key}\n" in files[repository]


def test_no_command_waits_for_an_answer() -> None:
    for system in (APT, DNF):
        for command in (packages.install(system, ["a"], "b"), packages.remove(system, ["a"], "b")):
            assert "-y" in command.argv
