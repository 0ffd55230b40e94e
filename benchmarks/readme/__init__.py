"""The measured table of the README."""
