# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)
FOLDER, STATE = "/usr/local/lib/busbar", "/var/lib/busbar/gate/state.json"
# Where others lack: /etc/nccl.conf is another role's, and critical.
WELL = ("-e", '{"gate_ignore": ["nccl_conf.file", "ofed.packages", "gpudirect.path"]}')


def state(host: Host) -> dict[str, Any]:
    return dict(json.loads(host.file(STATE).content_string))


def test_the_program_has_run_on_the_converged_node(host: Host) -> None:
    assert (state(host)["stage"], state(host)["action"], state(host)["kept_out"]) == ("command", "none", None)
    assert host.file("/etc/busbar/gate.json").mode == 0o600
    assert host.file(f"{FOLDER}/gate.py").user == "root"


@pytest.mark.long
def test_what_slurm_starts_ends_with_a_verdict_that_is_kept(host: Host) -> None:
    assert checks(ROLE.play(*WELL, check=False)) == []
    for stage in ("health", "prolog", "epilog"):
        # As slurmd does it: without a PATH.
        assert host.run(f"env -i {FOLDER}/gate-{stage}").rc == 0
        assert (state(host)["stage"], state(host)["verdict"] in ("pass", "warn")) == (stage, True), state(host)
    assert checks(ROLE.play(check=False)) == []


@pytest.mark.long
def test_without_stages_nothing_of_it_stays(host: Host) -> None:
    nothing = ("-e", '{"gate_stages": []}')
    assert checks(ROLE.play(*nothing, check=True)) == ["gate.program"]
    # Of a role that has nothing to ask nobody knows whether the node is well.
    assert checks(ROLE.play(*nothing, check=False)) == ["run.host"]
    assert host.run(f"ls {FOLDER}/gate* /etc/busbar/gate.json").stdout == ""
    assert host.file(STATE).exists
    assert checks(ROLE.play(check=False)) == []
