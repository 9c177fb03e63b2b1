"""Captured outputs that are not part of the project; see the README beside them."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "samples"


@pytest.fixture
def samples() -> Path:
    if not SAMPLES.is_dir():
        pytest.skip("captured samples are not beside this checkout (../shared/samples)")
    return SAMPLES
