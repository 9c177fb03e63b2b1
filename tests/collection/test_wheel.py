# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The wheel: ``pip install`` brings the command and the collection, as real files."""

from __future__ import annotations

import stat
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
VIEW = ROOT / "collections" / "ansible_collections" / "busbar" / "fabric"
INSIDE = "ansible_collections/busbar/fabric/"
Execute = Callable[..., Any]


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", directory, ROOT)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of an environment with the wheel, and with the dependencies that this one has."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    pip("--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    paths = {"base": str(directory), "platbase": str(directory)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    # The last on sys.path, and its own .pth files do not count: an editable install of the checkout stays out of sight.
    ours = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "dependencies.pth").write_text("\n".join(ours) + "\n")
    return python.parent


def test_the_wheel_holds_the_collection_as_real_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    assert [member.filename for member in members if stat.S_ISLNK(member.external_attr >> 16)] == []
    names = {member.filename for member in members}
    assert {name.split("/")[0] for name in names} == {
        "busbar",
        "ansible_collections",
        f"busbar-{__version__}.dist-info",
    }
    wanted = set()
    for top in VIEW.iterdir():
        # A pattern does not enter links, so it starts behind them.
        folders = [path for path in top.iterdir() if path.is_dir()] if top.name == "plugins" else [top]
        for folder in folders:
            base, name = folder.resolve(), folder.relative_to(VIEW)
            found = [base] if base.is_file() else [path for path in base.rglob("*") if path.is_file()]
            wanted |= {(name / path.relative_to(base)).as_posix() for path in found}
    wanted = {INSIDE + name for name in wanted if "__pycache__" not in name and not name.endswith(".pyc")}
    assert {name for name in names if name.startswith(INSIDE)} == wanted


def test_the_command_works_where_only_the_wheel_is_installed(execute: Execute, fresh: Path) -> None:
    where = execute(fresh / "python", "-c", "import busbar.lint as m; print(m.__file__, m.nccl_lint.__file__)")
    assert where.rc == 0, where.out
    assert all(Path(path).is_relative_to(fresh.parent) for path in where.out.split()), where.out
    version = execute(fresh / "busbar", "--version")
    assert (version.rc, version.out) == (0, f"busbar {__version__}\n")
    lint = [fresh / "busbar", "lint", "--nccl-version", "2.27.7", "-"]
    good = execute(*lint, stdin="NCCL_DEBUG=WARN\n")
    assert (good.rc, good.out) == (0, "0 findings in 1 file\n")
    bad = execute(*lint, stdin="NCCL_DEBUG = WARN\n")
    assert bad.rc == 2
    assert "<stdin>:1" in bad.out


@pytest.mark.long
def test_the_playbook_runs_where_only_the_wheel_is_installed(execute: Execute, fresh: Path, lab: Path) -> None:
    # Ansible's own commands are not in the fresh environment's folder: `python -m ansible` is the same program.
    site = ("playbook", "busbar.fabric.site", "-i", lab / "inventory", "--limit", "node02")
    run = execute(fresh / "python", "-m", "ansible", *site)
    assert run.rc == 0, run.out
    assert "VERDICT OK: 1 of 1 hosts ok" in run.out


def test_the_nightly_check_finds_the_playbooks_in_the_wheel_or_says_what_to_install(
    execute: Execute, fresh: Path, lab: Path
) -> None:
    for name in ("inventory", "playbook"):
        command = fresh / f"ansible-{name}"
        command.write_text(f"#!{fresh / 'python'}\nimport sys\nfrom ansible.cli.{name} import main\nsys.exit(main())\n")
        command.chmod(0o755)
    drift = [fresh / "busbar", "drift", "-i", lab / "inventory"]
    asked = execute(*drift)
    assert asked.rc == 2, asked.out
    assert "VERDICT NOT OK" in asked.out
    lost = execute(*drift, ANSIBLE_COLLECTIONS_SCAN_SYS_PATH="false")
    assert lost.rc == 1
    assert "install busbar with pip beside Ansible, or the collection with ansible-galaxy" in lost.out


def test_an_editable_install_copies_nothing(tmp_path: Path) -> None:
    command = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", command, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        assert [name for name in archive.namelist() if name.startswith(("busbar/", "ansible_collections/"))] == []
