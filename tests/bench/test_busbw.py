"""Bus bandwidth on real GPUs: through the suite and by hand, against the prediction.

Printed beside the targets, never asserted. How to run it: tests/gpu/conftest.py.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.plugin_utils.prediction import predict

from tests.gpu.conftest import Show, Site, show, site

__all__ = ["show", "site"]
pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no GPU here: run it on a GPU node")
BINARY = "/opt/nccl-tests/all_reduce_perf"
ROUNDS = 3


def by_hand(site: Site, gpus: int) -> float:
    """busbw of 8 GiB, out of place, in GB/s: what an operator would type, its JSON read."""
    marker = json.loads(Path(BINARY).with_name("busbar-build.json").read_text())
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/root",
        "NCCL_NVLS_ENABLE": "0",
        # Open MPI's own daemon would want ssh.
        "OMPI_MCA_ess_singleton_isolated": "1",
        "LD_LIBRARY_PATH": ":".join(marker["library_path"]),
    }
    path = site.folder / "by-hand.json"
    path.unlink(missing_ok=True)
    argv = [BINARY, "-b", "8G", "-e", "8G", "-g", str(gpus), "-n", "20", "-w", "5", "-c", "1", "-J", str(path)]
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    return float(json.loads(path.read_text())["results"][0]["out_of_place"]["bus_bw"])


def through_the_suite(site: Site, gpus: int) -> float:
    given = {"gpus": gpus, "min_bytes": "8G", "max_bytes": "8G"}
    given |= {"environment": {"NCCL_NVLS_ENABLE": "0"}, "result_directory": str(site.folder / "bench")}
    return float(site.module("nccl_perf", binary=BINARY, **given)["busbw"])


def test_the_suite_adds_nothing(site: Site, show: Show) -> None:
    assert site.play("--tags", "nccl_tests").rc == 0
    pairs = [(through_the_suite(site, site.gpus), by_hand(site, site.gpus)) for _round in range(ROUNDS)]
    suite, hand = (statistics.median(column) for column in zip(*pairs, strict=True))
    show(f"\nall_reduce 8G on {site.gpus} GPUs: suite {suite:.1f}, by hand {hand:.1f} GB/s (medians of {ROUNDS})")
    show(f"ratio {suite / hand:.4f} (target >= 0.99); pairs {[f'{a:.1f}/{b:.1f}' for a, b in pairs]}")


def test_the_prediction_holds(site: Site, show: Show) -> None:
    data = yaml.safe_load((site.folder / "inventory" / "profiles" / "custom.yml").read_text())
    wanted = profile.parse(data, "custom")
    for gpus in (n for n in (2, 4, 8) if n <= site.gpus):
        prediction = predict(wanted, "all_reduce", False, gpus)
        assert prediction.busbw is not None
        measured = by_hand(site, gpus)
        off = 100 * (prediction.busbw / measured - 1)
        show(
            f"\nall_reduce 8G on {gpus} GPUs: predicted {prediction.busbw:.1f} ({prediction.rule}), measured"
            f" {measured:.1f} GB/s: {off:+.1f} % (target within 5 %)"
        )
