# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module and role that hold a node to one OFED, with the real dnf, rpm and versionlock, on repositories of our own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import series

from . import packages
from .machine import HARDWARE, REPOSITORIES, ROOT, El

KERNEL = "6.8.0-60-generic"
OLD, NEW, LEGACY = (packages.RELEASES[version] for version in ("3.1.0", "3.2.1", "24.10-2.1.8.0"))
# What nobody can mend without a reboot.
WAITS = {"ofed.loaded": "withheld"}


def ask(el: El, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    arguments = {
        "profile": yaml.safe_load((ROOT / "profiles/hgx-h100.yml").read_text()),
        "profile_name": "hgx-h100",
        "fabric": "infiniband",
        "version": "3.2.1",
        "repository_top": f"file://{REPOSITORIES}",
        "repository_key": el.path(f"{REPOSITORIES}/{packages.KEY}").read_text(),
    }
    return el.module("ofed", check_mode, **(arguments | more))


def states(result: dict[str, Any]) -> dict[str, str]:
    """Of what follows from nothing else."""
    return {finding["check"]: finding["state"] for finding in result["findings"] if finding["because"] is None}


def found(result: dict[str, Any], check: str) -> dict[str, Any]:
    return next(dict(finding) for finding in result["findings"] if finding["check"] == check)


def locks(release: packages.Release) -> list[str]:
    names = {release.name: release.meta, "mlnx-ofa_kernel": release.kernel, "mlnx-ofa_kernel-dkms": release.kernel}
    return sorted(f"{name}-0:{'-'.join(version)}.*" for name, version in names.items())


def test_a_fresh_node_gets_one_release_keeps_it_and_goes_to_others_and_back(el: El) -> None:
    rpms = el.must("rpm", "-qa")
    predicted = ask(el, check_mode=True, version="3.1.0")
    assert predicted["changed"]
    assert not el.path("/etc/yum.repos.d/busbar-mofed.repo").exists()
    assert el.must("rpm", "-qa") == rpms
    done = ask(el, version="3.1.0")
    assert (predicted["diff"], predicted["repaired"]) == (done["diff"], done["repaired"])
    assert states(done) == WAITS
    assert (el.installed("doca-ofed"), el.locked()) == ("-".join(OLD.meta), locks(OLD))
    again = ask(el, version="3.1.0")
    assert (again["changed"], again["commands"], states(again)) == (False, [], WAITS)

    # A repository with a newer one, as a mirror of everything has it: no upgrade takes it.
    newer = f"[newer]\nname=newer\nbaseurl=file://{REPOSITORIES}/{NEW.folder}/{packages.PLACE}\ngpgcheck=0\n"
    el.write("/etc/yum.repos.d/newer.repo", newer)
    el.must("dnf", "-y", "upgrade")
    assert el.installed("doca-ofed") == "-".join(OLD.meta)
    el.path("/etc/yum.repos.d/newer.repo").unlink()

    assert states(ask(el)) == WAITS
    assert (el.installed("doca-ofed"), el.locked()) == ("-".join(NEW.meta), locks(NEW))
    status = el.must("dkms", "status")
    assert f"mlnx-ofa_kernel/{NEW.build}, {KERNEL}, x86_64: installed" in status
    assert OLD.build not in status

    assert states(ask(el, version="3.1.0")) == WAITS
    assert (el.installed("doca-ofed"), el.locked()) == ("-".join(OLD.meta), locks(OLD))

    # The other OFED: this one goes first.
    assert states(ask(el, flavour="mlnx-ofed", version="24.10-2.1.8.0")) == WAITS
    assert (el.installed("doca-ofed"), el.installed(LEGACY.name)) == ("", "-".join(LEGACY.meta))
    assert el.must("ofed_info") == f"{LEGACY.info}:\n"

    gone = ask(el, flavour="inbox", version="")
    assert states(gone) == {}
    assert [el.installed(name) for name in (LEGACY.name, "mlnx-ofa_kernel-dkms", "mlnx-ofa_kernel")] == [""] * 3
    assert not el.path("/etc/yum.repos.d/busbar-mofed.repo").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    series.first(
        ({"repository_key": packages.OTHER_KEY}, "GPG"),
        ({"repository": f"file://{REPOSITORIES}/doca/9.9.9/"}, "repomd.xml"),
    ),
)
def test_what_cannot_be_installed_is_tried_once_and_the_finding_says_why(
    el: El, more: dict[str, Any], said: str
) -> None:
    if "repository_key" in more:
        more = {"repository_key": el.path(f"{REPOSITORIES}/{packages.OTHER_KEY}").read_text()}
    done = ask(el, **more)
    finding = found(done, "ofed.packages")
    assert finding["state"] == "drift"
    assert said in finding["have"], finding
    assert "installing it failed" in finding["have"]
    assert "run dnf -y install 'doca-ofed-3.2.1*' by hand" in finding["fix"]
    assert len(done["commands"]) == len(set(done["commands"]))
    assert el.installed("mlnx-ofa_kernel-dkms") == ""
    # Nothing is left behind that would keep openibd from its start.
    assert "ofed.openibd" not in states(done)


@pytest.mark.long
def test_what_a_mirror_has_since_is_seen_at_the_next_run(el: El) -> None:
    """What is not there yet is told as what cannot be installed."""
    folder = el.path(f"{REPOSITORIES}/{NEW.folder}/{packages.PLACE}")
    meta = next(folder.glob("doca-ofed-*.rpm"))
    later = meta.rename(el.folder / meta.name)
    packages.index(folder)
    finding = found(ask(el), "ofed.packages")
    assert "installing it failed" in finding["have"]
    assert "doca-ofed" in finding["have"]
    assert "run dnf -y install 'doca-ofed-3.2.1*' by hand" in finding["fix"]
    later.rename(meta)
    packages.index(folder)
    assert states(ask(el)) == WAITS


def test_a_lock_that_cannot_be_made_is_said_and_the_drivers_are_there(el: El) -> None:
    folder = el.path(f"{REPOSITORIES}/baseos")
    next(folder.glob(f"{packages.VERSIONLOCK}-*.rpm")).unlink()
    packages.index(folder)
    el.must("dnf", "clean", "all")
    done = ask(el)
    assert states(done) == {"ofed.hold": "drift"} | WAITS
    finding = found(done, "ofed.hold")
    assert packages.VERSIONLOCK in finding["have"]
    assert f"run dnf -y install {packages.VERSIONLOCK} && dnf -y '--disablerepo=*' versionlock add" in finding["fix"]
    assert len(done["commands"]) == len(set(done["commands"]))


def test_a_database_of_packages_that_cannot_be_read_is_unknown(el: El) -> None:
    next(el.path("/var/lib/rpm").glob("rpmdb.sqlite")).write_bytes(b"no database\n" * 500)
    done = ask(el)
    assert states(done) == {"ofed.readable": "unknown"}
    assert "rpm" in done["findings"][0]["subject"] + done["findings"][0]["have"]
    assert not done["changed"]


def test_the_role_does_it_by_a_playbook(el: El) -> None:
    values = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "busbar_platform": "hgx-h100",
        "busbar_fabric": "infiniband",
        "busbar_hardware_root": HARDWARE,
        "mofed_version": "3.2.1",
        "mofed_repository_url": f"file://{REPOSITORIES}",
        "mofed_repository_key": el.path(f"{REPOSITORIES}/{packages.KEY}").read_text(),
    }
    el.write("/inventory.yml", json.dumps({"gpu_nodes": {"hosts": {"node01": values}}}))
    playbook = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(playbook), "playbooks/provision.yml", "-i", "/inventory.yml", "--tags", "mofed"]
    el.run(*argv)
    assert (el.installed("doca-ofed"), el.locked()) == ("-".join(NEW.meta), locks(NEW))
