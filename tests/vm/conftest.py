# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Virtual machines with a real kernel, GRUB and IOMMU. As root it installs QEMU where it lacks: `make test-vm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import image as images
from .machine import Image, Machine, accelerator

ROOT = Path(__file__).resolve().parents[2]
NewVm = Callable[..., Machine]
# For the end of the run: what is printed meanwhile is captured.
_SAID: list[str] = []
_MACHINES: list[Machine] = []


@pytest.fixture(scope="session")
def image() -> Image:
    return images.ensure(_SAID.append)


@pytest.fixture(scope="session")
def new_vm(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewVm]:
    """Starts a machine on a fresh disk, with an IOMMU and devices as Machine.

    Those before it lose their power, unless it comes ``beside`` them.
    """
    chosen, why = accelerator(image, tmp_path_factory.mktemp("kvm"))
    _SAID.append(f"virtual machines ran under {chosen}: {why}")

    def start(
        *, iommu: bool = False, devices: Sequence[str] = (), netdevs: Sequence[str] = (), beside: bool = False
    ) -> Machine:
        if not beside:
            cut()
        folder = tmp_path_factory.mktemp("vm")
        machine = Machine(image, folder, chosen, iommu=iommu, devices=devices, netdevs=netdevs)
        _MACHINES.append(machine)
        machine.start()
        return machine

    def cut() -> None:
        for machine in _MACHINES:
            machine.cut()

    yield start
    cut()


@pytest.fixture
def vm(new_vm: NewVm) -> Machine:
    return new_vm()


def inventory(machine: Machine, folder: Path, **variables: object) -> Path:
    """Path of an inventory in ``folder`` with the machine as its one node."""
    return write_inventory({"vm": node(machine, **variables)}, folder)


def node(machine: Machine, **variables: object) -> dict[str, object]:
    """The machine as a host of an inventory."""
    return {
        "ansible_host": "127.0.0.1",
        "ansible_port": machine.port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(machine.image.key),
        "ansible_ssh_common_args": " ".join(machine.ssh_options()),
        "ansible_python_interpreter": "/usr/bin/python3",
        **variables,
    }


def write_inventory(nodes: Mapping[str, Mapping[str, object]], folder: Path) -> Path:
    path = folder / "hosts.yml"
    # JSON is YAML.
    path.write_text(json.dumps({"gpu_nodes": {"hosts": nodes}}))
    return path


def stored(what: str) -> str:
    """A play's last task, which gives ``played`` an expression of each host, such as what a module has returned."""
    return f"""\
    - ansible.builtin.copy:
        content: "{{{{ {what} | to_json }}}}"
        dest: "{{{{ inventory_dir }}}}/{{{{ inventory_hostname }}}}.json"
        mode: "0600"
      delegate_to: localhost
      check_mode: false
"""


def playing(hosts: Path, plays: str, *options: str) -> dict[str, Any]:
    """What subprocess takes to play these on an inventory, in whose folder HOST.json is what was stored."""
    playbook = hosts.with_name("play.yml")
    playbook.write_text(plays)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    }
    return {"args": ["ansible-playbook", "-i", str(hosts), str(playbook), *options], "cwd": ROOT, "env": environment}


def played(hosts: Path, plays: str, *options: str, check: bool = True) -> dict[str, Any]:
    """Host -> what was stored of it. check: the plays have to end well."""
    for path in hosts.parent.glob("*.json"):
        path.unlink()
    done = subprocess.run(**playing(hosts, plays, *options), capture_output=True, text=True, check=False)
    found = {path.stem: json.loads(path.read_text()) for path in hosts.parent.glob("*.json")}
    assert found, done.stdout + done.stderr
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        # A pair's other half may be the one to look at.
        report.sections += [("A machine's console", machine.console()) for machine in _MACHINES[-2:]]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _SAID:
        terminalreporter.write_line(line)
