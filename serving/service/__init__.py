"""One process: which bundles serve, and how well."""
