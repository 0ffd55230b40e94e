"""A world whose truth is known, and the words that name things in it: the inside of `towers synth`."""
