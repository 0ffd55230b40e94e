"""Answers queries: plan, encode, search."""
