"""What a report asks and of whom: protocol options, ages of items, leaks and ties that make its figures doubtful."""
