"""`towers export`, `index`, `recall`, `fold`, `bundles`: bundles from runs, and new bundles from old ones."""
