"""How fast Penstock is, as a ratio to a reference in the same run."""
