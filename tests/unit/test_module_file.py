# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.driver import module_file


@pytest.mark.parametrize(
    ("path", "inbox"),
    [
        ("/lib/modules/6.8.0-60-generic/kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst", True),
        ("/usr/lib/modules/6.8.0/kernel/drivers/x.ko", True),
        ("(builtin)", True),
        ("/lib/modules/6.8.0-60-generic/updates/dkms/mlx5_core.ko", False),
        ("/lib/modules/5.14.0-503.el9.x86_64/extra/mlnx-ofa_kernel/drivers/net/mlx5_core.ko.xz", False),
        ("/lib/modules/5.14.0-503.el9.x86_64/weak-updates/mlx5_core.ko", False),
    ],
)
def test_a_modules_place_tells_whose_it_is(path: str, inbox: bool) -> None:
    assert module_file.parse(f"filename:       {path}\nsrcversion: ABC\n").inbox is inbox
