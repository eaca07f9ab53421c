from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.compare import disputed
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, InlineRef
from icefloe.model.manifest import ArrayChunks

Model = dict[tuple[int, ...], ChunkRef]

RANK = 2
coords = st.tuples(st.integers(0, 3), st.integers(0, 3))
refs = st.builds(InlineRef, st.binary(min_size=1, max_size=2))
tables = st.dictionaries(coords, refs, min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), coords, refs),
        st.tuples(st.just("delete"), coords, st.none()),
        st.tuples(st.just("many"), tables, st.none()),
        st.tuples(st.just("clear"), st.none(), st.none()),
    ),
    max_size=12,
)


def table_of(model: Model) -> ArrayChunks | None:
    return ArrayChunks.of(list(model), list(model.values()), RANK) if model else None


def run(edits: ChunkEdits, script: list[Any], model: Model, touched: set[tuple[int, ...]]) -> None:
    """Do the steps to the edits and to a dictionary."""
    for verb, what, ref in script:
        match verb:
            case "set":
                edits.set(what, ref)
                model[what] = ref
                touched.add(what)
            case "delete":
                edits.set(what, None)
                model.pop(what, None)
                touched.add(what)
            case "many":
                chunks = table_of(what)
                assert chunks is not None
                edits.set_many(chunks)
                model.update(what)
                touched.update(what)
            case "clear":
                edits.clear()
                touched.clear()
                model.clear()


def contents(chunks: ArrayChunks | None) -> Model:
    if chunks is None:
        return {}
    return dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True))


@given(tables | st.just({}), steps)
def test_edits_agree_with_a_dictionary(base: Model, script: list[Any]) -> None:
    edits = ChunkEdits(RANK)
    model = dict(base)
    touched: set[Any] = set()
    run(edits, script, model, touched)
    if edits.cleared:
        touched.update(base)
    assert contents(edits.apply(table_of(base))) == model
    index = edits.touched(table_of(base))
    assert (set() if index is None else set(index.tuples())) == touched
    for i in range(5):
        for j in range(5):
            decided, ref = edits.get((i, j))
            assert (ref if decided else base.get((i, j))) == model.get((i, j))
    assert edits.is_empty == (not script)


@given(tables | st.just({}), steps, steps)
def test_absorbing_is_doing_one_after_the_other(base: Model, one: Any, two: Any) -> None:
    first, second, both = ChunkEdits(RANK), ChunkEdits(RANK), ChunkEdits(RANK)
    run(first, one, {}, set())
    run(second, two, {}, set())
    model = dict(base)
    run(both, [*one, *two], model, set())
    kept = first.copy()
    first.absorb(second)
    assert contents(first.apply(table_of(base))) == model
    assert contents(kept.apply(table_of(base))) == contents(_replayed(one).apply(table_of(base)))


def _replayed(script: list[Any]) -> ChunkEdits:
    edits = ChunkEdits(RANK)
    run(edits, script, {}, set())
    return edits


@given(tables, steps, st.sets(coords, min_size=1))
def test_discarded_chunks_are_as_in_the_base(
    base: Model, script: list[Any], gone: set[tuple[int, ...]]
) -> None:
    script = [step for step in script if step[0] != "clear"]
    edits = _replayed(script)
    model = dict(base)
    run(ChunkEdits(RANK), script, model, set())
    edits.discard(ChunkIndex.from_tuples(list(gone), RANK))
    result = contents(edits.apply(table_of(base)))
    for i in range(4):
        for j in range(4):
            expected = base if (i, j) in gone else model
            assert result.get((i, j)) == expected.get((i, j))


def test_many_bulk_edits_make_few_tables() -> None:
    edits = ChunkEdits(1)
    for turn in range(1000):
        edits.set_many(ArrayChunks.of([(turn,)], [InlineRef(b"%d" % turn)], 1))
        edits.set((turn % 7,), InlineRef(b"again"))
    twin = edits.copy()
    for _ in range(10):
        edits.absorb(twin)
    assert len(edits._tables) < 40
    assert edits.get((999,)) == (True, InlineRef(b"999"))
    table = edits.apply(None)
    assert table is not None
    assert len(table) == 1000


class Vanishing(dict[Any, Any]):
    """A dictionary that another thread empties after each look at it."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        self.clear()
        return found


def test_a_reader_looks_once() -> None:
    edits = ChunkEdits(1)
    edits.set((0,), InlineRef(b"x"))
    edits._single = Vanishing(edits._single)
    assert edits.get((0,)) == (True, InlineRef(b"x"))
    assert edits.get((0,)) == (False, None)


@given(steps, steps)
def test_disputed_is_what_two_sides_left_differently(one: Any, two: Any) -> None:
    ours, theirs = ChunkEdits(RANK), ChunkEdits(RANK)
    mine: Model = {}
    yours: Model = {}
    touched: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())
    run(ours, one, mine, touched[0])
    run(theirs, two, yours, touched[1])
    expected = {c for c in touched[0] & touched[1] if mine.get(c) != yours.get(c)}
    assert {tuple(row) for row in disputed(ours, theirs).tolist()} == expected
