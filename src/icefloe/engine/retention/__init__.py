"""Retention: leases, pins, announcements, expiry and garbage collection.

One protocol without locks. `collection.py` has its rules G1 to G7, docs/explanation/retention.md
the states of objects, leases, sessions and announcements, with who writes before whom reads.

- Claims: `leases`, `session_lease`, `pins`, renewed by `background`
- Garbage collection: `collection`, with `stored_objects`, `marking`, `announcements`, `id_sets`
- Writers beside it: `branch_moves` (the retry), `uncommitted`, `unsettled`
- Histories: `expiry`
"""
