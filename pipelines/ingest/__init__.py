"""The inside of `towers prepare`: turns files of every accepted format into numbered, split, sorted event arrays.

`pipelines.ingest.prepare` combines the parts; docs/project/design.md describes the files of a data set.
`synthetic` is the inside of `towers synth`, which makes files for it.
"""
