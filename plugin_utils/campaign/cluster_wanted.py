# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the inventory's request for a benchmark between nodes: settings of each host, bar of each job."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.number import whole
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN
from ansible_collections.busbar.fabric.plugins.plugin_utils import busbw_bars, model_sizes, prediction
from ansible_collections.busbar.fabric.plugins.plugin_utils.busbw_bars import Bar

from ..host_variables import kind as kind_of
from .cluster_plan import PAIR_ALGORITHM, QUEUE_PAIRS, Expected, Measure, measures
from .engine import Result
from .members import Member, Settings, Site, address_of

MNNVL = "NCCL_MNNVL_ENABLE"
# Settings of a host whose inventory could not be read.
UNKNOWN = Settings("unknown", "", (), (0, 0), 0)
NO_NVLINKS = "set another nccl_benchmark_scope for it, or name the trays of the rack alone with --limit"
# Values that have to be equal on all nodes of a job, besides those of Settings.
_ALIKE = (
    "nccl_benchmark_launcher",
    "nccl_benchmark_launcher_options",
    "nccl_benchmark_repeats",
    "nccl_benchmark_qps",
    "nccl_benchmark_iterations",
    "nccl_benchmark_timeout",
    "nccl_benchmark_environment",
    "nccl_tests_path",
    "nccl_conf_extra",
    "busbar_nccl_net_plugin",
    "busbar_model_parameters",
    "busbar_model_parallelism",
)


@dataclass(frozen=True)
class Kind:
    """The request of hosts with one profile and equal values.

    name: of the profile.   bars: those of the site's file first.
    """

    settings: Settings
    values: Mapping[str, Any]
    profile: Profile
    name: str
    bars: Sequence[Sequence[Bar]]

    def of_scope(self, scope: str) -> Kind:
        return replace(self, settings=replace(self.settings, scope=scope))

    @property
    def variables(self) -> dict[str, str]:
        """Return NCCL's variables, as the site sets them."""
        given = {**(self.values["nccl_conf_extra"] or {}), **self.values["nccl_benchmark_environment"]}
        return {name: str(value).strip() for name, value in given.items()}

    @property
    def nvls(self) -> bool:
        return prediction.nvls_expected(self.profile, self.variables)

    def algorithm(self, measure: Measure) -> str:
        """Return the algorithm of the bar: that of the run, or of all of the site's runs."""
        if measure.algorithm or measure.collective != "all_reduce":
            return measure.algorithm
        if self.variables.get("NCCL_ALGO", "").lower() == "ring":
            return "Ring"
        # SHARP needs the network's switches.
        sharp = self.variables.get("NCCL_COLLNET_ENABLE") == "1" and self.settings.scope not in ("rail", NVLINK_DOMAIN)
        return "SHARP" if sharp else ""

    def one_size(self, size: int) -> Measure:
        """Return all_reduce of one size, as the benchmark of this scope makes it."""
        own = "NCCL_ALGO" in self.values["nccl_benchmark_environment"]
        pair = self.settings.scope == "pair" and not own
        return Measure("all_reduce", size, size, PAIR_ALGORITHM["all_reduce"] if pair else "")

    def measures(self, nodes: int) -> list[Measure]:
        asked = self.settings.collectives
        ranks = nodes * self.settings.gpus
        values = self.values
        sizes = model_sizes.sizes(values["busbar_model_parameters"], values["busbar_model_parallelism"], ranks)
        model = [(one.collective, one.bytes, one.what) for one in sizes if one.collective in asked]
        # Values of the site are not overridden.
        algorithms = {} if "NCCL_ALGO" in values["nccl_benchmark_environment"] else PAIR_ALGORITHM
        found = measures(self.settings, model, algorithms)
        if self.settings.scope in ("leaf", "cluster") and "all_reduce" in asked:
            used = whole(self.variables.get(QUEUE_PAIRS, "1")) or 1
            one = replace(self.one_size(self.settings.sizes[1]), all_nodes=True, used_queue_pairs=used)
            for number in dict.fromkeys(values["nccl_benchmark_qps"]):
                found.append(replace(one, what=f"{number} queue pairs", queue_pairs=number))
        return found

    def expected(self, measure: Measure, nodes: int) -> Expected:
        scope, nvls = self.settings.scope, self.nvls
        algorithm = self.algorithm(measure)
        if measure.queue_pairs:
            return Expected(None, "compared with other numbers of queue pairs", nvls=nvls)
        what = (measure.collective, measure.max_bytes, algorithm)
        kept_out = self.settings.apart or scope == NVLINK_DOMAIN
        if self.profile.nvlink_domain is not None and not kept_out and nodes > 1:
            why = (
                f"{MNNVL} of nccl_benchmark_environment lets nodes use NVLink, for which there is no bar between nodes"
            )
            return Expected(None, why, None, None, why, nvls)
        if nodes == 1:
            # The node's own benchmark judges it; here it is the base of the comparison.
            alone = prediction.predict(self.profile, measure.collective, nvls)
            return Expected(None, "", None, alone.busbw, alone.rule, nvls)
        bar, source = prediction.bar_or_prediction(self.bars, self.name, self.profile, nvls, nodes, scope, *what)
        between = prediction.between(self.profile, measure.collective, nvls, nodes, scope, algorithm)
        if algorithm == "SHARP":
            # Runs are judged by busbw: a bar of algbw is converted as nccl-tests do.
            ranks = nodes * self.settings.gpus
            bar, source = busbw_bars.of_algbw(bar, ranks), source if bar is None else f"{bar:g} GB/s algbw, {source}"
            between = busbw_bars.Prediction(busbw_bars.of_algbw(between.busbw, ranks), between.rule)
        latency = None
        if measure.min_bytes < measure.max_bytes:
            small = (scope, measure.collective, measure.min_bytes)
            latency, _source = prediction.latency_or_derived(self.bars, self.name, nodes, *small)
        return Expected(bar, source, latency, between.busbw, between.rule, nvls)


def settings(intent: Mapping[str, Any], kind: str) -> tuple[Settings, Profile]:
    """Return a host's settings and profile. intent: consistent, of the module intent.   kind: profile and fabric."""
    values = intent["values"]
    asked = profile.parse(intent["profile"], intent["profile_name"])
    if asked.rails:
        asked = profile.for_fabric(asked, values["busbar_fabric"] or None)
    sizes = (parse_size(values["nccl_benchmark_min_bytes"]), parse_size(values["nccl_benchmark_max_bytes"]))
    found = Settings(
        kind=kind,
        scope=values["nccl_benchmark_scope"],
        collectives=tuple(values["nccl_benchmark_collectives"]),
        sizes=sizes,
        gpus=asked.gpus.count,
        rails=tuple(rail.number for rail in asked.rails),
        extra=(json.dumps({name: values[name] for name in _ALIKE}, sort_keys=True, default=str),),
        apart=asked.nvlink_domain is not None and MNNVL not in values["nccl_benchmark_environment"],
    )
    return found, asked


class Kinds:
    """The kinds of a site's hosts, with profile, bars and predictions read once for all hosts of one kind.

    bars_of: directory of an inventory -> bars. Raises ParseError.
    """

    def __init__(self, site: Site, bars_of: Callable[[Path], Sequence[Sequence[Bar]]]) -> None:
        self._site = site
        self._bars_of = bars_of
        self._of_settings: dict[Settings, Kind] = {}
        self._expected: dict[tuple[Settings, Measure, int], Expected] = {}

    def settings(self, host: str) -> Settings:
        """Return a host's settings. Raises ParseError."""
        intent, variables = self._site.intent(host), self._site.variables[host]
        if "values" not in intent or "profile" not in intent:
            return UNKNOWN
        found, profile = settings(intent, kind_of(variables))
        if found not in self._of_settings:
            bars = self._bars_of(Path(variables.get("inventory_dir") or "."))
            self._of_settings[found] = Kind(found, intent["values"], profile, str(intent["profile_name"]), bars)
        return found

    def of_scope(self, settings: Settings, scope: str) -> Kind:
        """Return the kind of hosts with these settings but for the scope, for another scope than theirs."""
        kind = next(one for found, one in self._of_settings.items() if replace(found, scope=settings.scope) == settings)
        return kind.of_scope(scope)

    def measures(self, settings: Settings, nodes: int) -> list[Measure]:
        return self._of_settings[settings].measures(nodes)

    def expected(self, settings: Settings, measure: Measure, nodes: int) -> Expected:
        key = (settings, measure, nodes)
        if key not in self._expected:
            self._expected[key] = self._of_settings[settings].expected(measure, nodes)
        return self._expected[key]

    def members(self, facts: Mapping[str, Result], hosts: Iterable[str]) -> list[Member]:
        """Return the hosts as members. facts: host -> result of phase ``member`` of nccl_cluster. Raises ParseError."""
        return [self._member(host, facts.get(host, {})) for host in hosts]

    def _member(self, host: str, read: Result) -> Member:
        values, settings = self._site.values(host), self.settings(host)
        facts = read.get("member") or {}
        return Member(
            host=host,
            settings=settings,
            name=facts.get("name", ""),
            address=address_of(host, values),
            leaf=values.get("busbar_leaf") or "",
            build=facts.get("build", ""),
            rails={int(number): (one["device"], one["gpu"]) for number, one in (facts.get("rails") or {}).items()},
            unfit=self._site.unfit(host, read) or self._no_nvlinks(settings),
            domain=facts.get("domain", ""),
            no_domain=facts.get("no_domain", ""),
        )

    def _no_nvlinks(self, settings: Settings) -> tuple[str, str] | None:
        kind = self._of_settings.get(settings)
        if kind is not None and settings.scope == NVLINK_DOMAIN and kind.profile.nvlink_domain is None:
            return f"profile {kind.name} declares no NVLinks to other nodes (nvlink_domain)", NO_NVLINKS
        return None
