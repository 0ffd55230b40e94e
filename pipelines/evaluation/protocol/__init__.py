"""The protocol of a report: users, targets, item ages, and the leaks and ties that make its figures doubtful."""
