"""What training needs of a network: by the formulas, against a widely copied guide's errors, and by the command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile as profiles
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, fat_tree, sizing
from ansible_collections.busbar.fabric.plugins.plugin_utils.sizing import Cluster, Sized
from ansible_collections.busbar.fabric.plugins.plugin_utils.training_traffic import Model, Training, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.cli import main
from busbar.profile import shipped
from tests.unit.test_cluster_record import JOB, RECORD

DENSE = Model(parameters=7_000_000_000, active=7_000_000_000)
H100 = profiles.parse(shipped()["hgx-h100"], "hgx-h100")


def cluster(nics: tuple[float, ...] = (400.0,) * 8, efficiency: float = 1.0, **more: Any) -> Cluster:
    network = sizing.by_nics(nics, efficiency)
    return Cluster(**{"gpus": 8, "nics": nics, "network": network, "efficiency": efficiency, **more})


def sized(compute: float | None, there: Cluster, nodes: int = 512, loss: float = 0.0, **more: Any) -> Sized:
    training = Training(data=8 * nodes, **more)
    return sizing.size(DENSE, training, there, None if compute is None else (compute, ""), loss)


def value(found: Sized, name: str) -> float:
    figure = next(one for one in found.figures if one.name == name)
    assert figure.formula
    assert figure.value is not None
    return figure.value


# -- what the guide has wrong ----------------------------------------------------------------------------------------


def test_the_rings_share_the_message_so_a_nic_carries_an_eighth() -> None:
    """The guide holds 28 GB/s "per GPU" against one port of 50."""
    found = sized(1.0, cluster(), overlap={"data": 1.0})
    assert value(found, "needed busbw") == pytest.approx(28, rel=1e-3)
    assert value(found, "needed of each NIC") == pytest.approx(3.5, rel=1e-3)
    assert value(found, "needed NICs a node") == 1
    assert found.enough is True
    assert value(found, "busbw there is") == pytest.approx(400)


def test_a_port_of_25_does_not_carry_28() -> None:
    """The guide calls it borderline."""
    found = sized(1.0, cluster((200.0,)), overlap={"data": 1.0})
    assert (found.enough, value(found, "needed NICs a node")) == (False, 2)
    assert value(found, "needed busbw") / 25 == pytest.approx(1.12, rel=1e-3)


def test_seven_billion_parameters_take_seven_seconds_and_not_one() -> None:
    seconds, formula = sizing.compute_time(DENSE, Training(tokens=65_536), 989, 0.4)
    assert seconds == pytest.approx(6.96, abs=0.01)
    assert formula == "6 x 7B parameters x 65536 tokens / (1 GPUs x 989 TFLOPS x 40 %)"


@pytest.mark.parametrize(
    ("nics", "flat", "halved"), [((400.0,), 78.1, 64.1), ((400.0,) * 8, 96.6, 93.5)], ids=["the guide's", "of a node"]
)
def test_two_to_one_costs_what_the_whole_node_loses(nics: tuple[float, ...], flat: float, halved: float) -> None:
    for k, expected in ((1.0, flat), (2.0, halved)):
        found = sized(2.0, cluster(nics, oversubscription=k), overlap={"data": 0.0})
        assert value(found, "of it computing") == pytest.approx(expected, abs=0.1)
    assert value(found, "cost of 2:1") == pytest.approx(2 / (halved / 100) - 2 / (flat / 100), abs=0.01)
    assert "uplinks of the leaves (2:1)" in found.bottleneck


def test_two_tiers_of_64_ports_end_at_2048() -> None:
    assert fat_tree.most(64, 2) == 2048
    assert fat_tree.fat_tree(2048, 64).tiers == 2
    found = fat_tree.fat_tree(4096, 64)
    assert (found.tiers, found.leaves, found.middle, found.top, found.switches) == (3, 128, 128, 64, 320)


def test_512_nodes_of_eight_rails_are_192_switches_and_not_128() -> None:
    by_rail, one = sized(1.0, cluster()).trees
    assert (by_rail[1], by_rail[2].leaves, by_rail[2].middle) == (8, 16, 8)
    assert by_rail[1] * by_rail[2].switches == 192 == 1.5 * 128
    assert one[2].switches == 320


def test_fat_trees_of_three_and_two_tiers_serve_what_their_ports_give() -> None:
    assert (fat_tree.most(32, 3), fat_tree.most(48, 2)) == (8192, 1152)
    found = fat_tree.fat_tree(8192, 32)
    assert (found.tiers, found.top) == (3, 256)
    with pytest.raises(ParseError, match="8193 ports do not fit three tiers of 32-port switches, which end at 8192"):
        fat_tree.fat_tree(8193, 32)


def test_a_fifth_of_a_thousand_gpus_is_five_thousand_hours_a_day() -> None:
    """21 % of 24,576 GPU-hours are 5,161: $200,000 would be $38 an hour."""
    found = sized(0.79, cluster((8 * 400.0 * 0.07 / 0.21,)), nodes=128, overlap={"data": 0.0})
    assert value(found, "lost a day") == pytest.approx(0.21 * 24_576, rel=0.002)


def test_a_node_of_eight_ndr_nics_is_not_healthy_at_40() -> None:
    found = sized(2.0, cluster(profile=H100, network=sizing.as_measured(40.0, "x")))
    assert re.search(r"40 GB/s is 11 % of what the profile's links allow \(359.7\)", "; ".join(found.notes))
    found = sized(2.0, cluster(profile=H100, network=sizing.as_measured(355.0, "x")))
    assert not any("links allow" in note for note in found.notes)


def test_a_gigabyte_over_64_ranks_is_197_gigabytes_sent_by_each() -> None:
    (one,) = traffic(replace(DENSE, parameters=500_000_000), Training(data=64), 8, 32)
    assert one.gpu_bytes == pytest.approx(1.97e9, rel=0.001)


# -- formulas --------------------------------------------------------------------------------------------------------

TRAINED: dict[str, Any] = {"tokens": 512 * 4096, "sequence": 4096, "micro_batch": 1}
LAYERED = replace(DENSE, layers=32, hidden=4096)


def kinds(model: Model, training: Training) -> dict[tuple[str, str], Any]:
    found = traffic(model, training, 8, 32)
    return {(one.kind, one.collective): (one.gpu_bytes, one.node_bytes) for one in found}


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, {("data", "all_reduce"): (28e9, 28e9)}),
        (1, {("data", "reduce_scatter"): (14e9, 14e9), ("data", "all_gather"): (14e9, 14e9)}),
        # 16 micro batches, each gathered twice.
        (3, {("data", "reduce_scatter"): (14e9, 14e9), ("data", "all_gather"): (32 * 14e9, 32 * 14e9)}),
    ],
)
def test_bytes_of_data_parallelism_by_its_stage(zero: int, expected: dict[Any, tuple[float, float]]) -> None:
    found = kinds(DENSE, Training(data=32, zero=zero, **TRAINED))
    assert found == {
        kind: (pytest.approx(gpu * 31 / 32), pytest.approx(node * 3 / 4)) for kind, (gpu, node) in expected.items()
    }


def test_bytes_of_tensor_and_pipeline_parallelism() -> None:
    found = kinds(LAYERED, Training(data=16, tensor=8, pipeline=4, **TRAINED))
    activations = 4096 * 4096 * 2
    # Four a layer, eight layers a stage, 32 micro batches.
    assert found["tensor", "all_reduce"] == (pytest.approx(2 * 7 / 8 * activations * 4 * 8 * 32), 0)
    # Both ways, and each of the eight GPUs sends its part.
    assert found["pipeline", "sendrecv"] == (2 * 32 * activations / 8, 2 * 32 * activations)
    # Of a stage, one of 32 parts; eight groups in a node, each over 16 nodes.
    one = 2 * 15 / 16 * 14e9 / 32
    assert found["data", "all_reduce"] == (pytest.approx(one), pytest.approx(8 * one))
    by_kind = {one.kind: one for one in traffic(LAYERED, Training(data=16, tensor=8, pipeline=4, **TRAINED), 8, 32)}
    # Eight groups share what a node has, so its busbw counts the bytes of all.
    assert by_kind["data"].load == pytest.approx(8 * one)


def test_bytes_of_expert_parallelism() -> None:
    # 1B beside 64 experts, 6B in them, of which a token passes one in 32.
    model = Model(
        parameters=7_000_000_000, active=1_187_500_000, layers=32, hidden=4096, experts=64, top_k=2, moe_layers=16
    )
    assert model.in_experts == pytest.approx(6e9)
    found = kinds(model, Training(data=32, expert=16, **TRAINED))
    sent = 4 * 16 * 16 * 4096 * 4096 * 2 * 2
    assert found["expert", "alltoall"] == (pytest.approx(sent * 15 / 16), pytest.approx(8 * sent / 2))
    by_group = [one for one in traffic(model, Training(data=32, expert=16, **TRAINED), 8, 32) if one.kind == "data"]
    assert [(one.ranks, one.nodes, round(one.message)) for one in by_group] == [(32, 4, 2e9), (2, 2, 12e9 / 16)]


def test_windows_of_the_step_are_shared() -> None:
    """Traffic that the computation waits for delays what could be hidden behind it, on the same NICs."""
    base = traffic(DENSE, Training(data=64), 8, 32)[0]
    both = [replace(base, window=0.0, seconds=0.3), replace(base, window=0.5, seconds=0.4)]
    assert sizing.step_time(1.0, both) == pytest.approx(1.3)
    assert sizing.step_time(1.0, [replace(one, seconds=2 * (one.seconds or 0)) for one in both]) == pytest.approx(1.9)
    assert sizing.step_time(1.0, []) == 1.0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 50)), min_size=1, max_size=6),
    st.floats(0.01, 100),
    st.floats(0.01, 0.5),
)
def test_what_is_needed_is_enough_and_nothing_less(
    windows: list[tuple[float, float]], compute: float, loss: float
) -> None:
    base = traffic(DENSE, Training(data=64), 8, 32)[0]
    found = [replace(base, window=window, seconds=seconds) for window, seconds in windows]
    most = compute / (1 - loss)
    scale = sizing.need(compute, loss, found).scale
    for factor, enough in ((1.001, True), (0.99, False)):
        scaled = [replace(one, seconds=(one.seconds or 0) / scale / factor) for one in found]
        assert (sizing.step_time(compute, scaled) <= most * (1 + 1e-9)) is enough
    least = sizing.allowed_compute(loss, found)
    assert sizing.step_time(least * 1.001, found) <= least * 1.001 / (1 - loss) * (1 + 1e-9)
    assert sizing.step_time(least * 0.99, found) > least * 0.99 / (1 - loss)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20_000), st.sampled_from([16, 32, 36, 40, 64, 128]), st.sampled_from([1.0, 1.5, 2.0, 3.0]))
def test_a_fat_tree_has_ports_for_every_link(ends: int, ports: int, k: float) -> None:
    try:
        found = fat_tree.fat_tree(ends, ports, k)
    except ParseError:
        assert ends > fat_tree.most(ports, 3)
        return
    if found.tiers == 1:
        assert ends <= ports
        return
    down = fat_tree.downlinks(ports, k)
    assert found.leaves * down >= ends
    up = found.leaves * (ports - down)
    assert found.middle * (ports if found.tiers == 2 else ports // 2) >= up
    assert found.tiers == 2 or found.top * ports >= found.middle * (ports // 2)
    assert down / (ports - down) <= k + 1e-9


def test_oversubscription_slows_down_what_leaves_the_leaf_group_alone() -> None:
    for leaf, cost in ((512, 0.0), (256, 0.07)):
        found = sized(2.0, cluster(oversubscription=2.0, leaf_nodes=leaf), overlap={"data": 0.0})
        assert value(found, "cost of 2:1") == pytest.approx(cost, abs=1e-3)


def test_a_fabric_that_no_three_tiers_join_is_named() -> None:
    found = sized(1.0, cluster(switch_ports=16), nodes=1024)
    assert [what for what, _fabrics, _tree in found.trees] == ["a fabric for each rail"]
    assert "one fabric: 8192 ports do not fit three tiers of 16-port switches, which end at 1024" in found.notes[-1]


def test_an_order_by_leaves_is_no_way_out_where_uplinks_have_less_than_a_node() -> None:
    notes = [
        [note for note in sized(1.0, cluster(oversubscription=4.0, leaf_nodes=leaf)).notes if "ordered by leaf" in note]
        for leaf in (2, 8)
    ]
    assert [len(each) for each in notes] == [0, 1]


def test_other_nics_take_the_place_of_the_profile_s() -> None:
    for rates, expected in (((400.0,) * 4, 184.0), ((200.0,) * 8, 184.0), ((400.0,) * 8, 359.7)):
        network, _why = sizing.predicted(sizing.with_nics(H100, rates), 16, 0.92)
        assert network is not None
        assert network.rate("all_reduce").busbw == pytest.approx(expected, abs=0.1)
        # Each GPU has its part of the NICs, and nothing else.
        assert network.rate("alltoall").busbw == pytest.approx(sum(rates) / 8 * 0.92)


# -- as it was measured ----------------------------------------------------------------------------------------------


def test_a_record_tells_the_rates_of_the_widest_jobs() -> None:
    wide = tuple(f"n{i}" for i in range(4))
    jobs = (
        replace(JOB, scope="cluster", hosts=wide[:3], ranks=24, collective="all_reduce", busbw=300.0, algorithm=""),
        replace(JOB, scope="cluster", hosts=wide, ranks=32, collective="all_reduce", busbw=350.0, algorithm=""),
        replace(JOB, scope="cluster", hosts=wide, ranks=32, collective="alltoall", busbw=31.0, algorithm=""),
        replace(JOB, scope="rail", hosts=wide, ranks=4, collective="all_gather", busbw=48.0, algorithm=""),
        replace(JOB, scope="cluster", hosts=wide, ranks=32, collective="all_reduce", busbw=600.0, algorithm="SHARP"),
    )
    network = sizing.of_record(replace(RECORD, jobs=jobs), "cluster.json")
    assert set(network.rates) == {"", "all_reduce", "alltoall"}
    assert network.rate("all_gather").busbw == 350.0
    assert network.rate("alltoall").busbw == pytest.approx(31.0 * 8 * 24 / 31)
    assert network.rate("all_reduce").source == "measured: all_reduce over 4 nodes, cluster.json"
    assert any("SHARP's busbw is no bandwidth" in note for note in network.notes)


def test_two_nodes_by_nvlstree_are_no_measure_of_the_network() -> None:
    job = replace(JOB, scope="pair", hosts=("a", "b"), ranks=16, collective="all_reduce", nvls=True, algorithm="")
    with pytest.raises(ParseError, match=r"crosses the network once, not twice.*three nodes or more"):
        sizing.of_record(replace(RECORD, jobs=(job,)), "x")
    ring = replace(job, algorithm="Ring", busbw=340.0)
    assert sizing.of_record(replace(RECORD, jobs=(job, ring)), "x").rates[""].busbw == 340.0


# -- the command -----------------------------------------------------------------------------------------------------

SEVEN = ["size", "--parameters", "7B", "--profile", "hgx-h100", "--nodes", "16", "--tokens", "512x4096"]
WHOLE = [*SEVEN, "--sequence", "4096", "--micro-batch", "1", "--layers", "32", "--hidden", "4096"]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--mfu", "40"], 0, "^ENOUGH: "),
        (["--step-time", "0.1"], 1, "^NOT ENOUGH: .*; needed: [0-9.]+ GB/s of busbw, [0-9]+ NICs a node"),
        ([], 0, "^THE NETWORK ALLOWS a step of "),
        (["--nodes", "1", "--mfu", "40"], 0, "nothing leaves the node"),
        (["--step-time", "1", "--busbw", "5"], 1, "^NOT ENOUGH"),
        (["--step-time", "1", "--sequence", "4096", "--micro-batch", "1"], 0, "of the last of 4 micro batches"),
        (["--step-time", "1", "--loss", "0", "--overlap", "0"], 1, "no bandwidth hides"),
    ],
)
def test_the_answer_and_its_exit_code(
    more: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible_collections.busbar.fabric.plugins.plugin_utils.terminal.COLUMNS", 80)
    assert main([*SEVEN, *more]) == code
    text = capsys.readouterr().out
    assert re.search(said, re.sub(r"\n +", " ", text), re.MULTILINE), text
    assert max(map(len, text.splitlines())) <= 80


def test_a_profile_that_tells_no_bandwidth_cannot_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "odd.yml"
    file.write_text(
        "description: odd\ngpus: {count: 8, models: [Some GPU]}\nrails:\n"
        "  - {paths: {0: SYS}, rate_gbps: 400, link_layers: [InfiniBand]}\n"
    )
    asked = [*SEVEN[:3], "--profile", str(file), "--nodes", "16", "--step-time", "2"]
    assert main(asked) == 2
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "CANNOT SAY whether that is enough: the profile gives rail 0 no path PIX or PXB" in said
    assert "(needed: " in said
    assert main([*asked, "--busbw", "40"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "16"], "say how many GPUs a node has: --profile, or --gpus-per-node"),
        (["--gpus-per-node", "8", "--nodes", "2"], "say which NICs a node has: --nics 8x400"),
        (["--profile", "hgx-h1000", "--nodes", "2"], "no profile 'hgx-h1000': name a file .* hgx-h100, "),
        (["--profile", "../x", "--nodes", "2"], "no profile"),
        (["--profile", "x.yml", "--nodes", "2"], "x.yml: No such file"),
        (["--profile", "hgx-h100"], "say how large the job is: --nodes, or --dp"),
        (["--profile", "hgx-h100", "--nodes", "2", "--dp", "3"], "that is --dp 16, not 3"),
        (["--profile", "hgx-h100", "--nodes", "2", "--tp", "3"], "no multiple of --tp 3 x --pp 1 = 3"),
        (["--profile", "hgx-h100", "--dp", "2", "--tp", "6"], "6 GPUs are neither a part nor a multiple of a node's 8"),
        (["--profile", "hgx-h100", "--dp", "8", "--tp", "2"], "sends activations: say --tokens, --hidden, --sequence"),
        (["--profile", "hgx-h100", "--nodes", "2", "--mfu", "40"], "--mfu needs --tokens"),
        (["--gpus-per-node", "8", "--nics", "8x400", "--dp", "8", "--tokens", "9", "--mfu", "4"], "--peak TFLOPS"),
        (["--profile", "hgx-h100", "--nodes", "2", "--mfu", "4", "--step-time", "2"], "leave one out"),
        (["--profile", "hgx-h100", "--nodes", "2", "--busbw", "4", "--record", "x"], "leave one out"),
        (["--profile", "hgx-h100", "--nodes", "2", "--record", "nowhere"], "nowhere"),
        (["--profile", "hgx-h100", "--nodes", "2", "--plot", "x.pdf"], "name a file that ends with .svg or .png"),
        (["--profile", "hgx-h100", "--nodes", "2", "--micro-batch", "8"], "belong together"),
        (["--profile", "hgx-h100", "--nodes", "2", "--experts", "8"], "with --experts say --active"),
        (
            ["--profile", "hgx-h100", "--dp", "16", "--tokens", "100", "--sequence", "4", "--micro-batch", "1"],
            "64 each .*; 64 and 128 would be",
        ),
    ],
)
def test_wrong_input_says_what_to_write(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["size", "--parameters", "7B", *arguments]) == 2
    said = capsys.readouterr()
    assert re.search(message, said.err), said.err
    assert not said.out


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--parameters", "seven"], ["--nics", "8*400"], ["--nics", "0"], ["--mfu", "nan"], ["--mfu", "400"]),
        *(["--tokens", "4.5"], ["--tokens", "1.0005K"], ["--tokens", "4m"], ["--tokens", "4MK"], ["--tokens", "x4M"]),
        *(["--tokens", "1e6"], ["--tokens", "0"], ["--loss", "100"], ["--overlap", "gpu=3"], ["--nodes", "-1"]),
    ],
)
def test_a_value_of_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*SEVEN, *arguments])
    assert ended.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "step"), [("4M", 4_000_000), ("1.5K", 1500), ("2Kx8_192", 16_384_000), ("512x8192", 4_194_304)]
)
def test_tokens_are_said_as_parameters_are(tokens: str, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN, "--tokens", tokens, "--json"]) == 0
    [figure] = [one for one in json.loads(capsys.readouterr().out)["figures"] if one["name"] == "tokens/s there"]
    assert figure["formula"].startswith(f"{step} tokens / ")


def test_json_has_every_figure_with_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WHOLE, "--tp", "8", "--step-time", "2", "--oversubscription", "2:1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["format"], data["exit_code"], data["enough"], data["gpus"], data["nodes"]) == (1, 0, True, 128, 16)
    assert [one["kind"] for one in data["traffic"]] == ["data", "tensor"]
    assert all(one["formula"] for one in [*data["traffic"], *data["figures"], *data["switches"]])
    assert data["traffic"][1]["inside"] is True


def test_a_record_is_read_and_a_simulated_one_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ("n1", "n2", "n3")
    job = replace(JOB, scope="cluster", hosts=hosts, ranks=24, collective="all_reduce", algorithm="", busbw=120.0)
    cluster_record.write(tmp_path, replace(RECORD, asked=hosts, jobs=(job,), simulated=True))
    assert main([*SEVEN, "--step-time", "2", "--record", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {one["name"]: one["value"] for one in data["figures"]}["busbw there is"] == 120.0
    assert any("simulated" in note for note in data["notes"])


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_is_written(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"x.{suffix}"
    assert main([*WHOLE, "--tp", "8", "--step-time", "0.5", "--oversubscription", "2", "--plot", str(file)]) in (0, 1)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"needed: " in content
    assert main([*SEVEN, "--plot", str(tmp_path / f"y.{suffix}")]) == 0
    assert "no plot: " in capsys.readouterr().err
