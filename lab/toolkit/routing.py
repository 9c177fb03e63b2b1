# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rules and routes that systemd-networkd adds for the interfaces it sets up: [RoutingPolicyRule] and [Route]."""

from __future__ import annotations

import json
import os

from .. import qos
from . import networkd
from .roce_program import read


def start(root: str, system: str) -> None:
    if not os.path.exists(root + qos.RULES):
        return
    own = json.loads(read(root + qos.RULES))
    for netdev, (_, sections) in networkd.configured(root, system).items():
        for name, pairs in sections:
            values = dict(pairs)
            table = values.get("Table", "main")
            if name == "RoutingPolicyRule" and values.get("From") and values.get("Priority", "").isdigit():
                own[f"rule {values['Priority']} from {values['From']}"] = f"lookup {table}"
            elif name == "Route" and table != "main":
                key = f"route {table} {values.get('Destination', 'default')}"
                words = {"via": values.get("Gateway"), "dev": netdev, "proto": "static"}
                words |= {"scope": values.get("Scope"), "src": values.get("PreferredSource")}
                own[key] = " ".join(f"{word} {value}" for word, value in words.items() if value)
    qos.replace(root + qos.RULES, json.dumps(own) + "\n")
