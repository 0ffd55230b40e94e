"""The training of `task = "similarity"`: labels of items, and what is built of them."""
