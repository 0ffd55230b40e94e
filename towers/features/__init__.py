"""Turns raw values into table rows, and rows into vectors."""
