"""The exceptions for errors in a user's own files or arguments, and for a refusal by the gate."""


class DataError(Exception):
    """An input file, a data set or an argument is wrong. The message names the file, the column and the row."""


class GateError(Exception):
    """The gate refuses a bundle. The message names the bundle and the reason."""
