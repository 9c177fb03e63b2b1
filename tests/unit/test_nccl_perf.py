"""What is judged of a run of nccl-tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import judge as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.output import Placement, Result
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import Run, Wanted
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_nccl_perf_output import SIZES, output

COMMAND = ("/opt/all_reduce_perf", "-b", "1048576")
WANTED = Wanted("all_reduce", 4, ("node01", "node02"), SIZES, command=COMMAND)
NOW = 1_800_000_000.0


# -- any text --------------------------------------------------------------------------------------------------------


def survives(parse: Any, text: str) -> None:
    with contextlib.suppress(ParseError):
        parse(text)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutations_of_good_text_are_survived_and_judged(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([output(), perf_run.record(run())]))
    start = data.draw(st.integers(0, len(source)))
    end = start + data.draw(st.integers(0, 20))
    text = source[:start] + data.draw(st.text(max_size=10)) + source[end:]
    survives(perf_output.parse_text, text)
    survives(perf_run.parse_record, text)
    changed = run(stdout=text)
    result, problem = perf.read(changed)
    perf.judge(result, WANTED, changed, NOW, problem)


# -- judgement: see the goldens, too -----------------------------------------------------------------------------------


def run(**changes: Any) -> Run:
    return replace(Run(COMMAND, 0, "", 60.0, NOW, stdout=output()), **changes)


FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    **dict.fromkeys(("all_gather", "reduce_scatter", "alltoall", "scatter", "gather"), lambda n: (n - 1) / n),
    **dict.fromkeys(("broadcast", "reduce", "sendrecv"), lambda n: 1.0),
}


def float_text(value: float) -> str:
    """As nccl-tests prints a figure: two decimals, one, none, then an exponent."""
    texts = (f"{value:.2f}", f"{value:.1f}", f"{value:.0f}")
    return next((text for text in texts if len(text) <= 7), f"{value:.1e}")


@given(
    st.sampled_from(sorted(FACTORS)),
    st.integers(2, 2048),
    st.integers(1, 1 << 36),
    st.floats(0.05, 1e8),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([0.1, 0.8, 1.25, 10]),
)
def test_a_row_counts_whose_figures_are_of_one_measurement(
    collective: str, ranks: int, size: int, time: float, spoilt: int, times: float
) -> None:
    figures = [time, size / time / 1e3, size / time / 1e3 * FACTORS[collective](ranks)]
    wanted = Wanted(collective, ranks, ("node01",), (size,))

    def counts() -> bool:
        shown = [float(float_text(figure)) for figure in figures]
        place = Placement(shown[0], shown[1], shown[2], 0.0)
        one = perf_output.Row(size, "float", None, None, place, place)
        return perf.reached(Result(rows=(one,)), wanted) is not None

    assert counts()
    figures[spoilt] *= times
    # What is lost in rounding cannot be seen.
    if min(time, *figures) > 0.1:
        assert not counts()


# -- small things ----------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written() -> None:
    done = run(left_behind=(1, 2), rc=None, ending="timeout", stderr="é\n")
    assert perf_run.parse_record(perf_run.record(done)) == done
    # Up to format 3 the program's result was there as JSON, too.
    older = {**json.loads(perf_run.record(done)), "format": 3, "json": '{"version": 3}'}
    assert perf_run.parse_record(json.dumps(older)) == done
