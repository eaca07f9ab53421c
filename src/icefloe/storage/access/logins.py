"""Credentials where the tools of the clouds keep them: profiles, logins, roles of machines.

obstore itself reads the environment. What needs the libraries of a cloud (boto3, google-auth,
azure-identity) is read by obstore's providers over these, which are extras.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from icefloe.errors import InvalidInputError, StoragePermissionError
from icefloe.extras import is_installed, missing

AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
GCS_VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
AZURE_VARIABLES = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_CLIENT_SECRET",
)
"""Variables of the environment, one of which is enough."""


def are_set(variables: tuple[str, ...]) -> bool:
    """Whether the environment has credentials."""
    return any(os.environ.get(name) for name in variables)


def aws_login() -> dict[str, Any]:
    """Options of a client of S3 that signs as the AWS tools would; none if the environment does.

    In their order: the environment, `AWS_PROFILE` and the profiles of `~/.aws` (keys, roles to
    assume, SSO logins), the role of a container or of the machine. Region and endpoint come from
    the profile, unless the environment has them.

    Raises:
        MissingPackageError: There are profiles, which need boto3.
        InvalidInputError: There are no credentials, or no such profile.
        StoragePermissionError: A login has expired.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID") and not os.environ.get("AWS_SECRET_ACCESS_KEY"):
        raise InvalidInputError(
            "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not: set both of them or none"
        )
    if os.environ.get("AWS_ACCESS_KEY_ID") or (
        are_set(AWS_VARIABLES) and not is_installed("boto3")
    ):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return {"endpoint": endpoint} if endpoint else {}
    if not is_installed("boto3"):
        if os.environ.get("AWS_PROFILE") or _aws_files():
            raise missing("boto3", "reading AWS profiles, SSO logins and roles")
        return {}  # obstore asks for the role of the machine
    return _boto_login()


def _aws_files() -> list[Path]:
    named = {
        "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
        "AWS_CONFIG_FILE": "~/.aws/config",
    }
    paths = [Path(os.environ.get(name) or path).expanduser() for name, path in named.items()]
    return [path for path in paths if path.is_file()]


def _boto_login() -> dict[str, Any]:
    import boto3
    import botocore.exceptions as failures
    from obstore.auth.boto3 import Boto3CredentialProvider

    profile = os.environ.get("AWS_PROFILE")
    again = f"aws sso login{f' --profile {profile}' if profile else ''}"
    try:
        session = boto3.Session()
        credentials = session.get_credentials()
        if credentials is None:
            raise InvalidInputError(_NO_AWS)
        credentials.get_frozen_credentials()  # an SSO login may have expired
    except failures.ProfileNotFound as error:
        raise InvalidInputError(
            f"AWS_PROFILE={profile} is no profile of ~/.aws/config or ~/.aws/credentials; "
            "correct it, or make the profile with `aws configure`"
        ) from error
    except (failures.SSOError, failures.TokenRetrievalError) as error:
        raise StoragePermissionError(
            f"the SSO login of AWS has expired or was never made: run `{again}`"
        ) from error
    except (failures.CredentialRetrievalError, failures.ClientError) as error:
        raise StoragePermissionError(f"AWS gives no credentials: {error}") from error
    options: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    if session.region_name:
        options["region"] = session.region_name
    # The session knows which of the environment, the profile and its section of services wins.
    region = session.region_name or "us-east-1"
    endpoint: str = session.client("s3", region_name=region).meta.endpoint_url
    if ".amazonaws.com" not in endpoint and "//s3.amazonaws.com" not in endpoint:
        options["endpoint"] = endpoint
    return options


_NO_AWS = (
    "no credentials for S3: looked into the environment (AWS_ACCESS_KEY_ID and the like), the "
    "profiles of ~/.aws, and asked for a role of this machine; set them, run `aws configure` or "
    "`aws sso login`, or add ?anonymous=true"
)


def gcs_login() -> dict[str, Any]:
    """The same for Google Cloud Storage: the environment, the login of gcloud, google-auth."""
    if (are_set(GCS_VARIABLES) or _gcloud_file().is_file()) and not _is_for_google_auth():
        return {}  # obstore reads both
    if not is_installed("google.auth"):
        return {}  # obstore asks for the role of the machine
    import google.auth
    import google.auth.exceptions as failures
    from google.auth.credentials import with_scopes_if_required
    from obstore.auth.google import GoogleCredentialProvider

    try:
        credentials, _ = google.auth.default(request=_patient_request())
        # Google gives workloads no token without a scope; `default` would ask for a project too.
        scoped = with_scopes_if_required(credentials, [_GCS_SCOPE])  # type: ignore[no-untyped-call]
        provider = GoogleCredentialProvider(scoped)
        provider()  # so that nobody waits for a refusal once for each request
    except failures.DefaultCredentialsError as error:
        raise InvalidInputError(
            "no credentials for Google Cloud Storage: run `gcloud auth application-default login`, "
            "set GOOGLE_APPLICATION_CREDENTIALS, or add ?anonymous=true"
        ) from error
    except failures.GoogleAuthError as error:
        raise StoragePermissionError(
            "no valid login for Google Cloud Storage, of a person or of this machine: run `gcloud "
            "auth application-default login`, or add ?anonymous=true"
        ) from error
    return {"credential_provider": provider}


_GCS_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_METADATA_ATTEMPTS = 2


def _patient_request() -> Any:
    """How google-auth asks whether this is a machine of Google: twice, then it is none.

    google-auth alone takes 12 seconds to find that nobody answers.
    """
    from google.auth.exceptions import DefaultCredentialsError, TransportError
    from google.auth.transport.requests import Request

    send, failed = Request(), 0

    def ask(*arguments: Any, **options: Any) -> Any:
        nonlocal failed
        try:
            return send(*arguments, **options)
        except TransportError as error:
            failed += 1
            if failed < _METADATA_ATTEMPTS:
                raise
            raise DefaultCredentialsError(str(error)) from error  # type: ignore[no-untyped-call]

    return ask


def _is_for_google_auth() -> bool:
    """Whether a file has credentials that obstore cannot read, as of a workload elsewhere.

    Raises MissingPackageError if google-auth is not installed, which reads them.
    """
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not named and are_set(GCS_VARIABLES):
        return False
    try:
        document = json.loads(
            Path(named).read_text("utf-8") if named else _gcloud_file().read_text()
        )
    except (OSError, ValueError):
        return False  # obstore says what is wrong
    kind = document.get("type") if isinstance(document, dict) else None
    if kind in (None, "service_account", "authorized_user"):
        return False
    if not is_installed("google.auth"):
        raise missing("google.auth", f"reading Google credentials of the type {kind!r}")
    return True


def _gcloud_file() -> Path:
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    return folder / "application_default_credentials.json"


_AZURE_PATIENCE: dict[str, Any] = {"retry_total": 1, "connection_timeout": 3, "read_timeout": 5}
"""azure-identity alone waits for half a minute, or many, for an endpoint that is not there."""


def azure_login() -> dict[str, Any]:
    """The same for Azure: the environment, azure-identity, or the login of the `az` program."""
    if are_set(AZURE_VARIABLES):
        return {}
    if is_installed("azure.identity"):
        from azure.core.exceptions import AzureError
        from azure.identity import DefaultAzureCredential
        from obstore.auth.azure import AzureCredentialProvider

        # It would list on the screen all that it tried; the error says what to do.
        logging.getLogger("azure.identity").addHandler(logging.NullHandler())
        provider = AzureCredentialProvider(DefaultAzureCredential(**_AZURE_PATIENCE))
        try:
            provider()  # so that nobody waits for it once for each request
        except AzureError as error:
            raise StoragePermissionError(
                "no valid login for Azure, of a person or of this machine: run `az login`, or add "
                "?anonymous=true"
            ) from error
        return {"credential_provider": provider}
    return {"use_azure_cli": True} if _has_azure_cli() else {}


def _has_azure_cli() -> bool:
    return shutil.which("az") is not None and Path("~/.azure").expanduser().is_dir()


def require_login(scheme: str, place: str) -> None:
    """Raise unless there is something to sign requests to a URL with, without asking a network.

    Raises:
        MissingPackageError: There are profiles, and what reads them is not installed.
        InvalidInputError: There is nothing.
    """
    variables, sources, extra = _SOURCES[scheme]
    if are_set(variables) or sources():
        return
    raise InvalidInputError(
        f"no credentials for {place} in the environment (looked for {', '.join(variables)}) nor "
        f"in the files of its tools: set them, log in, or add ?anonymous=true; pip install "
        f"'icefloe[{extra}]' to use the role of this machine"
    )


def _aws_sources() -> bool:
    has_files = bool(os.environ.get("AWS_PROFILE") or _aws_files())
    if has_files and not is_installed("boto3"):
        raise missing("boto3", "reading AWS profiles, SSO logins and roles")
    return has_files or (
        is_installed("boto3") and os.environ.get("AWS_EC2_METADATA_DISABLED", "") != "true"
    )


def _gcs_sources() -> bool:
    return _gcloud_file().is_file() or is_installed("google.auth")


def _azure_sources() -> bool:
    return is_installed("azure.identity") or _has_azure_cli()


_SOURCES: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "s3": (AWS_VARIABLES, _aws_sources, "aws"),
    "gs": (GCS_VARIABLES, _gcs_sources, "gcp"),
    "az": (AZURE_VARIABLES, _azure_sources, "azure"),
}
