"""`make demo`: an agent session through the proxy against the embedded engine, every turn checked."""
