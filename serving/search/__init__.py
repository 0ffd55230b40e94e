"""Top-k search: exact, by ScaNN, filtered, diverse."""
