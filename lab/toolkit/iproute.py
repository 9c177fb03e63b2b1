# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of ip, on a simulated node, what Busbar and its tests call; all that is shown is JSON.

link set; link show [type vrf]; address show; rule show, add, del; route show table TABLE, replace, del. The rest is
left to the real one. Rules and routes are texts in qos.RULES: {"rule 50 from 10.0.0.1": "lookup main", "route 7
default": "via 10.0.0.254 dev eth0"}.
"""

from __future__ import annotations

import json
import os
from ipaddress import IPv6Address, ip_network
from typing import Any

from .. import qos
from ..qos import Refused
from .roce_program import Stop, read, run_real

# Key of the rules where somebody has removed that for VRFs.
NO_VRF_RULE = "no l3mdev"
_MAIN = {"0": "local", "32766": "main", "32767": "default"}
_LINK_TYPES = {"1": "ether", "32": "infiniband", "772": "loopback"}


def ip(system: str, root: str, arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    flags = {word for word in arguments if word.startswith("-")}
    (noun, command), rest = (*words, "show", "show")[:2], words[2:]
    named = [word for word in rest[:2] if os.path.exists(f"{root}/sys/class/net/{word}")]
    if noun == "link" and command == "set" and named:
        return _link(root, named[0], rest[rest.index(named[0]) + 1 :])
    if command == "show" and "-j" in flags:
        if noun in ("address", "link") and rest in ([], ["type", "vrf"]):
            return _print(_links(root, noun == "address", "vrf" in rest))
        if noun == "rule":
            return _print(_rules(root))
        if noun == "route":
            return _print(_ipv6_routes(root) if "-6" in flags else _routes(root, _pairs(rest).get("table", "main")))
    if (noun, command) in (("rule", "add"), ("rule", "del"), ("route", "replace"), ("route", "del")):
        qos.note_write(root, "ip", *words)
        own = _own(root)
        {"rule": _set_rule, "route": _set_route}[noun](own, command, rest)
        qos.replace(root + qos.RULES, json.dumps(own) + "\n")
        return 0
    run_real(system, "ip", arguments)


def _print(found: list[dict[str, Any]]) -> int:
    print(json.dumps(found, separators=(",", ":")))
    return 0


# -- links -----------------------------------------------------------------------------------------------------------


def interfaces(root: str) -> dict[str, dict[str, str]]:
    """Name -> what sysfs and the model say of it, in the order of their numbers."""
    about, found = json.loads(read(root + qos.NETDEVS)), {}
    for name in os.listdir(f"{root}/sys/class/net"):
        base = f"{root}/sys/class/net/{name}"
        if os.path.isdir(base):
            files = ("ifindex", "address", "mtu", "operstate", "flags", "type")
            master = os.path.basename(os.path.realpath(f"{base}/master")) if os.path.exists(f"{base}/master") else ""
            found[name] = {**{file: read(f"{base}/{file}") for file in files}, **about.get(name, {}), "master": master}
    return dict(sorted(found.items(), key=lambda entry: int(entry[1]["ifindex"])))


def _links(root: str, addresses: bool, vrfs: bool) -> list[dict[str, Any]]:
    """Return links, or with their addresses.   vrfs: those alone."""
    shown = []
    for name, about in interfaces(root).items():
        vrf, up = about.get("vrf"), about["operstate"] != "down"
        flags = ["UP", "LOWER_UP"] if up else [] if vrf else ["NO-CARRIER", "UP"]
        entry: dict[str, Any] = {
            "ifindex": int(about["ifindex"]),
            "ifname": name,
            "flags": flags if int(about["flags"], 16) & 1 else [],
            "mtu": int(about["mtu"]),
            "master": about["master"],
            "operstate": about["operstate"].upper(),
            "link_type": _LINK_TYPES[about["type"]],
            "address": about["address"],
            # Only where it is another one.
            "permaddr": about.get("permanent", "").replace(about["address"], ""),
        }
        if addresses:
            entry["addr_info"] = _addresses(name, about)
        if vrf:
            entry["linkinfo"] = {"info_kind": "vrf", "info_data": {"table": int(vrf)}}
        if vrf or not vrfs:
            shown.append({key: value for key, value in entry.items() if value != ""})
    return shown


def _addresses(name: str, about: dict[str, str]) -> list[dict[str, Any]]:
    forever = {"label": name, "valid_life_time": 4294967295, "preferred_life_time": 4294967295}
    if about["type"] == "772":
        local = [("inet", "127.0.0.1", 8, "host"), ("inet6", "::1", 128, "host")]
    else:
        ipv4, _, length = about.get("ipv4", "").partition("/")
        local = [("inet", ipv4, int(length), "global")] if ipv4 else []
        ipv6, _, length = about.get("ipv6", "").partition("/")
        local += [("inet6", ipv6, int(length), "global")] if ipv6 and about["operstate"] == "up" else []
        if about["operstate"] == "up" and (ipv6 or not about["master"]) and about["type"] == "1":
            local.append(("inet6", _link_local(about["address"]), 64, "link"))
    return [{"family": f, "local": a, "prefixlen": n, "scope": scope, **forever} for f, a, n, scope in local]


def _link_local(mac: str) -> str:
    octets = bytearray(bytes.fromhex(mac.replace(":", "")))
    octets[0] ^= 2
    return str(IPv6Address(bytes([0xFE, 0x80, *[0] * 6, *octets[:3], 0xFF, 0xFE, *octets[3:]])))


def _link(root: str, netdev: str, words: list[str]) -> int:
    qos.note_write(root, "ip", "link", netdev, *words)
    base = f"{root}/sys/class/net/{netdev}"
    if words[0] == "mtu":
        set_mtu(root, netdev, words[1])
    for file, value in (("operstate", words[0]), ("carrier", "1" if words == ["up"] else "0")):
        if words[0] in ("up", "down") and os.path.exists(f"{base}/{file}"):
            qos.replace(f"{base}/{file}", f"{value}\n")
    _refresh(root, netdev)
    return 0


def set_mtu(root: str, netdev: str, text: str) -> None:
    """A bond's is that of its members, too."""
    if not text.isdigit():
        raise Stop(255, f'Error: argument "{text}" is wrong: Invalid "mtu" value', "")
    if not 68 <= int(text) <= qos.MAX_MTU:
        end = "greater than device maximum" if int(text) > 68 else "less than device minimum"
        raise Stop(2, f"Error: mtu {end}.")
    members = [name for name, about in interfaces(root).items() if about["master"] == netdev]
    for name in (netdev, *members):
        qos.replace(f"{root}/sys/class/net/{name}/mtu", f"{text}\n")
        _refresh(root, name)


def _refresh(root: str, netdev: str) -> None:
    """The RDMA device looks at its netdev again."""
    try:
        path = qos.find(root, netdev)
    except Refused:
        return
    port = qos.load(root, path)
    port.stale_mtu = None
    qos.save(root, path, port, netdev)


# -- rules and routes ------------------------------------------------------------------------------------------------


def _own(root: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(read(root + qos.RULES))
    return found


def _pairs(words: list[str]) -> dict[str, str]:
    """Every word of this part of ip's language has a value."""
    if len(words) % 2:
        raise Stop(255, 'Command line is not complete. Try option "help"')
    return dict(zip(words[::2], words[1::2], strict=True))


def _rules(root: str) -> list[dict[str, Any]]:
    own = _own(root)
    rules = [(number, "from all", f"lookup {name}") for number, name in _MAIN.items()]
    for key, action in own.items():
        if key.startswith("rule "):
            _, number, selector = key.split(" ", 2)
            rules.append((number, selector, action))
    found = [_rule_json(*rule) for rule in sorted(rules, key=lambda rule: int(rule[0]))]
    if NO_VRF_RULE not in own and any(about.get("vrf") for about in interfaces(root).values()):
        # The kernel adds it with the first VRF.
        found.append({"priority": 1000, "src": "all", "l3mdev": None})
    return found


def _rule_json(number: str, selector: str, action: str) -> dict[str, Any]:
    found: dict[str, Any] = {"priority": int(number)}
    for key, value in _pairs(selector.split()).items():
        address, _, length = value.partition("/")
        name = {"from": "src", "to": "dst"}.get(key, key)
        found[name] = address
        if length:
            found[f"{name}len"] = int(length)
    return {**found, "table": action.split()[1]}


def _set_rule(own: dict[str, str], command: str, words: list[str]) -> None:
    options = _pairs(words)
    table, number = options.get("table") or options.get("lookup"), options.get("priority") or options.get("pref")
    selector = f"from {options.get('from', 'all')}"
    if command == "add":
        taken = [int(key.split()[1]) for key in own if key.startswith("rule ")]
        key = f"rule {number or min([32766, *filter(None, taken)]) - 1} {selector}"
        if key in own:
            raise Stop(2, "RTNETLINK answers: File exists")
        own[key] = f"lookup {table or 'main'}"
        return
    for key, action in own.items():
        kind, its, what = key.split(" ", 2)
        same = number in (None, its) and table in (None, action.split()[1])
        if kind == "rule" and same and ("from" not in options or what == selector):
            del own[key]
            return
    raise Stop(2, "RTNETLINK answers: No such file or directory")


def _set_route(own: dict[str, str], command: str, words: list[str]) -> None:
    """Of a table that is not main: that comes from the model alone."""
    destination = "default" if words[0] == "default" else str(ip_network(words[0]))
    options = _pairs(words[1:])
    key = f"route {options.pop('table')} {destination}"
    if command == "replace":
        order = ("via", "dev", "proto", "scope", "src")
        own[key] = " ".join(f"{name} {options[name]}" for name in order if name in options)
    elif own.pop(key, None) is None:
        raise Stop(2, "RTNETLINK answers: No such process")


def _routes(root: str, table: str) -> list[dict[str, Any]]:
    found = []
    for key, text in _own(root).items():
        if key.startswith("route ") and table in ("all", key.split()[1]):
            _, own_table, destination = key.split(" ", 2)
            found.append(_route_json(destination, text + (f" table {own_table}" if table == "all" else "")))
    return found + (_main_routes(root) if table in ("all", "main") else [])


def _ipv6_routes(root: str) -> list[dict[str, Any]]:
    """Return the connected ones of every table, as with -N."""
    there, found = interfaces(root), []
    for name, about in there.items():
        if about.get("ipv6") and about["operstate"] == "up":
            table = there.get(about["master"], {}).get("vrf")
            network = str(ip_network(about["ipv6"], strict=False))
            entry = {"dst": network, "dev": name, "protocol": "ra", "metric": 256, "flags": [], "pref": "medium"}
            found.append({**entry, **({"table": table} if table else {})})
    return found


def _main_routes(root: str) -> list[dict[str, Any]]:
    """Return table main, as /proc/net/route has it."""
    found = []
    for line in read(f"{root}/proc/net/route").splitlines()[1:]:
        netdev, network, gateway, _, _, _, metric, mask = line.split()[:8]
        numbers = [".".join(str(byte) for byte in bytes.fromhex(text)[::-1]) for text in (network, mask, gateway)]
        prefix = str(ip_network(f"{numbers[0]}/{numbers[1]}"))
        via = f"via {numbers[2]} dev {netdev}" if gateway != "00000000" else f"dev {netdev} proto kernel scope link"
        more = f" metric {metric}" if metric != "0" else ""
        found.append(_route_json("default" if prefix == "0.0.0.0/0" else prefix, via + more))
    return found


def _route_json(destination: str, text: str) -> dict[str, Any]:
    names = {"via": "gateway", "proto": "protocol", "src": "prefsrc"}
    found: dict[str, Any] = {"dst": destination}
    for key, value in _pairs(text.split()).items():
        found[names.get(key, key)] = int(value) if key == "metric" else value
    return {**found, "flags": []}
