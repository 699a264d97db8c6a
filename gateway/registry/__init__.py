"""The desired configuration: what the file declares, what the admin API has set, what discovery found."""
