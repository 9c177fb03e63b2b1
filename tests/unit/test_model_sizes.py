from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import model_sizes, network_values
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "size"),
    [("7B", 14_000_000_000), ("7e9", 14_000_000_000), ("350M", 700_000_000), ("1.3T", 2_600_000_000_000)],
)
def test_a_model_is_two_bytes_a_parameter(text: str, size: int) -> None:
    assert model_sizes.gradient_bytes(text, 8) == size


@pytest.mark.parametrize("text", ["", "seven", "-7B", "7 B", "7GB", "0", "1e99", "nan", "7b\x00"])
def test_what_is_no_size_of_a_model_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="expected a form like 350M, 7B"):
        model_sizes.gradient_bytes(text, 8)


@given(st.integers(1_000_000, 10**13), st.integers(1, 72))
def test_the_bytes_are_whole_shares_and_not_less_than_the_model(parameters: int, gpus: int) -> None:
    size = model_sizes.gradient_bytes(str(parameters), gpus)
    assert size % (16 * gpus) == 0
    assert 0 <= size - 2 * parameters < 16 * gpus


def of(parameters: str, gpus: int = 32, **parallelism: int) -> set[tuple[str, int, str]]:
    return {(one.collective, one.bytes, one.what) for one in model_sizes.sizes(parameters, parallelism, gpus)}


def test_the_messages_of_a_model_are_those_that_frameworks_send() -> None:
    found = of("7B", tensor=4, pipeline=2, data=4, micro_batch=1, sequence=4096, hidden=4096, layers=32)
    part = "whole model, BF16 of one of 8 parts (tensor 4 x pipeline 2)"
    assert found == {
        # 7e9 x 2 / 8, in whole shares of 16 bytes for each of 32 ranks.
        ("all_reduce", 1_750_000_128, part),
        ("all_gather", 1_750_000_128, part),
        ("reduce_scatter", 1_750_000_128, part),
        ("all_gather", 1_000_000_000, "ZeRO bucket of 5e8 elements, parameters"),
        ("reduce_scatter", 1_000_000_000, "ZeRO bucket of 5e8 elements, gradients"),
        # 7e9 x 2 / 32 layers / tensor 4.
        ("all_gather", 109_375_488, "FSDP unit, 1 of 32 layers"),
        ("reduce_scatter", 109_375_488, "FSDP unit, 1 of 32 layers"),
        ("all_reduce", 33_554_432, "tensor-parallel activations 1 x 4096 x 4096, BF16"),
        ("sendrecv", 33_554_432, "pipeline activations 1 x 4096 x 4096, BF16"),
        ("all_reduce", 26_214_400, "DDP bucket of 25 MiB"),
    }


def test_what_the_site_does_not_say_is_not_measured() -> None:
    buckets = {name for _collective, _bytes, name in of("")}
    assert buckets == {
        "DDP bucket of 25 MiB",
        "ZeRO bucket of 5e8 elements, gradients",
        "ZeRO bucket of 5e8 elements, parameters",
    }
    assert {size for _collective, size, name in of("7B") if name == "whole model, BF16"} == {14_000_000_000}
    # Activations between the GPUs of one part, and between none, are no messages.
    assert {name for _collective, _bytes, name in of("", micro_batch=1, sequence=4096, hidden=4096)} == buckets
    assert {name for _collective, _bytes, name in of("", tensor=8, pipeline=2, sequence=4096)} == buckets
    # The same message twice is one: a model whose gradients are what ZeRO sends at once.
    assert [one for one in of("500M") if one[0] == "all_gather"] == [
        ("all_gather", 1_000_000_000, "ZeRO bucket of 5e8 elements, parameters")
    ]


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        ({"tensor": 0}, "busbar_model_parallelism.tensor is 0, expected 1 to"),
        ({"hidden": -1}, "busbar_model_parallelism.hidden is -1"),
        ({"sequence": 10**9}, "busbar_model_parallelism.sequence is 1000000000"),
        ({"layers": 30, "pipeline": 4}, "layers 30 is not a multiple of pipeline 4"),
        ({"hidden": 4095, "tensor": 8}, "hidden 4095 is not a multiple of tensor 8"),
        ({"tensor": 8, "pipeline": 1000, "data": 10**4}, "tensor x pipeline x data is more than"),
        ({"micro_batch": 10**4, "sequence": 10**6, "hidden": 10**4}, "micro_batch x sequence x hidden is more than 1T"),
    ],
)
def test_a_wrong_parallelism_is_named_with_its_key(parallelism: dict[str, int], message: str) -> None:
    (error,) = model_sizes.parallelism_errors(parallelism)
    assert message in error
    with pytest.raises(ParseError, match="busbar_model_parallelism"):
        model_sizes.sizes("7B", parallelism, 8)


@given(
    st.dictionaries(st.sampled_from(network_values.PARALLELISM), st.integers(1, 10**4)),
    st.sampled_from(["", "350M", "70B", "1.3T"]),
    st.integers(1, 4096),
)
def test_every_message_is_whole_shares_and_once(parallelism: dict[str, int], parameters: str, gpus: int) -> None:
    try:
        found = model_sizes.sizes(parameters, parallelism, gpus)
    except ParseError:
        return
    assert all(one.bytes > 0 and one.bytes % (16 * gpus) == 0 and one.what for one in found)
    assert len({(one.collective, one.bytes) for one in found}) == len(found)
    assert [one.bytes for one in found] == sorted((one.bytes for one in found), reverse=True)
