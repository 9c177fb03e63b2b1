# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real Slurm on this machine, of three nodes.

As root on Debian or Ubuntu, whose packages are installed where they lack; fails without them, it does not skip.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import debian
from tests.slurm_daemons import PROGRAMS, Slurm


@pytest.fixture(scope="session")
def _slurm() -> Iterator[Slurm]:
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="busbar-slurm-") as folder:
        slurm = Slurm(Path(folder))
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()


@pytest.fixture
def slurm(_slurm: Slurm) -> Slurm:
    """Three idle nodes."""
    _slurm.reset()
    return _slurm
