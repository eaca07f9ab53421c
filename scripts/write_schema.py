"""Write the JSON Schema of pipeline files from their types; `make api` runs this."""

from __future__ import annotations

import json

from icefloe.spark.publishing.pipeline_file import SCHEMA_FILE, pipeline_schema


def main() -> None:
    SCHEMA_FILE.write_text(json.dumps(pipeline_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
