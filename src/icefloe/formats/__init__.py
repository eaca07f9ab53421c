"""Generations of the format: where objects are, what their bytes are, how a branch moves.

A generation is one folder here and one line in `registry.py`. No other code names it, and the
folders do not depend on each other (the contract "generations" in `pyproject.toml`): what several
of them need is a module of this package (`container`, `columns`, `snapshot_columns`, `nodes`,
`layout`, `sequence_refs`, `logless`, `config_files`).

How to add one:

1. Make a folder with a module `generation.py`, whose value `Generation(...)` (see `port.py`) has
   the name, the spec versions, a layout, a codec, references and a configuration. Import what is
   heavy inside of the functions that make these: the registry is imported with the package.
2. `layout`: a `FolderLayout` where each kind of object has a folder of its own, or anything with
   the methods of `port.Layout`.
3. `make_codec`: an object with the methods of `port.Codec`. Bytes are not trusted: decoders raise
   FormatError for whatever is not as expected. One class for each spec version that is written,
   and one that picks the class by the header of a file, as in `repository/codec.py`.
4. `open_refs`: see `port.Refs`. References in files that are created once and never altered are
   `SequenceRefs` with other names; `dataset/refs.py` has them in one file that is swapped.
5. Add the value to the tuple in `registry.py`, and the folder to the contract "generations".
6. Inherit `icefloe.testing.generations.GenerationTests` in a test, add the generation to
   `tests/formats.py`, and write golden files (`scripts/make_golden.py`).
"""
