# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The tarball that ansible-galaxy builds, and what is installed from it."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
Execute = Callable[..., Any]
PARTS = {"CHANGELOG.md", "LICENSE", "README.md", "docs", "meta", "playbooks", "plugins", "profiles", "roles"}
# Where a part of the collection has its files in the checkout.
SOURCES = {
    "plugins/action": "action_plugins",
    "plugins/filter": "filter_plugins",
    "plugins/module_utils": "module_utils",
    "plugins/plugin_utils": "plugin_utils",
    "plugins/modules": "library",
    "docs": "docs",
    "playbooks": "playbooks",
    "profiles": "profiles",
    "roles": "roles",
}


@pytest.fixture
def tarball(execute: Execute, bin_directory: Path, staged: Path, tmp_path: Path) -> Path:
    built = execute(bin_directory / "ansible-galaxy", "collection", "build", "--output-path", tmp_path, cwd=staged)
    assert built.rc == 0, built.out
    version = yaml.safe_load((staged / "galaxy.yml").read_text())["version"]
    return tmp_path / f"busbar-fabric-{version}.tar.gz"


@pytest.fixture
def installed(execute: Execute, bin_directory: Path, tarball: Path, tmp_path: Path) -> Path:
    """An empty directory, with the collection installed into it."""
    directory = tmp_path / "installed"
    command = ["collection", "install", "--offline", "-p", directory, tarball]
    done = execute(bin_directory / "ansible-galaxy", *command)
    assert done.rc == 0, done.out
    return directory


def test_the_tarball_holds_every_file_of_the_checkout_and_nothing_else(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    files = {member.name for member in members if member.isfile()}
    assert {name.split("/")[0] for name in files} == PARTS | {"MANIFEST.json", "FILES.json"}
    assert {"/".join(name.split("/")[:2]) for name in files if name.startswith("plugins/")} == {
        part for part in SOURCES if part.startswith("plugins/")
    }
    expected = {"MANIFEST.json", "FILES.json", "CHANGELOG.md", "LICENSE", "README.md", "meta/runtime.yml"}
    for part, source in SOURCES.items():
        for name in tracked_or_new(source):
            expected.add(f"{part}/{name}")
    assert files == expected
    assert [name for name in files if name.endswith(".pyc") or "/tests/" in f"/{name}"] == []


def tracked_or_new(folder: str) -> list[str]:
    """Paths below a folder of the checkout, without what git ignores and galaxy.yml leaves out."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT / folder), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Molecule's scenarios want the lab, which is not part of the collection.
    return [n for n in listed.stdout.splitlines() if (ROOT / folder / n).is_file() and "/molecule/" not in n]


def test_the_installed_collection_runs_by_name_from_anywhere(
    execute: Execute, bin_directory: Path, installed: Path, lab: Path
) -> None:
    def play() -> Any:
        argv = [bin_directory / "ansible-playbook", "busbar.fabric.site", "-i", lab / "inventory"]
        return execute(*argv, ANSIBLE_COLLECTIONS_PATH=installed)

    first = play()
    assert first.rc == 0, first.out
    assert "VERDICT ok: 2 of 2 hosts ok" in first.out
    assert first.changed == {"node01": 5, "node02": 7}
    second = play()
    assert second.rc == 0, second.out
    assert "VERDICT ok: 2 of 2 hosts ok" in second.out
    assert second.changed == {"node01": 0, "node02": 0}
    store.break_(lab, "node02", "rail-missing")
    broken = play()
    assert broken.rc == 2, broken.out
    assert "platform.rail_device" in broken.out
    assert "VERDICT ok" not in broken.out


def test_documentation_comes_from_the_installed_files(execute: Execute, bin_directory: Path, installed: Path) -> None:
    documented = {
        "module": [path.stem for path in (ROOT / "library").glob("*.py")],
        "filter": [path.stem for path in (ROOT / "filter_plugins").glob("*.py")],
    }
    for kind, names in documented.items():
        wanted = [f"busbar.fabric.{name}" for name in names]
        done = execute(bin_directory / "ansible-doc", "-t", kind, "--json", *wanted, ANSIBLE_COLLECTIONS_PATH=installed)
        assert done.rc == 0, done.out
        for name, page in json.loads(done.out).items():
            assert name in wanted
            assert Path(page["doc"]["filename"]).is_relative_to(installed)
