"""The processes of a run and what they send each other, in the words of torch.distributed."""
