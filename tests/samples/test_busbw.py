"""The prediction and the bars against eight H200 that were measured, NVLS off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import perf_output
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw, prediction

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_healthy_node_clears_its_bar_and_is_as_predicted(samples: Path, collective: str) -> None:
    data = json.loads((samples / "h200x8" / f"{collective}.json").read_text())
    row = perf_output.parse_json(json.dumps(data)).rows[-1]
    assert row.out_of_place is not None
    measured = row.out_of_place.busbw
    assert measured is not None
    of = profile.parse(yaml.safe_load((ROOT / "profiles" / "hgx-h200.yml").read_text()), "hgx-h200")
    predicted = prediction.predict(of, collective, nvls=False).busbw
    assert predicted is not None
    assert abs(predicted / measured - 1) < 0.05
    bars = busbw.parse_bars(yaml.safe_load((ROOT / "roles/nccl_benchmark/files/bars.yml").read_text()), "bars.yml")
    bar = busbw.find_bar([bars], "hgx-h200", False, "node", collective, row.size)
    assert bar is not None
    assert bar.busbw is not None
    assert bar.busbw < measured
