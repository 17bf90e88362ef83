"""Encoding engines: the reference and the window engines that are admitted against it."""
