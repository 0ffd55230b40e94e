"""The parts of `towers tune`: search space, search, finals, the recipe's text."""
