"""The exception for errors in a user's own files or arguments."""


class DataError(Exception):
    """An input file, a data set or an argument is wrong. The message names the file, the column and the row."""
