"""Commands that bring data in and out: ingest, export."""

from __future__ import annotations

from enum import StrEnum
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from icefloe.cli import wording
from icefloe.cli.arguments import Authorize, BranchOption, Place, VersionOption
from icefloe.cli.command import DATA, command
from icefloe.cli.commands.nodes import existing_node
from icefloe.cli.output import Output
from icefloe.cli.places import find_place, open_place, storage_at
from icefloe.cli.views import Done, View
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.model import MAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.zarr_store.session_port import SessionPort


class ExportFormat(StrEnum):
    """What `export` writes."""

    ZARR = "zarr"
    NETCDF = "netcdf"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    command(
        app,
        export,
        DATA,
        "icefloe export ./weather ./weather.zarr",
        "icefloe export era5 ./t2m.nc --version v1 --group /surface",
    )
    command(
        app,
        ingest,
        DATA,
        "icefloe ingest ./weather 'data/*.nc' --concat-dim time --add-container",
        "icefloe ingest era5 s3://noaa/2025-01.nc --authorize s3://noaa/ -m 'January 2025'",
    )


def export(
    out: Output,
    place: Place,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An empty location for a Zarr store (a URL or a path), or a NetCDF file.",
            show_default=False,
        ),
    ],
    version: VersionOption = MAIN,
    group: Annotated[str, typer.Option("--group", "-g", help="What to export.")] = "/",
    to: Annotated[
        ExportFormat | None,
        typer.Option("--to", help="What to write; NetCDF if TARGET ends in .nc, else Zarr."),
    ] = None,
    authorize: Authorize = None,
) -> View:
    """Copy a version to a plain Zarr store, with its encoded chunks, or to a NetCDF file."""
    session = open_place(place, authorize or ()).readonly_session(snapshot_id=version)
    if to is None:
        to = ExportFormat.NETCDF if target.endswith((".nc", ".nc4")) else ExportFormat.ZARR
    if to is ExportFormat.NETCDF:
        return _export_netcdf(out, session, target, group)
    from icefloe.zarr_store.plain_copy import copy_to_plain_store

    with out.progress("export", unit="chunk") as bar:
        copied = copy_to_plain_store(
            session.tree, storage_at(target), group=group, progress=bar.update
        )
    arrays = wording.counted(copied.arrays, "array")
    chunks = wording.counted(copied.chunks, "chunk")
    data = msgspec.to_builtins(copied) | {"target": target, "snapshot_id": session.snapshot_id}
    return Done(
        f"Exported {arrays} with {chunks} ({wording.size(copied.bytes)}) to "
        f"{wording.printable(target)}",
        data,
    )


def _export_netcdf(out: Output, session: SessionPort, target: str, group: str) -> Done:
    import importlib.util

    if importlib.util.find_spec("xarray") is None:
        raise InvalidInputError(
            "exporting to NetCDF needs xarray and h5netcdf or netCDF4: "
            "pip install 'icefloe[xarray]' h5netcdf"
        )
    import xarray as xr

    _check_exportable(session, group)
    path = Path(target)
    if path.exists():
        raise AlreadyExistsError(f"{target} exists already: choose another name")
    temporary = path.with_name(f".{path.name}.part")
    try:
        with (
            out.working("writing NetCDF"),
            xr.open_zarr(session.store, group=group, consolidated=False, chunks=None) as dataset,
        ):
            dataset.to_netcdf(temporary)
        temporary.rename(path)
    except (ImportError, OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise InvalidInputError(f"{target} cannot be written as NetCDF: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    size = path.stat().st_size
    data = {"target": target, "snapshot_id": session.snapshot_id, "bytes": size}
    return Done(f"Exported {group} ({wording.size(size)}) to {wording.printable(target)}", data)


def _check_exportable(session: SessionPort, group: str) -> None:
    """Raise an error in words of this place if a group cannot be a dataset of xarray."""
    from icefloe.engine.inspection import describe_node
    from icefloe.model import paths

    root = paths.canonical(group)
    node = existing_node(session, root)
    if node.is_array:
        above = paths.parent(root) or "/"
        raise InvalidInputError(
            f"{root} is an array, and NetCDF files have groups of arrays: export {above}, or "
            "export the array to Zarr"
        )
    members = [each for each in session.tree.node_paths(root) if paths.parent(each) == root]
    described = [describe_node(existing_node(session, each)) for each in members]
    nameless = [
        each["path"]
        for each in described
        if each.get("shape") and not all(each["dimensions"] or [None])
    ]
    if nameless:
        more = f" and {len(nameless) - 3} more" if len(nameless) > 3 else ""
        raise InvalidInputError(
            f"NetCDF needs names of dimensions, and {', '.join(nameless[:3])}{more} "
            f"{'has' if len(nameless) == 1 else 'have'} none: export to Zarr, or set "
            "dimension_names"
        )


def ingest(
    out: Output,
    place: Place,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="NetCDF, HDF5, GRIB, GeoTIFF, kerchunk references or Zarr stores: paths, "
            "patterns of local files, or URLs.",
            show_default=False,
        ),
    ],
    branch: BranchOption = MAIN,
    message: Annotated[
        str, typer.Option("--message", "-m", help="Message of the commit.")
    ] = "ingest files",
    group: Annotated[str, typer.Option("--group", "-g", help="Where to put the arrays.")] = "/",
    concat_dims: Annotated[
        list[str] | None,
        typer.Option("--concat-dim", help="A dimension to concatenate files along."),
    ] = None,
    loadable: Annotated[
        list[str] | None,
        typer.Option("--load", help="A variable to store in the repository itself; a pattern."),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="A variable to leave out.")
    ] = None,
    authorize: Authorize = None,
    add_container: Annotated[
        bool,
        typer.Option(
            "--add-container",
            help="Allow the repository to refer to the folders of these local files.",
        ),
    ] = False,
) -> View:
    """Make files of other formats readable as arrays, without copying their data."""
    from icefloe.virtual import reference_files

    names = _expand(files)
    if add_container:
        _add_containers(place, names)
    local = [f"{folder.as_uri()}/" for folder in _folders(names)] if add_container else []
    repository = open_place(place, [*(authorize or ()), *local])
    session = repository.writable_session(branch)
    _check_containers(session, names)
    with out.working(f"reading {wording.counted(len(names), 'file')}"):
        report = reference_files(
            session,
            names,
            group=group,
            concat_dims=concat_dims,
            loadable_variables=loadable,
            drop_variables=drop or (),
            commit=message,
        )
    data: dict[str, Any] = msgspec.structs.asdict(report)
    data["remarks"] = [str(remark) for remark in report.remarks]
    return Done("\n".join(map(wording.printable, str(report).splitlines())), data)


def _expand(files: Sequence[str]) -> list[str]:
    """Files by their absolute names, with patterns of local files replaced by what they match."""
    names: list[str] = []
    for name in files:
        if "://" in name:
            names.append(name)
            continue
        matches = sorted(glob(name)) if has_magic(name) else [name]  # noqa: PTH207 (may be absolute)
        if not matches:
            raise InvalidInputError(f"no file matches {name!r}")
        if not Path(matches[0]).exists():
            raise InvalidInputError(f"there is no file {name}")
        names += [str(Path(match).absolute()) for match in matches]
    return names


def _check_containers(session: SessionPort, names: Sequence[str]) -> None:
    """Raise InvalidInputError if the repository may not refer to a file, in words of this place."""
    from icefloe.ingest.sources import checked_url

    for name in names:
        try:
            checked_url(name, session.tree.virtual_sources)
        except InvalidInputError as error:
            what, is_missing, _ = str(error).partition(" is in no virtual chunk container")
            if not is_missing:
                raise
            advice = (
                "add one in Python with RepositoryConfig.set_virtual_chunk_container"
                if "://" in name
                else "--add-container adds its folder"
            )
            raise InvalidInputError(f"{what}{is_missing} of the repository: {advice}") from None


def _folders(names: Sequence[str]) -> list[Path]:
    return sorted({Path(name).parent for name in names if "://" not in name})


def _add_containers(place: str, names: Sequence[str]) -> None:
    """Store a virtual chunk container for each folder of local files, where there is none."""
    from icefloe.config.containers import VirtualChunkContainer
    from icefloe.repository import Repository
    from icefloe.storage.access.stores import local_filesystem_store

    repository = Repository.open(find_place(place).full_url())
    config = repository.config
    known = tuple(config.virtual_chunk_containers or {})
    folders = [each for each in _folders(names) if f"{each.as_uri()}/" not in known]
    for folder in folders:
        prefix = f"{folder.as_uri()}/"
        store = local_filesystem_store(str(folder))
        config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    if folders:
        repository.reopen(config).save_config()
