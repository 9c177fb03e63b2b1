"""One real GPU node, this one, by local connection. As root, on an idle machine that has ansible-runner and pytest:

    BUSBAR_NCCL_TESTS_TARBALL=/path/nccl-tests.tar.gz pytest -s tests/gpu tests/bench/test_busbw.py

The archive holds commit a0b82b2 (2.19.6). NVLS stays off. Writes /opt/nccl-tests, /etc/nccl.conf, /var/lib/busbar.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.bench.conftest import Show, show

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hunter2-do-not-store"
# 0.95 of what four H200 of one machine gave by hand, NVLS off (docs/evidence/h200x4.md).
BARS = {
    "all_reduce": 347,
    "all_gather": 330,
    "reduce_scatter": 335,
    "broadcast": 345,
    "reduce": 349,
    "alltoall": 335,
    "sendrecv": 348,
}


class Play(NamedTuple):
    rc: int
    out: str
    findings: list[dict[str, Any]]

    @property
    def checks(self) -> set[str]:
        return {finding["check"] for finding in self.findings if finding["because"] is None}


class Site(NamedTuple):
    folder: Path
    gpus: int
    library: str
    environment: dict[str, str]

    def play(self, *arguments: str, **variables: Any) -> Play:
        path = self.folder / "findings.json"
        path.unlink(missing_ok=True)
        extra = json.dumps({"busbar_findings_path": str(path), **variables})
        argv = ["ansible-playbook", str(ROOT / "site.yml"), "-i", str(self.folder / "inventory"), "-e", extra]
        done = subprocess.run([*argv, *arguments], env=self.environment, capture_output=True, text=True, check=False)
        found = json.loads(path.read_text())["hosts"]["node01"]["findings"] if path.is_file() else []
        return Play(done.returncode, done.stdout + done.stderr, found)

    def module(self, name: str, **arguments: Any) -> dict[str, Any]:
        return module(self.folder / "inventory", "node01", name, arguments, self.environment)


def module(
    inventory: Path, host: str, name: str, arguments: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """What a module of the suite returns on a host."""
    oneline = {"ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "oneline"}
    argv = ["ansible", host, "-i", str(inventory), "-m", f"busbar.fabric.{name}", "-o", "-a", json.dumps(arguments)]
    done = subprocess.run(argv, env={**environment, **oneline}, capture_output=True, text=True, check=False)
    assert "=> " in done.stdout, done.stdout + done.stderr
    return dict(json.loads(done.stdout.partition("=> ")[2]))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An inventory of this machine alone, with a profile drafted from it and bars of its own."""
    tarball = os.environ.get("BUSBAR_NCCL_TESTS_TARBALL")
    if not tarball:
        pytest.fail("BUSBAR_NCCL_TESTS_TARBALL is not set: the archive of nccl-tests a0b82b2 to build from")
    library = os.environ.get("BUSBAR_NCCL_LIBRARY") or packaged_library()
    folder = tmp_path_factory.mktemp("site")
    (folder / "inventory" / "profiles").mkdir(parents=True)
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "COLUMNS": "150",
        "BUSBAR_TEST_SECRET": SECRET,
    }
    values = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        "busbar_platform": "custom",
        "busbar_fabric": "infiniband",
        "busbar_nccl_libraries": [library],
        "nccl_tests_tarball": tarball,
        "nccl_tests_sha256": hashlib.sha256(Path(tarball).read_bytes()).hexdigest(),
        "nccl_benchmark_environment": {"NCCL_NVLS_ENABLE": "0", "BUSBAR_TEST_TOKEN": SECRET},
        "nccl_benchmark_results_path": str(folder / "results"),
    }
    write(folder / "inventory" / "hosts.yml", {"gpu_nodes": {"hosts": {"node01": values}}})
    check = [sys.executable, "-m", "busbar", "check", "-i", str(folder / "inventory"), "--platform", "custom"]
    subprocess.run([*check, "--write", str(folder / "draft")], env=environment, cwd=ROOT, check=False)
    (folder / "draft" / "profiles" / "custom.yml").rename(folder / "inventory" / "profiles" / "custom.yml")
    bar = {"platform": "custom", "nvls": False, "scope": "node", "source": "0.95 of a run by hand"}
    bars = [{**bar, "collective": name, "size": "8G", "busbw": busbw} for name, busbw in BARS.items()]
    bars.append({**bar, "collective": "all_reduce", "size": "64M", "busbw": 295})
    write(folder / "bars.yml", bars)
    return Site(folder, gpus(), library, environment)


def gpus() -> int:
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())


def write(path: Path, data: object) -> None:
    path.write_text(yaml.safe_dump(data))


def packaged_library() -> str:
    import nvidia.nccl  # type: ignore[import-not-found]

    return str(Path(next(iter(nvidia.nccl.__path__))) / "lib" / "libnccl.so.2")


__all__ = ["Show", "show"]
