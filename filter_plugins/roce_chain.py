# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Resolve busbar_roce to the RoCE values, or fail naming the wrong link of the chain.

Documented in roce_chain.yml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import resolve
from ansible_collections.busbar.fabric.plugins.plugin_utils.roce_chain import disagreements


def roce_chain(
    roce: Mapping[str, object],
    settings: Mapping[str, object] | None = None,
    variables: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Resolve the chain. settings: trust, dscp2prio, pfc, ecn, tos, traffic_class. variables: of jobs (NCCL_IB_TC)."""
    try:
        chain = resolve(roce, settings or {})
    except ParseError as error:
        raise AnsibleFilterError(str(error)) from error
    wrong = disagreements(chain, variables or {})
    if wrong:
        raise AnsibleFilterError("; ".join(wrong))
    # Plain lists and text keys, as YAML would have them.
    mapped = {str(dscp): priority for dscp, priority in sorted(chain.dscp2prio.items())}
    pfc = None if chain.pfc is None else list(chain.pfc)
    return {**asdict(chain), "dscp2prio": mapped, "pfc": pfc, "ecn": list(chain.ecn)}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., dict[str, object]]]:
        return {"roce_chain": roce_chain}
