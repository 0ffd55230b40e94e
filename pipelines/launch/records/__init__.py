"""What a tracker is told of a run, a report or a gate's result."""
