"""Registry: the desired configuration, from the file, the admin API and discovery."""
