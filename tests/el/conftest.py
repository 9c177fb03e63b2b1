# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""EL nodes with the real dnf, rpm, createrepo_c and nmcli of Debian, in root directories of their own.

As root on Debian or Ubuntu, whose packages are installed where they lack; fails without them, it does not skip.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import debian

from . import machine, packages


@pytest.fixture(scope="session")
def _node(tmp_path_factory: pytest.TempPathFactory) -> machine.El:
    lacking = debian.install(machine.PROGRAMS)
    assert not lacking, lacking
    folder = tmp_path_factory.mktemp("node")
    packages.create(folder / "repositories", tmp_path_factory.mktemp("packages"))
    machine.make(folder, folder / "repositories")
    return machine.El(folder)


@pytest.fixture
def el(_node: machine.El, tmp_path: Path) -> machine.El:
    """A node of this test alone that has never had OFED."""
    return _node.copy(tmp_path / "el")
