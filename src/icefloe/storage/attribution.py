"""Labels of requests: the header User-Agent, for the access logs of a bucket."""

from __future__ import annotations

import re

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.version import __version__

_LONGEST = 128
_PRODUCT = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:/[!#$%&'*+.^_`|~0-9A-Za-z-]+)?")
_LABEL = re.compile(r"[\x21-\x27\x2a-\x3a\x3c-\x7e]+")
"""Visible characters but for those that end a comment or a part of it."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Labels for the requests of a repository, by which the owner of a bucket can distinguish them.

    Examples:
        >>> import icefloe
        >>> icefloe.Attribution(client="reanalysis/2.1", workload="nightly").user_agent()
        'icefloe/0.1.0 (workload=nightly) reanalysis/2.1'
    """

    client: str | None = None
    """The program that uses icefloe: `name` or `name/version`."""
    workload: str | None = None
    """What it does."""
    principal: str | None = None
    """For whom."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            allowed = _PRODUCT if name == "client" else _LABEL
            if value is not None and (len(value) > _LONGEST or not allowed.fullmatch(value)):
                raise InvalidInputError(
                    f"{name} of an attribution is at most {_LONGEST} characters without spaces "
                    f"that a User-Agent can have, found {value!r}"
                )

    def user_agent(self) -> str:
        """The header that requests get."""
        labels = {"workload": self.workload, "principal": self.principal}
        comment = "; ".join(f"{name}={value}" for name, value in labels.items() if value)
        parts = (user_agent(), f"({comment})" if comment else "", self.client or "")
        return " ".join(part for part in parts if part)


def user_agent() -> str:
    """The header User-Agent of requests without further labels.

    >>> import icefloe
    >>> icefloe.user_agent() == f"icefloe/{icefloe.__version__}"
    True
    """
    return f"icefloe/{__version__}"
