# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Change something on the converged node: check mode reports exactly that and writes nothing, a real run agrees.

What is changed: every fault of the lab that a role of this node has to find, as many at once as go together; and what
the scenarios' tests/drift.yml list, one entry of each role at once: an argv to run on the node (change), the checks
that have to find it (finds; of other roles, too, as they may be played with it), and an argv that takes it back (undo)
where a run does not mend it. Played are the roles that have to find something.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import yaml
from testinfra.host import Host  # type: ignore[import-untyped]

from lab import faults, image, store
from tests.molecule.scenario import LAB, NODE, ROLES, TOP, checks, play, verdict

# Where a run may write and what it may load, without Ansible's own files and what systemd writes in its own time.
WATCHED = ["/boot", "/etc", "/opt", "/root", "/srv/busbar-lab/hw/sys", "/usr/local", "/var/lib"]
VOLATILE = ["/root/.ansible", "/var/lib/systemd", "/var/lib/busbar/health", "/var/lib/busbar/watch"]
# Check ids begin with the module's noun; these roles' is another than their name.
NOUNS = {"mofed": "ofed", "mtu": "netdev_mtu", "nccl_benchmark": "nccl_perf", "nvidia_peermem": "gpudirect"}

RAILS = 8


class Verdict(NamedTuple):
    """What a role's fresh node was told that it would do, as checks or ids, and what passes on the converged one.

    passed: how many checks, at least; all of them where it is exact.
    """

    told: list[str]
    passed: int = 0
    is_exact: bool = False


# The other roles' own tests have it: it is more there.
VERDICTS = {
    "drift_timer": Verdict(["drift_timer.enabled", "drift_timer.units", "drift_timer.user"]),
    "gate": Verdict(["gate.intent", "gate.program"]),
    "host_limits": Verdict(
        [
            "host_limits.containerd[persisted]@/etc/systemd/system/containerd.service.d/99-busbar.conf",
            "host_limits.docker[persisted]@/etc/docker/daemon.json",
            "host_limits.login[persisted]@/etc/security/limits.d/99-busbar.conf",
            "host_limits.service[persisted]@/etc/systemd/system.conf.d/99-busbar.conf",
        ],
        9,
    ),
    # That boot has the arguments, the next one would not.
    "iommu": Verdict([f"iommu.args[persisted]@{arg}" for arg in ("intel_iommu=on", "iommu=pt")], 9, True),
    "mtu": Verdict(
        [f"netdev_mtu.{check}" for check in ("active_mtu", "live", "persisted") for _rail in range(RAILS)],
        4 * RAILS,
        True,
    ),
    # Of each rail, now and after a boot.
    "multirail": Verdict(
        [f"multirail.{check}" for check in ("rules", "sysctl") for _rail in range(2 * RAILS)], 4 * RAILS + 1, True
    ),
    "nccl_conf": Verdict(["nccl_conf.file[persisted]@/etc/nccl.conf"], 4),
    "nccl_tests": Verdict(["nccl_tests.build[persisted]@/opt/nccl-tests"], 3),
    "nvidia_peermem": Verdict(["gpudirect.persisted[persisted]@nvidia_peermem"], 4),
    # Two bridges and a NIC of each rail, and the unit.
    "pcie_path": Verdict(
        ["pcie_path.unit[persisted]@/etc/systemd/system/busbar-pcie-path.service"], 3 * RAILS + 1, True
    ),
    "watch": Verdict(["watch.files", "watch.running"], 2),
}


def test_the_fresh_node_was_told_what_would_be_done_and_the_converged_one_has_no_finding() -> None:
    # All at once: a role that is played alone may have none, and molecule counts a test without cases as skipped.
    for role in (role for role in ROLES if role in VERDICTS):
        wanted = VERDICTS[role]
        fresh, converged = verdict(role, "check"), verdict(role, "run")
        found = sorted(finding["id"] for finding in fresh["findings"])
        assert sorted(fresh["repaired"]) == found
        assert [name if name in wanted.told else name.partition("[")[0] for name in found] == wanted.told, role
        assert (converged["findings"], converged["repaired"]) == ([], [])
        assert converged["passed"] >= wanted.passed
        assert not wanted.is_exact or converged["passed"] == wanted.passed


def role_of(check: str) -> str | None:
    """The role of this node that has the check."""
    return next((role for role in ROLES if check.startswith(NOUNS.get(role, role) + ".")), None)


class Change(NamedTuple):
    """One entry of a role's tests/drift.yml."""

    role: str
    change: list[str]
    finds: list[str]
    undo: list[str] | None = None


def groups(measured: bool) -> list[list[str]]:
    """The faults of the node's roles and platform, in as few groups as go together."""
    platform = store.healthy(LAB, NODE).platform
    mine = [f for f in faults.FAULTS.values() if role_of(f.check) and platform in f.platforms]
    made: list[list[str]] = []
    for name in (fault.name for fault in mine if fault.measured is measured):
        group = next((group for group in made if faults.compatible([*group, name])), None)
        if group is None:
            made.append([name])
        else:
            group.append(name)
    return made


def changes() -> Iterator[list[Change]]:
    """The first change of each role, then the second of each that has another, and so on."""
    listed = []
    for role in ROLES:
        cases = yaml.safe_load((TOP.parent.parent / "roles" / role / "molecule/default/tests/drift.yml").read_text())
        listed.append([Change(role, **case) for case in cases])
    for together in itertools.zip_longest(*listed):
        yield [change for change in together if change is not None]


def snapshot(host: Host) -> list[str]:
    """A line for each file and directory: a file that came and went has left its mark on its directory."""
    prune = " -o ".join(f"-path {path}" for path in VOLATILE)
    find = f"find {' '.join(WATCHED)} ( {prune} ) -prune -o -printf".split()
    return sorted(host.check_output(shlex.join([*find, r"%p %y %m %U:%G %s %T@ %l\n"])).splitlines())


def ids(of_node: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in of_node["findings"]}


def check(host: Host, roles: Sequence[str]) -> dict[str, Any]:
    before = snapshot(host)
    found = play(roles, check=True)
    assert snapshot(host) == before
    return found


def compare(names: Sequence[str], found: list[dict[str, Any]], roles: Sequence[str]) -> None:
    """Each declared root and no other, each consequence that these roles report with its cause, and nothing else."""
    expected = faults.expected(store.healthy(LAB, NODE), names)
    by_id = {finding["id"]: finding for finding in found}
    roots = [finding for finding in found if finding["because"] is None]
    wanted = [(e.check, e.state, e.subject) for e in expected if e.because is None]
    # A fault without a subject is found by every run of the benchmark, any other once.
    once = {check for check, _state, subject in wanted if subject is not None}
    said = [(f["check"], f["state"], f["id"].split("@", 1)[1] if f["check"] in once else None) for f in roots]
    assert sorted(s for s in said if s[0] in once) == sorted(w for w in wanted if w[0] in once)
    assert set(said) == set(wanted)
    follows = set()
    # What the control node makes of all hosts' ports follows from a fault, too, and is no answer of the node's.
    for finding in (one for one in found if one["check"] != "node_health.port_outlier"):
        root = finding
        while root["because"] is not None:
            root = by_id[root["because"]]
        # The same check on another run of the benchmark is no consequence of its own.
        if root["check"] != finding["check"]:
            follows.add((finding["check"], root["check"]))
    assert follows == {(e.check, e.because) for e in expected if e.because and role_of(e.check) in roles}


def _stays(name: str) -> tuple[str, ...]:
    fault = faults.named(name)
    return (fault.check, *fault.consequences) if fault.stays else ()


def _roles(names: Sequence[str]) -> list[str]:
    """The roles that have to find these faults, in the order in which the node has them."""
    mine = {role_of(faults.named(name).check) for name in names}
    return [role for role in ROLES if role in mine]


def prove_faults(host: Host, names: list[str]) -> None:
    roles = _roles(names)
    for name in names:
        store.break_(LAB, NODE, name)
    try:
        predicted = check(host, roles)
        compare(names, predicted["findings"], roles)
        before = snapshot(host)
        done = play(roles, check=False)
        assert (snapshot(host) != before) is bool(done["repaired"])
    finally:
        store.repair(LAB, NODE)
    stays = {check for name in names for check in _stays(name)}
    assert done["repaired"] == [name for name in predicted["repaired"] if name.partition("[")[0] not in stays]
    # What follows from something goes with it.
    mended = set(done["repaired"])
    mended |= {finding["id"] for finding in predicted["findings"] if finding["because"] in mended}
    assert ids(done) == ids(predicted) - mended


def prove_measured_faults(host: Host, names: list[str]) -> None:
    """Only a run can show them; check mode judges what the last run has measured."""
    roles = _roles(names)
    for name in names:
        store.break_(LAB, NODE, name)
    try:
        # The last results are good, and nothing says that they are of another node.
        done = play(roles, "-e", "nccl_benchmark_when=always", check=False)
        compare(names, done["findings"], roles)
        # On a busy node nothing is measured, and the result of the run before stands.
        measured = {finding["id"] for finding in done["findings"] if finding["check"] != "nccl_perf.idle"}
        assert ids(check(host, roles)) == measured
    finally:
        store.repair(LAB, NODE)
    # What a fault leaves behind the next one's run finds, or test_nothing_is_left.


def prove_changes(host: Host, made: list[Change]) -> None:
    roles = [change.role for change in made]

    def finds(changes: Sequence[Change]) -> list[str]:
        return sorted(check for change in changes for check in change.finds if role_of(check) in roles)

    with contextlib.ExitStack() as undoing:
        try:
            for change in made:
                # Also of one that stopped half way.
                if change.undo:
                    undoing.callback(host.check_output, shlex.join(change.undo))
                host.check_output(shlex.join(change.change))
            predicted = check(host, roles)
            assert checks(predicted) == finds(made)
        finally:
            # What has no undo is taken back by a run, whatever came before it.
            done = play(roles, check=False)
    assert done["repaired"] == predicted["repaired"]
    assert checks(done) == finds([change for change in made if change.undo])
    assert ids(done) <= ids(predicted)


def cases() -> Iterator[Any]:
    """The first change of each role is enough to see that it is found; faults are in other folders of tests, too."""
    for number, together in enumerate(changes()):
        name = " + ".join(shlex.join(change.change) for change in together)
        yield pytest.param(prove_changes, together, id=name, marks=[pytest.mark.long] if number else [])
    for prove, measured in ((prove_faults, False), (prove_measured_faults, True)):
        for names in groups(measured):
            yield pytest.param(prove, names, id="+".join(names), marks=pytest.mark.long)


@pytest.mark.parametrize(("prove", "case"), cases())
def test_drift(host: Host, prove: Callable[[Host, Any], None], case: Any) -> None:
    prove(host, case)


def test_the_node_is_of_the_release_that_was_asked_for(host: Host) -> None:
    assert host.system_info.codename == image.wanted()


@pytest.mark.long
def test_nothing_is_left(host: Host) -> None:
    assert checks(play(ROLES, check=False)) == []
    assert checks(check(host, ROLES)) == []
