"""Boxes of an array read and written as a whole, with no object per chunk."""
