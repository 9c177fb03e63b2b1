# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find and read the platform profiles: those of the site, beside its inventory, and those that are shipped."""

from __future__ import annotations

import functools
from pathlib import Path

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import intent
from .plain_data import Plain, PlainView

# plugins/plugin_utils/ in the collection, plugin_utils/ in a checkout: the profiles lie beside either's parent.
_PLACES = [Path(__file__).parent.parent.parent / "profiles", Path(__file__).resolve().parent.parent / "profiles"]
BUILT_IN = next(filter(Path.is_dir, _PLACES))
# A thousand hosts may each have a file: the parser in C takes a tenth of the time.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(name: str, folders: list[Path]) -> tuple[Path, Plain]:
    """Return the path and content of a platform's profile; the site's own folder comes first. Raises ParseError."""
    known: set[str] = set()
    for folder in folders:
        site = folder == folders[0]
        names = {path.stem for path in folder.glob("*.yml")} if folder.is_dir() else set()
        # The suite's custom.yml is the template for a site's own, not a platform.
        known |= names if site else names - {"custom"}
        if name in names and (site or name != "custom"):
            path = folder / f"{name}.yml"
            return path, read(path)
    raise ParseError(intent.unknown_platform(name, sorted(known)))


def read(path: Path) -> Plain:
    """Return the mapping that a file holds. Raises ParseError."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ParseError(f"{path} is not a mapping")
    return data


def read_yaml(path: Path) -> object:
    """Return what a file holds. Raises ParseError."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), LOADER)
    # ValueError: a date that does not exist; RecursionError: a thousand nested lists.
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ParseError(f"{path} cannot be read: {' '.join(error_text(error).split())}") from error


def with_planes(data: PlainView, planes: object) -> Plain:
    """Return a profile's content with the planes that a site's NICs have; None leaves those of the profile."""
    own = {} if planes is None else {"rail_defaults": {**(data.get("rail_defaults") or {}), "planes": planes}}
    return {**data, **own}


@functools.cache
def shipped() -> dict[str, Plain]:
    """Return the shipped profiles by name."""
    return {path.stem: read(path) for path in sorted(BUILT_IN.glob("*.yml")) if path.stem != "custom"}
