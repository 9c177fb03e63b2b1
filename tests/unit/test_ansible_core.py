# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_release_that_runs_these_tests_is_known() -> None:
    assert ansible_core.worker_runs_tasks() is ansible_core.RELEASES[ansible_core.release()].run


@pytest.mark.parametrize(
    ("version", "known"), [("2.19.0", (2, 19)), ("2.21.3rc1", (2, 21)), ("2.22.0.dev0", (2, 22)), ("3", (0, 0))]
)
def test_a_version_is_read(version: str, known: tuple[int, int]) -> None:
    assert ansible_core.release(version) == known


@pytest.mark.parametrize("version", ["2.19.0", "2.20.10", "2.21.5", "2.22.0rc1"])
def test_supported(version: str) -> None:
    assert ansible_core.unsupported(version) is None
    assert ansible_core.release(version) in ansible_core.RELEASES


@pytest.mark.parametrize("version", ["2.9.27", "2.18.19", "2.23.0b1", "2.100.0", "3.0.0", "unknown"])
def test_others_are_refused_with_the_way_out(version: str) -> None:
    said = ansible_core.unsupported(version) or ""
    assert said.startswith(
        f"ansible-core {version} is not supported: Busbar needs 2.19 to 2.22, and nothing was done. "
    )
    assert said.endswith("pip install 'ansible-core>=2.19,<2.23'")


def test_one_range_of_releases_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "ansible-core>=2.19,<2.23" in project["dependencies"]
    runtime = ROOT / "collections/ansible_collections/busbar/fabric/meta/runtime.yml"
    assert yaml.safe_load(runtime.read_text()) == {"requires_ansible": ">=2.19.0,<2.23.0"}
    [pinned] = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "ansible-core=" in line]
    assert pinned.startswith("ansible-core==2.19.")
    [newest] = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("NEWEST ?= ")]
    assert ansible_core.release(newest.split()[-1]) in ansible_core.RELEASES
    assert tuple(ansible_core.RELEASES) == tuple((2, minor) for minor in range(19, 23))


@pytest.mark.parametrize(
    ("what", "other"), [("RELEASES", {}), ("TaskContext", None), ("worker", sys), ("TaskExecutor", object)]
)
def test_another_release_is_not_known(what: str, other: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible_core, what, other)
    assert ansible_core.worker_runs_tasks() is None


def test_the_inside_of_ansible_is_named_in_one_file_only() -> None:
    """Of what a worker is. Plugins' own bases are public."""
    folders = [ROOT / name for name in ("busbar", "library", "module_utils", "plugin_utils")]
    named = set()
    for path in (path for folder in (*folders, *ROOT.glob("*_plugins")) for path in folder.rglob("*.py")):
        # What only types need is not imported.
        text = re.sub(r"^if TYPE_CHECKING:\n(?: .*\n)+", "", path.read_text(), flags=re.MULTILINE)
        if re.search(r"^\s*(?:import|from) ansible\.(?:_internal|executor)", text, re.MULTILINE):
            named.add(path.name)
    assert named == {"ansible_core.py"}
