# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of ip, on a simulated node: link set, rules, routes of a table, and links and addresses as JSON.

The rest is left to the real one.
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


def ip(system: str, root: str, arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    flags = {word for word in arguments if word.startswith("-")}
    noun, rest = (words[0] if words else ""), words[1:]
    plain, shows, as_json = flags <= {"-4", "-6", "-N", "-d", "-j"}, rest[:1] in ([], ["show"]), "-j" in flags
    known = as_json if shows else rest[0] in ("add", "replace", "del") and not as_json
    if "-6" in flags and shows and noun == "route":
        return _show_ipv6_routes(root)
    if plain and shows and as_json and (noun, rest[1:]) == ("link", ["type", "vrf"]):
        return _show(root, False, True, "vrf")
    if plain and noun in ("rule", "route") and known:
        return {"rule": _rule, "route": _route}[noun](root, rest or ["show"])
    if plain and as_json and shows and not rest[1:] and noun in ("address", "link"):
        return _show(root, noun == "address", "-d" in flags)
    named = [word for word in rest[1:3] if os.path.exists(f"{root}/sys/class/net/{word}")]
    if plain and noun == "link" and rest[:1] == ["set"] and named:
        return _link(root, named[0], rest[rest.index(named[0]) + 1 :])
    run_real(system, "ip", arguments)


def interfaces(root: str) -> dict[str, dict[str, str]]:
    """Name -> what sysfs and the model say of it, in the order of their numbers."""
    about, found = json.loads(read(root + qos.NETDEVS)), {}
    for name in os.listdir(f"{root}/sys/class/net"):
        base = f"{root}/sys/class/net/{name}"
        if os.path.isdir(base):
            files = ("ifindex", "address", "mtu", "operstate", "flags", "type")
            master = os.path.basename(os.path.realpath(f"{base}/master")) if os.path.exists(f"{base}/master") else ""
            marks = {"bond": "bonding", "bridge": "bridge"}
            kind = "".join(kind for kind, mark in marks.items() if os.path.isdir(f"{base}/{mark}"))
            kind = "vrf" if about.get(name, {}).get("vrf") else kind
            values = {file: read(f"{base}/{file}") for file in files}
            found[name] = {**values, **about.get(name, {}), "master": master, "kind": kind}
    return dict(sorted(found.items(), key=lambda entry: int(entry[1]["ifindex"])))


_LINK_TYPES = {"1": "ether", "32": "infiniband", "772": "loopback"}


def _show(root: str, addresses: bool, details: bool, only: str = "") -> int:
    """Print links, or with their addresses.   only: of a kind."""
    shown = []
    for name, about in interfaces(root).items():
        if only and about["kind"] != only:
            continue
        entry = _described(name, about)
        if addresses:
            entry["addr_info"] = _addresses(name, about)
        elif details and about["kind"]:
            entry["linkinfo"] = {"info_kind": about["kind"]}
            if about["kind"] == "vrf":
                entry["linkinfo"]["info_data"] = {"table": int(about["vrf"])}
                entry["flags"] = [flag for flag in entry["flags"] if about["operstate"] == "up" or flag != "UP"]
        shown.append(entry)
    print(json.dumps(shown, separators=(",", ":")))
    return 0


def _described(name: str, about: dict[str, str]) -> dict[str, Any]:
    up, running = int(about["flags"], 16) & 1, about["operstate"] != "down"
    loopback = about["type"] == "772"
    flags = ["LOOPBACK"] if loopback else ["BROADCAST", "MULTICAST"]
    flags += ["MASTER"] if about["kind"] == "bond" else ["SLAVE"] if about["master"] else []
    flags += (["UP", "LOWER_UP"] if running else ["NO-CARRIER", "UP"]) if up else []
    entry = {
        "ifindex": int(about["ifindex"]),
        "ifname": name,
        "flags": flags,
        "mtu": int(about["mtu"]),
        "qdisc": "noqueue" if loopback or about["kind"] else "mq",
        "master": about["master"],
        "operstate": about["operstate"].upper(),
        "linkmode": "DEFAULT",
        "group": "default",
        "txqlen": 1000,
        "link_type": _LINK_TYPES[about["type"]],
        "address": about["address"],
        # Only where it is another one.
        "permaddr": about.get("permanent", "").replace(about["address"], ""),
    }
    return {key: value for key, value in entry.items() if value != ""}


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
    number = bytes([0xFE, 0x80, *[0] * 6, *octets[:3], 0xFF, 0xFE, *octets[3:]])
    return str(IPv6Address(number))


def _link(root: str, netdev: str, words: list[str]) -> int:
    qos.note_write(root, "ip", "link", netdev, *words)
    base = f"/sys/class/net/{netdev}"
    while words:
        word = words.pop(0)
        if word == "mtu" and words:
            set_mtu(root, netdev, words.pop(0))
        elif word in ("up", "down"):
            for file, value in (("operstate", word), ("carrier", "1" if word == "up" else "0")):
                if os.path.exists(f"{root}{base}/{file}"):
                    qos.replace(f"{root}{base}/{file}", f"{value}\n")
        else:
            raise Stop(255, f'Error: either "dev" is duplicate, or "{word}" is a garbage.')
    _refresh(root, netdev)
    return 0


def set_mtu(root: str, netdev: str, text: str) -> None:
    """A bond's is that of its members, too."""
    if not text.isdigit():
        raise Stop(255, f'Error: argument "{text}" is wrong: Invalid "mtu" value', "")
    if not 68 <= int(text) <= qos.MAX_MTU:
        raise Stop(2, f"Error: mtu {'greater' if int(text) > 68 else 'less'} than device "
                      f"{'maximum' if int(text) > 68 else 'minimum'}.")  # fmt: skip
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


def _table(root: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(read(root + qos.RULES))
    return found


def _rule(root: str, words: list[str]) -> int:
    command, options, own = words[0], _pairs(words[1:]), _table(root)
    if command == "show":
        rules = [(number, "from all", f"lookup {name}") for number, name in _MAIN.items()]
        rules += [(*key.split(" ", 2)[1:], action) for key, action in own.items() if key.startswith("rule ")]  # type: ignore[misc]
        found = [_rule_json(*rule) for rule in sorted(rules, key=lambda rule: int(rule[0]))]
        if NO_VRF_RULE not in own and any(about.get("vrf") for about in interfaces(root).values()):
            # The kernel adds it with the first VRF.
            found.append({"priority": 1000, "src": "all", "l3mdev": None})
        print(json.dumps(found, separators=(",", ":")))
        return 0
    qos.note_write(root, "ip", "rule", *words)
    table, number = options.get("table") or options.get("lookup"), options.get("priority") or options.get("pref")
    selector = f"from {options.get('from', 'all')}"
    if command == "add":
        taken = [int(key.split()[1]) for key in own if key.startswith("rule ")]
        key = f"rule {number or min([32766, *filter(None, taken)]) - 1} {selector}"
        if key in own:
            raise Stop(2, "RTNETLINK answers: File exists")
        own[key] = f"lookup {table or 'main'}"
    else:
        for key, action in own.items():
            kind, its, what = key.split(" ", 2)
            same = number in (None, its) and table in (None, action.split()[1])
            if kind == "rule" and same and ("from" not in options or what == selector):
                del own[key]
                break
        else:
            raise Stop(2, "RTNETLINK answers: No such file or directory")
    qos.replace(root + qos.RULES, json.dumps(own) + "\n")
    return 0


def _rule_json(number: str, selector: str, action: str) -> dict[str, Any]:
    found: dict[str, Any] = {"priority": int(number)}
    words = selector.split()
    for key, value in zip(words[::2], words[1::2], strict=True):
        address, _, length = value.partition("/")
        name = {"from": "src", "to": "dst"}.get(key, key)
        found[name] = address
        if length:
            found[f"{name}len"] = int(length)
    return {**found, "table": action.split()[1]}


def _pairs(words: list[str]) -> dict[str, str]:
    """Every word of this part of ip's language has a value."""
    if len(words) % 2:
        raise Stop(255, 'Command line is not complete. Try option "help"')
    return dict(zip(words[::2], words[1::2], strict=True))


def _route(root: str, words: list[str]) -> int:
    command, rest, own = words[0], words[1:], _table(root)
    if command == "show":
        _show_routes(root, own, _pairs(rest).get("table", "main"))
        return 0
    qos.note_write(root, "ip", "route", *words)
    destination = "default" if rest[0] == "default" else str(ip_network(rest[0]))
    options = _pairs([word for word in rest[1:] if word != "onlink"])
    table = options.pop("table", "main")
    key = f"route {table} {destination}"
    if table == "main":
        raise Stop(255, "ip: the lab's table main comes from its model alone")
    if "dev" in options and not os.path.exists(f"{root}/sys/class/net/{options['dev']}"):
        raise Stop(1, f'Cannot find device "{options["dev"]}"')
    if command == "add" and key in own:
        raise Stop(2, "RTNETLINK answers: File exists")
    if command in ("add", "replace"):
        order = ("via", "dev", "proto", "scope", "src", "metric", "mtu")
        own[key] = " ".join(f"{name} {options[name]}" for name in order if name in options)
    elif own.pop(key, None) is None:
        raise Stop(2, "RTNETLINK answers: No such process")
    qos.replace(root + qos.RULES, json.dumps(own) + "\n")
    return 0


def _show_routes(root: str, own: dict[str, str], table: str) -> None:
    found = [key.split(" ", 2)[1:] for key in own if key.startswith("route ") and table in ("all", key.split()[1])]
    more = f" table {table}" if table == "all" else ""
    routes = [(where, own[f"route {of} {where}"] + more.replace("all", of)) for of, where in found]
    if table in ("all", "main"):
        routes += _main_routes(root)
    elif not routes:
        raise Stop(2, "Error: ipv4: FIB table does not exist.", "Dump terminated")
    print(json.dumps([_route_json(*route) for route in routes], separators=(",", ":")))


def _show_ipv6_routes(root: str) -> int:
    """Print the connected ones of every table, as with -N."""
    there, found = interfaces(root), []
    for name, about in there.items():
        if about.get("ipv6") and about["operstate"] == "up":
            table = there.get(about["master"], {}).get("vrf")
            network = str(ip_network(about["ipv6"], strict=False))
            entry = {"dst": network, "dev": name, "protocol": "ra", "metric": 256, "flags": [], "pref": "medium"}
            found.append({**entry, **({"table": table} if table else {})})
    print(json.dumps(found, separators=(",", ":")))
    return 0


def _main_routes(root: str) -> list[tuple[str, str]]:
    """Table main, as /proc/net/route has it."""
    found = []
    for line in read(f"{root}/proc/net/route").splitlines()[1:]:
        netdev, network, gateway, _, _, _, metric, mask = line.split()[:8]
        numbers = [".".join(str(byte) for byte in bytes.fromhex(text)[::-1]) for text in (network, mask, gateway)]
        prefix = str(ip_network(f"{numbers[0]}/{numbers[1]}"))
        via = f"via {numbers[2]} dev {netdev}" if gateway != "00000000" else f"dev {netdev} proto kernel scope link"
        found.append(
            ("default" if prefix == "0.0.0.0/0" else prefix, via + (f" metric {metric}" if metric != "0" else ""))
        )
    return found


def _route_json(destination: str, text: str) -> dict[str, Any]:
    names = {"via": "gateway", "proto": "protocol", "src": "prefsrc"}
    found: dict[str, Any] = {"dst": destination}
    for key, value in _pairs(text.split()).items():
        found[names.get(key, key)] = int(value) if key in ("metric", "mtu") else value
    return {**found, "flags": []}
