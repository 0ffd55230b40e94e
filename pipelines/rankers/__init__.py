"""Everything that ranks items for held-out users, evaluated alike: a bundle, an index, the baselines."""
