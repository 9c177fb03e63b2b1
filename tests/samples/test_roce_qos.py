"""Real outputs of mlnx_qos: what is read of each, and those of failed calls refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb

from tests import goldens
from tests.readings import plain

SYNTHETIC = "dcb-and-mlnx_qos-synthetic"


def output(file: Path) -> str:
    """Without the frame: the call above it, the exit code below."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("$ mlnx_qos", "[exit "))]
    return "\n".join(lines) + "\n"


def outcome(parse: Callable[..., Any], *given: Any) -> Any:
    """What was read, and nothing else. DSCPs and their priorities: in the order in which they were printed."""
    try:
        found = parse(*given)
    except ParseError as error:
        return type(error).__name__
    read = plain(found[0])
    read = {name: value for name, value in read.items() if value != plain(getattr(Dcb(), name))}
    if "dscp2prio" in read:
        read["dscp2prio"] = " ".join(f"{dscp}:{priority}" for dscp, priority in read["dscp2prio"])
    return read


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "number"), [("mlnx_qos", 4), (SYNTHETIC, 26)])
def test_what_mlnx_qos_prints_is_read_or_refused(samples: Path, folder: str, number: int) -> None:
    """A port without DCB, and a name of none, are the same; other errors, and other calls, are no state of a port."""
    files = sorted((samples / folder).glob("*.txt" if folder == "mlnx_qos" else "mlnx_qos-*.txt"))
    assert len(files) == number
    rows = [[file.stem, outcome(mlnx_qos.parse, output(file))] for file in files]
    goldens.check("captured_qos", f"mlnx_qos: {folder}", rows)
