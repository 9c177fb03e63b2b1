"""Who may take part in a benchmark between nodes, from what an inventory and nodes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.action import nccl_cluster_plan
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_plan, intent

from tests import goldens

ROOT = Path(__file__).resolve().parent.parent.parent
FACTS = {
    "findings": [],
    "passed": [],
    "unfit": [],
    "member": {"name": "n1", "build": "NCCL 2.28.9", "rails": {"0": {"device": "mlx5_0", "gpu": 0}}},
}


def host(facts: Any = None, **given: Any) -> dict[str, Any]:
    """What a run has registered for a host."""
    variables = {
        "busbar_platform": "hgx-h100",
        "busbar_fabric": "infiniband",
        "nccl_benchmark_scope": "cluster",
        **given,
    }
    profile = yaml.safe_load((ROOT / "profiles" / "hgx-h100.yml").read_text())
    wanted = {"values": intent.read(variables), "profile": profile, "profile_name": "hgx-h100"}
    stored = {"findings": [], "passed": [], "due": "scope cluster: never measured"}
    return {
        "busbar_intent": wanted,
        "inventory_dir": str(ROOT),
        "nccl_cluster_stored": stored,
        "nccl_cluster_member_result": FACTS if facts is None else facts,
    }


def member(of_host: dict[str, Any], name: str = "node01", there: bool = True) -> cluster_plan.Member:
    return nccl_cluster_plan.Kinds().member(name, of_host, there)


def test_a_node_that_can_take_part_is_reached_as_the_inventory_says() -> None:
    found = member(host())
    assert (found.unfit, found.name, found.address) == (None, "n1", "node01")
    assert found.rails == {0: ("mlx5_0", 0)}
    assert (found.settings.gpus, found.settings.rails) == (8, tuple(range(8)))
    assert member(host(nccl_benchmark_address="10.0.0.1")).address == "10.0.0.1"
    slurm = {"nccl_benchmark_launcher": "srun"}
    assert member(host(**slurm), "node01.example").address == "node01"
    assert member(host(**slurm, drain_slurm_node="gpu-1")).address == "gpu-1"
    # Other values are other jobs.
    assert member(host()).settings == found.settings
    assert member(host(nccl_benchmark_repeats=5)).settings != found.settings


def altered(**values: Any) -> dict[str, Any]:
    return {**FACTS, "member": {**FACTS["member"], **values}}  # type: ignore[dict-item]


DOMAIN = "0f1e2d3c-0000-4000-8000-aabbccddeeff.32766"


def test_a_tray_says_of_which_domain_it_is() -> None:
    found = member(host(altered(domain=DOMAIN, no_domain="")))
    assert (found.domain, found.unfit) == (DOMAIN, None)


def lost(**values: Any) -> dict[str, Any]:
    """What a run has registered where that is the node's result."""
    return {**host(), "nccl_cluster_member_result": values}


def invalid(**values: Any) -> dict[str, Any]:
    return host(altered(**values))


@pytest.mark.golden
def test_whoever_cannot_take_part_is_told_why_and_what_to_do() -> None:
    # What a node answers becomes a word of another node's launcher, or a variable of its program: or it does not.
    unfit = {
        "no result": member(lost()),
        "unreachable": member(lost(unreachable=True, msg="no route")),
        "failed": member(lost(failed=True, msg="no\nprofile")),
        "locked": member({**host(), "node_lock_result": {"held": False, "findings": [], "passed": [], "holder": None}}),
        "busy": member(lost(**{**FACTS, "unfit": [{"have": "busy: job 7", "fix": ""}] * 2})),
        "no inventory": member({**host(), "busbar_intent": {}}),
        "an option in its name": member(invalid(name="n1 -x LD_PRELOAD")),
        "no name": member(invalid(name="")),
        "a path for a device": member(invalid(rails={"0": {"device": "../mlx5", "gpu": 0}})),
        "two GPUs of a rail": member(invalid(rails={"0": {"device": "mlx5_0", "gpu": "0,1"}})),
        "a path for a domain": member(invalid(domain=f"../{DOMAIN}")),
        "no NVLinks to other nodes": member(host(nccl_benchmark_scope="nvlink_domain")),
        "has left the play": member(host(), there=False),
        "an odd name in the inventory": member(host(), "node 01"),
    }
    lines = [f"{name}: {'; '.join(one.unfit or ('fit',))}" for name, one in unfit.items()]
    goldens.text("cluster_plan_action", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("when", "due", "said"),
    [
        ("changed", "scope cluster: never measured", "scope cluster: never measured"),
        ("changed", "", ""),
        ("always", "", "nccl_benchmark_when is always"),
        ("never", "scope cluster: never measured", ""),
    ],
)
def test_it_is_measured_when_the_inventory_says(when: str, due: str, said: str) -> None:
    of_host = host(nccl_benchmark_when=when)
    of_host["nccl_cluster_stored"]["due"] = due
    assert nccl_cluster_plan.reason(of_host) == said


def test_a_record_that_cannot_be_told_is_due() -> None:
    assert nccl_cluster_plan.reason({**host(), "nccl_cluster_stored": {"findings": "all is well"}})


def test_jobs_have_the_bars_of_their_scope_and_the_messages_of_the_model() -> None:
    kinds = nccl_cluster_plan.Kinds()
    given = {"busbar_model_parameters": "7B", "nccl_benchmark_collectives": ["all_reduce", "sendrecv"]}
    members = [kinds.member(f"node{n:02d}", host(altered(name=f"n{n}"), **given), True) for n in range(3)]
    found = cluster_plan.plan(members, kinds.measures, kinds.expected)
    answered = nccl_cluster_plan.task_values(found, {"node00": "never measured"})
    jobs = [job for jobs in answered["rounds"] for job in jobs.values()]
    assert json.loads(json.dumps(jobs)) == jobs
    by_name = {job["name"]: job for job in jobs}
    whole = by_name["cluster all_reduce 8G 3 nodes"]
    assert None not in (whole["bar"], whole["prediction"], whole["latency_bar_us"])
    assert whole["min_bytes"] == 8
    assert (whole["rails"], by_name["cluster sendrecv 8G 3 nodes"]["rails"]) == (8, 1)
    assert by_name["cluster all_reduce 8G 1 node"]["bar"] is None
    assert "DDP bucket of 25 MiB" in {job["what"] for job in jobs}
    text = nccl_cluster_plan.summarise(found, {"node00": "never measured"}, check_mode=True)
    assert "would be run over 3 nodes (node[00-02]): never measured" in text
    assert "busbar_leaf is not set: all nodes are taken for one leaf" in text


def test_that_nothing_is_measured_is_said_with_the_reason() -> None:
    nobody = cluster_plan.Plan(left_out={"node03": ("unreachable", "see")})
    text = nccl_cluster_plan.summarise(nobody, {}, check_mode=False, standing=["node01", "node02"])
    assert text.split("\n")[0] == "BETWEEN NODES: nothing is measured, the last results stand of node[01-02]"
    assert nccl_cluster_plan.summarise(nobody, {}, check_mode=True).startswith(
        "BETWEEN NODES: nothing would be measured, no host can be measured\n"
    )


def test_an_algorithm_that_the_site_sets_itself_is_not_set_once_more() -> None:
    kinds = nccl_cluster_plan.Kinds()
    for environment, algorithm in (({}, "Ring"), ({"NCCL_ALGO": "Tree"}, "")):
        given = {"nccl_benchmark_scope": "pair", "nccl_benchmark_environment": environment}
        one = kinds.member("node01", host(**given), True)
        assert {m.algorithm for m in kinds.measures(one.settings, 2) if m.collective == "all_reduce"} == {algorithm}


def test_the_bar_is_for_the_algorithm_that_the_site_sets() -> None:
    kinds = nccl_cluster_plan.Kinds()

    def of(collective: str = "all_reduce", **environment: str) -> cluster_plan.Expected:
        given = {"nccl_benchmark_environment": environment}
        one = kinds.member("node01", host(**given), True)
        [measure] = [m for m in kinds.measures(one.settings, 4) if m.collective == collective and not m.what]
        return kinds.expected(one.settings, measure, 4)

    assert "NVLSTree" in of().bar_source
    ring = of(NCCL_ALGO="Ring")
    assert "NVLSTree" not in ring.bar_source
    assert (ring.prediction or 0) < (of().prediction or 0)
    assert of(NCCL_ALGO="Tree") == of()
    sharp = of(NCCL_COLLNET_ENABLE="1")
    # What nccl-tests print for it, 369 GB/s, is near what a ring could carry at most; the algbw is far below the wire.
    assert sharp.bar_source.startswith("190.6 GB/s algbw, derived: 0.85 of the prediction 226.9 GB/s (algbw")
    assert sharp.prediction == pytest.approx(226.9 * 2 * 31 / 32, abs=0.2)
    assert sharp.bar == 369.3
    assert of("all_gather", NCCL_COLLNET_ENABLE="1", NCCL_ALGO="Ring") == of("all_gather")


def test_bars_that_cannot_be_read_stop_the_plan(tmp_path: Path) -> None:
    (tmp_path / "bars.yml").write_text("- {}")
    with pytest.raises(ParseError, match=r"bars\.yml"):
        member({**host(), "inventory_dir": str(tmp_path)})
    assert intent_action.bars_of(ROOT)
