"""The bundle on disk: writing, opening, versions."""
