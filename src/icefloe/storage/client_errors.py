"""The errors of obstore as errors of icefloe, and which of them are worth a retry.

obstore says more in the text of an error than in its class: the status of an answer, or the reason
why there was none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    StorageUnreachableError,
)

# Texts carry addresses; what in an address can be a secret is cut out.
_SECRET = re.compile(
    r"(?<=://)[^/@\s]+@"
    r"|(?<=[?&])(?:sig|X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-Signature)=[^&\s\"')]*",
    re.IGNORECASE,
)
_STATUS = re.compile(r"status code: (\d{3})\b")
_NOT_CONNECTED = re.compile(r"HttpError \{\s*kind: Connect,|client::legacy::Error\(\s*Connect,")
_REASON = re.compile(r'(?:message|error): "([^"]*)"')
_PLAIN_HTTP = re.compile(r"HTTP error: builder error|URL scheme is not allowed")
_BROKEN_OFF = re.compile(r"HTTP error|HttpError|invalid list response", re.IGNORECASE)
_TRIED_OUT = re.compile(r"after (\d+) retries, max_retries: \1,")
_SLOW_SENDER = "<Code>RequestTimeout</Code>"

_CODE = re.compile(r"<Code>([\w.]+)</Code>|\"error\": ?\"(\w+)\"")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_OTHER_REGION = re.compile(r"expecting '([\w-]+)'|<Region>([\w-]+)</Region>")
_NO_REGION = "incorrectly configured region"
_REGION_CODES = "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException"
_REASONS = {
    "ExpiredToken ExpiredTokenException TokenRefreshRequired invalid_grant": (
        "the credentials have expired: get new ones (`aws sso login`, `gcloud auth login` or "
        "`az login`), or pass get_credentials, which is called before they expire"
    ),
    "RequestTimeTooSkewed RequestExpired": (
        "the clock of this computer is wrong by more than the server accepts: set it"
    ),
    "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken AuthenticationFailed": (
        "the server does not know these credentials: check the key, the secret and the token"
    ),
    "AccessDenied AllAccessDisabled AuthorizationPermissionMismatch AuthorizationFailure": (
        "the credentials do not allow it: ask the owner for the right to read, write, list and "
        "delete there"
    ),
}
"""Codes in the bodies of answers, and what each means; the server has done nothing then."""

_LOGIN_FAILED = re.compile(r"External (\w+) credential provider:")
_LOGINS = {
    "AWS": "aws sso login",
    "Azure": "az login",
    "GCP": "gcloud auth application-default login",
}
"""What obstore calls the providers of credentials, and the programs that make a login."""

_REFUSED = frozenset({401, 403})
_MISSING = 404
_BAD_REQUEST = 400
_SERVER_ERROR = 500
_PASSING = frozenset({408, 409, 425, 429})
"""Timeouts, throttling, and 409: on S3, another request for the same key was in progress."""
_FOR_GOOD = frozenset({501, 505})


class Request(NamedTuple):
    """What was requested, as far as it decides what an error means."""

    key: str
    location: str
    is_writing: bool = False
    """That something was not found then means the bucket."""
    is_conditional: bool = False
    """Only then can an answer be that the condition failed."""

    def failed(self, error: BaseException) -> IcefloeError | None:
        """The error of icefloe to raise from one of the client; None for any other exception."""
        if isinstance(error, IcefloeError):
            return error
        if not isinstance(error, Exception):
            # A panic of the client derives from BaseException, and its class cannot be imported.
            return StorageError(self._text(error)) if is_panic(error) else None
        return self._condition(error) or self._refusal(error) or self._failure(error)

    def _condition(self, error: Exception) -> IcefloeError | None:
        from obstore import exceptions

        if not self.is_conditional:
            return None
        if isinstance(error, exceptions.AlreadyExistsError):
            return AlreadyExistsError(f"{self.key!r} exists already in {self.location}")
        if isinstance(error, exceptions.PreconditionError):
            return ConflictError(f"{self.key!r} in {self.location} changed meanwhile")
        return None

    def _refusal(self, error: Exception) -> IcefloeError | None:
        from obstore import exceptions

        status = _status_of(error)
        if isinstance(error, FileNotFoundError) and not self.is_writing:
            return ObjectNotFoundError(f"no object {self.key!r} in {self.location}", self.key)
        if isinstance(error, FileNotFoundError) or status == _MISSING:
            return StoragePermissionError(
                f"{self.location} has no bucket or container of that name; check the name and the "
                "address, or create it"
            )
        login = _LOGIN_FAILED.search(str(error))
        if login is not None:
            return StoragePermissionError(
                f"{self.location} was not asked: there is no valid login for {login[1]}, of a "
                f"person or of this machine; run `{_LOGINS.get(login[1], 'its login')}`, or add "
                "?anonymous=true"
            )
        reason = _reason(str(error))
        if reason is not None:
            return StoragePermissionError(f"{self.location} refused {self.key!r}: {reason}")
        refusals = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, refusals) or status in _REFUSED:
            return StoragePermissionError(self._text(error))
        return None

    def _failure(self, error: Exception) -> IcefloeError | None:
        from obstore import exceptions

        if _was_never_sent(error):
            reason = _REASON.search(str(error))
            because = f": {reason[1]}" if reason else ""
            return StorageUnreachableError(
                f"{self.location} cannot be reached{because}; nothing was sent there. Check the "
                "address and the network",
                self.location,
            )
        if _PLAIN_HTTP.search(str(error)):
            return InvalidInputError(
                f"{self.location} is reached by http, not https, which must be allowed: pass "
                "allow_http=True, or add allow_http=true to the options of a URL"
            )
        if isinstance(error, exceptions.BaseError | NotImplementedError | OSError):
            return StorageError(self._text(error))
        if isinstance(error, ValueError):
            return InvalidInputError(self._text(error))
        return None

    def _text(self, error: BaseException) -> str:
        text = str(error)
        # The body of an answer is XML or a page: its code and message are enough.
        first, _, _ = text.partition("\n")[0].partition("<")
        said = [part[1] or "" for part in (_CODE.search(text), _MESSAGE.search(text)) if part]
        answer = f" ({': '.join(filter(None, said))})" if said else ""
        return f"{self.key!r} in {self.location}: {_SECRET.sub('***', first.rstrip(': '))}{answer}"


def _reason(text: str) -> str | None:
    """What a server says it refused a request for, as a sentence; None if it does not say."""
    found = _CODE.search(text)
    code = "" if found is None else found[1] or found[2]
    if _NO_REGION in text or (code and code in _REGION_CODES.split()):
        named = _OTHER_REGION.search(text)
        region = None if named is None else named[1] or named[2]
        return f"the bucket is in another region: pass {f'region={region!r}' if region else 'it'}"
    return next((why for codes, why in _REASONS.items() if code and code in codes.split()), None)


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of the client's native code."""
    return type(error).__name__ == "PanicException"


def may_pass(error: StorageError) -> bool:
    """Whether the same request may succeed if it is sent again."""
    from obstore import exceptions

    cause = error.__cause__
    if isinstance(error, StoragePermissionError) or cause is None:
        return False
    status = _status_of(cause)
    if _TRIED_OUT.search(str(cause)):
        return False  # the client itself has sent it again, as often as the settings allow
    if status is None:
        is_known = isinstance(cause, exceptions.GenericError)
        return is_known and _BROKEN_OFF.search(str(cause)) is not None
    if status == _BAD_REQUEST:
        return _SLOW_SENDER in str(cause)
    return status in _PASSING or (status >= _SERVER_ERROR and status not in _FOR_GOOD)


def _status_of(error: BaseException) -> int | None:
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


def _was_never_sent(error: Exception) -> bool:
    """Whether there was no connection, so that not a single byte of the request was sent."""
    return _status_of(error) is None and _NOT_CONNECTED.search(str(error)) is not None
