# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is said with certainty is proven by lines of the log; what lines leave open is said to be open."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge, results


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


@pytest.mark.parametrize(
    "text",
    [
        "[2030-01-01 00:00:01] n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion\nfrom peer 10.1.2.3<5> with"
        " status=IBV_WC_LOC_PROT_ERR(4) opcode=IBV_WC_SEND(0)\nreqSize=4 vendor_err=81\n"
        "remoteGids::ffff:10.9.9.9 hca mlx5_7\n",
        "n1:7:8 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.1.2.3 with"
        " status=IBV_WC_LOC_PROT_ERR(4)\n  localGid fe80::1  hca mlx5_7\n",
    ],
)
def test_a_warning_that_was_broken_into_lines(text: str) -> None:
    have = found(text)["nccl_log.completion"].have or ""
    assert ("status 4, local protection" in have, "HCA mlx5_7" in have, "10.1.2.3" in have) == (True, True, True)
    # Another process's line ends it.
    broken = found(text.replace("\n", "\nn2:9:9 [0] NCCL INFO x\n", 1))
    assert not any("mlx5_7" in (one.have or "") for one in broken.values())


def test_how_many_epochs_there_are_to_be_is_no_progress() -> None:
    assert (results.classify("INFO - epochs : 100"), results.classify("epoch: 3")) == ("", "progress")
