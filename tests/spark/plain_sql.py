"""What plain `spark.sql` cannot do with a table of `icefloe.spark.register`, and what Spark says.

The page `docs/how-to/troubleshooting.md` quotes the messages; `…` stands for what differs.
"""

from __future__ import annotations

PLAIN_SQL = {
    "SELECT count(*) FROM weather VERSION AS OF 'v1'": (
        "[UNSUPPORTED_FEATURE.TIME_TRAVEL] The feature is not supported: "
        "Time travel on the relation: …"
    ),
    "DELETE FROM weather WHERE lat > 50": "[INTERNAL_ERROR] …",
}
