"""Below the routes: limits, deadlines and graceful shutdown."""
