"""The protocol of a report: users, targets, item ages, and the leaks that make its figures doubtful."""
