"""The configuration as JSON and YAML files (H-33): exact, strict, and never more than data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
    RepoUpdateRetryConfig,
    VirtualChunkContainer,
    from_json,
    from_yaml,
    to_json,
)
from icefloe.config.serialization import MAX_FILE_BYTES
from icefloe.errors import FormatError, InvalidInputError
from icefloe.storage.access.stores import ObjectStoreConfig, S3Options
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)

Preload = ManifestPreloadCondition
Split = ManifestSplitCondition
Dimension = ManifestSplitDimCondition

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "gen3-header39" / "config.yaml"

STORES: dict[str, Any] = {
    "s3://bucket/": ObjectStoreConfig.S3(S3Options(region="eu-west-1", anonymous=True)),
    "s3://other/": ObjectStoreConfig.S3Compatible(
        S3Options(endpoint_url="http://localhost:9000", allow_http=True, force_path_style=True)
    ),
    "tigris://bucket/": ObjectStoreConfig.Tigris(S3Options()),
    "gs://bucket/": ObjectStoreConfig.Gcs({}),
    "gcs://bucket/": ObjectStoreConfig.Gcs(None),
    "az://my-container/": ObjectStoreConfig.Azure({"account": "someone", "some-option": "x"}),
    "https://example.org/": ObjectStoreConfig.Http({"timeout": "30s"}),
    "file:///data/": ObjectStoreConfig.LocalFileSystem("/data"),
}

EVERYTHING = RepositoryConfig(
    inline_chunk_threshold_bytes=7,
    get_partial_values_concurrency=11,
    compression=CompressionConfig(CompressionAlgorithm.Zstd, 2),
    max_concurrent_requests=5,
    caching=CachingConfig(1, 2, 3, 4, 0),
    storage=StorageSettings(
        concurrency=StorageConcurrencySettings(1, 2),
        retries=StorageRetriesSettings(3, 4, 5),
        unsafe_use_conditional_create=False,
        storage_class="COLD",
        timeouts=StorageTimeoutSettings(read_timeout_ms=9),
    ),
    virtual_chunk_containers={
        prefix: VirtualChunkContainer(prefix, store) for prefix, store in STORES.items()
    },
    manifest=ManifestConfig(
        preload=ManifestPreloadConfig(
            max_total_refs=3,
            preload_if=Preload.or_conditions(
                [
                    Preload.true(),
                    Preload.false(),
                    Preload.num_refs(None, 5),
                    Preload.num_refs(1, None),
                    Preload.path_matches("a-b") & Preload.name_matches("ü"),
                ]
            ),
            max_arrays_to_scan=0,
        ),
        splitting=ManifestSplittingConfig.from_dict(
            {
                Split.name_matches("q") | Split.path_matches("z"): {
                    Dimension.Axis(1): 4,
                    Dimension.DimensionName("t"): 5,
                    Dimension.Any(): 6,
                },
                Split.AnyArray(): {Dimension.Any(): 3},
            }
        ),
        max_concurrent_manifest_fetches_during_commit=2,
    ),
    repo_update_retries=RepoUpdateRetryConfig(StorageRetriesSettings(max_tries=3)),
    inline_attributes_threshold_bytes=100,
)


class TestJson:
    def test_everything_comes_back(self) -> None:
        assert from_json(to_json(EVERYTHING)) == EVERYTHING

    def test_nothing_given_is_an_empty_object(self) -> None:
        assert to_json(RepositoryConfig()) == b"{}\n"
        assert from_json(b"{}") == RepositoryConfig()

    def test_only_what_was_given_is_written(self) -> None:
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=512, caching=CachingConfig(num_bytes_chunks=0)
        )

        # A value that happens to be the default was still given, and stays when defaults change.
        assert json.loads(to_json(config)) == {
            "inline_chunk_threshold_bytes": 512,
            "caching": {"num_bytes_chunks": 0},
        }

    def test_cleared_containers_are_not_missing_ones(self) -> None:
        cleared = RepositoryConfig(virtual_chunk_containers={})

        assert json.loads(to_json(cleared)) == {"virtual_chunk_containers": {}}
        assert from_json(to_json(cleared)) == cleared

    def test_a_named_container_comes_back(self) -> None:
        container = VirtualChunkContainer("s3://a/", STORES["s3://bucket/"], name="data")
        config = RepositoryConfig(virtual_chunk_containers={"s3://a/": container})

        assert from_json(to_json(config)) == config

    def test_both_spellings_of_keys_are_read(self) -> None:
        assert from_json(b'{"caching": {"num-chunk-refs": 3}}') == from_json(
            b'{"caching": {"num_chunk_refs": 3}}'
        )
        assert from_json(
            b'{"virtual-chunk-containers": {"az://my-container/": {"url-prefix": '
            b'"az://my-container/", "store": {"azure": {"some-option": "x"}}}}}'
        ).virtual_chunk_containers == {
            "az://my-container/": VirtualChunkContainer(
                "az://my-container/", ObjectStoreConfig.Azure({"some-option": "x"})
            )
        }

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[]", r"`\(top\)`: expected a mapping, found \[\]"),
            ("null", r"expected a mapping, found None"),
            ("{", "not valid JSON"),
            ('{"cachin": {}}', "`cachin`: expected one of the keys inline_chunk_threshold_bytes"),
            ('{"caching": {"nope": 1}}', "`caching.nope`: expected one of the keys num_snapshot"),
            ('{"caching": 3}', "`caching`: expected a mapping, found 3"),
            (
                '{"caching": {"num_chunk_refs": "x"}}',
                "`caching.num_chunk_refs`: Expected `int | null`, got `str`, found 'x'",
            ),
            ('{"caching": {"num_chunk_refs": 1.5}}', "got `float`, found 1.5"),
            ('{"inline_chunk_threshold_bytes": -1}', "Expected `int` >= 0, found -1"),
            ('{"inline_chunk_threshold_bytes": NaN}', "found nan"),
            ('{"compression": {"algorithm": "gzip"}}', "expected one of zstd, found 'gzip'"),
            ('{"storage": {"retries": {"max_tries": "3"}}}', "`storage.retries.max_tries`"),
            ('{"storage": {"nope": 1}}', "`storage.nope`"),
            ('{"caching": {}, "caching": {}}', "found `caching` again"),
            ('{"caching": {"num-chunk-refs": 1, "num_chunk_refs": 1}}', "two spellings"),
            (
                '{"virtual_chunk_containers": {"s3://b/": {"store": {"s3": {"regio": "x"}}}}}',
                r"`virtual_chunk_containers\[s3://b/\].store.s3.regio`",
            ),
            (
                '{"virtual_chunk_containers": {"s3://b/": {"store": {"s4": {}}}}}',
                "expected one of in_memory, local_file_system, s3",
            ),
            ('{"virtual_chunk_containers": {"s3://b/": {}}}', "url_prefix and store"),
            (
                (
                    '{"virtual_chunk_containers": {"s3://b/": {"url_prefix": "s3://c/", '
                    '"store": {"s3": {}}}}}'
                ),
                "expected the key of the container, s3://b/, found 's3://c/'",
            ),
            (
                '{"virtual_chunk_containers": {"s3://b": {"store": {"s3": {}}}}}',
                "must end in a /",
            ),
            (
                '{"virtual_chunk_containers": {"az://b/": {"store": {"azure": {"k": 1}}}}}',
                "Expected `str`, got `int`",
            ),
            (
                (
                    '{"manifest": {"preload": {"preload_if": '
                    '{"or": [{"path_matches": {"regex": 1}}]}}}}'
                ),
                r"`manifest.preload.preload_if.or\[0\].path_matches.regex`: expected text, found 1",
            ),
            (
                '{"manifest": {"preload": {"preload_if": "any_array"}}}',
                "expected one of or, and, path_matches, name_matches, num_refs, true, false",
            ),
            (
                (
                    '{"manifest": {"splitting": {"split_sizes": [["any_array", '
                    '[{"condition": "any", "num_chunks": 0}]]]}}}'
                ),
                r"split_sizes\[0\]\[1\]\[0\].num_chunks`: Expected `int` >= 1, found 0",
            ),
            (
                '{"manifest": {"splitting": {"split_sizes": [["any_array"]]}}}',
                r"split_sizes\[0\]`: expected a list of two",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, text: str, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            from_json(text.encode())

    def test_a_wrong_object_of_a_storage_is_a_format_error(self) -> None:
        with pytest.raises(FormatError, match=r"config/ZZZZZZZZ\.json: the config") as error:
            from_json(b'{"x": 1}', key="config/ZZZZZZZZ.json")

        assert error.value.key == "config/ZZZZZZZZ.json"

    @pytest.mark.parametrize(
        "data",
        [
            b"[" * 100_000,
            b'{"caching":' * 50_000,
            b"\xff\xfe",
            b"",
            b" " * (MAX_FILE_BYTES + 1),
            b'{"manifest": {"preload": {"preload_if": '
            + b'{"or": [' * 60
            + b'"true"'
            + b"]}" * 60
            + b"}}}",
            b'{"inline_chunk_threshold_bytes": ' + b"9" * 10_000 + b"}",
        ],
        ids=["lists", "objects", "not-utf-8", "empty", "huge", "nested-conditions", "long-number"],
    )
    def test_hostile_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(FormatError):
            from_json(data, key="config/ZZZZZZZZ.json")

    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_refused(self, data: bytes) -> None:
        try:
            config = from_json(data, key="x")
        except FormatError:
            return
        assert from_json(to_json(config)) == config


class TestYaml:
    def test_the_keys_are_those_of_json(self) -> None:
        import yaml

        tree = json.loads(to_json(EVERYTHING))

        assert from_yaml(yaml.safe_dump(tree, sort_keys=False)) == EVERYTHING
        assert from_yaml(to_json(EVERYTHING)) == EVERYTHING

    def test_an_empty_file_gives_nothing(self) -> None:
        assert from_yaml("") == from_yaml("# nothing\n") == RepositoryConfig()

    def test_tags_name_choices(self) -> None:
        text = """
        inline-chunk-threshold-bytes: 12
        virtual_chunk_containers:
          s3://bucket/:
            name: null
            url_prefix: s3://bucket/
            store: !S3Compatible
              region: us-east-1
              endpoint_url: null
              anonymous: false
              allow_http: true
          file:///data/:
            url_prefix: file:///data/
            store: !local_file_system /data
        manifest:
          preload:
            preload_if: !or
            - 'true'
            - false
            - !num_refs
              from: !Included 1
              to: !Excluded 5
            - !num_refs {from: !Excluded 1, to: !Included 5}
            - !num_refs {from: Unbounded}
          splitting:
            split_sizes:
            - - !name_matches
                regex: temp
              - - condition: !Axis 1
                  num_chunks: 4
                - condition: !DimensionName t
                  num_chunks: 5
                - condition: Any
                  num_chunks: 6
            - - any_array
              - []
        """

        assert from_yaml(text) == RepositoryConfig(
            inline_chunk_threshold_bytes=12,
            virtual_chunk_containers={
                "s3://bucket/": VirtualChunkContainer(
                    "s3://bucket/",
                    ObjectStoreConfig.S3Compatible(S3Options(region="us-east-1", allow_http=True)),
                ),
                "file:///data/": VirtualChunkContainer(
                    "file:///data/", ObjectStoreConfig.LocalFileSystem("/data")
                ),
            },
            manifest=ManifestConfig(
                preload=ManifestPreloadConfig(
                    preload_if=Preload.or_conditions(
                        [
                            Preload.true(),
                            Preload.false(),
                            Preload.num_refs(1, 5),
                            Preload.num_refs(2, 6),
                            Preload.num_refs(None, None),
                        ]
                    )
                ),
                splitting=ManifestSplittingConfig.from_dict(
                    {
                        Split.name_matches("temp"): {
                            Dimension.Axis(1): 4,
                            Dimension.DimensionName("t"): 5,
                            Dimension.Any(): 6,
                        },
                        Split.AnyArray(): {},
                    }
                ),
            ),
        )

    def test_an_early_file_of_the_reference_implementation(self) -> None:
        text = """
        inline_chunk_threshold_bytes: 12
        unsafe_overwrite_refs: false
        caching: {snapshots_cache_size: 2, chunks_cache_size: 0}
        storage: {concurrency: {min_concurrent_request_size: 1}}
        virtual_chunk_containers:
          tigris: {name: tigris, url_prefix: tigris, store: !Tigris {}}
          s3: {name: s3, url_prefix: "s3://", store: !S3Compatible {allow_http: true}}
          file: {name: file, url_prefix: file, store: !LocalFileSystem ''}
          mine: {name: mine, url_prefix: "s3://mine/", store: !S3 {region: us-east-1}}
        """

        config = from_yaml(text)

        # A container of everything would let a repository read everything: it is left out.
        assert config.virtual_chunk_containers == {
            "s3://mine/": VirtualChunkContainer(
                "s3://mine/", ObjectStoreConfig.S3(S3Options(region="us-east-1")), name="mine"
            )
        }
        assert config.caching == CachingConfig()
        assert config.inline_chunk_threshold_bytes == 12

    @pytest.mark.skipif(not GOLDEN.exists(), reason="the golden repositories are not here")
    def test_the_golden_file_is_read(self) -> None:
        config = from_yaml(GOLDEN.read_bytes(), key="config.yaml")

        assert config == RepositoryConfig(
            inline_chunk_threshold_bytes=12,
            get_partial_values_concurrency=10,
            compression=CompressionConfig(CompressionAlgorithm.Zstd, 1),
            caching=CachingConfig(),
            virtual_chunk_containers={},
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("caching: [", "not valid YAML"),
            ("- 1", "expected a mapping"),
            ("a: 1\n---\nb: 2", "not valid YAML"),
            ("caching: {num_chunk_refs: 1}\ncaching: {}", "line 2: .*found `caching` again"),
            ("caching: &x {}\nmanifest: *x", r"no aliases, found \*x"),
            ("? [1]\n: 2", r"keys that are text, found \[1\]"),
            ("1: 2", "keys that are text, found 1"),
            ("inline_chunk_threshold_bytes: 2020-01-01", "timestamp"),
            ("inline_chunk_threshold_bytes: !!int x", "found 'x'"),
            ("caching: !nope {}", "`caching.nope`"),
            ("caching: !!set {}", "plain mappings and lists"),
            ("caching: !!binary aGk=", "binary"),
            ("<<: {}", "merge"),
            ("[" * 200, "nesting of at most 100"),
            ("!!python/object/apply:os.system ['true']", "python/object/apply:os.system"),
            ("caching: !!python/name:os.system", "python/name:os.system"),
            ("caching: !python/object/apply:os.system ['true']", "expected one of the keys"),
            ("x: \x07", "not valid YAML"),
        ],
    )
    def test_more_than_data_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            from_yaml(text)

    def test_a_file_of_aliases_is_refused_at_once(self) -> None:
        lines = ["a0: &a0 [1, 1]"]
        lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]

        with pytest.raises(FormatError, match="no aliases"):
            from_yaml("\n".join(lines), key="config.yaml")

    @given(st.text(max_size=100))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        try:
            config = from_yaml(text)
        except InvalidInputError:
            return
        assert from_json(to_json(config)) == config
