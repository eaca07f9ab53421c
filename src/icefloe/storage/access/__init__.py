"""How to name a place in a cloud, and how to enter it."""
