"""What `towers tune` is made of: the space, one trial's training, what is tried next, the finals, the recipe's text."""
