"""What a tracker records about a run, a report or a gate's result."""
