from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import containers, faults, image, ofed, repository, store
from tests import series

from .conftest import busbar, run

On = Callable[..., subprocess.CompletedProcess[str]]


def test_a_node_is_a_debian_that_has_booted_on_simulated_hardware(lab: Path, on: On) -> None:
    assert on("node01", "systemctl", "is-system-running").stdout == "running\n"
    assert f"VERSION_CODENAME={image.wanted()}\n" in on("node01", "cat", "/etc/os-release").stdout
    assert on("node01", "hostname").stdout == "node01\n"
    assert len(on("node01", "nvidia-smi", "-L").stdout.splitlines()) == 8
    assert "simulated" in on("node01", "cat", "/usr/share/busbar-lab/SIMULATED").stdout
    assert busbar("status", "-d", lab).stdout == (
        "node01: running, healthy (simulated)\nnode02: running, healthy (simulated)\n"
    )


def test_a_node_with_another_host_key_is_refused(lab: Path) -> None:
    known = lab / "known_hosts"
    before = known.read_text()
    lines = before.splitlines()
    # Each node under the other's name.
    swapped = [f"{a.split()[0]} {' '.join(b.split()[1:])}" for a, b in zip(lines, reversed(lines), strict=True)]
    try:
        known.write_text("\n".join(swapped) + "\n")
        done = run("ssh", "-F", lab / "ssh_config", "node01", "true")
    finally:
        known.write_text(before)
    assert done.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_nodes_reach_each_other_by_name_with_host_keys_checked(on: On) -> None:
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    assert on("node01", "ssh", *options, "node02", "hostname").stdout == "node02\n"
    assert on("node02", "ssh", *options, "node01", "hostname").stdout == "node01\n"


def test_a_file_of_the_node_is_broken_and_put_back_as_it_was(lab: Path, on: On) -> None:
    on("node01", "printf 'NCCL_DEBUG=WARN\\n' > /etc/nccl.conf; chmod 0644 /etc/nccl.conf")
    try:
        store.break_(lab, "node01", "conf-mode")
        assert on("node01", "stat", "-c", "%a", "/etc/nccl.conf").stdout == "600\n"
        store.repair(lab, "node01")
        assert on("node01", "stat", "-c", "%a", "/etc/nccl.conf").stdout == "644\n"
        store.break_(lab, "node01", "conf-removed")
        assert on("node01", "test", "-e", "/etc/nccl.conf").returncode == 1
        store.repair(lab, "node01")
        assert on("node01", "cat", "/etc/nccl.conf").stdout == "NCCL_DEBUG=WARN\n"
    finally:
        on("node01", "rm", "-f", "/etc/nccl.conf")


def test_up_again_leaves_it_and_starts_what_was_stopped(lab: Path) -> None:
    assert "is up already" in busbar("up", "-d", lab).stdout
    subprocess.run(
        ["podman", "stop", "-t", "1", containers.Lab(lab).container("node02")], check=True, capture_output=True
    )
    assert "node02: exited, healthy (simulated)" in busbar("status", "-d", lab).stdout
    unreached = busbar("break", "-d", lab, "node02", "conf-removed")
    assert (unreached.returncode, "python3 -m lab up starts" in unreached.stderr) == (1, True)
    assert "started node02" in busbar("up", "-d", lab).stdout
    refused = busbar("up", "-d", lab, "--nodes", "node01")
    assert (refused.returncode, "has node01, node02" in refused.stderr) == (1, True)
    assert "node02: running" in busbar("status", "-d", lab).stdout


def test_nodes_start_with_ofed_installed_and_held(lab: Path, on: On) -> None:
    for name in ("node01", "node02"):
        assert on(name, "ofed_info", "-s").stdout == "OFED-internal-25.10-1.7.1:\n"
        held = on(name, "apt-mark", "showhold").stdout.split()
        assert held == sorted(package.name for package in ofed.standard("3.2.1"))
        assert on(name, "systemctl", "is-active", "openibd").stdout == "active\n"
        assert on(name, "cat", f"{repository.TOP}/{repository.KEY}").stdout == (lab / repository.KEY).read_text()
    assert "PRIVATE" not in (lab / repository.KEY).read_text()
    assert on("node01", "modprobe", "-r", "nvidia_peermem").returncode == 0
    assert on("node01", "modprobe", "nvidia_peermem").returncode == 0


# -- the whole suite on the lab ----------------------------------------------------------------------------------------


class Site:
    def __init__(self, lab: Path, folder: Path) -> None:
        self.lab, self.folder = lab, folder

    def play(self, *arguments: str, playbook: str = "site.yml") -> tuple[int, str, dict[str, list[dict[str, Any]]]]:
        """Exit code, output, and findings by host."""
        path = self.folder / "findings.json"
        path.unlink(missing_ok=True)
        extra = {"busbar_findings_path": str(path), "nccl_benchmark_results_path": str(self.folder / "results")}
        done = run("ansible-playbook", playbook, "-i", self.lab / "inventory", "-e", json.dumps(extra), *arguments)
        hosts = json.loads(path.read_text())["hosts"] if path.is_file() else {}
        return done.returncode, done.stdout + done.stderr, {host: hosts[host]["findings"] for host in hosts}


@pytest.fixture
def site(lab: Path, tmp_path: Path) -> Site:
    return Site(lab, tmp_path)


def roots(findings: list[dict[str, Any]]) -> set[str]:
    return {finding["check"] for finding in findings if finding["because"] is None}


def unchanged(out: str) -> bool:
    return all("changed=0" in line for line in out.splitlines() if line.startswith("node0") and "changed=" in line)


@pytest.fixture(scope="session")
def converged(_lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the run that has made measured nodes of fresh ones."""
    site = Site(_lab, tmp_path_factory.mktemp("converge"))
    code, out, found = site.play("--check")
    assert code == 2, out
    foretold = {finding["check"] for findings in found.values() for finding in findings}
    causes = {check for findings in found.values() for check in roots(findings)}

    code, out, _found = site.play()
    assert code == 0, out
    assert "VERDICT OK: 2 of 2 hosts ok" in out
    hosts = json.loads((site.folder / "findings.json").read_text())["hosts"]
    repaired = {name.partition("[")[0] for host in hosts.values() for name in host["repaired"]}
    # One of every kind of role: a file, a build, packages, a unit, a port.
    assert {"nccl_conf.file", "nccl_tests.build", "ofed.repository", "pcie_path.unit", "roce_qos.trust"} <= causes
    assert causes <= repaired <= foretold, (causes, repaired, foretold)
    assert "BENCHMARK (simulated: no figure in it is a measurement): 14 of 14 runs ok on 2 hosts" in out
    return site.folder / "results" / "latest"


def test_a_converged_node_keeps_what_was_measured_and_waits_for_nothing(converged: Path, site: Site) -> None:
    data = json.loads((converged / "node01.json").read_text())
    assert data["simulated"] is True
    assert len(data["runs"]) == 7
    assert "simulated" in (converged / "busbw.svg").read_text()
    code, out, _found = site.play("--check")
    assert code == 0, out
    assert unchanged(out)
    code, out, _found = site.play("--tags", "nccl_benchmark")
    assert code == 0, out
    assert out.count("14 of 14 runs ok on 2 hosts, busbw in GB/s; 0 measured now, 14 stored results stand") == 1


# -- faults, on nodes that are as they should be: one of each node at a time ------------------------------------------


@pytest.mark.usefixtures("converged")
@pytest.mark.parametrize(("first", "second"), series.first(("collective-hang", "gpu-busy"), ("gpu-slow", "wrong-sums")))
def test_a_fault_that_only_a_benchmark_shows_is_its_nodes_only_root(site: Site, first: str, second: str) -> None:
    store.break_(site.lab, "node01", first)
    store.break_(site.lab, "node02", second)
    # Where every program hangs, two of them are enough to wait for.
    few = ["-e", '{"nccl_benchmark_timeout": 15, "nccl_benchmark_collectives": ["all_reduce", "sendrecv"]}']
    measure = ("--tags", "nccl_benchmark", "-e", "nccl_benchmark_when=always")
    code, out, found = site.play(*measure, *(few if first == "collective-hang" else []))
    assert code == 2, out
    for node, name in (("node01", first), ("node02", second)):
        assert roots(found[node]) == {faults.named(name).check}, out


def test_every_fault_that_only_a_benchmark_shows_is_one_of_these() -> None:
    measured = {name for name, fault in faults.FAULTS.items() if fault.measured}
    assert measured == {"gpu-slow", "wrong-sums", "collective-hang", "gpu-busy"}


@pytest.mark.usefixtures("converged")
@pytest.mark.parametrize(
    ("first", "second"), series.first(("nvlink-down", "gpu-lost"), ("fabric-not-ready", None), brief=0)
)
def test_what_is_wrong_with_the_hardware_explains_what_was_measured(site: Site, first: str, second: str | None) -> None:
    store.break_(site.lab, "node01", first)
    if second:
        store.break_(site.lab, "node02", second)
    code, out, found = site.play("-e", "nccl_benchmark_when=always")
    assert code == 2, out
    for node, name in (("node01", first), ("node02", second)):
        assert roots(found[node]) == ({faults.named(name).check} if name else set()), out
        assert any(finding["check"].startswith("nccl_perf.") for finding in found[node]) is bool(name)


SECRET = "of-the-nodes-4711"
BECOME = f"""
useradd --create-home --shell /bin/bash ops
printf 'ops:{SECRET}\\nroot:{SECRET}\\n' | chpasswd
echo 'ops ALL=(ALL:ALL) ALL' > /etc/sudoers.d/ops
install -d -m 700 -o ops ~ops/.ssh
install -m 600 -o ops ~/.ssh/authorized_keys ~ops/.ssh/authorized_keys
"""


@pytest.fixture
def somebody(on: On) -> Iterator[None]:
    """A user ops on node02 who may become root, by sudo and by su, with a password."""
    before = on("node02", "getent", "shadow", "root").stdout.split(":")[1]
    done = on("node02", BECOME)
    assert done.returncode == 0, done.stderr
    yield
    on("node02", f"userdel --remove ops; rm /etc/sudoers.d/ops; usermod --password '{before}' root")


@pytest.mark.long
@pytest.mark.usefixtures("converged", "somebody")
def test_the_nightly_question_passes_through_ssh_and_become(site: Site) -> None:
    """sudo hands our script on; su reads a password from where it would come, so the module goes."""
    store.break_(site.lab, "node02", "pfc-off")
    nightly = ("--check", "--limit", "node02", "--skip-tags", "nccl_benchmark")
    as_root = site.play(*nightly, playbook="playbooks/drift.yml")
    for method in ("sudo", "su"):
        who = {"ansible_user": "ops", "ansible_become": True, "ansible_become_method": method}
        extra = json.dumps({**who, "ansible_become_password": SECRET})
        code, out, found = site.play(*nightly, "-e", extra, "-vvv", playbook="playbooks/drift.yml")
        assert (code, found) == (2, as_root[2]), out
        assert roots(found["node02"]) == {faults.named("pfc-off").check}
        assert ("AnsiballZ_host_audit" in out) == (method == "su")
        assert SECRET not in json.dumps(found)
    # What was found is mended the same way, and the node asked again.
    accused = site.folder / "accused.json"
    (site.folder / "findings.json").rename(accused)
    extra = json.dumps({**who, "ansible_become_password": SECRET, "remediate_findings": [str(accused)]})
    code, out, found = site.play("--limit", "node02", "-e", extra, playbook="playbooks/remediate.yml")
    assert (code, roots(found["node02"])) == (0, set()), out
    assert "repaired on node02: roce_qos.pfc" in out


@pytest.mark.long
@pytest.mark.usefixtures("converged")
def test_after_all_of_them_were_repaired_a_run_finds_and_changes_nothing(site: Site) -> None:
    code, out, found = site.play()
    assert (code, found) == (0, {"node01": [], "node02": []}), out
    assert unchanged(out)
