"""From files of every accepted format to numbered, split, sorted event arrays: the inside of `towers prepare`.

In: events, items and users as files. Out: the data set's files (docs/design.md). `pipelines.prepare` composes them.
"""
