"""Request parsing and admission: from an HTTP request to a Request for the scheduler."""
