"""Web: the page at the admin port, as static files (gateway/admin/page_files.py)."""
