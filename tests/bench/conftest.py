# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One fleet for all benches of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests import debian
from tests.bench import fleet
from tests.bench.fleet import Fleet

HOSTS = [int(word) for word in os.environ.get("BUSBAR_BENCH_HOSTS", "50").split(",")]
ROUNDS = int(os.environ.get("BUSBAR_BENCH_ROUNDS", "3"))
# Hosts that run the script and the tree's tools on this machine's cores: one such host is work for two seconds.
WORKING = [int(word) for word in os.environ.get("BUSBAR_BENCH_WORKING", "8").split(",")]
Show = Callable[[str], None]


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lacking = debian.install({"sshd": "openssh-server openssh-client"})
    if lacking:
        pytest.skip(lacking)
    with fleet.fleet(tmp_path_factory.mktemp("scale"), max(*HOSTS, *WORKING)) as made:
        yield made


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print a line, also where pytest captures."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)

    return line
