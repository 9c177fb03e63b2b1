# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answers of nvidia-smi for tests: the elements of ``-q -x`` that health is judged by, as driver 580 has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

UUID = "GPU-00000000-0000-0000-0000-%012d"
Changes = Mapping[str, "str | None"]
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
# Path -> text, of a healthy H200 that is idle. A text of None: the driver has no such element.
HEALTHY: dict[str, str | None] = _DATA["healthy"]
# GPU and driver -> the driver's version, and what a healthy GPU has otherwise than HEALTHY.
LAYOUTS: dict[str, tuple[str, Changes]] = {
    name: (driver, changes) for name, (driver, changes) in _DATA["layouts"].items()
}
# Begin of a path -> the check that needs it; a value that the GPU has not (N/A) is needed by none.
CHECKS: dict[str, str] = _DATA["checks"]

_DEPRECATED = "Requested functionality has been deprecated"
# Begin like one of these, and are other elements.
_OTHERS = ("remapped_rows/remapped_row_unc_inactive", "temperature/gpu_temp_max")
DAMAGES = (None, "N/A", "Not Supported", "Unknown Error", "[GPU requires reset]", "garb@ge")


def silent(text: str, states: Callable[[str], Mapping[str, str]]) -> tuple[int, list[str]]:
    """How many elements of the first GPU were damaged, and which damages left a check ok that needs the element.

    states: of an answer: check -> state.
    """
    root = fromstring(text)
    gpu = root.find("gpu")
    assert gpu is not None
    elements, left = 0, []
    for path, parent, element in list(_leaves(gpu)):
        check = next((name for start, name in CHECKS.items() if path.startswith(start)), None)
        before = (element.text or "").strip()
        if check is None or before in ("", "N/A", _DEPRECATED) or path.startswith(_OTHERS):
            continue
        elements += 1
        # Any text may name a GPU.
        for damage in DAMAGES[:-1] if path == "uuid" else DAMAGES:
            place = list(parent).index(element)
            element.text = damage
            if damage is None:
                parent.remove(element)
            if states(tostring(root, "unicode"))[f"node_health.{check}"] == "ok":
                left.append(f"{path}: {damage}")
            element.text = before
            if damage is None:
                parent.insert(place, element)
    return elements, left


def _leaves(element: Element, above: str = "") -> Iterator[tuple[str, Element, Element]]:
    """(path, parent, element) of each element that holds no others."""
    for child in element:
        path = above + child.tag
        if len(child):
            yield from _leaves(child, path + "/")
        else:
            yield path, element, child


def xml(
    addresses: Sequence[str], changes: Mapping[int, Changes] | None = None, driver: str | None = "580.159.04"
) -> str:
    """``-q -x`` of GPUs at these addresses.   changes: place of a GPU -> path -> what it says instead."""
    gpus = [_gpu(index, pci, (changes or {}).get(index, {})) for index, pci in enumerate(addresses)]
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    version = f"<driver_version>{driver}</driver_version>\n" if driver else ""
    return head + "<nvidia_smi_log>\n" + version + "".join(gpus) + "</nvidia_smi_log>\n"


def _gpu(index: int, pci: str, changes: Changes) -> str:
    tree: dict[str, Any] = {}
    for path, text in {"uuid": UUID % index, **HEALTHY, **changes}.items():
        *folders, name = path.split("/")
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        if text is not None:
            at[name] = text
    return f'<gpu id="0000{pci.upper()}">{_elements(tree)}</gpu>\n'


def _elements(tree: Mapping[str, Any]) -> str:
    return "".join(
        f"<{name}>{_elements(value) if isinstance(value, Mapping) else value}</{name}>" for name, value in tree.items()
    )


def status(
    gpus: int, links: int = 18, speed: str = "26.562 GB/s", odd: Mapping[tuple[int, int], str] | None = None
) -> str:
    """``nvlink -s``.   odd: (GPU, link) -> what it says instead of the speed."""
    return "".join(
        f"GPU {n}: NVIDIA H200 (UUID: {UUID % n})\n"
        + "".join(f"\t Link {link}: {(odd or {}).get((n, link), speed)}\n" for link in range(links))
        for n in range(gpus)
    )


def errors(gpus: int, links: int = 18, odd: Mapping[tuple[int, int, str], int] | None = None) -> str:
    """``nvlink -e`` of NVLink 4.   odd: (GPU, link, counter) -> count."""
    names = ("Replay Errors", "Recovery Errors", "CRC Errors")
    return "".join(
        f"GPU {n}: NVIDIA H200 (UUID: {UUID % n})\n"
        + "".join(
            "".join(f"\t Link {link}: {name}: {(odd or {}).get((n, link, name), 0)}\n" for name in names) + "\n"
            for link in range(links)
        )
        for n in range(gpus)
    )
