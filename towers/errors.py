"""Exceptions that a user's own input causes; their messages are written for that user."""


class ConfigError(Exception):
    """A setting, or a pair of settings, is wrong. The message names the key, the value and what is allowed."""


class DivergedError(Exception):
    """Training diverged. The message names step, batch and loss; the last good checkpoint is kept."""


class LostWorkerError(Exception):
    """Another worker of the training ended early; the last checkpoint is kept."""
