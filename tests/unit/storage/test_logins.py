"""Credentials where the tools of the clouds keep them, and what servers say of bad ones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

import icefloe
from icefloe import (
    InvalidInputError,
    MissingPackageError,
    ObjectNotFoundError,
    Repository,
    StoragePermissionError,
)
from icefloe.storage.access import logins
from icefloe.storage.access.url import storage_from_url
from tests.endpoints.processes import free_port
from tests.unit.storage.test_redirects_and_headers import Answer, bucket, server, storage_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Log = list[tuple[str, dict[str, str]]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any login, and an environment without any credential."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def url(log: Log) -> Iterator[str]:
    with server(bucket, log) as address:
        yield address


def signer(log: Log) -> str:
    """The key that the last request was signed with."""
    signature = log[-1][1]["authorization"]
    return signature.partition("Credential=")[2].partition("/")[0]


def ask(place: str) -> None:
    with pytest.raises(ObjectNotFoundError):
        storage_from_url(place).get("a")


# --- AWS


def test_a_profile_gives_keys_region_and_endpoint(
    home: Path, url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = first\naws_secret_access_key = s\n"
        "[ocean]\naws_access_key_id = second\naws_secret_access_key = s\n"
    )
    (home / ".aws" / "config").write_text(
        f"[default]\nregion = eu-west-1\nendpoint_url = {url}\n"
        f"[profile ocean]\nregion = eu-north-1\nendpoint_url = {url}\n"
    )
    ask("s3://b/p")
    assert signer(log) == "first"
    assert "/eu-west-1/s3/" in log[-1][1]["authorization"]
    monkeypatch.setenv("AWS_PROFILE", "ocean")
    ask("s3://b/p")
    assert signer(log) == "second"
    assert "/eu-north-1/s3/" in log[-1][1]["authorization"]


def test_keys_and_endpoint_of_the_environment_go_before_profiles(
    home: Path, url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = first\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    ask("s3://b/p")
    assert signer(log) == "environment"


def test_an_sso_login_is_taken_from_its_cache(
    home: Path, url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".aws" / "config").write_text(
        "[profile work]\nsso_start_url = https://work.awsapps.example/start\n"
        "sso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = reader\n"
        f"region = us-east-1\nendpoint_url = {url}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(StoragePermissionError, match="run `aws sso login --profile work`"):
        storage_from_url("s3://b/p").get("a")
    # The login itself, and the keys of its role, as `aws` leaves them.
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    sso, cli = home / ".aws" / "sso" / "cache", home / ".aws" / "cli" / "cache"
    for folder in (sso, cli):
        folder.mkdir(parents=True)
    start = "https://work.awsapps.example/start"
    (sso / f"{sha1(start.encode()).hexdigest()}.json").write_text(
        json.dumps({"accessToken": "t", "expiresAt": later, "startUrl": start})
    )
    with server(role_keys(later), []) as portal:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", portal)
        # boto3 looks for its home when it is imported: in a process of its own.
        program = (
            "import icefloe\nfrom icefloe.storage.access.url import storage_from_url\n"
            "try:\n    storage_from_url('s3://b/p').get('a')\n"
            "except icefloe.ObjectNotFoundError:\n    print('asked')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
    assert done.stdout == "asked\n", done.stderr
    assert signer(log) == "from-sso"


def role_keys(later: str) -> Any:
    moment = datetime.strptime(later, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    keys = {
        "accessKeyId": "from-sso",
        "secretAccessKey": "s",
        "sessionToken": "t",
        "expiration": int(moment.timestamp() * 1000),
    }
    return lambda *_: (
        200,
        {"Content-Type": "application/json"},
        json.dumps({"roleCredentials": keys}),
    )


def test_a_container_role_is_asked_for(url: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = {"AccessKeyId": "role", "SecretAccessKey": "s", "Token": "t", "Expiration": later}
    with server(lambda *_: (200, {}, json.dumps(keys)), []) as roles:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{roles}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "t")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        ask("s3://b/p")
    assert signer(log) == "role"


def metadata_service(method: str, path: str) -> Answer:
    """The service that EC2 has for the role of a machine, version 2: with a token."""
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if method == "PUT":
        return 200, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "token"
    if path.endswith("/security-credentials/"):
        return 200, {}, "reader"
    keys = {"Code": "Success", "AccessKeyId": "machine", "SecretAccessKey": "s", "Token": "t"}
    return 200, {}, json.dumps({**keys, "Expiration": later, "LastUpdated": later})


def test_the_role_of_a_machine_is_asked_for(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    asked: Log = []
    with server(metadata_service, asked) as service:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{service}/")
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        ask("s3://b/p")
    assert signer(log) == "machine"
    assert any("x-aws-ec2-metadata-token" in {n.lower() for n in names} for _, names in asked)


def test_a_machine_without_a_role_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(InvalidInputError, match=r"asked for a role of this machine; set them, run"):
        storage_from_url("s3://b/p").get("a")


def test_a_container_without_a_role_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(lambda *_: (403, {}, "no role here"), []) as roles:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{roles}/role")
        monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
        with pytest.raises(StoragePermissionError, match="AWS gives no credentials"):
            storage_from_url("s3://b/p").get("a")


def test_a_profile_that_does_not_exist_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws" / "config").write_text("[default]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidInputError, match="AWS_PROFILE=nobody is no profile"):
        storage_from_url("s3://b/p").get("a")


def test_profiles_need_an_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".aws" / "config").write_text("[default]\nregion = eu-west-1\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingPackageError, match=r"boto3: pip install 'icefloe\[aws\]'"):
        storage_from_url("s3://b/p")


# --- the other clouds


@pytest.mark.parametrize(
    ("place", "extra"), [("s3://b/p", "aws"), ("gs://b/p", "gcp"), ("az://a/c/p", "azure")]
)
def test_without_any_credential_the_message_says_what_to_do(
    place: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("google.auth", "azure.identity"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInputError, match=rf"anonymous=true.*icefloe\[{extra}\]"):
        storage_from_url(place)


def test_the_login_of_gcloud_is_taken(home: Path) -> None:
    folder = home / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text(
        json.dumps(
            {
                "type": "authorized_user",
                "client_id": "i",
                "client_secret": "s",
                "refresh_token": "r",
            }
        )
    )
    assert storage_from_url("gs://b/p").location == "gs://b/p"
    assert logins.gcs_login() == {}  # obstore reads the file


def test_the_login_of_the_azure_program_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "bin").mkdir()
    (home / "bin" / "az").write_text("#!/bin/sh\n")
    (home / "bin" / "az").chmod(0o755)
    (home / ".azure").mkdir()
    monkeypatch.setenv("PATH", str(home / "bin"))
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    assert logins.azure_login() == {"use_azure_cli": True}
    assert storage_from_url("az://a/c/p").location == "az://a/c/p"


def ask_with_token(place: str, log: Log, token: str) -> None:
    ask(place)
    headers = {name.lower(): value for name, value in log[-1][1].items()}
    assert headers["authorization"] == f"Bearer {token}"


def google_metadata(token: Answer) -> Any:
    """The service that Google's machines have for their service account."""
    said = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}

    def answer(_: str, path: str) -> Answer:
        if "/token" in path:
            return token
        if "project-id" in path:
            return 200, said, "project"
        account = {"email": "a@b.example", "scopes": ["s"], "aliases": ["default"]}
        return 200, said, json.dumps(account)

    return answer


def bearer(token: str) -> Answer:
    body = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
    return 200, {"Metadata-Flavor": "Google", "Content-Type": "application/json"}, json.dumps(body)


def ask_in_a_process(place: str, **environment: str) -> str:
    """What comes of a request where the libraries read their environment when imported."""
    program = (
        "import sys, icefloe\nfrom icefloe.storage.access.url import storage_from_url\n"
        "try:\n    storage_from_url(sys.argv[1]).get('a')\n"
        "except icefloe.IcefloeError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, place],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("token", [bearer("machine"), (403, {"Content-Type": "text/plain"}, "no")])
def test_the_account_of_a_google_machine_is_asked_for(url: str, log: Log, token: Answer) -> None:
    with server(google_metadata(token), []) as service:
        address = service.removeprefix("http://")
        told = ask_in_a_process(
            f"gs://b/p?base_url={url}&allow_http=true",
            GCE_METADATA_HOST=address,
            GCE_METADATA_IP=address,
        )
    if token[0] == 200:
        assert told.startswith("ObjectNotFoundError")
        assert log[-1][1]["authorization"] == "Bearer machine"
    else:
        assert told.startswith("StoragePermissionError no valid login for Google Cloud Storage")
        assert "run `gcloud auth application-default login`" in told
        assert log == []


def workload_file(home: Path, token_url: str) -> str:
    (home / "subject").write_text("subject")
    document = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": token_url,
        "credential_source": {"file": str(home / "subject")},
    }
    (home / "workload.json").write_text(json.dumps(document))
    return str(home / "workload.json")


def test_a_workload_elsewhere_logs_in_by_its_file(
    home: Path, url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    with server(lambda *_: bearer("exchanged"), [], bodies) as service:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", workload_file(home, f"{service}/t"))
        ask_with_token(f"gs://b/p?base_url={url}&allow_http=true", log, "exchanged")
    [scope] = parse_qs(bodies[0].decode())["scope"]  # Google gives no token without one
    assert scope == "https://www.googleapis.com/auth/devstorage.read_write"


def test_a_workload_elsewhere_needs_an_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    place = workload_file(home, "http://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", place)
    with pytest.raises(MissingPackageError, match=r"'external_account'.*icefloe\[gcp\]"):
        storage_from_url("gs://b/p").get("a")


def test_the_identity_of_an_azure_machine_is_asked_for(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = str(int((datetime.now(UTC) + timedelta(hours=1)).timestamp()))
    body = json.dumps({"access_token": "identity", "expires_on": later, "token_type": "Bearer"})
    asked: Log = []
    answer = (200, {"Content-Type": "application/json"}, body)
    with server(lambda *_: answer, asked) as service:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{service}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        ask_with_token(f"az://a/c/p?endpoint={url}/a&allow_http=true", log, "identity")
    assert {name.lower(): value for name, value in asked[-1][1].items()}["x-identity-header"] == "h"


def test_an_azure_login_that_is_missing_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    refusal = (400, {"Content-Type": "application/json"}, "{}")
    with server(lambda *_: refusal, []) as service:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{service}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        with pytest.raises(StoragePermissionError, match="run `az login`, or add") as caught:
            storage_from_url(f"az://a/c/p?endpoint={url}/a&allow_http=true").get("a")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_login_that_fails_is_tried_once_for_all_requests(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("PATH", "")
    asked: dict[str, Log] = {"s3": [], "gs": [], "az": []}
    places = ("s3://b/p", "gs://b/p", f"az://a/c/p?endpoint={url}/a&allow_http=true")
    with (
        server(lambda *_: (404, {}, "no"), asked["s3"]) as aws,
        server(lambda *_: (404, {}, "no"), asked["gs"]) as google,
        server(lambda *_: (400, {}, "{}"), asked["az"]) as azure,
    ):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{aws}/")
        monkeypatch.setenv("GCE_METADATA_IP", google.removeprefix("http://"))
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{azure}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        for place in places:
            with pytest.raises((InvalidInputError, StoragePermissionError)):
                Repository.open(place)  # looks for several files at once
    # The service of Amazon is asked for a token, and then without one.
    assert {scheme: len(each) for scheme, each in asked.items()} == {"s3": 2, "gs": 1, "az": 1}
    assert log == []


def test_a_machine_that_is_not_of_google_is_found_out_in_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as mute:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    mute.accept()[0].close()
                    calls.append(1)

        Thread(target=hang_up, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(InvalidInputError, match="no credentials for Google Cloud Storage"):
            storage_from_url("gs://b/p").get("a")
    assert len(calls) == 2  # google-auth itself would wait longer and longer for five


def test_a_login_is_made_again_a_while_after_it_failed(
    home: Path, url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "late")
    storage: Any = storage_from_url("s3://b/p?region=us-east-1")
    with pytest.raises(InvalidInputError, match="AWS_PROFILE=late is no profile"):
        storage.get("a")
    (home / ".aws" / "config").write_text(f"[profile late]\nendpoint_url = {url}\n")
    (home / ".aws" / "credentials").write_text(
        "[late]\naws_access_key_id = late\naws_secret_access_key = s\n"
    )
    with pytest.raises(InvalidInputError, match="AWS_PROFILE=late is no profile"):
        storage.get("a")
    monkeypatch.setattr(storage, "_refusal", storage._refusal._replace(until=0))  # 5 seconds later
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")
    assert signer(log) == "late"


# --- what servers refuse

REFUSALS = {
    "ExpiredToken": (400, "the credentials have expired"),
    "RequestTimeTooSkewed": (403, "the clock of this computer is wrong"),
    "InvalidAccessKeyId": (403, "does not know these credentials"),
    "SignatureDoesNotMatch": (403, "does not know these credentials"),
    "AccessDenied": (403, "the credentials do not allow it"),
    "AuthorizationHeaderMalformed": (400, "in another region: pass region='eu-west-1'"),
    "PermanentRedirect": (301, "in another region"),
    "NoSuchBucket": (404, "has no bucket or container of that name"),
}


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_refusal_is_one_sentence_and_never_a_commit_in_doubt(code: str) -> None:
    status, sentence = REFUSALS[code]
    body = (
        f"<Error><Code>{code}</Code><Message>the region 'us-east-1' is wrong; expecting "
        "'eu-west-1'</Message></Error>"
    )
    log: Log = []
    with server(lambda *_: (status, {}, body), log) as address:
        for act in (Repository.open, Repository.create):
            with pytest.raises(StoragePermissionError, match=sentence) as caught:
                act(storage_at(address))
            assert "<" not in str(caught.value)
            assert "\n" not in str(caught.value)
    assert len(log) < 40  # nothing is sent again


def test_other_answers_are_told_without_their_body() -> None:
    body = "<html><body>Something broke</body></html>"
    with (
        server(lambda *_: (501, {}, body), []) as address,
        pytest.raises(icefloe.StorageError) as caught,
    ):
        storage_at(address).get("a")
    assert "501" in str(caught.value)
    assert "<" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "localhost", "s3://127.0.0.1", "http://"])
def test_an_endpoint_is_a_url(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "an endpoint is a URL such as http://127.0.0.1:9000"
    with pytest.raises(InvalidInputError, match=message):
        icefloe.s3_storage(bucket="b", prefix="p", endpoint_url=endpoint, anonymous=True)
    with pytest.raises(InvalidInputError, match=message):
        icefloe.gcs_storage(bucket="b", prefix="p", config={"base_url": endpoint}, anonymous=True)
    with pytest.raises(InvalidInputError, match=message):
        icefloe.azure_storage(
            account="a", container="c", prefix="p", config={"endpoint": endpoint}, anonymous=True
        )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InvalidInputError, match=message):
        icefloe.s3_storage(bucket="b", prefix="p", region="x", from_env=True).get("a")


def test_half_of_a_key_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(InvalidInputError, match="AWS_SECRET_ACCESS_KEY is not: set both"):
        icefloe.s3_storage(bucket="b", prefix="p", region="x", from_env=True).get("a")


def test_http_must_be_allowed() -> None:
    storage = icefloe.s3_storage(
        bucket="b", prefix="p", endpoint_url="http://127.0.0.1:9", anonymous=True
    )
    with pytest.raises(InvalidInputError, match="pass allow_http=True"):
        storage.get("a")
