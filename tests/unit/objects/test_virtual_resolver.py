"""Which virtual chunks may be read: default deny, exact containers, canonical locations (H-46)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.config import VirtualChunkContainer
from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.storage.access.credentials import (
    containers_credentials,
    gcs_anonymous_credentials,
    s3_anonymous_credentials,
    s3_static_credentials,
)
from icefloe.storage.access.stores import (
    azure_store,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)

if TYPE_CHECKING:
    from pathlib import Path


def containers(*items: VirtualChunkContainer) -> dict[str, VirtualChunkContainer]:
    return {item.url_prefix: item for item in items}


def folder(path: Any, name: Any = None) -> VirtualChunkContainer:
    return VirtualChunkContainer(f"file://{path}/", local_filesystem_store(path), name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder to read from, with a neighbour whose name starts alike."""
    for name, content in {
        "data/x": b"0123456789",
        "data/sub/y": b"sub y",
        "data-evil/x": b"evil",
        "secret": b"secret",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "data"


def reader(data: Any, **options: Any) -> VirtualChunkResolver:
    return VirtualChunkResolver(containers(folder(data)), {f"file://{data}/": None}, **options)


class TestReading:
    def test_a_range_of_a_file(self, data: Path) -> None:
        ref = VirtualRef(f"file://{data}/x", 2, 6)

        assert reader(data).read(ref, 0, 6) == b"234567"
        assert reader(data).read(ref, 1, 3) == b"345"
        assert asyncio.run(reader(data).read_async(ref, 5, 1)) == b"7"
        assert reader(data).read(ref, 0, 0) == b""

    def test_one_resolver_serves_many_threads(self, data: Path) -> None:
        resolver = reader(data)
        refs = [VirtualRef(f"file://{data}/x", start, 1) for start in range(10)] * 20

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda ref: resolver.read(ref, 0, 1), refs))

        assert b"".join(found) == b"0123456789" * 20


class TestContainers:
    def test_a_location_in_no_container_is_refused(self, data: Path) -> None:
        ref = VirtualRef("s3://bucket/x", 0, 1)

        with pytest.raises(VirtualChunkError, match="edit the repository configuration"):
            reader(data).read(ref, 0, 1)
        with pytest.raises(VirtualChunkError, match="edit the repository configuration"):
            VirtualChunkResolver({}, {"s3://bucket/": None}).read(ref, 0, 1)

    @pytest.mark.parametrize(
        "location",
        [
            "file://{root}/data-evil/x",
            "file://{root}/secret",
            "file://{root}/data/../secret",
            "file://{root}/data/%2e%2e/secret",
            "file://{root}/data/%2E%2e/secret",
            "file://{root}/data/sub/.%2e/../../secret",
            "file://{root}/data/./..//secret",
            "file:///etc/passwd",
            "http://169.254.169.254/latest/meta-data/",
            "http://localhost/x",
        ],
    )
    def test_nothing_next_to_a_container_is_read(self, data: Path, location: str) -> None:
        ref = VirtualRef(location.format(root=data.parent), 0, 1)

        with pytest.raises(VirtualChunkError, match="in no virtual chunk container"):
            reader(data).read(ref, 0, 1)
        with pytest.raises(VirtualChunkError, match="in no virtual chunk container"):
            asyncio.run(reader(data).read_async(ref, 0, 1))

    def test_dots_that_are_encoded_twice_are_a_name(self, data: Path) -> None:
        ref = VirtualRef(f"file://{data}/%252e%252e/secret", 0, 1)

        with pytest.raises(VirtualChunkError, match="does not exist"):
            reader(data).read(ref, 0, 1)

    @pytest.mark.parametrize(
        "location",
        ["", "data/x", "file://server{root}/data/x", "file://{root}/data/a%2f..%2fsecret"],
    )
    def test_a_location_that_is_none_is_refused(self, data: Path, location: str) -> None:
        ref = VirtualRef(location.format(root=data.parent), 0, 1)

        with pytest.raises(VirtualChunkError, match="error parsing"):
            reader(data).read(ref, 0, 1)

    def test_a_password_in_a_location_is_refused_and_not_repeated(self, data: Path) -> None:
        ref = VirtualRef("https://user:hunter2@example.org/x", 0, 1)

        with pytest.raises(VirtualChunkError, match="user name or password") as error:
            reader(data).read(ref, 0, 1)
        assert "hunter2" not in str(error.value)

    def test_a_bucket_whose_name_starts_alike_is_another_one(self) -> None:
        bucket = VirtualChunkContainer("s3://bucket/", s3_store())
        resolver = VirtualChunkResolver(containers(bucket), {"s3://bucket/": None})

        with pytest.raises(VirtualChunkError, match="in no virtual chunk container"):
            resolver.read(VirtualRef("s3://bucket-evil/x", 0, 1), 0, 1)

    def test_the_longest_prefix_wins(self, data: Path) -> None:
        both = containers(folder(data), folder(data / "sub"))
        outer = VirtualChunkResolver(both, {f"file://{data}/": None})
        inner = VirtualChunkResolver(both, {f"file://{data}/sub/": None})
        below = VirtualRef(f"file://{data}/sub/y", 0, 5)

        assert inner.read(below, 0, 5) == b"sub y"
        with pytest.raises(VirtualChunkError, match="authorize"):
            outer.read(below, 0, 5)
        with pytest.raises(VirtualChunkError, match="authorize"):
            inner.read(VirtualRef(f"file://{data}/x", 0, 1), 0, 1)

    def test_containers_that_make_no_sense_are_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="must end in a /"):
            VirtualChunkResolver(containers(VirtualChunkContainer("s3://bucket", s3_store())))


class TestRelativeLocations:
    def test_are_below_the_named_container(self, data: Path) -> None:
        resolver = VirtualChunkResolver(
            containers(folder(data, name="mine")), {f"file://{data}": None}
        )

        assert resolver.read(VirtualRef("vcc://mine/sub/y", 4, 1), 0, 1) == b"y"
        assert resolver.read(VirtualRef("vcc://mine/../../sub/y", 0, 3), 0, 3) == b"sub"
        with pytest.raises(VirtualChunkError, match="named 'other'"):
            resolver.read(VirtualRef("vcc://other/x", 0, 1), 0, 1)

    def test_do_not_leave_it(self, data: Path) -> None:
        resolver = VirtualChunkResolver(
            containers(folder(data, name="mine")), {f"file://{data}": None}
        )

        for location in ("vcc://mine/../secret", "vcc://mine/%2e%2e/secret"):
            with pytest.raises(VirtualChunkError, match="does not exist"):
                resolver.read(VirtualRef(location, 0, 1), 0, 1)

    def test_need_the_authorization_of_the_container_too(self, data: Path) -> None:
        resolver = VirtualChunkResolver(containers(folder(data, name="mine")), {})

        with pytest.raises(VirtualChunkError, match="authorize"):
            resolver.read(VirtualRef("vcc://mine/x", 0, 1), 0, 1)


class TestAuthorization:
    def test_nothing_is_authorized_by_default(self, data: Path) -> None:
        resolver = VirtualChunkResolver(containers(folder(data)))

        with pytest.raises(VirtualChunkError, match="authorize"):
            resolver.read(VirtualRef(f"file://{data}/x", 0, 1), 0, 1)

    def test_the_slash_at_the_end_does_not_matter(self, data: Path) -> None:
        resolver = VirtualChunkResolver(containers(folder(data)), {f"file://{data}": None})

        assert resolver.read(VirtualRef(f"file://{data}/x", 0, 1), 0, 1) == b"0"

    def test_a_wider_or_narrower_prefix_does_not_do(self, data: Path) -> None:
        for prefix in (f"file://{data.parent}/", f"file://{data}/sub/"):
            resolver = VirtualChunkResolver(containers(folder(data)), {prefix: None})
            with pytest.raises(VirtualChunkError, match="authorize"):
                resolver.read(VirtualRef(f"file://{data}/sub/y", 0, 1), 0, 1)

    @pytest.mark.parametrize(
        ("container", "credential"),
        [
            (VirtualChunkContainer("gs://b/", gcs_store()), s3_anonymous_credentials()),
            (VirtualChunkContainer("s3://b/", s3_store()), gcs_anonymous_credentials()),
            (VirtualChunkContainer("https://h/", http_store()), s3_anonymous_credentials()),
            (
                VirtualChunkContainer("file:///data/", local_filesystem_store("/data")),
                s3_static_credentials(access_key_id="a", secret_access_key="hunter2"),
            ),
            (VirtualChunkContainer("az://b/", azure_store(account="a")), "hunter2"),
        ],
    )
    def test_a_credential_for_another_kind_of_store_is_refused(
        self, container: VirtualChunkContainer, credential: Any
    ) -> None:
        with pytest.raises(InvalidInputError, match="does not fit its store") as error:
            VirtualChunkResolver(containers(container), {container.url_prefix: credential})
        assert "hunter2" not in str(error.value)

    def test_wrapped_credentials_are_taken(self) -> None:
        wrapped = containers_credentials({"s3://b/": s3_anonymous_credentials()})
        bucket = VirtualChunkContainer("s3://b/", s3_store())

        VirtualChunkResolver(containers(bucket), wrapped)

    @pytest.mark.parametrize(
        "store",
        [
            VirtualChunkContainer("s3://b/", s3_store(endpoint_url="http://127.0.0.1:9")),
            VirtualChunkContainer("gs://b/", gcs_store({"base_url": "http://127.0.0.1:9"})),
            VirtualChunkContainer(
                "az://b/", azure_store(account="a", config={"endpoint": "http://127.0.0.1:9"})
            ),
        ],
    )
    def test_an_endpoint_that_nobody_confirmed_is_not_called(
        self, store: VirtualChunkContainer
    ) -> None:
        ref = VirtualRef(f"{store.url_prefix}x", 0, 1)
        grants = {store.url_prefix: None}

        resolver = VirtualChunkResolver(containers(store), grants, confirmed_prefixes=())
        with pytest.raises(VirtualChunkError, match="the repository's own configuration sends"):
            resolver.read(ref, 0, 1)

    def test_a_store_without_an_endpoint_needs_no_confirmation(self, data: Path) -> None:
        resolver = reader(data, confirmed_prefixes=())

        assert resolver.read(VirtualRef(f"file://{data}/x", 0, 1), 0, 1) == b"0"


class TestCheck:
    def test_gives_the_canonical_location(self, data: Path) -> None:
        ref = VirtualRef(f"file://{data}//sub/.././x y", 1, 2, "etag", 3)

        checked = reader(data).check(ref)

        assert checked == VirtualRef(f"file://{data}/x%20y", 1, 2, "etag", 3)
        assert reader(data).check(checked) == checked

    def test_authorization_is_not_needed_to_write_references(self, data: Path) -> None:
        ref = VirtualRef(f"file://{data}/x", 0, 1)

        assert VirtualChunkResolver(containers(folder(data))).check(ref) == ref

    def test_a_location_in_no_container_is_refused_unless_asked_not_to(self, data: Path) -> None:
        ref = VirtualRef("s3://bucket/x", 0, 1)

        with pytest.raises(InvalidInputError, match="invalid chunk location"):
            reader(data).check(ref)
        assert reader(data).check(ref, validate_container=False) == ref

    @pytest.mark.parametrize("location", ["", "x", "s3:///x", "s3://bucket", "s3://bucket/"])
    def test_a_location_that_is_none_is_always_refused(self, data: Path, location: str) -> None:
        ref = VirtualRef(location, 0, 1)

        for validate in (True, False):
            with pytest.raises(InvalidInputError, match="error parsing"):
                reader(data).check(ref, validate_container=validate)

    @pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (2**63, 1), (0, 1.5)])
    def test_impossible_ranges_are_refused(self, data: Path, offset: int, length: float) -> None:
        with pytest.raises(InvalidInputError, match="offset and a length"):
            reader(data).check(VirtualRef(f"file://{data}/x", offset, length))  # type: ignore[arg-type]

    def test_relative_locations_stay_relative(self, data: Path) -> None:
        resolver = VirtualChunkResolver(containers(folder(data, name="mine")))

        assert resolver.check(VirtualRef("vcc://mine//x", 0, 1)).location == "vcc://mine/x"
        with pytest.raises(InvalidInputError, match="invalid chunk location"):
            resolver.check(VirtualRef("vcc://other/x", 0, 1))
