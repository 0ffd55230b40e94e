"""The inside of `towers synth`: a world whose truth is known, and the words that name its things."""
