"""The generation `store` (spec 003): JSON files that people can read."""
