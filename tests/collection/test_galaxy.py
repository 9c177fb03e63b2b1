# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The tarball that ansible-galaxy builds, and what is installed from it."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import store
from tests import archive

ROOT = Path(__file__).resolve().parent.parent.parent
Execute = Callable[..., Any]
PARTS = {"CHANGELOG.md", "LICENSE", "README.md", "docs", "meta", "playbooks", "plugins", "profiles", "roles"}
PLUGINS = {"action", "callback", "doc_fragments", "filter", "module_utils", "modules", "plugin_utils"}
# An address that nobody owns (RFC 2606): the real one is given when an archive is built.
REPOSITORY = "https://git.example/busbar"
IMPORTER = "galaxy-importer==0.4.44"


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive.build(tmp_path_factory.mktemp("archive"), REPOSITORY)


@pytest.fixture
def installed(execute: Execute, bin_directory: Path, tarball: Path, tmp_path: Path) -> Path:
    """An empty directory, with the collection installed into it."""
    directory = tmp_path / "installed"
    command = ["collection", "install", "--offline", "-p", directory, tarball]
    done = execute(bin_directory / "ansible-galaxy", *command)
    assert done.rc == 0, done.out
    return directory


def test_the_tarball_holds_every_file_of_the_checkout_and_nothing_else(tarball: Path) -> None:
    with tarfile.open(tarball) as opened:
        members = opened.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    files = {member.name for member in members if member.isfile()}
    assert {name.split("/")[0] for name in files} == PARTS | {"MANIFEST.json", "FILES.json"}
    assert {name.split("/")[1] for name in files if name.startswith("plugins/")} == PLUGINS
    expected = {"MANIFEST.json", "FILES.json", "CHANGELOG.md", "LICENSE", "README.md", "meta/runtime.yml"}
    for part in (*(f"plugins/{name}" for name in PLUGINS), "docs", "playbooks", "profiles", "roles"):
        expected |= {f"{part}/{name}" for name in tracked_or_new((archive.VIEW / part).resolve())}
    assert files == expected
    assert [name for name in files if name.endswith(".pyc") or "/tests/" in f"/{name}"] == []


def tracked_or_new(folder: Path) -> list[str]:
    """Paths below a folder of the checkout, without what git ignores and galaxy.yml leaves out."""
    listed = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Molecule's scenarios want the lab, which is not part of the collection.
    return [n for n in listed.stdout.splitlines() if (folder / n).is_file() and "/molecule/" not in n]


def test_the_installed_collection_runs_by_name_from_anywhere(
    execute: Execute, bin_directory: Path, installed: Path, lab: Path
) -> None:
    store.break_(lab, "node02", "rail-missing")
    # On the node for which most roles have something to do.
    argv = [bin_directory / "ansible-playbook", "busbar.fabric.site", "-i", lab / "inventory", "--limit", "node02"]
    done = execute(*argv, "--check", ANSIBLE_COLLECTIONS_PATH=installed)
    assert done.rc == 2, done.out
    assert done.changed == {"node02": 5}
    assert "platform.rail_device" in done.out
    assert "VERDICT OK" not in done.out


@pytest.mark.long
def test_the_view_cannot_be_built_or_installed_by_itself(
    execute: Execute, bin_directory: Path, repository: Path, tmp_path: Path
) -> None:
    # From links ansible-galaxy would make an empty collection, without an error.
    galaxy, made = bin_directory / "ansible-galaxy", tmp_path / "made"
    done = execute(galaxy, "collection", "build", "--output-path", made, cwd=archive.VIEW)
    assert done.rc == 1
    assert f"{archive.VIEW}/galaxy.yml' does not exist" in " ".join(done.out.split())
    for part in ("", "#/collections/ansible_collections/busbar/fabric/"):
        done = execute(galaxy, "collection", "install", "-p", made, f"git+file://{repository}{part}")
        assert done.rc == 1
        assert "it is neither a collection, nor a namespace dir" in " ".join(done.out.split())
    assert not list(made.glob("**/*.*"))


@pytest.fixture(scope="module")
def importer() -> Path:
    """Where the commands of Galaxy's importer are, in an environment of its own, kept between runs."""
    directory = ROOT / ".cache" / IMPORTER
    if not (directory / "done").exists():
        if os.environ.get("BUSBAR_OFFLINE") == "1":
            pytest.skip(f"BUSBAR_OFFLINE=1 forbids to download {IMPORTER}")
        venv.create(directory, with_pip=True, symlinks=True, clear=True)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        done = subprocess.run([*pip, IMPORTER], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr[-600:]} (BUSBAR_OFFLINE=1 skips)"
        (directory / "done").touch()
    return directory / "bin"


@pytest.mark.long
def test_galaxy_takes_it_with_the_address_of_its_sources(
    execute: Execute, importer: Path, tarball: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "importer.cfg"
    # Its linters are run elsewhere, on the same files.
    off = "".join(f"RUN_{name} = False\n" for name in ("ANSIBLE_LINT", "FLAKE8", "ANSIBLE_TEST"))
    settings.write_text(f"[galaxy-importer]\nRUN_ANSIBLE_DOC = True\nCHECK_CHANGELOG = True\n{off}")

    def take(path: Path) -> Any:
        where = {"GALAXY_IMPORTER_CONFIG": settings, "PATH": f"{importer}{os.pathsep}{os.environ['PATH']}"}
        return execute(importer / "python", "-m", "galaxy_importer.main", path, cwd=tmp_path, **where)

    taken = take(tarball)
    assert taken.rc == 0, taken.out
    assert "Importer processing completed successfully" in taken.out
    refused = take(archive.build(tmp_path / "without"))
    assert refused.rc == 1
    assert "'repository' is required" in refused.out
