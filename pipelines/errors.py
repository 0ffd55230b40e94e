"""The exception of the offline commands that a user's own files or arguments cause."""


class DataError(Exception):
    """An input file, a data set or an argument is wrong. The message names the file, the column and the row."""
