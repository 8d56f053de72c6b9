"""What a policy does, to look at: preview sheets and summaries."""
