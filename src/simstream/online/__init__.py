"""Online learners, which learn from one comparison at a time."""
