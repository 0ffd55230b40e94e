"""The items of a bundle and the changes made to them since, as one."""
