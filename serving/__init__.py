"""The request path and the on-disk contract: bundle, index, encoder, recall, HTTP. Never imports `towers`."""
