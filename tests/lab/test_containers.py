# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The container lab's parts that need no podman; tests/containers has the rest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab import containers, image, nccl_tests, store
from lab.machine import LabError

ROOT = Path(__file__).resolve().parent.parent.parent
MACHINES = store.built()


def test_the_inventory_says_of_each_node_what_its_machine_says() -> None:
    files = containers.inventory(MACHINES, "/lab/ssh_config", "'/lab/GPG-KEY.asc'")
    assert yaml.safe_load(files["hosts.yml"]) == {
        "gpu_nodes": {"hosts": {name: machine.site for name, machine in MACHINES.items()}}
    }
    assert yaml.safe_load(files["group_vars/gpu_nodes.yml"])["ansible_ssh_common_args"] == "-F /lab/ssh_config"


def test_the_images_name_follows_what_goes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit = tmp_path / "toolkit"
    before = image.tag("bookworm")
    assert image.tag("trixie") != before
    shutil.copytree(nccl_tests.TOOLKIT, toolkit)
    monkeypatch.setattr(image, "TOOLKIT", toolkit)
    assert image.tag("bookworm") == before
    (toolkit / "Makefile").chmod(0o755)
    assert image.tag("bookworm") != before
    (toolkit / "Makefile").chmod(0o644)
    (toolkit / "Makefile").write_text("install:\n")
    changed = image.tag("bookworm")
    assert changed != before
    (toolkit / "new").write_text("")
    assert image.tag("bookworm") not in (before, changed)
    with pytest.raises(LabError, match="bookworm, trixie"):
        image.tag("buster")


def test_an_open_connection_is_never_that_of_another_node_or_lab(tmp_path: Path) -> None:
    paths: list[str] = []
    for lab in ("one", "other"):
        for name, text in containers.inventory(MACHINES, f"/{lab}/ssh_config", "'/key'").items():
            (tmp_path / lab / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / lab / name).write_text(text)
        ansible = str(Path(sys.executable).parent / "ansible")
        argv = [ansible, "gpu_nodes", "-i", str(tmp_path / lab), "-m", "debug", "-a", "var=ansible_control_path"]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
        paths += re.findall(r"ansible_control_path: '?(%\(directory\)s/[0-9a-f]{10})\b", done.stdout)
    assert len(set(paths)) == len(paths) == 2 * len(MACHINES)


def test_a_path_that_podman_and_ssh_would_take_apart_is_refused(tmp_path: Path) -> None:
    for name in ("a b", "a:b", "a%n", "a,b"):
        with pytest.raises(LabError, match="only letters"):
            containers.Lab(tmp_path / name).up(MACHINES, "bookworm", print)
        assert not (tmp_path / name).exists()
