"""The algorithms of papers: each file opens with its citation and update equations."""
