"""Commands for configuration: `config show|set|unset` of repositories, `alias` of this user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icefloe.cli import wording
from icefloe.cli.arguments import DryRun, Place, Yes
from icefloe.cli.command import START, command, group
from icefloe.cli.commands.merging import parse_value
from icefloe.cli.output import Output, to_json
from icefloe.cli.places import config_path, open_place, read_config_file, storage_at
from icefloe.cli.views import Column, Drawn, Facts, Records, View
from icefloe.errors import InvalidInputError, RepositoryNotFoundError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from icefloe.config.repository import RepositoryConfig

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="Name of a setting, such as caching.num_chunk_refs.", show_default=False
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    config = group(
        "Show and change the configuration stored in a repository.", "icefloe config show ./weather"
    )
    command(
        config, show, START, "icefloe config show ./weather", "icefloe config show era5 --effective"
    )
    command(
        config,
        set_value,
        START,
        "icefloe config set ./weather inline_chunk_threshold_bytes 1024 --yes",
        name="set",
    )
    command(
        config, unset, START, "icefloe config unset ./weather inline_chunk_threshold_bytes --yes"
    )
    app.add_typer(config, name="config", rich_help_panel=START)
    command(app, alias, START, "icefloe alias", "icefloe alias --json")


def alias(
    out: Output,
) -> View:
    """List the aliases of the configuration file, and where it is."""
    places = read_config_file().places
    rows = [
        {"alias": name, "url": place.full_url(), "authorize": place.authorize}
        for name, place in sorted(places.items())
    ]
    return Records(
        rows,
        (
            Column("alias", "alias", style="green"),
            Column("url", "place"),
            Column("authorize", "may read"),
        ),
        f'no aliases: write [places.NAME] with url = "…" into {config_path()}',
        note=f"from {config_path()}" if rows else "",
    )


def show(
    out: Output,
    place: Place,
    effective: Annotated[
        bool, typer.Option("--effective", help="All settings, including defaults.")
    ] = False,
) -> View:
    """Show the configuration that is stored with a repository."""
    from icefloe.config.plain_tree import to_plain

    config = open_place(place).config
    if effective:
        values = msgspec.to_builtins(config.effective(), enc_hook=str)
        return Drawn(values, lambda: _setting_rows(config).render())
    tree = to_plain(config)
    return Drawn(tree, lambda: _as_lines(tree))


def _setting_rows(config: RepositoryConfig) -> Records:
    """Every setting by the name that `set` and `unset` take."""
    from icefloe.config.setting_table import setting_table

    rows = [
        {"name": each.name, "value": each.value, "origin": "set" if each.is_set else "default"}
        for each in setting_table(config)
    ]
    columns = (Column("name", "setting", style="cyan"), Column("value", "value"))
    return Records(rows, (*columns, Column("origin", "")))


def _as_lines(tree: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    lines = [
        f"{wording.printable(key)} = {to_json(value).replace(chr(10), ' ')}"
        for key, value in _flat(tree)
    ]
    return Text("\n".join(lines) or "nothing is set: all defaults apply")


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        is_section = isinstance(value, dict) and value and "/" not in "".join(value)
        pairs += _flat(value, f"{prefix}{key}.") if is_section else [(f"{prefix}{key}", value)]
    return pairs


def set_value(
    out: Output,
    place: Place,
    key: Key,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="JSON; anything else is text.", show_default=False),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Set one value of the configuration that is stored with a repository."""
    return _change(out, place, key, parse_value(value), yes=yes, dry_run=dry_run)


def unset(
    out: Output,
    place: Place,
    key: Key,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> View:
    """Remove one value of the configuration, so that its default applies."""
    return _change(out, place, key, None, yes=yes, dry_run=dry_run)


def _change(out: Output, place: str, key: str, value: Any, *, yes: bool, dry_run: bool) -> View:
    from icefloe.config.plain_tree import from_plain, to_plain
    from icefloe.engine.initialize import read_config, write_config
    from icefloe.formats.registry import detect

    storage = storage_at(place)
    fmt = detect(storage)
    if fmt is None:
        location = storage.location
        raise RepositoryNotFoundError(f"there is no repository at {location}", location)
    stored: RepositoryConfig | None = read_config(fmt, storage)
    tree = {} if stored is None else to_plain(stored)
    before = _replace(tree, key.split("."), value)
    if value is None and before is None:
        _check_known(key)
    config = from_plain(tree)
    plan = Facts(
        {"key": key, "before": before, "after": value, "dry_run": dry_run},
        {"before": to_json, "after": to_json},
    )
    if dry_run:
        return plan
    out.confirm(plan, f"Change {wording.printable(key)} for everybody who opens this?", yes=yes)
    write_config(fmt, storage, config)
    return plan


def _check_known(key: str) -> None:
    """Raise InvalidInputError if no setting has a name: it was misspelt."""
    from icefloe.config.repository import RepositoryConfig
    from icefloe.config.setting_table import setting_table
    from icefloe.model.spelling import suggestion

    known = [each.name for each in setting_table(RepositoryConfig.default())]
    if not any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in known):
        raise InvalidInputError(f"there is no setting {key!r}{suggestion(key, known)}")


def _replace(tree: dict[str, Any], steps: list[str], value: Any) -> Any:
    """Put a value into a tree, or remove it; returns what was there."""
    name, *rest = steps
    if not rest:
        before = tree.pop(name, None)
        if value is not None:
            tree[name] = value
        return before
    section = tree.setdefault(name, {})
    if not isinstance(section, dict):
        raise InvalidInputError(f"{name!r} is a value, not a section of the configuration")
    before = _replace(section, rest, value)
    if not section:
        del tree[name]
    return before
