# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of NCCL's formats against NVIDIA's own libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.version import parse_version

from tests.unit.diagnose.corpus import FORMATS

pytestmark = pytest.mark.nccl


def test_a_library_has_the_formats_of_its_release(library: str, version: str) -> None:
    wanted = parse_version(version)
    rows = [(parse_version(first), parse_version(last), text) for first, last, _level, _class, text in FORMATS]
    if wanted > max(last for _first, last, _text in rows):
        pytest.skip(f"the sources of {version} are not public")
    binary = Path(library).read_bytes()
    texts = [text for first, last, text in rows if first <= wanted <= last]
    missing = [text for text in texts if text.replace("\\n", "\n").encode() not in binary]
    # Names of calls that a macro puts into a text, and what is compiled for Windows or an old CUDA alone.
    assert len(missing) < 0.05 * len(texts), missing
