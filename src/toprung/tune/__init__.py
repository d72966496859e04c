"""The tuner: it searches for faster kernel configurations and stores what it measures."""
