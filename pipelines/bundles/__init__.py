"""`towers export`, `index`, `fold`, `bundles`, and in `bulk` `recall` and `embed`: bundles from runs, and new bundles from old ones."""
