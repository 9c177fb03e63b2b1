# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the words of a failure say more: ranks that PyTorch compared, and addresses between which RDMA failed."""

from __future__ import annotations

import re
from typing import List, Sequence

from .job import Reported

_FINGERPRINT = re.compile(
    r"[Rr]ank (?P<rank>\d{1,8}) is running (?:collective|inconsistent collective): CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<number>\d{1,18}),? ?)?OpType=(?P<op>\w{1,40})"
    r"(?:, ?TensorShape=\[(?P<shape>[\d, ]{0,200})\])?"
)


def fingerprints(text: str) -> List[str]:
    """What PyTorch says of two ranks that called different things."""
    said = [match.groupdict() for match in _FINGERPRINT.finditer(text)]
    if not said:
        return []
    parts = [
        "rank %s is at number %s with %s" % (one["rank"], one["number"] or "unknown", one["op"]) for one in said[:4]
    ]
    shapes = [(one["rank"], one["shape"]) for one in said if one["shape"] is not None]
    if len({shape for _rank, shape in shapes}) > 1:
        some = ", ".join("[%s] on rank %s" % (shape, rank) for rank, shape in shapes[:4])
        parts.append(
            "the shapes differ: %s: as of an uneven split or padding, if the call is meant to be the same" % some
        )
    numbers_of = {int(one["number"]) for one in said if one["number"]}
    if len(numbers_of) > 1:
        apart = max(numbers_of) - min(numbers_of)
        parts.append("they are out of step by %d collective%s: a rank called one more or less" % (
            apart, "" if apart == 1 else "s",
        ))  # fmt: skip
    return parts


_GIDS = re.compile(
    r"(?:localGid |local GID (?!index))(?P<local>[^\s,]{2,60}),? remote ?G[Ii][Dd]s? ?(?P<remote>[^\s,;]{2,60})"
)


def gids(reported: Sequence[Reported]) -> List[str]:
    """The pairs of addresses between which RDMA failed; of IPv4 addresses whether they are of one subnet of /24."""
    pairs = []
    for one in reported:
        match = _GIDS.search(one.failure.text)
        pair = tuple(sorted(gid.replace("::ffff:", "").rstrip(",;)") for gid in match.groups())) if match else None
        if pair is not None and pair not in pairs:
            pairs.append(pair)
    if not pairs:
        return []
    parts = ["between GIDs %s" % ", ".join(" and ".join(pair) for pair in pairs[:3])]
    mixed = [pair for pair in pairs if len({bool(_IPV4.match(gid)) for gid in pair}) == 2]
    if mixed:
        parts.append("one of them is an IPv4 address and the other is not, so the two cannot reach each other: one GID"
                     " index is another kind of address on each node (`show_gids` on both; take NCCL_IB_GID_INDEX out,"
                     " or NCCL_IB_ADDR_FAMILY and NCCL_IB_ROCE_VERSION_NUM alike on all)")  # fmt: skip
    far = [pair for pair in pairs if all(_IPV4.match(gid) for gid in pair)]
    far = [pair for pair in far if pair[0].rpartition(".")[0] != pair[1].rpartition(".")[0]]
    if far:
        parts.append("these are of two subnets, if subnets are /24: as of two rails, between which there has to be a"
                     " route (or NCCL_CROSS_NIC=0 on rails that are not connected)")  # fmt: skip
    return parts


_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}$")
