"""One module per route family."""
