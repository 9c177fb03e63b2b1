# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the head of a report and its side sentences say of a log must be true of all of its lines."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import signals


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Test Error: ", None),
        ("Test error: 4.25 %", None),
        ("mean squared error = 1.5e-3", None),
        ("Connection error: ", signals.ERROR),
        ("Test error: lost the peer", signals.ERROR),
        ('  rank_zero_warn("Error handling is not set up.")', None),
        ("  warnings.warn('2 failed objects to clean up')", None),
        ("ERROR: warned of it", signals.ERROR),
    ],
)
def test_figures_and_sources_of_warnings_report_no_failure(line: str, kind: str | None) -> None:
    said = signals.classify(line)
    assert (said.kind if said else None) == kind
