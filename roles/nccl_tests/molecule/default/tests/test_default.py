# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from lab import nccl_tests
from tests.molecule.scenario import Role

ROLE = Role(__file__)
BUILD = "/opt/nccl-tests"


@pytest.fixture(scope="module")
def marker(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.file(f"{BUILD}/busbar-build.json").content_string))


def test_the_marker_says_what_was_built_from_what(marker: dict[str, Any]) -> None:
    assert marker["commit"] == nccl_tests.COMMIT
    assert marker["arch"] == ["9.0"]
    assert (marker["cuda"]["version"], marker["nccl"]["version"]) == ("13.0.88", "2.27.7")


def test_every_program_is_there_and_is_the_one_that_was_built(host: Host, marker: dict[str, Any]) -> None:
    programs = sorted(name for name in host.file(BUILD).listdir() if name.endswith("_perf"))
    assert {"all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "sendrecv_perf"} <= set(programs)
    assert sorted(marker["binaries"]) == programs
    rows = host.check_output(f"cd {BUILD} && stat --format='%U %a' *_perf && sha256sum *_perf").splitlines()
    assert {*rows[: len(programs)]} == {"root 755"}
    assert dict(row.split()[::-1] for row in rows[len(programs) :]) == marker["binaries"]


def test_a_user_can_run_a_program_and_it_says_that_it_is_simulated(host: Host, marker: dict[str, Any]) -> None:
    library_path = ":".join(marker["library_path"])
    argv = f"env LD_LIBRARY_PATH={library_path} {BUILD}/all_reduce_perf -b 1M -e 4M -f 2 -g 8"
    done = host.run(f"runuser -u nobody -- {argv}")
    assert done.rc == 0, done
    assert "simulated" in done.stdout.splitlines()[0]
    assert "# Avg bus bandwidth" in done.stdout


def test_nothing_is_left_of_the_build(host: Host) -> None:
    others = {".nccl-tests.lock", "hpcx-v2.21"}
    assert {*host.file("/opt").listdir()} - others == {"busbar-lab", "nccl-tests"}
