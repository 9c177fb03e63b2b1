# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A lab whose nodes are systemd containers: Debian is real, the hardware below it is a tree (tree.py).

DIR/containers.json            that DIR is such a lab, and its image once it is complete
DIR/containers.conf            what podman has to be told on this machine, where its own settings do not work
DIR/ssh_config, id, known_hosts   the way to the nodes: ssh -F DIR/ssh_config node01
DIR/GPG-KEY.asc                public key of the repository that every node has (repository.py)
DIR/inventory                  ansible-playbook site.yml -i DIR/inventory
DIR/<node>/hw, DIR/<node>/share   on the node: HARDWARE and SHARE
and machine.json, faults.json and backup/ of each node, as store.py has them
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path

from . import image, nccl_tests, ofed, repository, tree
from .machine import LabError, LabLockedError, Machine
from .toolkit.kernel_node import write

HARDWARE = "/srv/busbar-lab/hw"
SHARE = "/usr/share/busbar-lab"
BOOT_LIMIT = 120.0
LABEL = "busbar-lab"
# Program -> Debian's package. Networks come from either of the two that follow.
_TOOLS = {
    "podman": "podman",
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "iptables": "iptables",
    "gpg": "gnupg",
}
_NETWORKS = (
    "/usr/lib/cni/bridge",
    "/usr/libexec/cni/bridge",
    "/usr/lib/podman/netavark",
    "/usr/libexec/podman/netavark",
)
# Mode and content of a file, nothing where there is none; and what is read becomes one.
_READ = 'if [ -e "$0" ]; then stat -Lc %a "$0"; cat "$0"; fi'
_WRITE = 'mkdir -p "${0%/*}"; cat > "$0.lab"; chmod "$1" "$0.lab"; mv -f "$0.lab" "$0"'

Say = Callable[[str], None]


def is_lab(directory: Path) -> bool:
    return (directory / "containers.json").is_file()


def missing_packages() -> list[str]:
    """Debian's packages that this machine lacks for a lab."""
    # podman finds runc and iptables there, whether or not a user's PATH does.
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool, path=places) is None]
    if all(shutil.which(tool, path=places) is None for tool in ("runc", "crun")):
        missing.append("runc")
    if not any(map(os.path.exists, _NETWORKS)):
        missing.append("containernetworking-plugins")
    if os.getuid() != 0 and shutil.which("newuidmap") is None:
        missing.append("uidmap")
    return missing


class Lab:
    """The containers of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        # Two labs on one machine do not meet: all their names differ.
        self.name = f"busbar-{hashlib.sha1(str(self.directory).encode()).hexdigest()[:6]}"

    def container(self, node: str) -> str:
        return f"{self.name}-{node}"

    def podman(
        self, *arguments: str, stdin: bytes | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Raises LabError with podman's own words where it fails."""
        if shutil.which("podman") is None:
            raise LabError("podman is not installed: apt-get install podman")
        environment = dict(os.environ)
        settings = self.directory / "containers.conf"
        if settings.is_file():
            environment["CONTAINERS_CONF"] = str(settings)
        done = subprocess.run(["podman", *arguments], input=stdin, capture_output=True, env=environment, check=False)
        if check and done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-3:] or ["no word"]
            raise LabError(f"podman {arguments[0]} failed ({done.returncode}): {' '.join(said)}")
        return done

    def states(self) -> dict[str, str]:
        """Node -> "running", "exited" and so on, as podman words it, of the containers there are."""
        listed = self.podman("ps", "--all", "--filter", f"label={LABEL}={self.directory}", "--format", "json").stdout
        prefix = self.name + "-"
        return {entry["Names"][0][len(prefix) :]: entry["State"] for entry in json.loads(listed or b"[]")}

    # -- files of a node ---------------------------------------------------------------------------------------------

    def read(self, node: str, path: str) -> tuple[bytes | None, int | None]:
        """Content and mode, None and None where there is no file."""
        mode, newline, content = self._on(node, "sh", "-c", _READ, path).partition(b"\n")
        return (content, int(mode, 8)) if newline else (None, None)

    def replace(self, node: str, path: str, content: bytes | None, mode: int | None) -> None:
        if content is None:
            self._on(node, "rm", "-f", path)
        else:
            self._on(node, "sh", "-ec", _WRITE, path, f"{mode or 0o644:o}", stdin=content)

    def _on(self, node: str, *argv: str, stdin: bytes | None = None) -> bytes:
        try:
            return self.podman("exec", "--interactive", self.container(node), *argv, stdin=stdin).stdout
        except LabError as error:
            raise LabError(f"{node}: {error} (python3 -m lab up starts a node that has stopped)") from error

    # -- up and down -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Raises LabLockedError where another process starts or removes this lab."""
        try:
            with image.locked(self.directory, fcntl.LOCK_NB):
                yield
        except BlockingIOError as error:
            raise LabLockedError(f"{self.directory}: another python3 -m lab up or down is at work there") from error

    def up(self, machines: Mapping[str, Machine], suite: str, say: Say) -> None:
        """Nodes that have booted and can be reached. Raises LabError; then ``down`` or ``up`` again cleans up."""
        if not re.fullmatch(r"[\w./@+-]+", str(self.directory)):
            raise LabError(f"{self.directory}: podman and ssh take it as an option: only letters, digits and ._/@+-")
        if self.directory.is_dir() and any(self.directory.iterdir()) and not is_lab(self.directory):
            raise LabError(f"{self.directory} is not empty: a lab wants a directory of its own")
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            with self._alone():
                self._up(machines, suite, say)
        finally:
            # Where nothing came of it nothing is left, not even an empty directory.
            with contextlib.suppress(OSError):
                self.directory.rmdir()

    def _up(self, machines: Mapping[str, Machine], suite: str, say: Say) -> None:
        states, saved = self.states(), self._saved()
        if saved and set(states) == {path.parent.name for path in self.directory.glob("*/machine.json")}:
            if set(states) != set(machines):
                raise LabError(f"{self.directory} has {', '.join(sorted(states))}: `python3 -m lab down` first")
            stopped = [node for node, state in states.items() if state != "running"]
            for node in stopped:
                self.podman("start", self.container(node))
                self._wait(node)
            say(f"the lab in {self.directory} is up" + (f"; started {', '.join(stopped)}" if stopped else " already"))
            if saved != image.tag(suite):
                say(f"its nodes are of {saved}, now it would be {image.tag(suite)}: python3 -m lab down, then up")
            return
        # What a killed run has left is not worth mending.
        self._remove()
        for path in self.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._save("")
        name = image.ensure(self.podman, suite, say)
        self._settle(name)
        say(f"starting {', '.join(machines)}")
        addresses = self._network(list(machines))
        for node, machine in machines.items():
            folder = self.directory / node
            tree.write_hardware(machine, folder / "hw")
            tree.write_share(machine, folder / "share")
            self._run(node, name, addresses)
        for node, machine in machines.items():
            self._wait(node)
            for file, text in machine.image.items():
                self.replace(node, file, text.encode(), None)
            if machine.ofed is None:
                self._remove_ofed(node, machine)
            (self.directory / repository.KEY).write_bytes(self._key(node))
        self._ssh(list(machines))
        self._save(name)

    def _remove_ofed(self, node: str, machine: Machine) -> None:
        """The image has it. The NVIDIA driver is built again, as on a node that never had it."""
        rebuilt = [f"nvidia/{machine.driver_version}", "-k", machine.kernel, "--force"]
        self.run(node, "ofed_uninstall.sh", "--force")
        for action in ("build", "install"):
            self.run(node, "dkms", action, *rebuilt)
        # The first boot was one with OFED: what it has loaded and started goes, too.
        tree.write_hardware(machine, self.directory / node / "hw")
        self.restart(node)

    def _key(self, node: str) -> bytes:
        key, _mode = self.read(node, f"{repository.TOP}/{repository.KEY}")
        if key is None:
            raise LabError(f"{node} has no {repository.TOP}: python3 -m lab down --image, then up")
        return key

    def run(self, node: str, *argv: str) -> str:
        """What a command on the node prints. Raises LabError where it fails."""
        return self.podman("exec", self.container(node), *argv).stdout.decode()

    def restart(self, node: str) -> None:
        """As a reboot: every process is another one afterwards. Raises LabError."""
        self.podman("restart", "--time", "5", self.container(node))
        self._wait(node)

    def down(self) -> bool:
        """Removes the containers, their network and the directory, and nothing else. False where there was nothing."""
        found = is_lab(self.directory)
        if self.directory.is_dir() and any(self.directory.iterdir()) and not found:
            raise LabError(f"{self.directory} is no lab of containers: nothing was removed")
        if not found:
            # No podman, no containers: the first scenario on a machine removes its nodes before podman is installed.
            return shutil.which("podman") is not None and self._remove()
        with self._alone():
            removed = self._remove()
            shutil.rmtree(self.directory)
        return removed or found

    def _remove(self) -> bool:
        """Containers and network. False where there were none."""
        containers = [self.container(node) for node in self.states()]
        if containers:
            self.podman("rm", "--force", "--volumes", "--time", "0", *containers)
        if self.podman("network", "exists", self.name, check=False).returncode == 0:
            self.podman("network", "rm", "--force", self.name)
        return bool(containers)

    def _saved(self) -> str:
        """The image of a complete lab, "" of one that is not."""
        try:
            return str(json.loads((self.directory / "containers.json").read_text())["image"])
        except (OSError, ValueError, KeyError):
            return ""

    def _save(self, name: str) -> None:
        write(self.directory / "containers.json", json.dumps({"image": name}) + "\n")

    def _settle(self, name: str) -> None:
        """Whether podman as it is set up here can start a container; if not, with the settings of testbeds' machines.

        crun refuses cgroups of both versions at once, and without CAP_SYS_RESOURCE no limit can be raised.
        """
        trial = ["run", "--rm", "--replace", "--systemd=always", "--privileged", "--network=none"]
        trial += ["--name", self.container("trial"), "--label", f"{LABEL}={self.directory}", name, "true"]
        if self.podman(*trial, check=False).returncode == 0:
            return
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        most = {limit: min(1024, *(n for n in resource.getrlimit(number) if n > 0)) for limit, number in limits.items()}
        ulimits = json.dumps([f"{limit}={number}:{number}" for limit, number in most.items()])
        (self.directory / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits={ulimits}\n"
            '[engine]\nruntime="runc"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
        )
        self.podman(*trial)

    def _network(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> its address in a network of the lab's own."""
        self.podman("network", "create", "--label", f"{LABEL}={self.directory}", self.name)
        described = json.loads(self.podman("network", "inspect", self.name).stdout)[0]
        subnet = ip_network(described["subnets"][0]["subnet"])
        return {node: str(subnet[10 + number]) for number, node in enumerate(nodes)}

    def _run(self, node: str, name: str, addresses: Mapping[str, str]) -> None:
        folder, compiled = self.directory / node, image.COMPILED.parent / "__pycache__"
        compiled.mkdir(exist_ok=True)
        self.podman(
            *["run", "--detach", "--systemd=always", "--privileged", "--hostname", node],
            *["--name", self.container(node), "--label", f"{LABEL}={self.directory}"],
            *["--network", self.name, "--ip", addresses[node]],
            *[f"--add-host={other}:{address}" for other, address in addresses.items() if other != node],
            *["--volume", f"{folder / 'hw'}:{HARDWARE}", "--volume", f"{folder / 'share'}:{SHARE}:ro"],
            *["--volume", f"{compiled}:{image.COMPILED_ON_NODE}/__pycache__"],
            name,
        )

    def _wait(self, node: str) -> None:
        """Until systemd says that the node has booted. "degraded" is an error: a failed unit is never expected."""
        deadline = time.monotonic() + BOOT_LIMIT
        argv = ["exec", self.container(node), "systemctl", "is-system-running", "--wait"]
        while (state := self.podman(*argv, check=False).stdout.decode().strip()) != "running":
            # Before systemd listens there is no answer at all.
            if state not in ("", "offline", "initializing", "starting") or time.monotonic() > deadline:
                failed = self.podman("exec", self.container(node), "systemctl", "--failed", "--plain", check=False)
                raise LabError(f"{node} has not booted ({state or 'no answer'}): {failed.stdout.decode().strip()}")
            time.sleep(0.1)

    def _ssh(self, nodes: Sequence[str]) -> None:
        """Keys in, host keys out: from here to every node, and from every node to every other one."""
        for key in ("id", "between"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"busbar-lab {key}"]
            subprocess.run([*argv, "-f", str(self.directory / key)], check=True, capture_output=True)
        public, private = ((self.directory / name).read_bytes() for name in ("between.pub", "between"))
        known = b""
        for node in nodes:
            host_key, _mode = self.read(node, "/etc/ssh/ssh_host_ed25519_key.pub")
            if host_key is None:
                raise LabError(f"{node} has no host key: ssh.service did not start in it")
            known += node.encode() + b" " + b" ".join(host_key.split()[:2]) + b"\n"
        (self.directory / "known_hosts").write_bytes(known)
        for node in nodes:
            self.podman("exec", self.container(node), "mkdir", "-p", "-m", "0700", "/root/.ssh", "/run/sshd")
            self.replace(node, "/root/.ssh/authorized_keys", (self.directory / "id.pub").read_bytes() + public, 0o600)
            self.replace(node, "/root/.ssh/id_ed25519", private, 0o600)
            self.replace(node, "/etc/ssh/ssh_known_hosts", known, 0o644)
        # Through podman, and not through the network: it works without root, and wherever the lab's network leads.
        settings = self.directory / "containers.conf"
        prefix = f"env CONTAINERS_CONF={settings} " if settings.is_file() else ""
        (self.directory / "ssh_config").write_text(
            f"Host {' '.join(nodes)}\n"
            "    User root\n"
            f"    IdentityFile {self.directory / 'id'}\n"
            "    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {self.directory / 'known_hosts'}\n"
            "    StrictHostKeyChecking yes\n"
            f"    ProxyCommand {prefix}podman exec --interactive {self.name}-%n /usr/local/sbin/busbar-lab-to-sshd\n"
        )


def inventory_files(hosts: Mapping[str, Mapping[str, object]], group: Sequence[str]) -> dict[str, str]:
    """File name -> text. hosts: values of each node.   group: lines with the values of all."""
    lines = ["---", "gpu_nodes:", "  hosts:"]
    for node, values in hosts.items():
        lines.append(f"    {node}:")
        # JSON values are YAML, so nothing in them needs quoting rules.
        lines += [f"      {key}: {json.dumps(value)}" for key, value in values.items()]
    return {"hosts.yml": "\n".join(lines) + "\n", "group_vars/gpu_nodes.yml": "\n".join(["---", *group]) + "\n"}


def inventory(machines: Mapping[str, Machine], ssh_config: str, key: str) -> dict[str, str]:
    """File name -> text of the lab's inventory.

    ssh_config: its path, or a template that gives it.   key: expression for the path of the repository's key.
    """
    group = [
        "# Simulated nodes: containers with a real Debian, and trees in place of GPUs, NICs and their drivers.",
        f'ansible_ssh_common_args: "-F {ssh_config}"',
        "# Nodes of two labs have the same names: one's open connection must not be taken for the other's.",
        'ansible_control_path: "%(directory)s/{{ ((ansible_ssh_common_args ~ inventory_hostname) | hash)[:10] }}"',
        "ansible_python_interpreter: /usr/bin/python3",
        f"busbar_hardware_root: {HARDWARE}",
        "# Stand-ins for libnccl and nccl-tests are part of the nodes' image.",
        f"nccl_tests_repository: {nccl_tests.REPOSITORY}",
        f"nccl_tests_commit: {nccl_tests.COMMIT}",
        "# So are an apt repository and stand-ins for the packages of OFED.",
        f"mofed_repository_url: file:{repository.TOP}",
        f"mofed_repository_key: \"{{{{ lookup('ansible.builtin.file', {key}) }}}}\"",
        f'mofed_version: "{ofed.INSTALLED}"',
    ]
    return inventory_files({node: machine.site for node, machine in machines.items()}, group)
