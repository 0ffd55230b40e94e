"""Routes, their models, API keys and the OpenAPI document."""
