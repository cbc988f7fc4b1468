"""Who learns, one comparison at a time."""
