# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A lab in a directory: simulated nodes, an inventory for them, and the faults they have at present.

DIR/inventory/hosts.yml          and group_vars/gpu_nodes.yml: ansible-playbook site.yml -i DIR/inventory
DIR/<node>/hw, DIR/<node>/sys    the hardware root and the system root; nodes that are containers (containers.py) have
                                 a system of their own, and DIR/<node>/share in place of sys
DIR/<node>/machine.json          the healthy machine (machine.py)
DIR/<node>/faults.json           names of the faults present, of faults.py and of cluster_faults.LOCALISED
DIR/<node>/backup/<fault>.json   what a fault of a file has replaced
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from . import cluster_faults, containers, ofed, qos, repository, tree
from .blackwell import gb300, hgx_b300
from .cluster_faults import ClusterFault
from .containers import Lab, Say
from .fault import Fault, apply, fill
from .faults import FAULTS, GRUB_CFG, compatible, named, site
from .machine import LabError, Machine, from_dict, to_dict
from .machines import (
    azure_nd_h100_v5,
    gb200,
    h200_vm,
    hgx_b200,
    hgx_h100,
    hgx_h200_roce,
    oci_bm_gpu_h100_8,
)
from .toolkit import firmware_tools, udev
from .toolkit.kernel_node import STACK, write
from .toolkit.nccl_model.pcie import read

STANDARD: dict[str, Callable[[str], Machine]] = {"node01": hgx_h100, "node02": hgx_h200_roce}
PLATFORMS: dict[str, Callable[[str], Machine]] = {
    "azure-nd-h100-v5": azure_nd_h100_v5,
    "gb200-nvl72": gb200,
    "gb300-nvl72": gb300,
    "h200-vm": h200_vm,
    "hgx-b200": hgx_b200,
    "hgx-b300": hgx_b300,
    "hgx-h100": hgx_h100,
    "hgx-h200": hgx_h200_roce,
    "oci-bm-gpu-h100-8": oci_bm_gpu_h100_8,
}

BETWEEN: dict[str, ClusterFault] = {fault.name: fault for fault in cluster_faults.LOCALISED}

NO_KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

c2ltdWxhdGVkLCBv
ZiBubyBrZXkgYXQK
-----END PGP PUBLIC KEY BLOCK-----
"""


# A file: its text and mode, both None where there is no file.
_State = tuple[str | None, int | None]


def built(names: Mapping[str, Callable[[str], Machine]] = STANDARD) -> dict[str, Machine]:
    """The healthy machines, each made by ``builder(name)``, with what their inventory sets for them."""
    machines = {name: builder(name) for name, builder in names.items()}
    for machine in machines.values():
        machine.site = site(machine)
    return machines


def create(directory: Path, names: Mapping[str, Callable[[str], Machine]] = STANDARD) -> None:
    """A lab with a node for each name, built by ``builder(name)``. Raises LabError where there is a lab already."""
    directory = directory.resolve()
    if directory.is_dir() and any(directory.iterdir()):
        raise LabError(f"{directory} is not empty: a lab wants a directory of its own")
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or name == "inventory":
            raise LabError(f"{name!r} cannot be a node: its name must be a host name, and not inventory")
    machines = built(names)
    for name, machine in machines.items():
        node = directory / name
        tree.write(machine, node / "hw", node / "sys")
        _save_node(node, machine, [])
    _write_inventory(directory, _inventory(directory, machines))


def up(
    directory: Path, names: Mapping[str, Callable[[str], Machine]], suite: str, say: Say, with_ofed: bool = True
) -> None:
    """The same as containers; done again, it starts what was stopped. Raises LabError.

    with_ofed: as it is delivered; without, the nodes have what their distribution has.
    """
    lab = Lab(directory)
    machines = built(names)
    for machine in machines.values() if not with_ofed else ():
        machine.ofed = None
        machine.load_ofed(None)
        # Built without OFED it does not load.
        machine.modules.pop("nvidia_peermem", None)
    lab.up(machines, suite, say)
    for name, machine in machines.items():
        if not (lab.directory / name / "machine.json").is_file():
            _save_node(lab.directory / name, machine, [])
    key = f"'{lab.directory / repository.KEY}'"
    _write_inventory(lab.directory, containers.inventory(machines, str(lab.directory / "ssh_config"), key))


def reboot(directory: Path, node: str) -> str:
    """The node starts anew with the kernel and the command line that its boot loader has now; returns that line.

    Faults of files stay, as they would; faults of the machine stay, but those of how it was booted.
    Registers have the firmware's values, and then what the node's units make of them.
    """
    machine = healthy(directory, node)
    cfg = _read(_node(directory, node), GRUB_CFG)[0] or ""
    lines = [line.split(None, 2) for line in cfg.splitlines() if line.strip().startswith("linux")]
    if not lines or len(lines[0]) != 3:
        raise LabError(f"{node} would not boot: {GRUB_CFG} has no line 'linux KERNEL ARGUMENTS'")
    machine.cmdline = f"BOOT_IMAGE={lines[0][1]} {lines[0][2].strip()}"
    machine.boots += 1
    folder = _node(directory, node)
    machine.kernel = lines[0][1].rpartition("/vmlinuz-")[2]
    loads = json.loads(_run(folder, "/usr/local/sbin/busbar-lab-kernel", "loads", machine.kernel))
    for name in (*STACK, "nvidia_peermem"):
        machine.modules.pop(name, None)
        if name in loads:
            machine.modules[name], machine.srcversions[name] = loads[name]
    kept = [name for name in _load(folder / "faults.json") if name not in ("iommu-translated", "ofed-old-loaded")]
    _save_node(folder, machine, kept)
    qos.reboot(str(folder / "hw"))
    if machine.rdma:
        firmware_tools.spend(str(folder / "hw"), "reboot")
    _render(folder, _with(machine, kept))
    if containers.is_lab(directory):
        Lab(directory).restart(node)
    else:
        _start_units(folder / "sys")
    return machine.cmdline


def _start_units(system_root: Path) -> None:
    """Run what systemd would at the boot of a node that is a tree. One that fails keeps no node from booting.

    Only units that a drop-in of multi-user.target wants, and of them only programs that are files of the node: anything
    else would be one of the machine that the tree is on. From systemd.unit(5) and systemd.service(5).
    """
    udev.boot(str(system_root.parent / "hw"), str(system_root))
    for dropin in sorted((system_root / udev.UNITS / "multi-user.target.d").glob("*.conf")):
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read(dropin)
        for name in unit.get("Unit", "Wants", fallback="").split():
            if argv := udev.command(str(system_root), name):
                subprocess.run(argv, capture_output=True, check=False)


def nodes(directory: Path) -> list[str]:
    """Names of the lab's nodes. Raises LabError where there is no lab."""
    found = sorted(path.parent.name for path in directory.glob("*/machine.json"))
    if not found:
        raise LabError(f"there is no lab in {directory}")
    return found


def healthy(directory: Path, node: str) -> Machine:
    """The node's machine as it is without faults: what expectations are made from.

    What a restart of openibd has loaded meanwhile is part of it.
    """
    folder = _node(directory, node)
    machine = from_dict(_load(folder / "machine.json"))
    shown = _with(machine, _load(folder / "faults.json"))
    for name in STACK:
        before = [shown.modules.get(name) or "", shown.srcversion(name) or ""]
        now = [read(str(folder / "hw/sys/module" / name / file)) for file in ("version", "srcversion")]
        if now != before:
            machine.modules.pop(name, None)
            if now[1]:
                machine.modules[name], machine.srcversions[name] = now[0] or None, now[1]
    return machine


def status(directory: Path) -> dict[str, list[str]]:
    """Node -> the faults it has, in the order they were made."""
    return {node: _load(directory / node / "faults.json") for node in nodes(directory)}


def break_(directory: Path, node: str, fault: str) -> None:
    """Give a node a fault. Raises LabError where it is unknown, there already, hidden by another, or cannot be."""
    between = fault in BETWEEN
    wanted = None if between else named(fault)
    path, machine, present = _node(directory, node), healthy(directory, node), status(directory)[node]
    if wanted and machine.platform not in wanted.platforms:
        raise LabError(f"{fault} does not apply to {node} ({machine.platform}), only to {', '.join(wanted.platforms)}")
    if wanted and wanted.measured and not containers.is_lab(directory):
        raise LabError(f"{fault} shows only in a benchmark, which needs a lab of containers: python3 -m lab up")
    if between and all(rdma.rail is None for rdma in machine.rdma):
        raise LabError(f"{fault} does not apply to {node}: it has no rails")
    if fault in present:
        raise LabError(f"{node} has {fault} already")
    if rivals := [other for other in present if wanted and other in FAULTS and not compatible([fault, other])]:
        raise LabError(f"{fault} does not show beside {', '.join(rivals)}: repair {node} first")
    broken = _with(machine, [*present, fault])
    if wanted and wanted.file:
        _break_file(path, wanted, machine)
    if wanted:
        _run_all(path, wanted.change.get("run", ()), machine)
    _save_node(path, machine, [*present, fault])
    _render(path, broken)
    if between:
        _write_fabric(directory)


def repair(directory: Path, node: str, fault: str = "all") -> list[str]:
    """Take one fault, or all, from a node; the names of those taken. Raises LabError where the node has it not.

    A file that somebody has changed since the fault (mended it, say) stays as it is now.
    """
    path, machine = _node(directory, node), healthy(directory, node)
    present = status(directory)[node]
    if fault != "all":
        if fault not in BETWEEN:
            named(fault)
        if fault not in present:
            raise LabError(f"{node} does not have {fault}; it has {', '.join(present) or 'no fault'}")
    taken = [name for name in present if fault in (name, "all")]
    for name in taken:
        if name not in BETWEEN:
            if named(name).file:
                _repair_file(path, named(name))
            _run_all(path, named(name).change.get("undo", ()), machine)
    left = [name for name in present if name not in taken]
    _save_node(path, machine, left)
    _render(path, _with(machine, left))
    if set(taken) & BETWEEN.keys():
        _write_fabric(directory)
    return taken


def repair_broken(directory: Path) -> None:
    """Take all faults from all nodes that have some; a node without any is not touched."""
    for node, present in status(directory).items():
        if present:
            repair(directory, node)


def _node(directory: Path, node: str) -> Path:
    if node not in nodes(directory):
        raise LabError(f"there is no node {node!r} in the lab; there are {', '.join(nodes(directory))}")
    return directory / node


def _with(machine: Machine, faults: list[str]) -> Machine:
    for name in faults:
        if name not in BETWEEN:
            machine = named(name).apply(machine)
        else:
            machine = deepcopy(machine)
            apply(machine, BETWEEN[name].machine)
    return machine


def _write_fabric(directory: Path) -> None:
    """What is between the nodes, on all of them."""
    machines = [healthy(directory, node) for node in nodes(directory)]
    faults = {
        node: [BETWEEN[name] for name in present if name in BETWEEN] for node, present in status(directory).items()
    }
    _machines, fabric = cluster_faults.broken(machines, faults)
    for node in nodes(directory):
        if not containers.is_lab(directory):
            (directory / node / "sys" / cluster_faults.FABRIC.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        _replace(directory / node, cluster_faults.FABRIC, (json.dumps(fabric, indent=1) + "\n", 0o644))


def _render(node: Path, machine: Machine) -> None:
    tree.write_hardware(machine, node / "hw")
    if containers.is_lab(node.parent):
        tree.write_share(machine, node / "share")
    else:
        tree.write_tools(machine, node / "sys")


# -- programs of a node ----------------------------------------------------------------------------------------------


def _run_all(node: Path, commands: Sequence[Sequence[str]], machine: Machine) -> None:
    for words in commands:
        try:
            _run(node, *(fill(machine, word) for word in words if word != "!"))
        except LabError:
            if words[0] != "!":
                raise


def _run(node: Path, program: str, *arguments: str) -> str:
    """What a program of the node prints. Raises LabError with what it says where it fails."""
    if containers.is_lab(node.parent):
        return Lab(node.parent).run(node.name, program, *arguments)
    argv = [str(node / "sys") + program, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join([program, *arguments])} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


# -- faults of files -------------------------------------------------------------------------------------------------


def _break_file(node: Path, fault: Fault, machine: Machine) -> None:
    before = _read(node, fault.file)
    text = fault.edit(machine, before[0])
    after = (text, None if text is None else int(fault.change.get("mode", "0"), 8) or before[1] or 0o644)
    if after == before:
        raise LabError(f"{fault.name} changes nothing: {fault.file} is like that already")
    _save(node / "backup" / f"{fault.name}.json", [before, after])
    _replace(node, fault.file, after)


def _repair_file(node: Path, fault: Fault) -> None:
    backup = node / "backup" / f"{fault.name}.json"
    before, after = _load(backup)
    if _read(node, fault.file) == tuple(after):
        _replace(node, fault.file, before)
    backup.unlink()


def _read(node: Path, path: str) -> _State:
    if containers.is_lab(node.parent):
        content, mode = Lab(node.parent).read(node.name, path)
    else:
        file = node / "sys" / path.lstrip("/")
        content, mode = (file.read_bytes(), file.stat().st_mode & 0o7777) if file.exists() else (None, None)
    # Whatever bytes there are have to come back: JSON keeps what surrogateescape makes of those that are not UTF-8.
    return None if content is None else content.decode("utf-8", "surrogateescape"), mode


def _replace(node: Path, path: str, state: _State) -> None:
    text, mode = state
    content = None if text is None else text.encode("utf-8", "surrogateescape")
    file = node / "sys" / path.lstrip("/")
    if containers.is_lab(node.parent):
        Lab(node.parent).replace(node.name, path, content, mode)
    elif content is None or mode is None:
        file.unlink(missing_ok=True)
    else:
        new = file.with_name(f".{file.name}.lab")
        new.write_bytes(content)
        new.chmod(mode)
        new.replace(file)


# -- the lab's own files ---------------------------------------------------------------------------------------------


def _save(file: Path, data: object) -> None:
    write(file, json.dumps(data, indent=1) + "\n")


def _save_node(node: Path, machine: Machine, faults: Sequence[str]) -> None:
    """Save the healthy machine last: it makes the folder a node."""
    _save(node / "faults.json", faults)
    _save(node / "machine.json", to_dict(machine))


def _load(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise LabError(f"{file} cannot be used: {error}") from error


def _write_inventory(directory: Path, files: Mapping[str, str]) -> None:
    for file, text in files.items():
        write(directory / "inventory" / file, text)


def _inventory(directory: Path, machines: Mapping[str, Machine]) -> dict[str, str]:
    """Inventory of trees."""
    hosts = {}
    for name, machine in machines.items():
        roots = {"busbar_hardware_root": f"{directory / name}/hw", "busbar_system_root": f"{directory / name}/sys"}
        hosts[name] = {**machine.site, **roots}
    group = [
        "ansible_connection: local",
        'ansible_python_interpreter: "{{ ansible_playbook_python }}"',
        "# No libnccl.so.2 on simulated nodes: the text is linted against this version's table, and not proven.",
        "busbar_nccl_version: 2.27.7",
        "# Nor CUDA: nothing is built, and nothing measured. The container lab does both.",
        'nccl_tests_commit: ""',
        f"mofed_repository_url: file:{repository.TOP}",
        f'mofed_version: "{ofed.INSTALLED}"',
        "# Of no key: the apt-get of a tree asks for no signature.",
        f"mofed_repository_key: {json.dumps(NO_KEY)}",
        "nccl_benchmark_collectives: []",
    ]
    return containers.inventory_files(hosts, group)
