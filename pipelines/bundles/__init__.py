"""`towers export`, `index`, `fold`, `bundles`: bundles from runs, and new bundles from old ones."""
