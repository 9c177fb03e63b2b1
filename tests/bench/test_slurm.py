# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the nightly check costs by a step of Slurm's, beside ssh. Printed, never asserted.

    BUSBAR_BENCH_SLURM=50,200 pytest -s tests/bench/test_slurm.py

Simulated nodes: as many slurmd on this machine, whose Python gives an answer that is there already, as the ones behind
sshd do. As root on Debian.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import debian
from tests.bench import fleet
from tests.bench.conftest import CURVE, FORKS, ROUNDS, Show
from tests.bench.fleet import Fleet
from tests.bench.test_scale import compared, nightly
from tests.slurm_daemons import PROGRAMS, Slurm
from tests.trees import tool

HOSTS = [int(word) for word in os.environ.get("BUSBAR_BENCH_SLURM", "20").split(",")]
# One machine has all of their work. On a cluster each node has a munged of its own; the one of this machine refuses
# many of some hundred slurmd that come to it at once, so here there is none.
PATIENT = "SlurmdTimeout=300\nMessageTimeout=60\nAuthType=auth/none\nCredType=cred/none\n"
PYTHON = "#!/bin/sh\ncat >/dev/null\ncat {top}/framed\n"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lacking = debian.install({"sshd": "openssh-server openssh-client", **PROGRAMS})
    if lacking:
        pytest.skip(lacking)
    with fleet.fleet(tmp_path_factory.mktemp("slurm"), max(HOSTS)) as made:
        yield made


def framed(made: Fleet) -> str:
    """A Python that gives an answer as a step of Slurm's does."""
    data = base64.b64encode(zlib.compress((made.top / "answer.json").read_bytes(), 6))
    lines = [data[start : start + 900] for start in range(0, len(data), 900)]
    head = f"busbar-answer {len(data)} {hashlib.sha256(data).hexdigest()}".encode()
    (made.top / "framed").write_bytes(b"\n".join([head, *lines, b""]))
    tool(made.top, "framed-python", PYTHON.format(top=made.top))
    return str(made.top / "framed-python")


@pytest.mark.parametrize("of", HOSTS)
def test_slurm_beside_ssh(hosts: Fleet, show: Show, of: int) -> None:
    inventory = hosts.inventory(of, framed(hosts))
    with tempfile.TemporaryDirectory(prefix="busbar-slurm-") as folder:
        slurm = Slurm(Path(folder), fleet.names(of), PATIENT)
        try:
            slurm.start()
            given = ("-e", "busbar_engine=slurm")
            conf = slurm.environment["SLURM_CONF"]
            runs = {
                "drift.yml, ssh": nightly(hosts, hosts.stored_python(), of),
                "drift.yml, --engine slurm": lambda: hosts.drift(inventory, of, *given, SLURM_CONF=conf),
            }
            compared(show, f"ssh ({FORKS} at a time, {CURVE['KexAlgorithms']}) and Slurm", of, runs, rounds=ROUNDS)
        finally:
            slurm.stop()
