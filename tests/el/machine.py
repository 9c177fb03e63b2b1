# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An EL node in a root directory of its own, with the real dnf and rpm of this machine.

This machine's files are the lower layer of an overlay, in which everything that is written stays: the upper one is a
simulated node of the lab, whose os-release says EL 9. Nothing of this machine changes. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import store
from lab.machine import Machine
from lab.machines import hgx_h100
from tests.trees import put

ROOT = Path(__file__).resolve().parent.parent.parent
# Program, or file -> Debian's package.
PROGRAMS = {
    "dnf": "dnf",
    "rpmbuild": "rpm",
    "createrepo_c": "createrepo-c",
    "gpg": "gnupg",
    "systemctl": "systemd",
    "unshare": "util-linux",
    "/usr/lib/python3/dist-packages/dnf-plugins/versionlock.py": "dnf-plugins-core",
}
HARDWARE = "/srv/busbar-lab/hw"
REPOSITORIES = "/opt/repositories"
VERSIONLOCK = "/etc/dnf/plugins/versionlock.list"
_OS_RELEASE = """\
NAME="Stand-in of Busbar's tests for EL"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.4"
"""
_FILES = {
    "/etc/os-release": _OS_RELEASE,
    # As EL 9 has it.
    "/etc/dnf/dnf.conf": "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\nbest=True\n"
    "skip_if_unavailable=False\n",
    # Without a key: rpm takes what any key that it knows has signed, and it is to know none before ours.
    "/etc/yum.repos.d/baseos.repo": f"[baseos]\nname=baseos\nbaseurl=file://{REPOSITORIES}/baseos\ngpgcheck=0\n",
    # Debian's rpm keeps its database in the home directory, and its dnf a repository of downloads.
    "/etc/rpm/macros.busbar": "%_dbpath /var/lib/rpm\n",
    "/etc/dnf/plugins/local.conf": "[main]\nenabled = false\n",
    VERSIONLOCK: "",
    "/var/cache/dnf/busbar": "",
    # The real one, of this machine's systemd, on a node that does not run.
    "/usr/local/sbin/systemctl": '#!/bin/sh\nexec /usr/bin/systemctl --root=/ "$@"\n',
}
# Runs a module's real main().
_MODULE = """
import importlib, json, sys
sys.path[:0] = [sys.argv[1] + "/collections", sys.argv[1]]
import ansible_collections.busbar.fabric
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
AnsibleModule.log = lambda *_, **__: None
given = json.load(sys.stdin)
with patch_module_args(given["arguments"]):
    importlib.import_module("ansible_collections.busbar.fabric.plugins.modules." + given["module"]).main()
"""


def _without_ofed(hostname: str) -> Machine:
    machine = hgx_h100(hostname)
    machine.ofed = None
    machine.load_ofed(None)
    return machine


def make(folder: Path, repositories: Path) -> None:
    """What all nodes of a session begin as: ``upper`` (the layer above this machine's files) and ``hw``."""
    store.create(folder / "lab", {"node01": _without_ofed})
    upper = folder / "upper"
    (folder / "lab/node01/sys").rename(upper)
    (folder / "lab/node01/hw").rename(folder / "hw")
    _merge_usr(upper)
    # Of Debian, which is below as well.
    for path in ("usr/bin/apt-get", "usr/bin/apt-mark", "usr/bin/dpkg-query", "usr/sbin/update-grub"):
        (upper / path).unlink()
    for path, text in _FILES.items():
        put(upper, path, text)
    (upper / "usr/local/sbin/systemctl").chmod(0o755)
    shutil.copytree(repositories, upper / REPOSITORIES.lstrip("/"))
    El(folder).must("dnf", "-y", "install", "el-release")


class El:
    """folder: with ``upper`` and ``hw``, on a file system that can be an overlay's upper layer (ext4, xfs, tmpfs)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.upper = folder, folder / "upper"
        for name in ("work", "merged"):
            (folder / name).mkdir(exist_ok=True)

    def copy(self, folder: Path) -> El:
        folder.mkdir()
        shutil.copytree(self.upper, folder / "upper", symlinks=True)
        (folder / "hw").symlink_to(self.folder / "hw")
        return El(folder)

    def path(self, path: str) -> Path:
        return self.upper / path.lstrip("/")

    def write(self, path: str, text: str) -> None:
        put(self.upper, path, text)

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command on the node."""
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": "/root"}
        layers = [self.upper, self.folder / "work", self.folder / "merged", ROOT, (self.folder / "hw").resolve()]
        enter = ["unshare", "--mount", "sh", str(Path(__file__).with_name("enter.sh")), *map(str, layers)]
        given: dict[str, Any] = {"input": stdin, "env": environment, "cwd": ROOT, "timeout": 300}
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False, **given)

    def must(self, *argv: str) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"
        return done.stdout

    def module(self, name: str, check_mode: bool = False, **arguments: Any) -> dict[str, Any]:
        """What a module of the suite returns."""
        arguments |= {"_ansible_check_mode": check_mode, "_ansible_remote_tmp": "/tmp", "hardware_root": HARDWARE}
        given = json.dumps({"module": name, "arguments": arguments})
        done = self.run(sys.executable, "-c", _MODULE, str(ROOT), stdin=given)
        answered = done.stdout.strip()
        assert answered.startswith("{"), done.stdout + done.stderr
        return dict(json.loads(answered))

    def installed(self, name: str) -> str:
        """Its version and release, "" where it is not installed."""
        done = self.run("rpm", "-q", "--queryformat", "%{VERSION}-%{RELEASE}", name)
        return done.stdout if done.returncode == 0 else ""

    def locked(self) -> list[str]:
        lines = self.path(VERSIONLOCK).read_text().splitlines()
        return sorted(line for line in lines if line and not line.startswith("#"))


def _merge_usr(upper: Path) -> None:
    """/lib below /usr, as it is on EL and on this machine. Links in it are made anew: they were relative."""
    old, new = upper / "lib", upper / "usr/lib"
    links = {path.relative_to(old): path.resolve() for path in old.rglob("*") if path.is_symlink()}
    for path in sorted(old.rglob("*")):
        target = new / path.relative_to(old)
        if path.is_symlink():
            # In the node there is no other root than its own.
            target.symlink_to("/" + str(links[path.relative_to(old)].relative_to(upper)))
        elif path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            path.rename(target)
    shutil.rmtree(old)
