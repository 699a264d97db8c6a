"""The backend side of a call: sent, relayed, tried again, and settled by what it used."""
