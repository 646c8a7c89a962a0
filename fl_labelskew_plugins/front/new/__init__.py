"""Generate a starting folder for the user's own data or method; ``labelskew new`` uses it."""
