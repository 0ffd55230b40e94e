"""The one exception of this package that a user's own input causes; its text is written for that user."""


class ConfigError(Exception):
    """A setting, or a pair of settings, is wrong. The message names the key, what came and what is allowed."""
