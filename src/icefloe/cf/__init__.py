"""CF attributes of stored values: decoding, encoding, calendars; as in xarray."""
