"""Places of repositories: URLs, paths, and aliases of the configuration file.

The file is `~/.config/icefloe/config.toml`, or what ICEFLOE_CONFIG names:

    [places.era5]
    url = "s3://bucket/era5"
    region = "eu-central-1"
    authorize = ["s3://noaa-era5-pds/"]

It holds no secrets: credentials come from the environment, as for every URL.

Nothing of the library is imported before a place is opened, so that `--help` is quick.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.repository import Repository
    from icefloe.storage.port import Storage

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class PlaceOptions(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An alias: the URL of a repository with its options, and what it may read elsewhere."""

    url: str
    authorize: list[str] = []
    """URL prefixes of virtual chunk containers that may be read."""
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool | None = None
    anonymous: bool | None = None
    force_path_style: bool | None = None
    requester_pays: bool | None = None
    base_url: str | None = None
    endpoint: str | None = None
    durability: str | None = None

    def full_url(self) -> str:
        """The URL with the options behind it, as `storage_from_url` takes them."""
        options = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not None and name not in ("url", "authorize")
        }
        place = self.url if "://" in self.url else str(Path(self.url).expanduser())
        if not options:
            return place
        if "://" not in place:
            place = f"file://{quote(str(Path(place).absolute()))}"
        return f"{place}{'&' if '?' in place else '?'}{urlencode(options)}"


class ConfigFile(msgspec.Struct, forbid_unknown_fields=True):
    """What the configuration file of the command line holds."""

    places: dict[str, PlaceOptions] = {}


def config_path() -> Path:
    """Where the configuration file is, or would be."""
    named = os.environ.get("ICEFLOE_CONFIG")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME")
    folder = Path(home) if home else Path.home() / ".config"
    return folder / "icefloe" / "config.toml"


def read_config_file() -> ConfigFile:
    """Read the configuration file; an empty one if there is none.

    Raises InvalidInputError that names the file, the key and what was expected.
    """
    path = config_path()
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get("ICEFLOE_CONFIG"):
            raise InvalidInputError(f"ICEFLOE_CONFIG names {path}, which does not exist") from None
        return ConfigFile()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as TOML: {error}") from None
    try:
        config = msgspec.convert(tree, ConfigFile)
    except msgspec.ValidationError as error:
        known = ", ".join(PlaceOptions.__struct_fields__)
        raise InvalidInputError(
            f"{path} is not valid: {error}; a table [places.NAME] has the keys {known}"
        ) from None
    for name in config.places:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{path} is not valid: the alias {name!r} has other characters than letters, "
                "digits, '_', '-' and '.'"
            )
    return config


def find_place(place: str) -> PlaceOptions:
    """What a URL, a path or an alias names. A folder that is named as an alias is `./name`."""
    if not place:
        raise InvalidInputError("expected a URL, a path or an alias, found an empty text")
    if _NAME.fullmatch(place):
        alias = read_config_file().places.get(place)
        if alias is not None:
            return alias
    return PlaceOptions(url=place)


def storage_at(place: str) -> Storage:
    """The storage at a location."""
    from icefloe.storage.access.url import storage_from_url

    return storage_from_url(find_place(place).full_url())


def open_place(place: str, authorize: Sequence[str] = ()) -> Repository:
    """Open the repository at a location, allowed to read some virtual chunk containers."""
    from icefloe.repository import Repository
    from icefloe.storage.access.url import storage_from_url

    options = find_place(place)
    prefixes = dict.fromkeys((*options.authorize, *authorize))
    return Repository.open(
        storage_from_url(options.full_url()), authorize_virtual_chunk_access=prefixes or None
    )
