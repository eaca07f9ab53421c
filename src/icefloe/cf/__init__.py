"""What CF attributes say about stored values: decoding, encoding, calendars; as in xarray."""
