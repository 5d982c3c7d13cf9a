"""The arguments and options of each command; the modules of the parent folder implement the commands."""
