"""What was learnt: similarities that score, search, transform and are saved."""
