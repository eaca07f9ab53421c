"""What keeps objects alive and what deletes them: leases, expiry, garbage collection."""
