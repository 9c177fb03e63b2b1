"""Every fault of the lab, alone and in fives, is reported as declared and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busbar.lab import faults, store

PLATFORMS = {"node01": "hgx-h100", "node02": "hgx-h200"}
ALONE = [
    (node, name)
    for node, platform in PLATFORMS.items()
    for name, fault in faults.FAULTS.items()
    if platform in fault.platforms and not fault.measured
]
Answer = Callable[..., dict[str, Any]]


def audit(on_node: Answer, node: str) -> tuple[list[dict[str, Any]], int]:
    """All findings that are not ok, as a nightly check in check mode would see them, and how many checks passed."""
    modules = ("topology_info", "ofed", "iommu", "pcie_path", "host_limits", "gpudirect", "nccl_conf")
    results = [on_node(module, node, check_mode=True) for module in modules]
    found = [finding for result in results for finding in result["findings"]]
    return found, sum(len(result["passed"]) for result in results)


def identity(finding: dict[str, Any]) -> str:
    return str(finding["id"].split("@", 1)[1])


def compare(lab: Path, node: str, names: list[str], found: list[dict[str, Any]]) -> None:
    """Precision and recall 1.0: each declared root once, each consequence with its cause, and not one finding more."""
    expected = faults.expected(store.healthy(lab, node), names)
    by_id = {finding["id"]: finding for finding in found}
    assert len(by_id) == len(found), "two findings share an id"
    roots = [finding for finding in found if finding["because"] is None]
    wanted = [expectation for expectation in expected if expectation.because is None]
    assert sorted(finding["check"] for finding in roots) == sorted(e.check for e in wanted)
    for expectation in wanted:
        same = [
            f
            for f in roots
            if f["check"] == expectation.check
            and f["state"] == expectation.state
            and expectation.subject in (None, identity(f))
        ]
        assert len(same) == 1, (expectation, roots)
    consequences = {(e.check, e.because) for e in expected if e.because is not None}
    seen = set()
    for finding in found:
        if finding["because"] is not None:
            root = by_id[finding["because"]]
            while root["because"] is not None:
                root = by_id[root["because"]]
            seen.add((finding["check"], root["check"]))
    assert seen == consequences


@pytest.fixture
def converged(lab: Path, on_node: Answer) -> Path:
    for node in PLATFORMS:
        for module in ("ofed", "pcie_path", "host_limits", "gpudirect", "nccl_conf"):
            assert on_node(module, node)["findings"] == []
    return lab


def test_healthy_nodes_have_nothing_to_report(converged: Path, on_node: Answer) -> None:
    for node in PLATFORMS:
        found, passed = audit(on_node, node)
        assert found == []
        assert passed > 90


@pytest.mark.parametrize(("node", "name"), ALONE)
def test_one_fault_is_exactly_its_finding(converged: Path, on_node: Answer, node: str, name: str) -> None:
    store.break_(converged, node, name)
    compare(converged, node, [name], audit(on_node, node)[0])
    store.repair(converged, node)


def test_after_every_fault_was_repaired_nothing_is_left_to_report(converged: Path, on_node: Answer) -> None:
    for node, name in ALONE:
        store.break_(converged, node, name)
        store.repair(converged, node, name)
    for node in PLATFORMS:
        assert audit(on_node, node)[0] == []


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("node", PLATFORMS)
def test_five_faults_at_once_are_exactly_their_findings(converged: Path, on_node: Answer, node: str, seed: int) -> None:
    names = faults.draw(random.Random(seed), 5, PLATFORMS[node])
    for name in names:
        store.break_(converged, node, name)
    compare(converged, node, names, audit(on_node, node)[0])


@pytest.mark.parametrize("name", ["conf-edited", "conf-removed", "conf-mode"])
def test_a_run_mends_what_it_owns(converged: Path, on_node: Answer, name: str) -> None:
    store.break_(converged, "node01", name)
    predicted = on_node("nccl_conf", "node01", check_mode=True)
    done = on_node("nccl_conf", "node01")
    for key in ("changed", "diff", "repaired", "variables", "commands", "reboot_required", "withheld"):
        assert predicted[key] == done[key], key
    assert [f["id"] for f in predicted["findings"]] == predicted["repaired"]
    assert done["findings"] == []
    assert on_node("nccl_conf", "node01")["changed"] is False
