"""The algorithms of papers; each module begins with the paper's citation and update equations."""
