"""Decides and records what goes live: comparison, gate, tracking."""
