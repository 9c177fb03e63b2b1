"""What training needs of a network: by the formulas, against a widely copied guide's errors, and by the command."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile as profiles
from ansible_collections.busbar.fabric.plugins.plugin_utils import sizing
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw_bars import Prediction
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import shipped
from ansible_collections.busbar.fabric.plugins.plugin_utils.sizing import LOSS, Sized
from ansible_collections.busbar.fabric.plugins.plugin_utils.training_traffic import Training, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.cli import main

H100 = profiles.parse(shipped()["hgx-h100"], "hgx-h100")
# With ZeRO-3 traffic is hidden all through the step.
SHARDED = Training(parameters=7_000_000_000, data=4096, zero=3)


def sized(compute: float | None, training: Training = SHARDED, busbw: float = 400.0) -> Sized:
    rates = {"all_reduce": Prediction(busbw, "measured")}
    return sizing.size(training, H100, rates, None if compute is None else (compute, ""))


def value(found: Sized, name: str) -> float:
    return float(next(one for one in found.figures if one.name == name).value.split()[0])


# -- what the guide has wrong ----------------------------------------------------------------------------------------


def test_the_rings_share_the_message_so_a_nic_carries_an_eighth() -> None:
    """The guide holds what all GPUs exchange against one port."""
    found = sized(1.0)
    assert value(found, "needed busbw") == pytest.approx(42 / (1 + LOSS / (1 - LOSS)), rel=1e-2)
    assert value(found, "needed NICs a node") == 1
    assert found.enough is True
    assert value(found, "busbw there is") == 400


def test_a_network_slower_than_needed_is_not_enough() -> None:
    found = sized(1.0, busbw=39.0)
    assert (found.enough, found.exit_code) == (False, 2)
    assert (found.step or 0) > 1 / 0.95


def test_seven_billion_parameters_take_seven_seconds_and_not_one() -> None:
    seconds, formula = sizing.compute_time(Training(parameters=7_000_000_000, tokens=65_536), 989, 0.4)
    assert seconds == pytest.approx(6.96, abs=0.01)
    assert formula == "6 x 7B parameters x 65536 tokens / (1 GPUs x 989 TFLOPS x 40 %)"


# -- formulas --------------------------------------------------------------------------------------------------------


def kinds(training: Training) -> dict[tuple[str, str], Any]:
    found = traffic(training, 8)
    return {(one.kind, one.collective): [one.gpu_bytes, one.load] for one in found}


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, {"all_reduce": 28e9}),
        (1, {"reduce_scatter": 14e9, "all_gather": 14e9}),
        # 16 micro batches, each gathered twice.
        (3, {"reduce_scatter": 14e9, "all_gather": 32 * 14e9}),
    ],
)
def test_bytes_of_data_parallelism_by_its_stage(zero: int, expected: dict[str, float]) -> None:
    found = kinds(Training(parameters=7_000_000_000, data=32, zero=zero, micro_batches=16))
    assert found == {("data", kind): pytest.approx([sent * 31 / 32] * 2) for kind, sent in expected.items()}


def test_bytes_of_tensor_and_pipeline_parallelism() -> None:
    training = Training(parameters=7_000_000_000, data=16, tensor=8, pipeline=4, tokens=512 * 4096)
    found = kinds(training)
    # The model's own width is 4096.
    assert training.width == pytest.approx(4096, rel=0.03)
    activations = 32 * 4096 * training.width * 2
    # Both ways, and each of the eight GPUs sends its part.
    sent = 2 * activations
    assert found["pipeline", "sendrecv"] == pytest.approx([sent / 8, sent])
    # Of a stage, one of 32 parts; eight groups in a node, each over 16 nodes, share what a node has.
    one = 2 * 15 / 16 * 14e9 / 32
    assert found["data", "all_reduce"] == pytest.approx([one, 8 * one])


WIDTHS = [(6.7e9, 4096), (13e9, 5120), (70e9, 8192), (175e9, 12288), (405e9, 16384)]


@pytest.mark.parametrize(("parameters", "width"), WIDTHS)
def test_the_width_is_near_that_of_published_models(parameters: float, width: int) -> None:
    assert Training(parameters=int(parameters)).width == pytest.approx(width, rel=0.11)


def test_what_stays_in_the_node_is_left_out() -> None:
    inside = Training(parameters=7_000_000_000, data=8, pipeline=2, tokens=4096)
    assert [one.kind for one in traffic(inside, 8)] == ["pipeline"]
    found = sized(1.0, replace(inside, pipeline=1))
    assert (found.traffic, found.enough, found.bottleneck) == ((), True, "the GPUs: nothing leaves the node")


def test_windows_of_the_step_are_shared() -> None:
    """Traffic that the computation waits for delays what could be hidden behind it, on the same NICs."""
    base = traffic(SHARDED, 8)[0]
    both = [replace(base, window=0.0, seconds=0.3), replace(base, window=0.5, seconds=0.4)]
    assert sizing.step_time(1.0, both) == pytest.approx(1.3)
    assert sizing.step_time(1.0, [replace(one, seconds=2 * (one.seconds or 0)) for one in both]) == pytest.approx(1.9)
    assert sizing.step_time(1.0, []) == 1.0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 50)), min_size=1, max_size=6), st.floats(0.01, 100))
def test_what_is_needed_is_enough_and_nothing_less(windows: list[tuple[float, float]], compute: float) -> None:
    base = traffic(SHARDED, 8)[0]
    found = [replace(base, window=window, seconds=seconds) for window, seconds in windows]
    most = compute / (1 - LOSS)
    scale = sizing.need(compute, found).scale
    for factor, enough in ((1.001, True), (0.99, False)):
        scaled = [replace(one, seconds=(one.seconds or 0) / scale / factor) for one in found]
        assert (sizing.step_time(compute, scaled) <= most * (1 + 1e-9)) is enough
    least = sizing.allowed_compute(found)
    assert sizing.step_time(least * 1.001, found) <= least * 1.001 / (1 - LOSS) * (1 + 1e-9)
    assert sizing.step_time(least * 0.99, found) > least * 0.99 / (1 - LOSS)


# -- the command -----------------------------------------------------------------------------------------------------

SEVEN = ["size", "--parameters", "7B", "--profile", "hgx-h100", "--nodes", "16", "--tokens", "512x4096"]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--mfu", "40"], 0, "^ENOUGH: "),
        (["--mfu", "99", "--tokens", "4K"], 2, "^NOT ENOUGH: .*; needed: [0-9.]+ GB/s of busbw, [0-9]+ NICs a node"),
        ([], 0, "^THE NETWORK ALLOWS a step of "),
        (["--nodes", "1", "--mfu", "40"], 0, "nothing leaves the node"),
        (["--nodes", "1"], 0, "^NOTHING crosses the network"),
        (["--mfu", "40", "--micro-batches", "4"], 0, "of the last of 4 micro batches"),
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
    head = "description: odd\ngpus: {count: 8, models: [NVIDIA H200]}\n"
    file.write_text(f"{head}rails:\n  - {{paths: {{0: SYS}}, rate_gbps: 400, link_layers: [InfiniBand]}}\n")
    asked = [*SEVEN[:3], "--profile", str(file), "--nodes", "16", "--tokens", "4M", "--mfu", "40"]
    assert main(asked) == 3
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "UNKNOWN whether that is enough: the profile gives rail 0 no path PIX or PXB" in said
    assert "(needed: " in said
    file.write_text(file.read_text().replace("NVIDIA H200", "Some GPU"))
    assert main(asked) == 1
    assert "the peak of Some GPU is not known" in capsys.readouterr().err
    file.write_text(f"{head}rails: []\n")
    assert main(asked) == 1
    assert "has no rails" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "hgx-h1000"], "no profile 'hgx-h1000'; did you mean hgx-h100"),
        (["--profile", "../x"], "no profile"),
        (["--profile", "x.yml"], "x.yml: No such file"),
        (["--tp", "3"], "not a multiple of --tp 3 x --pp 1 = 3"),
        (["--tp", "16"], "tensor parallelism stays in the node"),
        (["--nodes", "3", "--pp", "2"], "stages of 12 GPUs, neither a part nor a multiple of a node's 8"),
        (["--pp", "2"], "give --tokens"),
        (["--mfu", "40"], "--mfu needs --tokens"),
    ],
)
def test_wrong_input_says_what_to_write(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["size", "--parameters", "7B", "--profile", "hgx-h100", "--nodes", "2", *arguments]) == 1
    said = capsys.readouterr()
    assert re.search(message, said.err), said.err
    assert not said.out


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--parameters", "seven"], ["--mfu", "nan"], ["--mfu", "400"], ["--zero", "4"]),
        *(["--tokens", "4.5"], ["--tokens", "1.0005K"], ["--tokens", "4m"], ["--tokens", "4MK"], ["--tokens", "x4M"]),
        *(["--tokens", "1e6"], ["--tokens", "0"], ["--nodes", "-1"]),
    ],
)
def test_a_value_of_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*SEVEN, *arguments])
    assert ended.value.code == 1
    assert f"argument {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "step"), [("4M", 4_000_000), ("1.5K", 1500), ("2Kx8_192", 16_384_000), ("512x8192", 4_194_304)]
)
def test_tokens_are_said_as_parameters_are(tokens: str, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN, "--tokens", tokens, "--mfu", "40"]) in (0, 2)
    assert f" {step} tokens / " in re.sub(r"\s+", " ", capsys.readouterr().out)
