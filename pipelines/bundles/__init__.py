"""`towers export`, `index`, `fold`, `bundles`: bundles from runs, new bundles from old ones; `bulk`: their answers."""
