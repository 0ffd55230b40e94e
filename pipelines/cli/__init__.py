"""The `towers` command: words, help, exit codes, and the commands that only show something."""
