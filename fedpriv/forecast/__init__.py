"""What a run will cost and do: computed, or tried on made-up data, before it begins."""
