"""Models of the admin API: they validate requests, and its OpenAPI document is generated from them."""
