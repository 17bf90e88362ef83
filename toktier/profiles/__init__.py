"""Engine profiles: how each engine turns a chat request into template input."""
