"""Makes the bytes of a JSON file unique to its writer.

Several clients that create the same reference would write the same bytes, and after a lost answer
none of them could tell from the file whether it was first. White space in a JSON document
means nothing to readers, and shows the writer that the file is its own.
"""

from __future__ import annotations

import os

_WHITE_SPACE = b" \t\r\n"
_TOKEN_BYTES = 12
SIGNATURE_BYTES = 4 * _TOKEN_BYTES
"""How much longer a signed document is."""


def signed(document: bytes) -> bytes:
    """A JSON object with 96 random bits of white space before its last brace.

    Not behind it: a file that is cut short must not pass for a whole one.
    """
    members, brace, rest = document.rpartition(b"}")
    token = bytes(
        _WHITE_SPACE[byte >> shift & 3]
        for byte in os.urandom(_TOKEN_BYTES)
        for shift in (0, 2, 4, 6)
    )
    return members + token + brace + rest
