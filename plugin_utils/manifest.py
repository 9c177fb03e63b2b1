# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Describe the inventory of a run: the hosts that have to report, and the texts that no report may repeat."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction

from . import results_folder, site_values
from .plain_data import Plain

_AGE = "busbar_baseline_max_age_days"
# Days after which a result no longer describes the cluster, unless the inventory sets another number.
MAX_AGE_DAYS = float(str(site_values.VALUES[_AGE].default))


@dataclass(frozen=True)
class Manifest:
    """hosts: every one of them has to be in the report. secrets: texts that must not.

    group: every node of the inventory, also those outside the limit.
    results: nccl_benchmark_results_path, None where the inventory has not one for all.
    max_age_days: busbar_baseline_max_age_days, the least of the nodes' values.
    """

    hosts: tuple[str, ...]
    secrets: tuple[str, ...]
    simulated: bool
    group: tuple[str, ...] = ()
    results: str | None = None
    max_age_days: float = MAX_AGE_DAYS

    def write(self, path: str) -> None:
        """Write the file that ``read`` reads. Raises OSError."""
        results_folder.replace_file(path, [json.dumps(asdict(self))])


def read(path: Path) -> Manifest:
    """Return what ``Manifest.write`` wrote."""
    found: Plain = json.loads(path.read_text(encoding="utf-8"))
    found |= {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return Manifest(**found)


def build(
    nodes: Sequence[str], chosen: Collection[str], variables: Iterable[tuple[str, Mapping[str, object]]]
) -> Manifest:
    """Return the manifest of an inventory.

    nodes: of its group gpu_nodes. chosen: those within the limit. variables: of every host, templates not rendered.
    """
    secrets: set[str] = set()
    results, ages, simulated = set(), [], False
    for host, of_host in variables:
        secrets.update(redaction.find_secrets({name: value for name, value in of_host.items() if name != "groups"}))
        if host in chosen:
            results.add(of_host.get("nccl_benchmark_results_path"))
            ages.append(_days(of_host.get(_AGE)))
            simulated = simulated or of_host.get("busbar_hardware_root", "/") != "/"
    hosts, age = tuple(node for node in nodes if node in chosen), min(ages, default=MAX_AGE_DAYS)
    return Manifest(hosts, redaction.secret_texts(secrets), simulated, tuple(nodes), _plain(results), age)


def _plain(values: Collection[object]) -> str | None:
    value = next(iter(values)) if len(values) == 1 else None
    return value if isinstance(value, str) and "{{" not in value else None


def _days(value: object) -> float:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else MAX_AGE_DAYS
