# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a user of a node has written never runs as root there, by whatever entrance the suite comes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import cluster_membership
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.modules import nccl_conf

from tests.lab.audited import ARGV, script
from tests.lab.conftest import ROOT

STRANGER = 65533
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
LIBRARY = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
const char version[] = "NCCL version 2.27.7+cuda12.9", name[] = "NCCL_IB_HCA";
__attribute__((constructor)) static void run(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/ran-as-%d", "PLACE", (int)getuid());
    close(open(path, O_CREAT | O_RDWR, 0666));
}
int ncclGetUniqueId(void *id) { return 0; }
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a program of the user leaves its mark, whoever runs it; not in /tmp, which the proof's child cannot see."""
    folder = Path(tempfile.mkdtemp(prefix="busbar-hostile-", dir="/var/lib"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def library(lab: Path, place: Path) -> Iterator[str]:
    """In a user's virtual environment on node01, where docs/variables.md says that it can be listed."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    home = lab / "node01/sys/home/u"
    (home / "venv").mkdir(parents=True)
    source = place / "hostile.c"
    source.write_text(LIBRARY.replace("PLACE", str(place)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", home / "venv/libnccl.so.2", source], check=True)
    for path in (home, home / "venv", home / "venv/libnccl.so.2"):
        os.chown(path, STRANGER, STRANGER)
    yield "/home/u/venv/libnccl.so.2"
    shutil.rmtree(home)


@pytest.fixture
def run_module() -> Callable[..., dict[str, Any]]:
    """What a role would ask, in place of the answer."""
    return lambda name, check_mode=False, **arguments: arguments


def by_module(asked: dict[str, Any]) -> dict[str, Any]:
    out = io.StringIO()
    given = patch_module_args({**asked, "_ansible_check_mode": True})
    with given, contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        nccl_conf.main()
    return dict(json.loads(out.getvalue()))


def by_audit(asked: dict[str, Any]) -> dict[str, Any]:
    steps = script([{"module": "nccl_conf", "arguments": asked}])
    done = subprocess.run([*ARGV, "-"], input=steps, capture_output=True, text=True, timeout=300, check=True)
    (answer,) = json.loads(done.stdout)
    return dict(answer)


@pytest.mark.parametrize("answer", [by_module, by_audit])
def test_a_users_library_is_not_loaded_and_the_finding_says_so(
    on_node: Callable[..., dict[str, Any]],
    library: str,
    place: Path,
    answer: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    found = answer(on_node("nccl_conf", "node01", libraries=[library]))
    (proof,) = [one for one in found["findings"] if one["check"] == "nccl_conf.proof"]
    assert proof["subject"] == library
    assert "/home/u belongs to UID 65533" in proof["source"] + proof["have"]
    assert list(place.glob("ran-as-*")) == []


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_nccl_tests_that_a_user_can_change_take_no_part_in_a_job_that_another_node_starts_as_root(
    lab: Path, place: Path, mode: int
) -> None:
    place.chmod(0o755)
    program = place / "all_reduce_perf"
    program.write_text("#!/bin/sh\n")
    given = {
        "nccl_tests_path": str(place),
        "launcher": "mpirun",
        "slurm_node": "",
        "profile": yaml.safe_load((ROOT / "profiles/hgx-h100.yml").read_text()),
        "profile_name": "hgx-h100",
        "fabric": "infiniband",
        "nvlink_domain": False,
    }
    program.chmod(mode)
    os.chown(program, 0, STRANGER)
    answer = cluster_membership.read_member(Host(str(lab / "node01/hw"), str(lab / "node01/sys")), given)
    said = [one["have"] for one in answer["unfit"] if "nccl-tests is not run" in one["have"]]
    assert bool(said) == (mode == 0o775)
    assert all(f"{program} is writable by" in text for text in said)
