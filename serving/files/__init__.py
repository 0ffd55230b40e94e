"""Where things are kept: atomic output, locks, errors of full disks, the URL of a database."""
