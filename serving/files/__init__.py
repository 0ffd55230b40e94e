"""Atomic output, and errors of full disks."""
