"""Reads files of every format as tables."""
