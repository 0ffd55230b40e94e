"""The exceptions of this package that a user's own input causes; their texts are written for that user."""


class ConfigError(Exception):
    """A setting, or a pair of settings, is wrong. The message names the key, what came and what is allowed."""


class DivergedError(Exception):
    """Training went astray. The message names step, batch and loss; the last good checkpoint is kept."""
