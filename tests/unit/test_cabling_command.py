# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar fabric`` as a user runs it: what it writes, what it says, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.cli import main

PLAN = "a_node,a_port,z_node,z_port,rail\nnode1,mlx5_0,leaf1,1,0\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plan", "absent"], "absent"),
        (["plan", "plan.csv", "-o", "new.csv"], "plan.csv"),
        (["topology", "plan.csv"], "invalid choice"),
        ([], "ACTION"),
    ],
)
def test_a_failure_ends_with_1_and_a_sentence(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.csv").write_text(PLAN)
    try:
        code = main(["fabric", *argv])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out, said in err) == (1, "", True)
    assert not (tmp_path / "new.csv").exists()
