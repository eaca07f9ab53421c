"""Draws the pictures of docs/explanation/manifests.md.

The layouts come from repositories that are made and committed to here. The growth plot comes from
the `results.json` of a benchmark run, if one is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import zarr
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

import icefloe
from icefloe.config import ManifestConfig, ManifestSplittingConfig
from icefloe.model.nodes import ManifestRef

if TYPE_CHECKING:
    from icefloe.model.nodes import Node

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "explanation" / "pictures"

LINKED, WRITTEN, INK, EDGE = "#dfe6ea", "#f2b35e", "#20303a", "#8fa3ad"

Layout = dict[str, list[tuple[str, ManifestRef]]]
"""For each manifest, the arrays that it holds and which of their references."""


# --- real repositories


def arrays_of(repo: icefloe.Repository) -> list[Node]:
    session = repo.readonly_session("main")
    nodes = [session.get_node(path) for path in session.tree.node_paths("/")]
    return [node for node in nodes if node is not None and node.is_array]


def layout(repo: icefloe.Repository) -> Layout:
    held: Layout = {}
    for node in arrays_of(repo):
        for ref in node.manifests:
            held.setdefault(str(ref.manifest_id), []).append((node.path, ref))
    return held


def forecast() -> icefloe.Repository:
    """Three coordinates, two fields of some thousand chunks, and one that is split."""
    config = icefloe.RepositoryConfig(
        virtual_chunk_containers={
            "file:///data/": icefloe.VirtualChunkContainer(
                "file:///data/", icefloe.local_filesystem_store("/data")
            )
        }
    )
    repo = icefloe.Repository.create("memory://forecast", config)
    session = repo.writable_session("main")
    for name, chunks in (("latitude", 1), ("longitude", 1), ("time", 24)):
        make(session, name, (chunks,))[:] = 1
    for name, chunks in (("rain", 12_000), ("wind", 9_000), ("radar", 120_000)):
        make(session, name, (chunks,))
        session.set_virtual_refs(
            f"/{name}",
            shape=[chunks],
            locations=f"file:///data/{name}.nc",
            offsets=np.arange(chunks) * 1000,
            lengths=1000,
        )
    session.commit("all arrays")
    return repo


def make(session: Any, name: str, shape: tuple[int, ...]) -> Any:
    return zarr.create_array(
        session.store, name=name, shape=shape, chunks=(1,) * len(shape), dtype="uint8", fill_value=0
    )


def change(repo: icefloe.Repository, name: str, *places: Any) -> None:
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path=name)
    for place in places:
        array[place] = 7
    session.commit(f"change {name}")


# --- which arrays share a manifest, before and after commits


def draw_commits(path: Path) -> None:
    repo = forecast()
    states = [("first commit", layout(repo), set[str]())]
    for title, name, place in (
        ("then /time[0] changes", "time", 0),
        ("then /radar[70,000] changes", "radar", 70_000),
    ):
        before = set(states[-1][1])
        change(repo, name, place)
        states.append((title, layout(repo), before))
    figure, panels = plt.subplots(1, len(states), figsize=(11.5, 3.9), layout="constrained")
    for axes, (title, held, before) in zip(panels, states, strict=True):
        draw_layout(axes, held, before)
        new = sum(manifest not in before for manifest in held)
        axes.set_title(f"{title}\n{new} written, {len(held) - new} linked", fontsize=10, color=INK)
    save(figure, path, [(WRITTEN, "written by this commit"), (LINKED, "linked from the last one")])


def draw_layout(axes: Any, held: Layout, before: set[str]) -> None:
    """A box for each manifest, one below the other."""
    cut = {name for parts in held.values() for name, ref in parts if ref.extents.lower > (0,)}
    shown = sorted(
        held.items(), key=lambda item: (item[1][0][0] in cut, item[1][0][1].extents.lower)
    )
    for row, (manifest, parts) in enumerate(shown):
        y = -row
        colour = LINKED if manifest in before else WRITTEN
        axes.add_patch(
            FancyBboxPatch(
                (0.03, y - 0.36),
                0.94,
                0.72,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=colour,
                edgecolor=EDGE,
            )
        )
        names = "  ".join(f"{name}{chunks(ref)}" if name in cut else name for name, ref in parts)
        axes.text(0.07, y, names, va="center", fontsize=8.5, color=INK)
        count = sum(ref.num_refs for _, ref in parts)
        axes.text(0.93, y, f"{count:,}", va="center", ha="right", fontsize=8.5, color=INK)
    axes.set_xlim(0, 1)
    axes.set_ylim(-len(shown) + 0.4, 0.6)
    axes.axis("off")


def chunks(ref: ManifestRef) -> str:
    return f"[{ref.extents.lower[0]:,} – {ref.extents.upper[0] - 1:,}]"  # noqa: RUF001


# --- how one array is cut


def draw_tiles(path: Path) -> None:
    """Boxes of a split array: whole, cut along time, and cut along time and longitude."""
    cuts: list[tuple[str, dict[Any, int]]] = [
        ("not split", {}),
        ("time: 10", {icefloe.ManifestSplitDimCondition.Axis(0): 10}),
        (
            "time: 10, longitude: 8",
            {
                icefloe.ManifestSplitDimCondition.Axis(0): 10,
                icefloe.ManifestSplitDimCondition.Axis(1): 8,
            },
        ),
    ]
    figure, panels = plt.subplots(1, len(cuts), figsize=(11.5, 4.1), layout="constrained")
    for number, (axes, (title, sizes)) in enumerate(zip(panels, cuts, strict=True)):
        splitting = ManifestSplittingConfig.from_dict(
            {icefloe.ManifestSplitCondition.AnyArray(): sizes}
        )
        config = icefloe.RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
        repo = icefloe.Repository.create(f"memory://tiles-{number}", config)
        session = repo.writable_session("main")
        make(session, "rain", (36, 24))[:] = 1
        session.commit("all chunks")
        before = set(layout(repo))
        change(repo, "rain", (33, 13))
        draw_boxes(axes, arrays_of(repo)[0], before)
        axes.set_title(title, fontsize=10, color=INK)
    panels[0].set_ylabel("chunks along time")
    panels[1].set_xlabel("chunks along longitude")
    save(
        figure,
        path,
        [(WRITTEN, "written again since one chunk (the dot) changed"), (LINKED, "linked")],
    )


def draw_boxes(axes: Any, node: Node, before: set[str]) -> None:
    for ref in node.manifests:
        (top, left), (height, width) = ref.extents.lower, ref.extents.shape
        colour = LINKED if str(ref.manifest_id) in before else WRITTEN
        axes.add_patch(
            Rectangle((left, top), width, height, facecolor=colour, edgecolor=INK, linewidth=1.2)
        )
        axes.text(
            left + width / 2, top + height / 2, f"{ref.num_refs}", ha="center", va="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    axes.plot(13.5, 33.5, "o", color=INK, ms=4)
    axes.set_xlim(-0.3, 24.3)
    axes.set_ylim(36.3, -0.3)
    axes.set_xticks(range(0, 25, 8))
    axes.set_yticks(range(0, 37, 10))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


# --- growth


def draw_growth_of(results: Path, path: Path) -> None:
    from benchmarks.growth import draw_growth
    from benchmarks.report import summarise

    run = json.loads(results.read_text())
    if not draw_growth(run["about"], summarise(run["results"]), path):
        raise SystemExit(f"{results} has no growing cases: run the benchmark cases 'refs-*'")


def save(figure: Any, path: Path, legend: list[tuple[str, str]]) -> None:
    handles = [Patch(facecolor=colour, edgecolor=EDGE, label=label) for colour, label in legend]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
    plt.close(figure)


def main() -> None:
    mpl.use("Agg")
    # Text as text, and the same bytes each time.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "icefloe"})
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw_commits(FOLDER / "commits.svg")
    draw_tiles(FOLDER / "tiles.svg")
    if len(sys.argv) > 1:
        sys.path.insert(0, str(ROOT))
        draw_growth_of(Path(sys.argv[1]), FOLDER / "growth.png")


if __name__ == "__main__":
    main()
