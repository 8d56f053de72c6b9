"""How fast it is: timings side by side in one process, reported as ratios."""
