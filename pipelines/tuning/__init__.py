"""The parts of `towers tune`: search space, trials, next steps, finals, the recipe's text."""
