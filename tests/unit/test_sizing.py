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
from ansible_collections.busbar.fabric.plugins.plugin_utils.sizing import LOSS, Sized, Training, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar import size
from busbar.cli import main

H100 = profiles.parse(shipped()["hgx-h100"], "hgx-h100")
MODEL = Training(parameters=7_000_000_000)
# With ZeRO-3 traffic is hidden all through the step.
SHARDED = replace(MODEL, data=4096, zero=3)


def sized(compute: float | None, training: Training = SHARDED, busbw: float = 400.0) -> Sized:
    return sizing.size(training, H100, {"all_reduce": Prediction(busbw, "measured")}, compute)


def test_a_step_against_the_network() -> None:
    found = sized(1.0)
    # The guide holds what all GPUs exchange against one port; the rings share the message: a NIC carries an eighth.
    assert found.needed == pytest.approx(42 / (1 + LOSS / (1 - LOSS)), rel=1e-2)
    assert (found.nics, found.enough, found.exit_code) == (1, True, 0)
    slow = sized(1.0, busbw=39.0)
    assert (slow.enough, slow.exit_code) == (False, 2)
    assert (slow.step or 0) > 1 / 0.95
    inside = sized(1.0, replace(MODEL, data=8))
    assert (inside.traffic, inside.enough) == ((), True)
    # The guide has one second.
    assert replace(MODEL, tokens=65_536).compute_time(989, 0.4) == pytest.approx(6.96, abs=0.01)


PARTS = replace(MODEL, data=16, tensor=8, pipeline=4, tokens=512 * 4096)
BATCHES = replace(MODEL, data=32, micro_batches=16)
SHARE, PART = 14e9 * 31 / 32, 2 * 15 / 16 * 14e9 / 32
# A micro batch between two layers.
PASSED = 32 * 4096 * PARTS.width * 2


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        (BATCHES, {"all_reduce": (2 * SHARE, 2 * SHARE)}),
        (replace(BATCHES, zero=1), {"reduce_scatter": (SHARE, SHARE), "all_gather": (SHARE, SHARE)}),
        # 16 micro batches, each gathered twice.
        (replace(BATCHES, zero=3), {"reduce_scatter": (SHARE, SHARE), "all_gather": (32 * SHARE, 32 * SHARE)}),
        # Eight groups in a node share what it has; activations go both ways, and each of eight GPUs sends its part.
        (PARTS, {"all_reduce": (PART, 8 * PART), "sendrecv": (PASSED / 4, 2 * PASSED)}),
        (replace(MODEL, data=8), {}),
        (
            replace(MODEL, data=8, pipeline=2, tokens=4096),
            {"sendrecv": (512 * MODEL.width * 2, 4096 * MODEL.width * 2)},
        ),
    ],
)
def test_bytes_that_leave_a_node(training: Training, expected: dict[str, tuple[float, float]]) -> None:
    found = {one.collective: (one.sent, one.load) for one in traffic(training, 8)}
    assert found == {kind: pytest.approx(each) for kind, each in expected.items()}


WIDTHS = [(6.7e9, 4096), (13e9, 5120), (70e9, 8192), (175e9, 12288), (405e9, 16384)]


@pytest.mark.parametrize(("parameters", "width"), WIDTHS)
def test_the_width_is_near_that_of_published_models(parameters: float, width: int) -> None:
    assert Training(parameters=int(parameters)).width == pytest.approx(width, rel=0.11)


def test_windows_of_the_step_are_shared() -> None:
    """Traffic that the computation waits for delays what could be hidden behind it, on the same NICs."""
    base = traffic(SHARDED, 8)[0]
    both = [replace(base, window=0.0, seconds=0.3), replace(base, window=0.5, seconds=0.4)]
    assert sizing.step_time(1.0, both) == pytest.approx(1.3)
    assert sizing.step_time(1.0, [replace(one, seconds=2 * (one.seconds or 0)) for one in both]) == pytest.approx(1.9)
    assert sizing.step_time(1.0, []) == 1.0
    # The backward pass of the last micro batch.
    assert [one.window for one in traffic(BATCHES, 8)] == [pytest.approx(2 / 3 / 16)]


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 50)), min_size=1, max_size=6), st.floats(0.01, 100))
def test_what_is_needed_is_enough_and_nothing_less(windows: list[tuple[float, float]], compute: float) -> None:
    """Seconds are those at 1 GB/s."""
    base = traffic(SHARDED, 8)[0]
    found = [replace(base, window=window, seconds=seconds, load=1e9 * seconds) for window, seconds in windows]
    most = compute / (1 - LOSS)
    rate = sizing.needed_rate(compute, found)
    for factor, enough in ((1.001, True), (0.99, False)):
        scaled = [replace(one, seconds=(one.seconds or 0) / rate / factor) for one in found]
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
        (["--mfu", "99", "--tokens", "4K"], 2, "^NOT ENOUGH: .*; needed: [0-9.]+ GB/s of busbw, [0-9]+ NICs? a node"),
        ([], 0, "^THE NETWORK ALLOWS a step of "),
        (["--nodes", "1", "--mfu", "40"], 0, "nothing leaves the node"),
        (["--nodes", "1"], 0, "^NOTHING crosses the network"),
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
        (["--profile", "x.yml"], "x.yml cannot be read: .*No such file"),
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
    ("text", "number"), [("4M", 4_000_000), ("1.5K", 1500), ("2Kx8_192", 16_384_000), ("512x8192", 4_194_304)]
)
def test_tokens_are_written_as_parameters_are(text: str, number: int) -> None:
    assert size._count(text, 10**10) == number
