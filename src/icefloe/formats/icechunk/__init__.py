"""The generation `icechunk`: repositories of the official package, format versions 1 and 2."""
