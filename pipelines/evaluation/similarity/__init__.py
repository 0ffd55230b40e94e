"""The report of a bundle of `task = "similarity"`: are an item's nearest items like it?"""
